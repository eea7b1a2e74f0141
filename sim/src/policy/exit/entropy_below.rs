//! Stop at the first layer whose lens entropy is below a threshold: DeeBERT (E2), and FastBERT when the unit is a share of ln V (E3).
//!
//! Both papers read classifiers trained for each layer; here it is the logit lens of a model trained for its last layer only.
//! Needs: lens facts. Cost: O(layers) a position, plus V · hidden multiply-adds a probed layer in a live run.

use super::{Exit, ExitView, Lens, Unit, check_range, first_layer};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "entropy-below",
    family: Family::Exit,
    summary: "stop where the lens entropy is below a threshold (DeeBERT; FastBERT with the unit share-of-ln-vocab)",
    citation: "Xin et al. 2020, arXiv 2004.12993; Liu et al. 2020, arXiv 2004.02178",
    needs: Needs::LENS,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Exit> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(EntropyBelow::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Entropy below which a layer may exit, in `unit`.
    theta: f64 = 1.0,
    /// First zero-based layer that may exit.
    min_layer: u16 = 0,
    /// Unit of theta: nats, or a share of ln V.
    unit: Unit = Unit::Nats,
    /// Which states the entropy is read from.
    lens: Lens = Lens::FinalNorm,
}

/// The policy.
#[derive(Debug)]
pub struct EntropyBelow {
    params: Params,
}

impl EntropyBelow {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "theta", params.theta, (0.0, f64::INFINITY), "0 or more")?;
        Ok(Self { params })
    }
}

impl Exit for EntropyBelow {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, view: &ExitView<'_>) -> u16 {
        let theta = self.params.theta * self.params.unit.nats(view.vocab);
        first_layer(view.layers.len(), self.params.min_layer, |layer| {
            view.layers[layer].entropy(self.params.lens) < theta
        })
    }

    fn lens(&self) -> Lens {
        self.params.lens
    }

    fn heads(&self, layers_run: u16) -> u16 {
        super::probes(self.params.min_layer, layers_run)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
