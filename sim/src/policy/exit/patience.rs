//! Stop when the most probable token has been the same for some layers: PABEE (E8).
//!
//! The paper's default of 6 is for 12 layers with trained classifiers; here the logit lens is read. A count of p means that the token equals
//! that of the p layers before. Needs: lens facts. Cost: as `entropy-below`.

use super::{Exit, ExitView, first_layer};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "patience",
    family: Family::Exit,
    summary: "stop when the most probable token stayed the same over some layers (PABEE)",
    citation: "Zhou et al. 2020, arXiv 2006.04152",
    needs: Needs::LENS,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Exit> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Patience::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Consecutive layers that must agree with the one before.
    patience: u16 = 6,
    /// First zero-based layer whose token is looked at.
    min_layer: u16 = 0,
}

/// The policy.
#[derive(Debug)]
pub struct Patience {
    params: Params,
}

impl Patience {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
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

impl Exit for Patience {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, view: &ExitView<'_>) -> u16 {
        let (mut same, mut before) = (0u16, None);
        first_layer(view.layers.len(), self.params.min_layer, |layer| {
            let top = view.layers[layer].top1;
            same = if before == Some(top) { same.saturating_add(1) } else { 0 };
            before = Some(top);
            same >= self.params.patience
        })
    }

    fn heads(&self, layers_run: u16) -> u16 {
        super::probes(self.params.min_layer, layers_run)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
