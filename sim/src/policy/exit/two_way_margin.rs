//! Stop when the verifier's yes and no are far apart and the side has been the same for some layers (E12).
//!
//! It reads the two logits that the verdict needs and nothing else, so probing costs 2 · hidden multiply-adds a layer instead of
//! V · hidden. Ours; no paper. Needs: verifier facts. Cost: O(layers) a verification.

use super::{Exit, ExitView, Lens, check_range, first_layer};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "two-way-margin",
    family: Family::Exit,
    summary: "stop when yes and no differ by a margin and the side stayed the same (verifier only)",
    citation: "-",
    needs: Needs::VERDICTS,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Exit> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(TwoWayMargin::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Smallest difference between the probabilities of yes and no, which add up to 1.
    margin: f64 = 0.5,
    /// Consecutive layers on the same side, this one included.
    stable: u16 = 2,
    /// First zero-based layer that is looked at.
    min_layer: u16 = 0,
    /// Which states yes and no are read from.
    lens: Lens = Lens::FinalNorm,
}

/// The policy.
#[derive(Debug)]
pub struct TwoWayMargin {
    params: Params,
}

impl TwoWayMargin {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "margin", params.margin, (0.0, 1.0), "0 to 1")?;
        Ok(Self { params })
    }
}

impl Exit for TwoWayMargin {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, view: &ExitView<'_>) -> u16 {
        let (mut held, mut side) = (0u16, None);
        first_layer(view.layers.len(), self.params.min_layer, |layer| {
            let Some(yes) = view.layers[layer].verdict(self.params.lens) else { return false };
            let now = Some(yes >= 0.5);
            held = if side == now { held.saturating_add(1) } else { 1 };
            side = now;
            (2.0 * yes - 1.0).abs() >= self.params.margin && held >= self.params.stable
        })
    }

    fn lens(&self) -> Lens {
        self.params.lens
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
