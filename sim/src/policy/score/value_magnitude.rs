//! Keep large value states.
//!
//! The measure is VaSE's range or one of its alternatives (arXiv 2606.03928). Needs: v. Cost: O(n · head_dim).

use super::Score;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{
    Draws, Entry, Family, HeadView, Law, Magnitude, Needs, PolicyError, PolicySpec, Randomness,
};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "value-magnitude",
    family: Family::Score,
    summary: "large value states are worth more",
    citation: "VaSE, arXiv 2606.03928",
    needs: Needs::V,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(ValueMagnitude { params: raw.parse(SPEC.id)? })),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Measure of the value: range, l1, l2, variance or absmax.
    measure: Magnitude = Magnitude::Range,
}

#[derive(Debug)]
struct ValueMagnitude {
    params: Params,
}

impl Score for ValueMagnitude {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        out.clear();
        out.extend(view.scored().iter().map(|&pos| self.params.measure.of_value(view.data, pos)));
        Ok(())
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
