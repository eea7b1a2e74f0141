//! The entropy exit with RKSC's θ that follows the exits before it. Stateful: results depend on the order of problems.
//!
//! After 20 exits, θ is multiplied by clip(1 − 0.1 · (m / L − 0.5), 0.85, 1.10), where m is the mean of the last 100 exit layers. The
//! range that can be reached is 0.95 to 1.05. Code: AnirudhSekar/RKSC `rksc.ipynb`, where the list is global to the process; here
//! it begins empty for every cell. Everything else as `entropy`. Needs: verifier facts, in order. Cost: as `entropy`.

use super::{
    Exit, ExitView, Lens, Unit,
    entropy::{self, Entropy},
};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "entropy-adaptive",
    family: Family::Exit,
    summary: "the entropy exit with a theta that follows earlier exits; depends on the order of problems (RKSC, as coded)",
    citation: "AnirudhSekar/RKSC rksc.ipynb",
    needs: Needs::LENS,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Exit> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(EntropyAdaptive::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// θ before it is scaled: entropy below which a layer may exit, in `unit`.
    theta: f64 = 8.0,
    /// ε: largest change between consecutive layers, in `unit`.
    epsilon: f64 = 3.0,
    /// First zero-based layer whose entropy is looked at.
    min_layer: u16 = 2,
    /// Consecutive changes that must be small.
    patience: u16 = 1,
    /// Which states the entropy is read from.
    lens: Lens = Lens::Raw,
    /// Unit of theta and epsilon: nats, or a share of ln V.
    unit: Unit = Unit::Nats,
}

/// The policy.
#[derive(Debug)]
pub struct EntropyAdaptive {
    params: Params,
}

impl EntropyAdaptive {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        Entropy::checked(params.fixed())?;
        Ok(Self { params })
    }
}

impl Exit for EntropyAdaptive {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, view: &ExitView<'_>) -> u16 {
        let nats = self.params.unit.nats(view.vocab);
        let theta = self.params.theta * nats * scale(view.history, view.model_layers);
        self.params.fixed().layers_run(view.layers, theta, self.params.epsilon * nats)
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

/// Exits before θ is scaled.
const WARM_UP: usize = 20;
/// Exits that the mean is over.
const WINDOW: usize = 100;

impl Params {
    fn fixed(self) -> entropy::Params {
        let Self { theta, epsilon, min_layer, patience, lens, unit } = self;
        entropy::Params { theta, epsilon, min_layer, patience, lens, unit }
    }
}

/// The factor of θ after exits at these layers (as counted by the notebook: zero-based), on a model of `layers` layers.
#[must_use]
pub fn scale(history: &[u16], layers: u16) -> f64 {
    if history.len() < WARM_UP {
        return 1.0;
    }
    let recent = &history[history.len().saturating_sub(WINDOW)..];
    #[expect(clippy::cast_precision_loss, reason = "at most 100")]
    let mean = recent.iter().map(|&layer| f64::from(layer)).sum::<f64>() / recent.len() as f64;
    (1.0 - 0.1 * (mean / f64::from(layers.max(1)) - 0.5)).clamp(0.85, 1.10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden vector G5.
    #[test]
    fn g5_theta_follows_the_mean_of_the_exits_before() {
        for (mean, expected) in [(0, 1.05), (1, 1.04), (5, 1.0), (9, 0.96), (10, 0.95)] {
            assert!((scale(&[mean; 20], 10) - expected).abs() < 1e-12, "{mean}");
        }
        assert!((scale(&[0; 19], 10) - 1.0).abs() < 1e-15);
        // Only the last hundred count.
        let history = [vec![0; 50], vec![10; 100]].concat();
        assert!((scale(&history, 10) - 0.95).abs() < 1e-12);
    }
}
