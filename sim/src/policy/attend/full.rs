//! Attend to everything resident. Needs: nothing. Cost: none.

use super::{Attend, AttendView, Attended};
use crate::policy::doc::{defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "full",
    family: Family::Attend,
    summary: "every resident token",
    citation: "-",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Attend> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(Full))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct Full;

impl Attend for Full {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn attend(&self, _view: &AttendView<'_>) -> Result<Attended, PolicyError> {
        Ok(Attended::All)
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
