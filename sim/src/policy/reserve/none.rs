//! Reserve nothing. Needs: nothing. Cost: none.

use super::Reserve;
use crate::policy::doc::{defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "none",
    family: Family::Reserve,
    summary: "no slot is reserved",
    citation: "-",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Reserve> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(None))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct None;

impl Reserve for None {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn reserved(&self, _capacity: u32) -> u32 {
        0
    }

    fn reserve(
        &self,
        _view: &HeadView<'_>,
        _choice: &[usize],
        _count: usize,
        _draws: &Draws,
    ) -> Result<Vec<usize>, PolicyError> {
        Ok(Vec::new())
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
