//! Keep what is attended to and not redundant: importance minus the similarity of keys.
//!
//! Z = lambda · importance − (1 − lambda) · redundancy, both summing to 1. Paper: Cai et al. 2025, "R-KV" (arXiv
//! 2505.24133). Two forms exist.
//!
//! `original` (Zefan-Cai/R-KV `rkv/compression/r1_kv.py`, `rkv/utils.py`): importance is the softmax over the scored
//! tokens of the maximum over the group of the logits, mean over the window, maximum of `pool` neighbours. Redundancy is
//! the softmax over all resident keys of the mean cosine with the others; for each key, its last neighbour with a cosine
//! above `threshold` is let off that cosine, and where there is none the first key is.
//!
//! `vase` (VaSE's re-implementation, arXiv 2606.03928): importance is the smoothed window attention, redundancy runs
//! over the scored tokens only and nobody is let off.
//!
//! Differs: "last" and "first" are in time, where the code takes slots; they agree until the first eviction. Needs: q, k.
//! Cost: O(n² · head_dim).

use super::Score;
use super::key_diff::unit;
use super::window_mass::{Normaliser, WindowMass};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "r-kv",
    family: Family::Score,
    summary: "window attention minus the redundancy of the key (R-KV)",
    citation: "Cai et al. 2025, arXiv 2505.24133; Zefan-Cai/R-KV rkv/compression/r1_kv.py",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(RKv::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

/// Whose R-KV it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// The authors' code.
    #[default]
    Original,
    /// VaSE's re-implementation.
    Vase,
}

params! {
    /// Whose: `original` or `vase`.
    form: Form = Form::Original,
    /// Weight of the importance; the redundancy gets the rest (`mix_lambda`).
    lambda: f32 = 0.07,
    /// Recent queries looked at.
    window: u32 = 8,
    /// Width of the pooling over slots; odd, 1 for none. Maximum in the original form, average in VaSE's.
    pool: u32 = 7,
    /// Cosine above which two keys count as near-duplicates (original form).
    threshold: f32 = 0.5,
}

#[derive(Debug)]
struct RKv {
    params: Params,
    window: WindowMass,
}

impl RKv {
    fn checked(params: Params) -> Result<Self, PolicyError> {
        if !(0.0..=1.0).contains(&params.lambda) {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "lambda",
                found: params.lambda.to_string(),
                accepted: "0 to 1",
            });
        }
        let window = super::window_mass::Params {
            window: params.window,
            pool: params.pool,
            normaliser: Normaliser::Candidates,
            ..super::window_mass::Params::default()
        };
        Ok(Self { params, window: WindowMass::checked(window)? })
    }

    /// Softmax of the largest logit of the group, mean over the window, maximum of neighbours.
    #[expect(clippy::cast_precision_loss, reason = "windows are small")]
    fn importance(&self, view: &HeadView<'_>) -> Vec<f32> {
        let scored = view.scored();
        let (mut mean, mut row, mut queries) = (vec![0.0; scored.len()], Vec::new(), 0u32);
        for query in view.last_queries(self.params.window) {
            let mut most = vec![f32::NEG_INFINITY; scored.len()];
            for member in 0..view.data.group() {
                view.data.logits(member, query, scored, &mut row);
                // A NaN wins, so that it is seen.
                most.iter_mut().zip(&row).for_each(|(m, x)| *m = if *m > *x { *m } else { *x });
            }
            num::softmax(&mut most);
            num::add_scaled(&mut mean, 1.0, &most);
            queries += 1;
        }
        mean.iter_mut().for_each(|m| *m /= queries.max(1) as f32);
        num::max_pool(&mean, self.params.pool as usize)
    }
}

/// Softmax over keys of the mean cosine with all keys (a key with itself counts 0). With a `threshold`, each key lets
/// its last neighbour above it off, or else the first key: `keys` are in time order.
#[expect(clippy::cast_precision_loss, reason = "counts stay below 2^24")]
pub(super) fn redundancy(keys: &[Vec<f32>], threshold: Option<f32>) -> Vec<f32> {
    let mut sums = vec![0.0f32; keys.len()];
    let mut row = vec![0.0f32; keys.len()];
    for (i, key) in keys.iter().enumerate() {
        for (j, other) in keys.iter().enumerate() {
            row[j] = if i == j { 0.0 } else { num::dot(key, other) };
        }
        if let Some(threshold) = threshold {
            let last = row.iter().rposition(|cosine| *cosine > threshold).unwrap_or(0);
            row[last] *= 0.0;
        }
        num::add_scaled(&mut sums, 1.0, &row);
    }
    sums.iter_mut().for_each(|sum| *sum /= keys.len().max(1) as f32);
    num::softmax(&mut sums);
    sums
}

impl Score for RKv {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn score(&self, view: &HeadView<'_>, draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        let is_original = self.params.form == Form::Original;
        let tokens = if is_original { view.resident } else { view.scored() };
        let mut slots: Vec<usize> = (0..tokens.len()).collect();
        slots.sort_unstable_by_key(|&slot| tokens[slot]);
        let keys: Vec<Vec<f32>> = slots.iter().map(|&slot| unit(view.data.key(tokens[slot]), 1e-8)).collect();
        let redundant = redundancy(&keys, is_original.then_some(self.params.threshold));
        if is_original {
            out.clear();
            out.extend(self.importance(view));
        } else {
            self.window.score(view, draws, out)?;
        }
        let lambda = self.params.lambda;
        out.iter_mut().for_each(|score| *score *= lambda);
        for (&slot, redundant) in slots.iter().zip(redundant) {
            if let Some(score) = out.get_mut(slot) {
                *score -= (1.0 - lambda) * redundant;
            }
        }
        Ok(())
    }

    fn window(&self) -> u32 {
        self.params.window
    }

    fn mean_attention(&self) -> Option<(u32, Normaliser)> {
        self.window.mean_attention().filter(|_| self.params.form != Form::Original)
    }

    fn can_be_negative(&self) -> bool {
        true
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(keys: &[[f32; 2]]) -> Vec<Vec<f32>> {
        keys.iter().map(|key| unit(key, 1e-8)).collect()
    }

    // Golden vector G10 of the policy specification.
    #[test]
    fn redundancy_is_the_golden_one() {
        let found = redundancy(&units(&[[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]), None);
        for (found, expected) in found.iter().zip([0.306_204, 0.306_204, 0.387_592]) {
            assert!((found - expected).abs() < 1e-6);
        }
        let z = |lambda: f32| -> Vec<f32> {
            found.iter().zip([0.2, 0.5, 0.3]).map(|(red, imp)| lambda * imp - (1.0 - lambda) * red).collect()
        };
        for (lambda, golden) in
            [(0.5, [-0.053_102, 0.096_898, -0.043_796]), (0.07, [-0.270_770, -0.249_770, -0.339_461])]
        {
            for (found, expected) in z(lambda).iter().zip(golden) {
                assert!((found - expected).abs() < 1e-6, "{found} against {expected} at {lambda}");
            }
        }
    }

    #[test]
    fn the_last_near_duplicate_is_let_off() {
        // Keys 1 and 3 are duplicates of key 0; 2 is at a right angle to them.
        let keys = units(&[[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]);
        let red = redundancy(&keys, Some(0.5));
        // Rows 0 and 1 let 3 off, row 3 lets 1 off, row 2 has no duplicate and lets 0 off: the column sums are 2, 1, 0, 0.
        assert!(red[0] > red[1] && red[1] > red[3] && (red[3] - red[2]).abs() < 1e-7, "{red:?}");
        assert!((red[0] / red[1] - 0.25f32.exp()).abs() < 1e-5);
    }
}
