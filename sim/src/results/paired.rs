//! Tests of paired differences: whether items (problems, prompts) that were seen under two cells differ more than chance would.
//!
//! Both tests are two-sided and exact, or drawn from a stream that is keyed by what is compared, so that a p-value is the same wherever it
//! is computed.

use crate::num;
use crate::rng::{Purpose, StreamKey};

/// Up to so many differences that are not 0, every pattern of signs is tried.
const EXACT: usize = 12;
/// Patterns of signs drawn otherwise: the smallest p-value is one over one more.
const DRAWS: u32 = 9_999;

/// McNemar's exact test: the chance that `gained` and `lost` items are at least as unequal when both are as likely. 1 without any.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub fn mcnemar(gained: u64, lost: u64) -> f64 {
    let (n, least) = (gained + lost, gained.min(lost));
    // Logarithm of C(n, k) / 2^n, from k = 0 on.
    let mut ln_term = -(n as f64) * num::ln(2.0);
    let mut tail = 0.0;
    for k in 0..=least {
        tail += num::exp_f64(ln_term);
        ln_term += num::ln((n - k) as f64 / (k + 1) as f64);
    }
    (2.0 * tail).min(1.0)
}

/// The sign-flip permutation test of a mean of 0: the share of sign patterns whose sum is at least as far from 0.
///
/// Every pattern counts up to twelve differences that are not 0; beyond, 9,999 are drawn from the stream of `id`. 1 when all are 0.
#[must_use]
pub fn sign_flip(differences: &[f64], id: &str) -> f64 {
    let moved: Vec<f64> = differences.iter().copied().filter(|d| d.abs() > 0.0).collect();
    let scale: f64 = moved.iter().map(|d| d.abs()).sum();
    // Sums of the same terms in another order of signs may differ in their last bits.
    let found = moved.iter().sum::<f64>().abs() - scale * 1e-12;
    if moved.is_empty() {
        return 1.0;
    }
    let flipped = |signs: &mut dyn FnMut(usize) -> bool| {
        let sum: f64 = moved.iter().enumerate().map(|(at, d)| if signs(at) { -d } else { *d }).sum();
        sum.abs() >= found
    };
    if moved.len() <= EXACT {
        let patterns = 1_u32 << moved.len();
        let hits = (0..patterns).filter(|pattern| flipped(&mut |at| pattern >> at & 1 == 1)).count();
        return f64::from(u32::try_from(hits).unwrap_or(patterns)) / f64::from(patterns);
    }
    let mut stream = StreamKey::new(0, Purpose::Report, id).stream();
    let mut hits = 0_u32;
    for _ in 0..DRAWS {
        let mut bits = 0;
        hits += u32::from(flipped(&mut |at| {
            if at % 64 == 0 {
                bits = stream.bits();
            }
            bits >> (at % 64) & 1 == 1
        }));
    }
    f64::from(hits + 1) / f64::from(DRAWS + 1)
}

/// The smallest p-value that `n` items can give, whatever they show.
#[must_use]
pub fn smallest_p(n: usize) -> f64 {
    if n > 60 { 0.0 } else { 2.0 * 0.5_f64.powi(i32::try_from(n).unwrap_or(60)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }

    #[test]
    fn mcnemar_is_the_binomial_tail_doubled() {
        // By hand: 2 (1 + 5) / 2^5, 2 / 2^6, and never above 1.
        close(mcnemar(4, 1), 12.0 / 32.0);
        close(mcnemar(0, 6), 2.0 / 64.0);
        close(mcnemar(3, 3), 1.0);
        close(mcnemar(0, 0), 1.0);
        // scipy.stats.binomtest(40, 100).pvalue
        assert!((mcnemar(40, 60) - 0.056_887_933_640_980_8).abs() < 1e-9);
        assert!(mcnemar(3_000, 3_400) < 1e-6 && mcnemar(50_000, 50_000) > 0.99);
    }

    #[test]
    fn sign_flips_of_ones_are_mcnemar() {
        for (gained, lost) in [(4, 1), (0, 6), (5, 5), (7, 2), (1, 0)] {
            let mut differences = vec![1.0; gained];
            differences.extend(vec![-1.0; lost]);
            differences.extend(vec![0.0; 3]);
            close(sign_flip(&differences, "x"), mcnemar(gained as u64, lost as u64));
        }
    }

    #[test]
    fn drawn_patterns_agree_with_all_of_them_and_come_again() {
        let differences: Vec<f64> = (0..13).map(|i| f64::from(i) * 0.3 - 1.1).collect();
        let moved: Vec<f64> = differences.clone();
        let found = moved.iter().sum::<f64>().abs() - 1e-9;
        let hits = (0..1_u32 << 13).filter(|pattern| {
            let signed = moved.iter().enumerate().map(|(at, d)| if pattern >> at & 1 == 1 { -d } else { *d });
            signed.sum::<f64>().abs() >= found
        });
        let exact = hits.count() as f64 / f64::from(1_u32 << 13);
        // Three standard errors of a share of 9,999 draws.
        let drawn = sign_flip(&differences, "a");
        assert!((drawn - exact).abs() < 3.0 * (exact * (1.0 - exact) / 9_999.0).sqrt(), "{drawn} {exact}");
        assert_eq!(drawn.to_bits(), sign_flip(&differences, "a").to_bits());
        assert!((sign_flip(&[1.0; 40], "a") - 1e-4).abs() < 1e-12, "nothing is below one over all draws");
    }

    #[test]
    fn six_items_are_the_fewest_that_can_show_anything() {
        assert!(smallest_p(5) > 0.05 && smallest_p(6) < 0.05);
        close(smallest_p(6), mcnemar(0, 6));
    }
}
