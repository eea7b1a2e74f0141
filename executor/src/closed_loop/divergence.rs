//! The Kullback-Leibler divergence of two rows of logits.

use crate::decode::{DecodeError, Distribution};

/// ln of the sum of the exponentials of a row of logits, `[vocab]`.
///
/// # Errors
/// Logits that are no distribution.
pub(super) fn log_normaliser(logits: &[f32]) -> Result<f64, DecodeError> {
    let facts = Distribution::of_logits(logits, 0).map_err(|why| DecodeError::Logits { row: 0, why })?;
    Ok(facts.log_sum_exp)
}

/// KL(p || q) in nats of softmax(`p`) and softmax(`q`), both `[vocab]`, given their log-normalisers. Entries of minus infinity
/// in `p` add nothing; rounding below zero is zero.
pub(super) fn divergence_nats(p: &[f32], q: &[f32], (p_norm, q_norm): (f64, f64)) -> f64 {
    let terms = p.iter().zip(q).filter(|(p, _)| p.is_finite()).map(|(p, q)| {
        let log_p = f64::from(*p) - p_norm;
        log_p.exp() * (log_p - (f64::from(*q) - q_norm))
    });
    terms.sum::<f64>().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kl(p: &[f32], q: &[f32]) -> f64 {
        divergence_nats(p, q, (log_normaliser(p).unwrap(), log_normaliser(q).unwrap()))
    }

    #[test]
    fn equal_rows_are_zero_apart_and_known_rows_as_far_as_the_formula_says() {
        assert!(kl(&[1.0, -2.0, 0.5], &[1.0, -2.0, 0.5]) < 1e-300);
        // p = (1/2, 1/2), q = (3/4, 1/4): ½ ln(2/3) + ½ ln 2 = ½ ln(4/3).
        let found = kl(&[0.0, 0.0], &[3f32.ln(), 0.0]);
        // Logits are f32: ln 3 is off by up to 2^-24.
        assert!((found - 0.5 * (4f64 / 3.0).ln()).abs() < 1e-7, "{found}");
        assert!(kl(&[0.0, f32::NEG_INFINITY], &[0.0, 0.0]) - 2f64.ln() < 1e-7);
    }

    #[test]
    fn a_nan_is_refused() {
        assert!(log_normaliser(&[0.0, f32::NAN]).is_err());
    }
}
