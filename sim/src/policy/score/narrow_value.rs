//! Keep the narrowest value states, so that the widest are evicted: the collapse test of VaSE.
//!
//! A token scores 1 / (1 + range), the range being max − min over the channels of its value: falling with the range, and
//! positive, so that it can serve as a sampling weight too. Paper: VaSE (arXiv 2606.03928), the pilot's
//! "Evict Large V": if wide value states matter, this must hurt more than evicting at random. Differs: nothing but f32.
//! Needs: v. Cost: O(n · head_dim), once a token if the data source remembers ranges.

use super::Score;
use crate::policy::doc::{defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "narrow-value",
    family: Family::Score,
    summary: "narrow value states are worth more: evicts the widest (VaSE's collapse test)",
    citation: "VaSE, arXiv 2606.03928",
    needs: Needs::V,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(NarrowValue))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct NarrowValue;

impl Score for NarrowValue {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        out.clear();
        out.extend(view.scored().iter().map(|&pos| 1.0 / (1.0 + view.data.value_range(pos))));
        Ok(())
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
