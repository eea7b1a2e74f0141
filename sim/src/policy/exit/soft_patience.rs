//! Stop when the distribution has hardly changed for some layers: F-PABEE (E9).
//!
//! The change is the Jensen–Shannon divergence to the layer before, in nats. Needs: verifier facts. Cost: O(V) a probed layer more than
//! `entropy-below` in a live run.

use super::{Exit, ExitView, check_range, first_layer};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "soft-patience",
    family: Family::Exit,
    summary: "stop when the distribution hardly changed over some layers (F-PABEE)",
    citation: "Zhang et al. 2023, arXiv 2305.11916",
    needs: Needs::VERDICTS,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Exit> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(SoftPatience::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Divergence below which a layer counts as unchanged, nats.
    divergence: f64 = 0.05,
    /// Consecutive unchanged layers.
    patience: u16 = 2,
    /// First zero-based layer that is looked at.
    min_layer: u16 = 0,
}

/// The policy.
#[derive(Debug)]
pub struct SoftPatience {
    params: Params,
}

impl SoftPatience {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "divergence", params.divergence, (0.0, f64::INFINITY), "0 or more nats")?;
        if params.patience == 0 {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "patience",
                found: "0".to_owned(),
                accepted: "1 or more",
            });
        }
        Ok(Self { params })
    }
}

impl Exit for SoftPatience {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, view: &ExitView<'_>) -> u16 {
        let mut still = 0u16;
        first_layer(view.layers.len(), self.params.min_layer, |layer| {
            let is_small = view.layers[layer]
                .js_previous_nats
                .is_some_and(|divergence| f64::from(divergence) < self.params.divergence);
            still = if is_small { still.saturating_add(1) } else { 0 };
            still >= self.params.patience
        })
    }

    fn heads(&self, layers_run: u16) -> u16 {
        // The divergence is from the distribution before.
        super::probes(self.params.min_layer.saturating_sub(1), layers_run)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
