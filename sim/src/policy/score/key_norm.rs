//! Keep small keys: a token scores minus the norm of its key.
//!
//! Small key norms go with high attention. Paper: Devoto et al. 2024, "A Simple and Effective L2 Norm-Based Strategy
//! for KV Cache Compression" (arXiv 2406.11430); code NVIDIA/kvpress `kvpress/presses/knorm_press.py`. The norm does not
//! feel the rotation. Needs: k. Cost: O(n · head_dim).

use super::Score;
use crate::num;
use crate::policy::doc::{defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "key-norm",
    family: Family::Score,
    summary: "small keys are worth more (Knorm)",
    citation: "Devoto et al. 2024, arXiv 2406.11430; NVIDIA/kvpress kvpress/presses/knorm_press.py",
    needs: Needs::K,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(KeyNorm))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct KeyNorm;

impl Score for KeyNorm {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        out.clear();
        out.extend(view.scored().iter().map(|&pos| {
            let key = view.data.key(pos);
            -num::dot(key, key).sqrt()
        }));
        Ok(())
    }

    fn can_be_negative(&self) -> bool {
        true
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
