//! Keys and values as the model made them, at the width that the study says. Needs: nothing. Cost: none.

use super::{Store, StoreView, Stored};
use crate::policy::doc::{defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "exact",
    family: Family::Store,
    summary: "keys and values as the model made them, counted at the study's width",
    citation: "-",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Store> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(Exact))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct Exact;

impl Store for Exact {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn store(&self, view: &StoreView<'_>) -> Result<Vec<Stored>, PolicyError> {
        Ok(vec![Stored::EXACT; view.resident.len()])
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
