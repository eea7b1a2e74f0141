//! Stop after a fixed share of the layers: the control that every adaptive rule must beat (E1).
//!
//! Runs `ceil(share · L)` layers, at least one. LayerSkip exits at fixed depth too, but from a model trained for it; this is its proxy on
//! one that was not. Needs: nothing. Cost: none.

use super::{Exit, ExitView, check_range};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "fixed",
    family: Family::Exit,
    summary: "stop after a fixed share of the layers, whatever they say",
    citation: "Elhoushi et al. 2024, arXiv 2404.16710 (LayerSkip, which trains for it)",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Exit> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Fixed::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Share of the layers that are run, rounded up.
    share: f64 = 0.75,
}

/// The policy.
#[derive(Debug)]
pub struct Fixed {
    params: Params,
}

impl Fixed {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "share", params.share, (0.0, 1.0), "0 to 1")?;
        Ok(Self { params })
    }
}

impl Exit for Fixed {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, view: &ExitView<'_>) -> u16 {
        let layers = f64::from(view.model_layers);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 1 and the number of layers"
        )]
        let run = (self.params.share * layers).ceil().clamp(1.0, layers.max(1.0)) as u16;
        run.min(u16::try_from(view.layers.len()).unwrap_or(u16::MAX))
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
