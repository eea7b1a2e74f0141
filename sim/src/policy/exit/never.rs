//! Run every layer. Needs: nothing. Cost: none.

use super::{Exit, ExitView};
use crate::policy::doc::{defaults, params};
use crate::policy::{Entry, Family, Needs, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "never",
    family: Family::Exit,
    summary: "every layer runs",
    citation: "-",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Exit> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(Never))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct Never;

impl Exit for Never {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, view: &ExitView<'_>) -> u16 {
        u16::try_from(view.layers.len()).unwrap_or(u16::MAX)
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
