//! Keys and values in binary16. Needs: nothing. Cost: 16 bits a channel.

use super::{Precision, Store, StoreView, Stored};
use crate::policy::doc::{defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "half",
    family: Family::Store,
    summary: "keys and values in binary16",
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
        Ok(Box::new(Half))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct Half;

impl Store for Half {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn store(&self, view: &StoreView<'_>) -> Result<Vec<Stored>, PolicyError> {
        Ok(vec![Stored { key: Precision::Half, value: Precision::Half }; view.resident.len()])
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
