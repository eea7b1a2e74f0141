//! Lens facts computed again from hidden states and the head, when a trace holds all three.

use super::facts_schema::{LENS, LENS_TOP};
use super::manifest::SequenceInfo;
use super::reader::Trace;
use super::source::TraceSource;
use super::{Dtype, TraceError};
use crate::num;
use crate::types::{LayerIdx, SeqIdx, TokenId};
use ndarray::Array2;

/// (position, layer) pairs that are looked at when not all are.
const SAMPLE: usize = 16;

/// Computes lens facts again: all of them, or a sample that is evenly spread over the trace. Gives how many.
///
/// # Errors
/// At the first that differs by more than rounding explains.
pub(crate) fn check(trace: &Trace, is_deep: bool) -> Result<u64, TraceError> {
    let needed = ["hidden", "weights.final_norm", "weights.unembedding", "lens.top1_token"];
    let manifest = trace.manifest();
    if needed.iter().any(|field| !manifest.holds(field)) {
        return Ok(0);
    }
    let head = Head {
        gain: trace.final_norm()?,
        eps: manifest.final_norm.as_ref().map_or(0.0, |norm| norm.eps),
        unembedding: trace.unembedding()?,
        is_half: manifest.dtype("weights.unembedding") == Some(Dtype::F16.word()),
    };
    let layers = u64::from(trace.shape().layers);
    let total: u64 = manifest.sequences.iter().map(|info| u64::from(info.lens_positions) * layers).sum();
    let step = if is_deep { 1 } else { (total / SAMPLE as u64).max(1) };
    // A step that shares a factor with the layers would look at few of them.
    let step = if is_deep || step < 2 {
        step
    } else {
        (step..).find(|step| gcd(*step, layers) == 1).unwrap_or(step)
    };
    let (mut at, mut checked) = (0, 0);
    for info in &manifest.sequences {
        let count = u64::from(info.lens_positions) * layers;
        let wanted: Vec<u64> = (at..at + count).filter(|row| row % step == 0).map(|row| row - at).collect();
        at += count;
        checked += check_sequence(trace, info, &head, &wanted)?;
    }
    Ok(checked)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

struct Head {
    gain: Vec<f32>,
    eps: f64,
    /// `[vocab, hidden]`
    unembedding: Array2<f32>,
    is_half: bool,
}

/// What the head says about one state.
struct Seen {
    entropy: f64,
    logsumexp: f64,
    /// The largest logit and its token.
    top: (f32, u32),
    largest: f32,
    /// The logits, `[vocab]`.
    logits: Vec<f32>,
}

impl Head {
    fn normed(&self, hidden: &[f32]) -> Vec<f32> {
        let squares: f64 = hidden.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        #[expect(clippy::cast_precision_loss, reason = "hidden sizes are small")]
        let scale = 1.0 / (squares / hidden.len() as f64 + self.eps).sqrt();
        #[expect(clippy::cast_possible_truncation, reason = "rounding to binary32 is wanted")]
        let scale = scale as f32;
        hidden.iter().zip(&self.gain).map(|(x, gain)| x * scale * gain).collect()
    }

    fn see(&self, state: &[f32]) -> Seen {
        let logits: Vec<f32> = self
            .unembedding
            .outer_iter()
            .map(|row| num::dot(row.as_slice().unwrap_or_default(), state))
            .collect();
        let (mut top, mut largest) = ((f32::NEG_INFINITY, 0), 0.0_f32);
        for (token, &logit) in (0..).zip(&logits) {
            largest = largest.max(logit.abs());
            if logit > top.0 {
                top = (logit, token);
            }
        }
        // ln Σ exp and Σ p·logit, in binary64 over exponentials in binary32.
        let (mut sum, mut weighted) = (0.0_f64, 0.0_f64);
        for &logit in &logits {
            let weight = f64::from(num::exp(logit - top.0));
            sum += weight;
            weighted += weight * f64::from(logit - top.0);
        }
        let logsumexp = f64::from(top.0) + num::ln(sum);
        Seen { entropy: (num::ln(sum) - weighted / sum).max(0.0), logsumexp, top, largest, logits }
    }
}

/// Checks rows `wanted` of the sequence's lens facts.
fn check_sequence(
    trace: &Trace,
    info: &SequenceInfo,
    head: &Head,
    wanted: &[u64],
) -> Result<u64, TraceError> {
    if wanted.is_empty() {
        return Ok(0);
    }
    let seq = SeqIdx::new(info.seq);
    let table = trace.lens_table(seq)?;
    let top = if trace.manifest().lens_top > 0 { trace.lens_top(seq)? } else { Vec::new() };
    let mut checked = 0;
    let mut rows: Vec<usize> = wanted.iter().filter_map(|&row| usize::try_from(row).ok()).collect();
    // Rows of a layer together: its states are read once a shard.
    rows.sort_by_key(|&row| (table.rows[row].layer, row));
    for row in rows {
        let fact = table.rows[row];
        let hidden =
            trace.hidden_window(seq, LayerIdx::new(fact.layer.get()), fact.pos.get()..fact.pos.get() + 1)?;
        let state = hidden.row(0).to_vec();
        let normed = head.see(&head.normed(&state));
        let compare = |column: &str, found: f64, expected: f64, slack: f64| {
            if (found - expected).abs() <= slack {
                return Ok(());
            }
            let place = format!("{column}, sequence {seq}, position {}, layer {}", fact.pos, fact.layer);
            let accepted = format!("{expected} from hidden state and head, with a slack of {slack}");
            Err(TraceError::malformed(&trace.path().join(LENS), place, found, accepted))
        };
        // Products in another order, and perhaps weights in half precision: errors grow with the logits.
        let unit = if head.is_half { 2e-3 } else { 1e-4 };
        let slack = |seen: &Seen| 5e-3 + unit * f64::from(seen.largest);
        compare("entropy_nats", fact.entropy_nats.into(), normed.entropy, slack(&normed))?;
        compare("logsumexp", table.logsumexp[row].into(), normed.logsumexp, slack(&normed))?;
        compare("top1_logit", table.top1_logit[row].into(), normed.top.0.into(), slack(&normed))?;
        if let (Some(entropy), Some(logsumexp)) = (fact.raw_entropy_nats, table.raw_logsumexp[row]) {
            let raw = head.see(&state);
            compare("raw_entropy_nats", entropy.into(), raw.entropy, slack(&raw))?;
            compare("raw_logsumexp", logsumexp.into(), raw.logsumexp, slack(&raw))?;
        }
        // The recorded token is the largest, or as large as rounding allows.
        let logit = normed.logits.get(fact.top1.idx()).copied().unwrap_or(f32::NEG_INFINITY);
        let place = format!("top1_token {} (the largest is {})", fact.top1, normed.top.1);
        compare(&place, logit.into(), normed.top.0.into(), slack(&normed))?;
        if let Some(top) = top.get(row) {
            check_ranks(
                trace,
                top,
                &normed,
                slack(&normed),
                &format!("sequence {seq}, position {}, layer {}", fact.pos, fact.layer),
            )?;
        }
        checked += 1;
    }
    Ok(checked)
}

/// Checks the largest logits by rank: each is that of its token, and as large as the logit of that rank is.
fn check_ranks(
    trace: &Trace,
    top: &[(TokenId, f32)],
    seen: &Seen,
    slack: f64,
    place: &str,
) -> Result<(), TraceError> {
    let mut sorted = seen.logits.clone();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    for (rank, (&(token, logit), largest)) in top.iter().zip(sorted).enumerate() {
        let own = seen.logits.get(token.idx()).copied().unwrap_or(f32::NEG_INFINITY);
        for (found, expected) in [(logit, own), (own, largest)] {
            if (f64::from(found) - f64::from(expected)).abs() > slack {
                let place = format!("logit of token {token}, {place}, rank {rank}");
                let accepted = format!("{expected} from hidden state and head, with a slack of {slack}");
                return Err(TraceError::malformed(&trace.path().join(LENS_TOP), place, found, accepted));
            }
        }
    }
    Ok(())
}
