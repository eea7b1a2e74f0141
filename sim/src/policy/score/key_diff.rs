//! Keep keys that differ: a token scores minus the cosine of its key with the mean direction of all resident keys.
//!
//! Paper: Park et al. 2025, "KeyDiff" (arXiv 2504.15364); code NVIDIA/kvpress `kvpress/presses/keydiff_press.py`.
//! Differs: the original re-selects block by block during prefill. Needs: k. Cost: O(n · head_dim).

use super::Score;
use crate::num;
use crate::policy::doc::{defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "key-diff",
    family: Family::Score,
    summary: "keys that point away from the mean direction are worth more (KeyDiff)",
    citation: "Park et al. 2025, arXiv 2504.15364; NVIDIA/kvpress kvpress/presses/keydiff_press.py",
    needs: Needs::K,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(KeyDiff))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct KeyDiff;

/// The vector over its norm, which counts as at least `least`.
pub(super) fn unit(vector: &[f32], least: f32) -> Vec<f32> {
    let norm = num::dot(vector, vector).sqrt();
    // A NaN stays one.
    let norm = if norm < least { least } else { norm };
    vector.iter().map(|x| x / norm).collect()
}

impl Score for KeyDiff {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^24")]
    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        out.clear();
        let directions: Vec<Vec<f32>> =
            view.resident.iter().map(|&pos| unit(view.data.key(pos), 1e-12)).collect();
        let mut anchor = vec![0.0; directions.first().map_or(0, Vec::len)];
        directions.iter().for_each(|direction| num::add_scaled(&mut anchor, 1.0, direction));
        anchor.iter_mut().for_each(|x| *x /= directions.len() as f32);
        let anchor = unit(&anchor, 1e-8);
        out.extend(directions[..view.scored().len()].iter().map(|direction| -num::dot(direction, &anchor)));
        Ok(())
    }

    fn can_be_negative(&self) -> bool {
        true
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
