//! Keep the highest scores. Ties go to the earlier position. Needs: scores. Cost: O(n + k log k).

use super::{Select, Selection, best};
use crate::policy::doc::{defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "top-k",
    family: Family::Select,
    summary: "the highest scores, ties to the earlier position",
    citation: "-",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Select> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(TopK))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct TopK;

impl Select for TopK {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn select(
        &self,
        view: &HeadView<'_>,
        scores: &[f32],
        choice: &[usize],
        count: usize,
        _draws: &Draws,
    ) -> Result<Selection, PolicyError> {
        Ok(best(view, choice.iter().map(|&slot| scores[slot]), choice, count))
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
