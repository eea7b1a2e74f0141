//! Keep what would change the output most: CriticalKV's second stage over another score.
//!
//! The better half of the tokens to be chosen (`first_share`) are those of the inner score; the others are ranked by
//! (score + 1e-4) · mean over the group of |W_O v|₁, the L1 norm of the value as its query heads write it into the
//! residual stream. Paper: Feng et al. 2025, "Identify Critical KV Cache in LLM Inference from an Output Perturbation
//! Perspective" (arXiv 2502.03805); code NVIDIA/kvpress `kvpress/presses/criticalkv_press.py`. Differs: halves are of
//! the tokens up for choice, without sinks and recent ones. Needs: v, the attention output matrix and what the inner score
//! needs. Cost: O(group · n · head_dim · hidden).

use super::inner::{Inner, handed_on};
use super::{Score, window_mass};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "critical",
    family: Family::Score,
    summary: "another score, then that score times the value's norm after the output matrix (CriticalKV)",
    citation: "Feng et al. 2025, arXiv 2502.03805; NVIDIA/kvpress kvpress/presses/criticalkv_press.py",
    needs: Needs::V.and(Needs::W_O),
    randomness: Randomness::Deterministic,
    laws: &[Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        if !(0.0..=1.0).contains(&params.first_share) {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "first_share",
                found: params.first_share.to_string(),
                accepted: "0 to 1",
            });
        }
        Ok(Box::new(Critical { inner: params.of.build()?, params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! { owned;
    /// The score of the first stage: `kind` and `params` of a score policy.
    of: Inner = Inner::plain(window_mass::SPEC.id),
    /// Share of the chosen tokens that the first stage decides.
    first_share: f64 = 0.5,
    /// Added to the score before it is multiplied.
    epsilon: f32 = 1e-4,
}

/// The better half is one of the tokens up for choice.
const LOOKS_AT_CHOICE: bool = true;

#[derive(Debug)]
struct Critical {
    inner: Box<dyn Score>,
    params: Params,
}

/// |W v|₁ for the columns that one query head writes with, `[hidden, head_dim]` flattened.
fn written(weights: &[f32], value: &[f32]) -> f32 {
    let rows: Vec<f32> = weights.chunks_exact(value.len()).map(|row| num::dot(row, value).abs()).collect();
    num::sum(&rows)
}

impl Score for Critical {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "shares of small counts"
    )]
    fn score(&self, view: &HeadView<'_>, draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        self.inner.score(view, draws, out)?;
        let group = view.data.group();
        let weights: Vec<&[f32]> = (0..group)
            .map(|member| view.data.output_weights(member))
            .collect::<Option<_>>()
            .ok_or(PolicyError::Missing { policy: SPEC.id, what: "the attention output matrix (`w_o`)" })?;
        let scored = view.scored();
        let by_score = view.choice.iter().map(|&slot| (out[slot], scored[slot].get())).collect();
        let count = (view.room as f64 * self.params.first_share).floor() as usize;
        let mut first: Vec<u32> = num::top(by_score, count).into_iter().map(|(_, pos)| pos).collect();
        first.sort_unstable();
        for (score, &pos) in out.iter_mut().zip(scored) {
            if first.binary_search(&pos.get()).is_ok() && !score.is_nan() {
                *score = f32::MAX;
                continue;
            }
            let value = view.data.value(pos);
            let norm =
                weights.iter().map(|w| written(w, value)).fold(0.0, |total, x| total + x) / group as f32;
            *score = (*score + self.params.epsilon) * norm;
        }
        Ok(())
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }

    handed_on!(inner);
}
