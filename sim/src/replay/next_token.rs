//! The first-order effect of a policy on the next token, where a trace holds the model's head: the direct path.
//!
//! What all layers change in the residual stream at one position, each for its recorded input, is added to the recorded
//! state after the last layer; the final norm and the unembedding turn both into distributions. Left out is what a change in
//! one layer does to the layers after it, and what earlier steps did: an estimate, exact only for the last layer.

use super::ReplayError;
use crate::num;
use crate::policy::PolicyError;
use crate::trace::{TraceError, TraceSource};
use ndarray::Array2;

/// Final norm and unembedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct NextTokenHead {
    /// Gain of the norm, `[hidden]`.
    gain: Vec<f32>,
    /// What is added to the mean square.
    eps: f64,
    /// `[vocab, hidden]`
    unembedding: Array2<f32>,
}

/// What a change of the residual stream does to the next token at one position.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NextTokenEffect {
    /// KL(full || changed) in nats.
    pub kl_nats: f64,
    /// Whether the most probable token is another one; ties go to the lower id.
    pub is_flipped: bool,
}

/// Logits of one position with what is needed to compare them.
struct Distribution {
    logits: Vec<f32>,
    top: usize,
    log_normaliser: f64,
}

impl NextTokenHead {
    /// The head of the model behind `source`.
    ///
    /// # Errors
    /// When the source does not hold it.
    pub fn of(source: &dyn TraceSource) -> Result<Self, TraceError> {
        let missing = TraceError::MissingField { field: "weights.final_norm", held: Vec::new() };
        let (gain, eps) = (source.final_norm()?, source.final_norm_eps().ok_or(missing)?);
        Ok(Self { gain, eps, unembedding: source.unembedding()? })
    }

    /// A head from its parts: the gain `[hidden]` of a root-mean-square norm with `eps`, and `[vocab, hidden]`.
    #[must_use]
    pub fn new(gain: Vec<f32>, eps: f64, unembedding: Array2<f32>) -> Self {
        Self { gain, eps, unembedding }
    }

    /// The effects of changes, `[change]`, each `[hidden]` and empty for none, on the state `hidden` after the last layer.
    ///
    /// # Errors
    /// When a width does not fit, or a state is no number.
    pub fn effects(&self, hidden: &[f32], changes: &[&[f32]]) -> Result<Vec<NextTokenEffect>, ReplayError> {
        let full = self.distribution(hidden)?;
        // Cells that changed the same are one.
        let mut known: Vec<(&[f32], NextTokenEffect)> = vec![(&[], NextTokenEffect::default())];
        let mut effects = Vec::with_capacity(changes.len());
        for &change in changes {
            if let Some((_, effect)) = known.iter().find(|(of, _)| *of == change) {
                effects.push(*effect);
                continue;
            }
            let mut changed = hidden.to_vec();
            num::add_scaled(&mut changed, 1.0, change);
            let changed = self.distribution(&changed)?;
            let effect = full.against(&changed);
            known.push((change, effect));
            effects.push(effect);
        }
        Ok(effects)
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "the model's scale is an f32"
    )]
    fn distribution(&self, hidden: &[f32]) -> Result<Distribution, ReplayError> {
        let width = self.gain.len();
        if hidden.len() != width || self.unembedding.ncols() != width {
            let found = vec![hidden.len(), self.unembedding.ncols()];
            return Err(ReplayError::Width { found, expected: width });
        }
        let squares = hidden.iter().fold(0.0, |sum, x| sum + f64::from(*x) * f64::from(*x));
        let scale = (1.0 / (squares / width as f64 + self.eps).sqrt()) as f32;
        let normed: Vec<f32> = hidden.iter().zip(&self.gain).map(|(x, gain)| gain * (x * scale)).collect();
        let rows = self.unembedding.as_slice().map(|all| all.chunks_exact(width));
        let logits: Vec<f32> = rows.into_iter().flatten().map(|row| num::dot(row, &normed)).collect();
        let largest = num::max(&logits);
        if !largest.is_finite() || logits.iter().any(|x| x.is_nan()) {
            let rule = "logits are numbers";
            return Err(PolicyError::Contract { policy: "direct_next_token_kl", rule }.into());
        }
        let top = logits.iter().position(|x| *x >= largest).unwrap_or(0);
        let sum = logits.iter().fold(0.0, |sum, x| sum + f64::from(num::exp(x - largest)));
        Ok(Distribution { logits, top, log_normaliser: f64::from(largest) + num::ln(sum) })
    }
}

impl Distribution {
    fn against(&self, other: &Self) -> NextTokenEffect {
        let kl = self.logits.iter().zip(&other.logits).fold(0.0, |sum, (a, b)| {
            let log_p = f64::from(*a) - self.log_normaliser;
            let log_q = f64::from(*b) - other.log_normaliser;
            #[expect(clippy::cast_possible_truncation, reason = "an f32 exponential is precise enough")]
            let p = f64::from(num::exp(log_p as f32));
            sum + p * (log_p - log_q)
        });
        // Rounding may leave a little below zero.
        NextTokenEffect { kl_nats: kl.max(0.0), is_flipped: self.top != other.top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Two tokens, an identity unembedding, and a norm that does nothing to vectors of length √2.
    #[test]
    fn the_effect_is_that_of_the_changed_distribution() {
        let unembedding = Array2::from_shape_vec((2, 2), vec![1.0, 0.0, 0.0, 1.0]).unwrap();
        let head = NextTokenHead::new(vec![1.0, 1.0], 0.0, unembedding);
        let state = [1.0f32, -1.0];
        let changes: [&[f32]; 3] = [&[], &[-2.0, 2.0], &[0.0, 2.0]];
        let effects = head.effects(&state, &changes).unwrap();
        assert_eq!(effects[0], NextTokenEffect::default());
        // Logits (1, -1) against (-1, 1): p = 1 / (1 + e^-2), KL = (2p - 1) · 2.
        let p = 1.0 / (1.0 + (-2.0f64).exp());
        assert!((effects[1].kl_nats - 2.0 * (2.0 * p - 1.0)).abs() < 1e-6, "{:?}", effects[1]);
        assert!(effects[1].is_flipped);
        // Against (1, 1): KL = ln 2 - H(p); a tie goes to the lower token.
        let entropy = -(p * p.ln() + (1.0 - p) * (1.0 - p).ln());
        assert!((effects[2].kl_nats - (2f64.ln() - entropy)).abs() < 1e-6, "{:?}", effects[2]);
        assert!(!effects[2].is_flipped);
        assert!(head.effects(&[1.0; 3], &[]).is_err(), "a state of another width");
        assert!(head.effects(&[f32::NAN; 2], &[]).is_err(), "a state that is no number");
    }
}
