//! Stop at the first layer whose largest probability is above a threshold: Shallow-Deep networks (E4).
//!
//! Read with the logit lens instead of trained internal classifiers. Needs: lens facts. Cost: as `entropy-below`.

use super::{Exit, ExitView, check_range, first_layer};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "max-prob",
    family: Family::Exit,
    summary: "stop where the largest probability is above a threshold (Shallow-Deep)",
    citation: "Kaya et al. 2019, arXiv 1810.07052",
    needs: Needs::LENS,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Exit> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(MaxProb::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Probability above which a layer may exit.
    confidence: f64 = 0.9,
    /// First zero-based layer that may exit.
    min_layer: u16 = 0,
}

/// The policy.
#[derive(Debug)]
pub struct MaxProb {
    params: Params,
}

impl MaxProb {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "confidence", params.confidence, (0.0, 1.0), "0 to 1")?;
        Ok(Self { params })
    }
}

impl Exit for MaxProb {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, view: &ExitView<'_>) -> u16 {
        first_layer(view.layers.len(), self.params.min_layer, |layer| {
            f64::from(view.layers[layer].top1_prob) > self.params.confidence
        })
    }

    fn heads(&self, layers_run: u16) -> u16 {
        super::probes(self.params.min_layer, layers_run)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
