//! Keep tokens that stand out against the tokens after them: LagKV.
//!
//! Tokens after the sinks are cut into partitions of `lag` in time order. Each channel of a partition is scaled by the
//! smallest and largest value of the next partition; a token's deviation is the softmax over its partition of the
//! standard deviation over its scaled channels, mean of key and value. A token scores its rank inside the partition, as
//! a share of `lag`; sinks, the last partition and the tail score 1. With fewer than sinks + 2 · lag tokens, later ones
//! score more. Paper: Liang et al. 2025, "LagKV" (arXiv 2504.04704); code NVIDIA/kvpress
//! `kvpress/presses/lagkv_press.py`. Scores of different partitions tie by construction: the earlier position wins.
//! Differs: partitions run over the resident tokens in time order, whatever order the slots have. Needs: k, v. Cost:
//! O(n · head_dim).

use super::Score;
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};
use crate::types::Pos;

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "lag-kv",
    family: Family::Score,
    summary: "rank of a token's deviation inside its partition, scaled by the next one (LagKV)",
    citation: "Liang et al. 2025, arXiv 2504.04704; NVIDIA/kvpress kvpress/presses/lagkv_press.py",
    needs: Needs::KV,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        if params.lag == 0 {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "lag",
                found: "0".to_owned(),
                accepted: "1 or more",
            });
        }
        Ok(Box::new(LagKv { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Tokens a partition.
    lag: u32 = 128,
    /// First resident tokens that score 1 and belong to no partition.
    sinks: u32 = 4,
}

#[derive(Debug)]
struct LagKv {
    params: Params,
}

/// Standard deviation over the channels of each of `rows`, scaled by the extremes of `reference`, softmax over `rows`.
#[expect(clippy::cast_precision_loss, reason = "heads are a few hundred wide")]
fn deviations<'a>(rows: &[&'a [f32]], reference: &[&'a [f32]]) -> Vec<f32> {
    let width = rows.first().map_or(0, |row| row.len());
    let mut low = vec![f32::INFINITY; width];
    let mut high = vec![f32::NEG_INFINITY; width];
    for row in reference {
        for (channel, &x) in row.iter().enumerate() {
            low[channel] = if x < low[channel] { x } else { low[channel] };
            high[channel] = if x > high[channel] { x } else { high[channel] };
        }
    }
    let mut spread: Vec<f32> = rows
        .iter()
        .map(|row| {
            // A channel that the reference holds still says nothing; a NaN stays one.
            let scale = |(c, x): (usize, &f32)| {
                let (apart, width) = (x - low[c], high[c] - low[c]);
                if width > 0.0 { apart / width } else { 0.0 * apart }
            };
            let scaled: Vec<f32> = row.iter().enumerate().map(scale).collect();
            let mean = num::sum(&scaled) / width as f32;
            let apart: Vec<f32> = scaled.iter().map(|x| x - mean).collect();
            (num::dot(&apart, &apart) / (width.saturating_sub(1).max(1) as f32)).sqrt()
        })
        .collect();
    num::softmax(&mut spread);
    spread
}

impl LagKv {
    /// Scores of tokens in time order.
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^24")]
    fn in_time_order(&self, view: &HeadView<'_>, tokens: &[Pos]) -> Vec<f32> {
        let (lag, sinks) = (self.params.lag as usize, self.params.sinks as usize);
        let total = tokens.len();
        if total < sinks + 2 * lag {
            // Sinks last as long as the newest.
            let rank = |at: usize| if at < sinks { total } else { at };
            return (0..total).map(|at| rank(at) as f32 / total as f32).collect();
        }
        let keys: Vec<&[f32]> = tokens[sinks..].iter().map(|&pos| view.data.key(pos)).collect();
        let values: Vec<&[f32]> = tokens[sinks..].iter().map(|&pos| view.data.value(pos)).collect();
        let mut scores = vec![1.0; total];
        let partitions = (total - sinks) / lag;
        for partition in 0..partitions - 1 {
            let (here, next) =
                (partition * lag..(partition + 1) * lag, (partition + 1) * lag..(partition + 2) * lag);
            let of_keys = deviations(&keys[here.clone()], &keys[next.clone()]);
            let of_values = deviations(&values[here.clone()], &values[next]);
            let mean: Vec<f32> = of_keys.iter().zip(&of_values).map(|(k, v)| (k + v) / 2.0).collect();
            let first = sinks + here.start;
            if mean.iter().any(|x| x.is_nan()) {
                scores[first..first + lag].copy_from_slice(&mean);
                continue;
            }
            let mut order: Vec<usize> = (0..lag).collect();
            order.sort_by(|&a, &b| mean[a].total_cmp(&mean[b]));
            for (rank, at) in order.into_iter().enumerate() {
                scores[first + at] = rank as f32 / lag as f32;
            }
        }
        scores
    }
}

impl Score for LagKv {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        let mut slots: Vec<usize> = (0..view.resident.len()).collect();
        slots.sort_unstable_by_key(|&slot| view.resident[slot]);
        let tokens: Vec<Pos> = slots.iter().map(|&slot| view.resident[slot]).collect();
        let scores = self.in_time_order(view, &tokens);
        out.clear();
        out.resize(view.resident.len(), 0.0);
        slots.iter().zip(scores).for_each(|(&slot, score)| out[slot] = score);
        out.truncate(view.scored().len());
        Ok(())
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
