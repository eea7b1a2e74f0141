//! Attention as it is usually found: sinks, heavy hitters and locality; values with heavy-tailed ranges; entropies
//! that fall with depth.
//!
//! The logit of query position `i` for key position `j` is, after division by `sqrt(head_dim)`,
//! `bonus(j) + locality(i - j) + noise`:
//!
//! * channel 0 carries the bonus: large at position 0 (the sink), 2 to 5 at one position in sixteen (the heavy hitters:
//!   the same positions in all layers and heads of a sequence), 0 elsewhere;
//! * up to four pairs of channels turn with the position, each pair slower than the one before, so that their sum is
//!   largest at distance 0 and falls with distance;
//! * the channels left are independent normal noise.
//!
//! A value vector is normal, times a scale with density ∝ scale⁻³ (a Pareto tail), capped at 20; small at the sink.
//! Lens facts are those of an actual distribution: one token with probability `p`, the rest shared evenly by `m`
//! others, `p` growing and `m` falling with depth.

use super::{Generator, SynthSpec, check_params};
use crate::num;
use crate::rng::{Purpose, Stream, StreamKey};
use crate::trace::{LayerTensors, LensFact, LensPosition, RawLensFact, TraceError};
use crate::types::{LayerIdx, Pos, SeqIdx, TokenId};
use ndarray::Array3;
use serde::{Deserialize, Serialize};

const ID: &str = "sinks-and-hitters";
/// Period in tokens of the fastest pair; each further pair is four times slower.
const FIRST_PERIOD: u32 = 32;
const MOST_PAIRS: usize = 4;

/// What a stream is drawn for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Queries,
    Keys,
    Values,
    Hitters,
    Lens,
    Tokens,
}

impl Part {
    /// The stream of this part; `layer` and `head` are 0 where the part has none.
    pub(super) fn stream(self, id: &str, spec: &SynthSpec, seq: SeqIdx, layer: u16, head: u16) -> Stream {
        let branch = match self {
            Self::Queries => 0,
            Self::Keys => 1,
            Self::Values => 2,
            Self::Hitters => 3,
            Self::Lens => 4,
            Self::Tokens => 5,
        };
        StreamKey { seq: seq.get(), branch, layer, head, ..StreamKey::new(spec.seed, Purpose::Workload, id) }
            .stream()
    }
}

/// What the generated attention, values and entropies look like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SinksParams {
    /// First positions that are sinks.
    pub sinks: u32,
    /// Bonus of a sink's logit.
    pub sink_bonus: f64,
    /// Share of the other positions that are heavy hitters.
    pub hitter_share: f64,
    /// Smallest bonus of a heavy hitter's logit; the largest is 2.5 times that.
    pub hitter_bonus: f64,
    /// Bonus of the nearest position's logit over far ones.
    pub locality: f64,
    /// Exponent of the tail of value scales: P(scale > x) = x^-tail.
    pub value_tail: f64,
    /// Largest value scale.
    pub widest: f64,
    /// Factor on the values of each layer, `[layer]`; 1 for layers beyond.
    pub value_scale: Vec<f64>,
    /// Mean entropy of the lens by layer in nats, `[layer]`; layers beyond follow from depth and vocabulary.
    pub entropy_nats: Vec<f64>,
}

impl Default for SinksParams {
    fn default() -> Self {
        Self {
            sinks: 1,
            sink_bonus: 6.0,
            hitter_share: 1.0 / 16.0,
            hitter_bonus: 2.0,
            locality: 3.0,
            value_tail: 2.0,
            widest: 20.0,
            value_scale: Vec::new(),
            entropy_nats: Vec::new(),
        }
    }
}

impl SinksParams {
    /// Refuses what cannot be generated.
    pub(super) fn check(&self) -> Result<(), TraceError> {
        check_params("hitter_share", self.hitter_share, 0.0, 1.0)?;
        check_params("value_tail", self.value_tail, 0.1, 1e3)?;
        check_params("widest", self.widest, 1.0, 1e3)?;
        for (what, value) in [
            ("sink_bonus", self.sink_bonus),
            ("hitter_bonus", self.hitter_bonus),
            ("locality", self.locality),
        ] {
            check_params(what, value, 0.0, 1e3)?;
        }
        self.value_scale.iter().try_for_each(|&scale| check_params("value_scale", scale, 0.0, 1e6))?;
        self.entropy_nats.iter().try_for_each(|&entropy| check_params("entropy_nats", entropy, 0.0, 30.0))
    }
}

/// The generator.
#[derive(Clone, Debug, Default)]
pub(super) struct SinksAndHitters {
    pub(super) params: SinksParams,
}

impl Generator for SinksAndHitters {
    fn layer(&self, spec: &SynthSpec, seq: SeqIdx, layer: LayerIdx) -> LayerTensors {
        let params = &self.params;
        let bonus = bonuses(params, spec, seq);
        let scale = params.value_scale.get(layer.idx()).copied().unwrap_or(1.0);
        let root = f64::from(spec.shape.head_dim).sqrt();
        let build = |part: Part, heads: u16, row: &dyn Fn(u32, &mut Stream, &mut [f32])| {
            let (len, width) = (spec.len(seq) as usize, usize::from(spec.shape.head_dim));
            let mut tensor = Array3::zeros((usize::from(heads), len, width));
            for (head, mut rows) in (0_u16..).zip(tensor.outer_iter_mut()) {
                let mut stream = part.stream(ID, spec, seq, layer.get(), head);
                for (pos, mut out) in (0_u32..).zip(rows.outer_iter_mut()) {
                    row(pos, &mut stream, out.as_slice_mut().expect("a row of a new array is contiguous"));
                }
            }
            tensor
        };
        LayerTensors {
            q: build(Part::Queries, spec.shape.q_heads, &|pos, stream, out| {
                turning_row(params.locality, (root, root), pos, stream, out)
            }),
            k: build(Part::Keys, spec.shape.kv_heads, &|pos, stream, out| {
                turning_row(params.locality, (bonus[pos as usize], 1.0), pos, stream, out);
            }),
            v: build(Part::Values, spec.shape.kv_heads, &|pos, stream, out| {
                value_row(params, scale, pos, stream, out);
            }),
        }
    }

    fn lens(&self, spec: &SynthSpec, seq: SeqIdx, ranks: u16) -> Vec<LensPosition> {
        lens(ID, &self.params, spec, seq, ranks)
    }

    fn tokens(&self, spec: &SynthSpec, seq: SeqIdx) -> Vec<TokenId> {
        tokens(ID, spec, seq)
    }
}

/// A generated number at the precision of a trace.
#[expect(clippy::cast_possible_truncation, reason = "rounding to binary32 is wanted")]
pub(super) fn narrow(value: f64) -> f32 {
    value as f32
}

/// The bonus of each key position, `[kv_pos]`.
fn bonuses(params: &SinksParams, spec: &SynthSpec, seq: SeqIdx) -> Vec<f64> {
    let mut stream = Part::Hitters.stream(ID, spec, seq, 0, 0);
    (0..spec.len(seq))
        .map(|pos| {
            let (chance, size) = (stream.uniform(), stream.uniform());
            if pos < params.sinks {
                params.sink_bonus
            } else if chance < params.hitter_share {
                params.hitter_bonus + 1.5 * params.hitter_bonus * size
            } else {
                0.0
            }
        })
        .collect()
}

/// A query or key: `first` in channel 0, turning pairs of length `sqrt(locality a pair) * gain`, noise.
fn turning_row(locality: f64, (first, gain): (f64, f64), pos: u32, stream: &mut Stream, out: &mut [f32]) {
    let pairs = ((out.len().max(1) - 1) / 2).min(MOST_PAIRS);
    let share = locality / f64::from(u32::try_from(pairs.max(1)).unwrap_or(1));
    let mut period = FIRST_PERIOD;
    for (channel, value) in out.iter_mut().enumerate() {
        // Drawn for every channel, so that the number of draws a position does not depend on the branch taken.
        let noise = stream.normal();
        *value = narrow(if channel == 0 {
            first
        } else if channel <= 2 * pairs {
            let turn = f64::from(pos % period) / f64::from(period);
            let is_sine = channel.is_multiple_of(2);
            let turn = if is_sine { (turn + 0.75) % 1.0 } else { turn };
            if is_sine {
                period *= 4;
            }
            share.sqrt() * gain * num::cos_turn(turn)
        } else {
            noise
        });
    }
}

fn value_row(params: &SinksParams, layer_scale: f64, pos: u32, stream: &mut Stream, out: &mut [f32]) {
    let is_sink = pos < params.sinks;
    let u = stream.uniform();
    let tail = if (params.value_tail - 2.0).abs() < f64::EPSILON {
        1.0 / u.sqrt()
    } else {
        f64::from(num::exp(narrow(-num::ln(u) / params.value_tail)))
    };
    let scale = tail.min(params.widest) * if is_sink { 0.1 } else { 1.0 } * layer_scale;
    for value in out {
        *value = narrow(scale * stream.normal());
    }
}

/// Tokens drawn evenly from the vocabulary.
pub(super) fn tokens(id: &str, spec: &SynthSpec, seq: SeqIdx) -> Vec<TokenId> {
    let mut stream = Part::Tokens.stream(id, spec, seq, 0, 0);
    (0..spec.len(seq)).map(|_| TokenId::new(draw_token(&mut stream, spec.shape.vocab))).collect()
}

fn draw_token(stream: &mut Stream, vocab: u32) -> u32 {
    u32::try_from(stream.below(u64::from(vocab))).unwrap_or_default()
}

/// Lens facts from the last prompt position on.
pub(super) fn lens(
    id: &str,
    params: &SinksParams,
    spec: &SynthSpec,
    seq: SeqIdx,
    ranks: u16,
) -> Vec<LensPosition> {
    let shape = spec.shape;
    let mut stream = Part::Lens.stream(id, spec, seq, 0, 0);
    (spec.prompt_len(seq) - 1..spec.len(seq))
        .map(|pos| {
            // An easy position settles early and ends sure; a hard one does neither.
            let ease = stream.uniform();
            let last = draw_token(&mut stream, shape.vocab);
            let layers = (1..=shape.layers)
                .map(|done| {
                    let depth = f64::from(done) / f64::from(shape.layers);
                    let (shake, other) = (stream.uniform(), draw_token(&mut stream, shape.vocab));
                    let is_settled = done == shape.layers || depth > 1.0 - 0.7 * ease;
                    let sure = depth * depth * (0.3 + 0.68 * ease) * (0.9 + 0.1 * shake);
                    let top1 = if is_settled { last } else { other };
                    match params.entropy_nats.get(usize::from(done - 1)) {
                        // Easy positions are below the mean, hard ones above.
                        Some(mean) => {
                            let target = mean * (1.5 - ease) * (0.95 + 0.1 * shake);
                            fact_of(
                                shape.vocab,
                                top1,
                                p_of(shape.vocab, target),
                                (shape.vocab - 1).into(),
                                depth,
                                ranks,
                            )
                        }
                        None => fact(shape.vocab, top1, sure, depth, ranks),
                    }
                })
                .collect();
            LensPosition { pos: Pos::new(pos), layers }
        })
        .collect()
}

/// Facts of the distribution that gives `top1` a probability between 1/vocab and 1, at `sure` of the way, and shares the
/// rest evenly among `m` other tokens.
fn fact(vocab: u32, top1: u32, sure: f64, depth: f64, ranks: u16) -> LensFact {
    let p = (1.0 + f64::from(vocab - 1) * sure) / f64::from(vocab);
    let rest = if vocab == 1 { 0.0 } else { 1.0 - p };
    // As many others as keep each below `top1`, fewer by a factor of 2 for each bit of depth.
    let bits = f64::from(u32::BITS - vocab.leading_zeros());
    let shift = (0..u32::BITS).take_while(|&bit| f64::from(bit + 1) <= depth * bits).count();
    let least = (rest / p).ceil().max(1.0);
    let others = f64::from((vocab - 1) >> shift.min(31)).max(least);
    fact_of(vocab, top1, p, others, depth, ranks)
}

/// The probability that gives one token and an even rest an entropy of `target` nats, as far as there is one.
fn p_of(vocab: u32, target: f64) -> f64 {
    let (mut low, mut high) = (1.0 / f64::from(vocab), 1.0);
    for _ in 0..40 {
        let p = f64::midpoint(low, high);
        let each = (1.0 - p) / f64::from(vocab.max(2) - 1);
        let entropy = if p < 1.0 { -p * num::ln(p) - (1.0 - p) * num::ln(each) } else { 0.0 };
        if entropy > target { low = p } else { high = p }
    }
    f64::midpoint(low, high)
}

/// Facts of the distribution that gives `top1` the probability `p` and shares the rest evenly among `others` tokens.
fn fact_of(vocab: u32, top1: u32, p: f64, others: f64, depth: f64, ranks: u16) -> LensFact {
    let most = num::ln(f64::from(vocab));
    let rest = if vocab == 1 { 0.0 } else { 1.0 - p };
    let each = rest / others;
    let entropy = if rest > 0.0 { -p * num::ln(p) - rest * num::ln(each) } else { 0.0 };
    let logsumexp = 10.0 + 5.0 * depth;
    let mut top = vec![(TokenId::new(top1), narrow(logsumexp + num::ln(p)))];
    let beyond = logsumexp - 60.0;
    for rank in 1..u32::from(ranks.max(1)) {
        let token = (top1 + rank) % vocab;
        let logit = if rest > 0.0 && f64::from(rank) <= others { logsumexp + num::ln(each) } else { beyond };
        top.push((TokenId::new(token), narrow(logit.min(f64::from(top[0].1)))));
    }
    top[1..].sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    LensFact {
        entropy_nats: narrow(entropy.clamp(0.0, most)),
        logsumexp: narrow(logsumexp),
        raw: Some(RawLensFact {
            entropy_nats: narrow(most * (1.0 - 0.5 * depth * depth)),
            logsumexp: narrow(most + depth),
        }),
        top,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SynthLength, Synthetic};
    use super::*;
    use crate::trace::TraceSource;
    use crate::types::ModelShape;

    fn spec(len: u32) -> SynthSpec {
        let shape = ModelShape { layers: 2, q_heads: 4, kv_heads: 2, head_dim: 16, hidden: 64, vocab: 500 };
        SynthSpec { shape, lengths: vec![SynthLength { prompt_len: 1, len }], seed: 11 }
    }

    /// Attention probabilities of the last query of head 0, `[kv_pos]`.
    fn last_row(tensors: &LayerTensors) -> Vec<f64> {
        let (_, len, width) = tensors.q.dim();
        let root = f64::from(u32::try_from(width).unwrap()).sqrt();
        let q = tensors.q.index_axis(ndarray::Axis(0), 0);
        let k = tensors.k.index_axis(ndarray::Axis(0), 0);
        let weights: Vec<f64> =
            (0..len).map(|j| (f64::from(q.row(len - 1).dot(&k.row(j))) / root).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / total).collect()
    }

    #[test]
    fn attention_has_a_sink_hitters_and_locality() {
        let spec = spec(400);
        let tensors = SinksAndHitters::default().layer(&spec, SeqIdx::new(0), LayerIdx::new(1));
        let row = last_row(&tensors);
        let even = 1.0 / 400.0;
        let mean = |positions: &mut dyn Iterator<Item = usize>| {
            let picked: Vec<f64> = positions.map(|j| row[j]).collect();
            picked.iter().sum::<f64>() / f64::from(u32::try_from(picked.len()).unwrap())
        };
        let bonus = bonuses(&SinksParams::default(), &spec, SeqIdx::new(0));
        assert!(row[0] > 10.0 * even, "{}", row[0]);
        let hitters = mean(&mut (1..300).filter(|&j| bonus[j] > 0.0));
        let plain = mean(&mut (1..300).filter(|&j| bonus[j] == 0.0));
        assert!(hitters > 4.0 * plain, "{hitters} {plain}");
        let recent = mean(&mut (396..400));
        assert!(recent > 4.0 * plain, "{recent} {plain}");
    }

    #[test]
    fn value_ranges_have_a_heavy_tail() {
        let tensors = SinksAndHitters::default().layer(&spec(2000), SeqIdx::new(0), LayerIdx::new(0));
        let mut ranges: Vec<f32> =
            tensors.v.index_axis(ndarray::Axis(0), 0).outer_iter().map(|v| num::range(&v.to_vec())).collect();
        ranges.sort_by(f32::total_cmp);
        // P(scale > 7) = 1/49: the widest hundredth is more than four times as wide as the median.
        assert!(ranges[1980] > 4.0 * ranges[1000], "{} {}", ranges[1980], ranges[1000]);
    }

    #[test]
    fn entropy_falls_with_depth_and_ends_below_its_start() {
        let spec = SynthSpec { shape: ModelShape { layers: 8, ..spec(64).shape }, ..spec(64) };
        let lens = SinksAndHitters::default().lens(&spec, SeqIdx::new(0), 1);
        let mean =
            |layer: usize| lens.iter().map(|at| f64::from(at.layers[layer].entropy_nats)).sum::<f64>() / 64.0;
        assert!(mean(0) > 5.0 && mean(4) < mean(0) && mean(7) < 2.5, "{} {} {}", mean(0), mean(4), mean(7));
    }

    #[test]
    fn entropy_is_what_was_asked_for_by_layer() {
        let params = SinksParams { entropy_nats: vec![5.0, 2.0], ..SinksParams::default() };
        let lens = SinksAndHitters { params }.lens(&spec(2000), SeqIdx::new(0), 1);
        for (layer, target) in [(0, 5.0), (1, 2.0)] {
            let mean = lens.iter().map(|at| f64::from(at.layers[layer].entropy_nats)).sum::<f64>() / 2000.0;
            assert!((mean / target - 1.0_f64).abs() < 0.1, "layer {layer}: {mean}");
        }
    }

    #[test]
    fn a_longer_sequence_begins_with_the_shorter() {
        let (short, long) = (spec(20), spec(33));
        let at = |spec: &SynthSpec| SinksAndHitters::default().layer(spec, SeqIdx::new(0), LayerIdx::new(1));
        assert_eq!(at(&short).k, at(&long).k.slice(ndarray::s![.., ..20, ..]));
        assert_eq!(tokens(ID, &short, SeqIdx::new(0)), tokens(ID, &long, SeqIdx::new(0))[..20]);
        let lens = |spec: &SynthSpec| SinksAndHitters::default().lens(spec, SeqIdx::new(0), 3);
        assert_eq!(lens(&short), lens(&long)[..20]);
    }

    #[test]
    fn what_is_generated_is_pinned() {
        // A change of this number changes every study on generated traces: it needs a line in CHANGELOG.md.
        let source = Synthetic::build(ID, spec(5)).unwrap();
        let tensors = source.layer(SeqIdx::new(0), LayerIdx::new(1)).unwrap();
        let bits = tensors
            .q
            .iter()
            .chain(&tensors.k)
            .chain(&tensors.v)
            .fold(0_u64, |hash, value| hash.wrapping_mul(0x0100_0000_01B3) ^ u64::from(value.to_bits()));
        assert_eq!(bits, 6_609_540_672_487_124_203);
    }
}
