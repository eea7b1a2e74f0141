//! From a row of logits to the numbers that are recorded about it.

use super::{
    error::BadLogits,
    exp::{CUT, exp_nonpositive},
};

/// Lanes of a partial sum; 16 `f32` fill the widest vector registers.
const LANES: usize = 16;
/// Elements that are summed in `f32` before the sum goes on in `f64`.
const BLOCK: usize = 128;

/// A token with its logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopToken {
    /// The token.
    pub token: u32,
    /// Its logit.
    pub logit: f32,
}

/// What is recorded about a distribution over the vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Entropy in nats. Entries of minus infinity add nothing; a single allowed token gives exactly zero.
    pub entropy_nats: f64,
    /// ln of the sum of the exponentials of the logits.
    pub log_sum_exp: f64,
    /// The largest logits, falling; equal ones by rising token.
    pub top: Vec<TopToken>,
}

impl Distribution {
    /// Of a row of logits, `[vocab]`, with its `top` largest.
    ///
    /// # Errors
    /// A NaN, plus infinity, or nothing but minus infinity.
    pub fn of_logits(logits: &[f32], top: usize) -> Result<Self, BadLogits> {
        let largest = largest(logits);
        if largest == f32::NEG_INFINITY || logits.is_empty() {
            return Err(bad(logits));
        }
        let (sum, weighted) = sums(logits, largest);
        // A NaN or an infinity anywhere ends up in the sum.
        if !sum.is_finite() || !largest.is_finite() {
            return Err(bad(logits));
        }
        let entropy_nats = (sum.ln() - weighted / sum).max(0.0);
        Ok(Self { entropy_nats, log_sum_exp: f64::from(largest) + sum.ln(), top: largest_few(logits, top) })
    }

    /// Probability of the most probable token; zero when no top token was asked for.
    #[must_use]
    pub fn top_probability(&self) -> f64 {
        self.top.first().map_or(0.0, |first| (f64::from(first.logit) - self.log_sum_exp).exp())
    }
}

/// The largest entry; NaN entries are passed over.
fn largest(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = if *value > *lane { *value } else { *lane };
        }
    }
    lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, |best, value| if value > best { value } else { best })
}

/// Sum of `e^(x - largest)`, and of the same times `x - largest`.
fn sums(logits: &[f32], largest: f32) -> (f64, f64) {
    let (mut sum, mut weighted) = (0.0_f64, 0.0_f64);
    for block in logits.chunks(BLOCK) {
        let (mut sum_lanes, mut weighted_lanes) = ([0.0_f32; LANES], [0.0_f32; LANES]);
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            for lane in 0..LANES {
                let (share, weight) = term(chunk[lane], largest);
                sum_lanes[lane] += share;
                weighted_lanes[lane] += weight;
            }
        }
        for (lane, value) in rest.iter().enumerate() {
            let (share, weight) = term(*value, largest);
            sum_lanes[lane] += share;
            weighted_lanes[lane] += weight;
        }
        sum += sum_lanes.iter().copied().map(f64::from).sum::<f64>();
        weighted += weighted_lanes.iter().copied().map(f64::from).sum::<f64>();
    }
    (sum, weighted)
}

#[inline(always)]
fn term(logit: f32, largest: f32) -> (f32, f32) {
    let below = logit - largest;
    // Minus infinity times zero would be NaN: what is below the cut counts as the cut, where the share is zero.
    let below = if below < CUT { CUT - 1.0 } else { below };
    let share = exp_nonpositive(below);
    (share, share * below)
}

/// The `count` largest, falling, equal ones by rising index.
fn largest_few(logits: &[f32], count: usize) -> Vec<TopToken> {
    let mut top: Vec<TopToken> = Vec::with_capacity(count + 1);
    if count == 0 {
        return top;
    }
    let mut bar = f32::NEG_INFINITY;
    for (token, logit) in (0_u32..).zip(logits) {
        // Strictly above: of equal ones the first stays.
        if *logit > bar || (top.len() < count && *logit > f32::NEG_INFINITY) {
            let place = top.partition_point(|kept| kept.logit >= *logit);
            top.insert(place, TopToken { token, logit: *logit });
            top.truncate(count);
            if top.len() == count {
                bar = top[count - 1].logit;
            }
        }
    }
    top
}

/// Says what is wrong with logits that something is wrong with.
fn bad(logits: &[f32]) -> BadLogits {
    if logits.is_empty() {
        return BadLogits::Empty;
    }
    let wrong = logits.iter().position(|value| value.is_nan() || *value == f32::INFINITY);
    wrong.map_or(BadLogits::AllMasked, |index| BadLogits::NotANumber { index, value: logits[index] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entropy(logits: &[f32]) -> f64 {
        Distribution::of_logits(logits, 1).unwrap().entropy_nats
    }

    #[test]
    fn known_entropies() {
        // ln 4; and values derived by hand with p = softmax in double precision.
        assert!((entropy(&[0.0; 4]) - 4_f64.ln()).abs() < 1e-6);
        assert!((entropy(&[2.0, 1.0, 0.0, -1.0]) - 0.947_537).abs() < 1e-6);
        assert!((entropy(&[10.0, 0.0, 0.0, 0.0]) - 0.001_498).abs() < 1e-6);
    }

    /// H18 (pytorch#40553): masked entries add zero, one allowed token gives exactly zero.
    #[test]
    fn h18_masked_entries_add_nothing() {
        let masked = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
        assert!((entropy(&masked) - 2_f64.ln()).abs() < 1e-7);
        let single = Distribution::of_logits(&[f32::NEG_INFINITY, -3.0, f32::NEG_INFINITY], 5).unwrap();
        assert_eq!(single.entropy_nats.to_bits(), 0);
        assert!((single.log_sum_exp + 3.0).abs() < 1e-12);
        assert_eq!(single.top, [TopToken { token: 1, logit: -3.0 }]);
    }

    /// H18: nothing allowed is an error for that step.
    #[test]
    fn h18_what_is_no_distribution_is_an_error() {
        let of = |logits: &[f32]| Distribution::of_logits(logits, 1).unwrap_err();
        assert_eq!(of(&[f32::NEG_INFINITY; 3]), BadLogits::AllMasked);
        assert_eq!(of(&[]), BadLogits::Empty);
        assert!(matches!(of(&[0.0, f32::NAN, 1.0]), BadLogits::NotANumber { index: 1, .. }));
        assert!(matches!(of(&[f32::NAN; 2]), BadLogits::NotANumber { index: 0, .. }));
        assert!(matches!(of(&[0.0, f32::INFINITY]), BadLogits::NotANumber { index: 1, .. }));
    }

    #[test]
    fn long_rows_agree_with_double_precision() {
        let logits: Vec<f32> =
            (0..49_152_u32).map(|i| f32::from((i * 7919 % 4001) as u16) / 100.0 - 20.0).collect();
        let exact: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
        let largest = exact.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = exact.iter().map(|x| (x - largest).exp()).sum();
        let entropy: f64 = exact.iter().map(|x| (x - largest).exp() / sum).map(|p| -p * p.ln()).sum();
        let found = Distribution::of_logits(&logits, 8).unwrap();
        // Differences to the largest are rounded to f32 once: 40 * 2^-24 = 2.4e-6.
        assert!((found.entropy_nats - entropy).abs() < 5e-6);
        assert!((found.log_sum_exp - largest - sum.ln()).abs() < 5e-6);
    }

    #[test]
    fn top_tokens_fall_and_ties_go_by_token() {
        let found = Distribution::of_logits(&[1.0, 3.0, 2.0, 3.0, 2.0, 0.0], 4).unwrap();
        let tokens: Vec<u32> = found.top.iter().map(|top| top.token).collect();
        assert_eq!(tokens, [1, 3, 2, 4]);
        let exact = 3_f64.exp() / (1_f64.exp() + 2.0 * 3_f64.exp() + 2.0 * 2_f64.exp() + 1.0);
        assert!((found.top_probability() - exact).abs() < 1e-6);
    }
}
