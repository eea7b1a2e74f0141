//! Tails of the binomial distribution and p-values made of them; which of them is used where is decided elsewhere.
//!
//! Binomial tails need additions, multiplications and divisions only, so they are the same bits on every machine. Their relative error is below
//! 1e-15 · (n + 4 k) for k losses among n: 1e-11 at 10,000 problems. Hoeffding's bound uses the logarithm and exponential of [`crate::num`].

use crate::num;

/// A positive number as `mantissa · 2^exponent`, for powers far below the smallest float.
#[derive(Clone, Copy, Debug)]
struct Scaled {
    mantissa: f64,
    exponent: i64,
}

impl Scaled {
    const ONE: Self = Self { mantissa: 1.0, exponent: 0 };

    /// The mantissa of a normal number is brought to [1, 2).
    fn normal(self) -> Self {
        let bits = self.mantissa.to_bits();
        let biased = i64::try_from((bits >> 52) & 0x7FF).unwrap_or(0);
        if biased == 0 {
            return self;
        }
        let mantissa = f64::from_bits((bits & 0x000F_FFFF_FFFF_FFFF) | 0x3FF0_0000_0000_0000);
        Self { mantissa, exponent: self.exponent + biased - 1023 }
    }

    fn times(self, other: Self) -> Self {
        let product =
            Self { mantissa: self.mantissa * other.mantissa, exponent: self.exponent + other.exponent };
        product.normal()
    }

    /// `base^power` by squaring.
    fn power(base: f64, mut power: u64) -> Self {
        let mut square = Self { mantissa: base, exponent: 0 }.normal();
        let mut product = Self::ONE;
        while power > 0 {
            if power & 1 == 1 {
                product = product.times(square);
            }
            square = square.times(square);
            power >>= 1;
        }
        product
    }

    /// 0 below 2^-1000, which no level of significance can tell from it.
    fn value(self) -> f64 {
        let Self { mantissa, exponent } = self.normal();
        match exponent {
            -1000..=1000 => {
                let biased = u64::try_from(exponent + 1023).unwrap_or(0);
                mantissa * f64::from_bits(biased << 52)
            }
            i64::MIN..=-1001 => 0.0,
            _ => f64::INFINITY,
        }
    }
}

/// P(X ≤ `losses`) for X binomial with `n` trials of probability `rate`. O(losses).
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "numbers of problems stay far below 2^53")]
pub fn binomial_at_most(losses: u64, n: u64, rate: f64) -> f64 {
    if losses >= n || rate <= 0.0 {
        return 1.0;
    }
    if rate >= 1.0 {
        return 0.0;
    }
    const SMALL: f64 = 1.0 / (1u64 << 60) as f64;
    const SHIFT: i64 = 60;
    let odds = rate / (1.0 - rate);
    // Terms are relative to the first one, (1 - rate)^n.
    let (mut term, mut sum, mut shifted) = (1.0_f64, 1.0_f64, 0);
    for j in 0..losses {
        term *= (n - j) as f64 / (j + 1) as f64 * odds;
        sum += term;
        while sum > 1.0 / SMALL {
            (term, sum, shifted) = (term * SMALL, sum * SMALL, shifted + SHIFT);
        }
    }
    let first = Scaled::power(1.0 - rate, n);
    first.times(Scaled { mantissa: sum, exponent: shifted }).value().min(1.0)
}

/// The smallest n for which `losses` losses reject "the rate is `rate` or more" at level `delta`; nothing when no n below 2^40 does.
#[must_use]
pub fn needed(losses: u64, rate: f64, delta: f64) -> Option<u64> {
    smallest(|n| n >= losses && binomial_at_most(losses, n, rate) <= delta)
}

/// The smallest n below 2^40 for which `rejects` holds, where it holds for all above it.
pub(super) fn smallest(rejects: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = (0u64, 1u64);
    while !rejects(high) {
        (low, high) = (high, high.checked_mul(2).filter(|high| *high < 1 << 40)?);
    }
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if rejects(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

/// The smallest n that rejects when losses go on at `observed` a problem, rounded up, and how many losses those are; nothing when the rate
/// seen is not below `rate`, or 2,000 losses do not do.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "numbers of problems stay far below 2^53")]
pub fn needed_at_rate(observed: f64, rate: f64, delta: f64) -> Option<(u64, u64)> {
    if !(observed < rate) {
        return None;
    }
    (0..2000).find_map(|losses| {
        let n = needed(losses, rate, delta)?;
        (observed * n as f64 <= losses as f64).then_some((n, losses))
    })
}

/// The Clopper–Pearson upper bound: the largest rate that `losses` losses among `n` do not reject at level `delta`. 1 without problems.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "numbers of problems stay far below 2^53")]
pub fn upper_bound(losses: u64, n: u64, delta: f64) -> f64 {
    if losses >= n {
        return 1.0;
    }
    bisect(losses as f64 / n as f64, 1.0, |rate| binomial_at_most(losses, n, rate) <= delta)
}

/// The smallest x in `(low, high]` that rejects, to the last bit, where all above it do.
pub(super) fn bisect(mut low: f64, mut high: f64, rejects: impl Fn(f64) -> bool) -> f64 {
    loop {
        let middle = low + (high - low) * 0.5;
        if !(middle > low && middle < high) {
            return high;
        }
        if rejects(middle) { high = middle } else { low = middle }
    }
}

/// The Hoeffding–Bentkus p-value of "the mean of values in \[0, 1\] is above `limit`" from the sum of `n` independent ones: the smaller
/// of Hoeffding's bound in its relative-entropy form and e times a binomial tail (Bates et al. 2021, arXiv 2101.02703, proposition 4).
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "numbers of problems stay far below 2^53")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sum of n values in [0, 1]")]
pub fn hoeffding_bentkus(sum: f64, n: u64, limit: f64) -> f64 {
    if n == 0 || limit <= 0.0 {
        return 1.0;
    }
    if limit >= 1.0 {
        return 0.0;
    }
    let mean = (sum / n as f64).clamp(0.0, 1.0);
    let hoeffding = num::exp_f64(-(n as f64) * divergence(mean.min(limit), limit));
    let bentkus = std::f64::consts::E * binomial_at_most(sum.max(0.0).ceil() as u64, n, limit);
    hoeffding.min(bentkus).min(1.0)
}

/// Relative entropy of coins with probabilities `a` and `b`, nats.
fn divergence(a: f64, b: f64) -> f64 {
    let term = |p: f64, q: f64| if p > 0.0 { p * num::ln(p / q) } else { 0.0 };
    term(a, b) + term(1.0 - a, 1.0 - b)
}

/// The p-value of "the mean of values in {-1, 0, 1} is `limit` or more", by betting against it.
///
/// A gambler who stakes a share c on each problem multiplies its capital by 1 + λ (limit − x), λ = c / (1 − limit): in expectation that is at most 1
/// under the hypothesis, so by Markov's inequality a capital of k has probability 1/k or less. The capital is spread over eight shares fixed here
/// (half on all-in, which any loss ruins; the rest on 1/2, 1/4, …), so problems that got better count in favour, and the order
/// does not matter (after Waudby-Smith and Ramdas 2024, arXiv 2010.09686).
#[must_use]
pub fn betting(worse: u64, better: u64, same: u64, limit: f64) -> f64 {
    if limit >= 1.0 {
        return 0.0;
    }
    if limit <= -1.0 {
        return 1.0;
    }
    const SHARES: [f64; 8] = [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125];
    let room = 1.0 - limit;
    let capital = SHARES.iter().map(|&share| {
        let weight = if share > 0.75 { 0.5 } else { 0.5 / 7.0 };
        if share > 0.75 && worse > 0 {
            return 0.0;
        }
        let lambda = share / room;
        let factors =
            [(1.0 - share, worse), (1.0 + lambda * (1.0 + limit), better), (1.0 + lambda * limit, same)];
        let product = factors
            .iter()
            .filter(|(_, times)| *times > 0)
            .fold(Scaled::ONE, |product, &(factor, times)| product.times(Scaled::power(factor, times)));
        weight * product.value()
    });
    let capital: f64 = capital.sum();
    if capital > 1.0 { 1.0 / capital } else { 1.0 }
}
