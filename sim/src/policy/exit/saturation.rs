//! Stop at the first layer that hardly turns the hidden state: CALM's hidden-state saturation (E6).
//!
//! Needs: verifier facts. Cost: O(hidden) a layer in a live run, no unembedding.

use super::{Exit, ExitView, check_range, first_layer, margin::decayed};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "saturation",
    family: Family::Exit,
    summary: "stop where the hidden state hardly turned since the layer before (CALM, saturation)",
    citation: "Schuster et al. 2022, arXiv 2207.07061",
    needs: Needs::VERDICTS,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Exit> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Saturation::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Smallest cosine with the state before the layer at an exit.
    cosine: f64 = 0.99,
    /// First zero-based layer that may exit.
    min_layer: u16 = 1,
    /// Whether the threshold falls with the step of a generation, as in `margin`.
    decay: bool = false,
    /// How fast it falls.
    temperature: f64 = 4.0,
}

/// The policy.
#[derive(Debug)]
pub struct Saturation {
    params: Params,
}

impl Saturation {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "cosine", params.cosine, (-1.0, 1.0), "-1 to 1")?;
        check_range(SPEC.id, "temperature", params.temperature, (0.0, f64::INFINITY), "0 or more")?;
        Ok(Self { params })
    }
}

impl Exit for Saturation {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, view: &ExitView<'_>) -> u16 {
        let Params { cosine, min_layer, decay, temperature } = self.params;
        let cosine = if decay { decayed(cosine, temperature, view.step) } else { cosine };
        first_layer(view.layers.len(), min_layer, |layer| {
            view.layers[layer].cos_previous.is_some_and(|found| f64::from(found) >= cosine)
        })
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
