//! Stop at the first layer whose two largest probabilities are far apart: CALM's softmax response (E5).
//!
//! With `decay` the threshold falls as a generation goes on: λ_t = clip(0.9 λ + 0.1 exp(−temperature · t / N)) at step t of at most
//! N. A verification generates nothing and keeps λ. Needs: verifier facts. Cost: as `entropy-below`.

use super::{Exit, ExitView, check_range, first_layer};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "margin",
    family: Family::Exit,
    summary: "stop where the two largest probabilities differ by a margin (CALM, softmax response)",
    citation: "Schuster et al. 2022, arXiv 2207.07061",
    needs: Needs::VERDICTS,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Exit> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Margin::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Smallest difference of the two largest probabilities at an exit.
    margin: f64 = 0.9,
    /// First zero-based layer that may exit.
    min_layer: u16 = 0,
    /// Whether the threshold falls with the step of a generation.
    decay: bool = false,
    /// How fast it falls.
    temperature: f64 = 4.0,
}

/// The policy.
#[derive(Debug)]
pub struct Margin {
    params: Params,
}

impl Margin {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "margin", params.margin, (0.0, 1.0), "0 to 1")?;
        check_range(SPEC.id, "temperature", params.temperature, (0.0, f64::INFINITY), "0 or more")?;
        Ok(Self { params })
    }
}

impl Exit for Margin {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, view: &ExitView<'_>) -> u16 {
        let Params { margin, min_layer, decay, temperature } = self.params;
        let margin = if decay { decayed(margin, temperature, view.step) } else { margin };
        first_layer(view.layers.len(), min_layer, |layer| {
            let facts = &view.layers[layer];
            facts.top2_prob.is_some_and(|second| f64::from(facts.top1_prob) - f64::from(second) >= margin)
        })
    }

    fn heads(&self, layers_run: u16) -> u16 {
        super::probes(self.params.min_layer, layers_run)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

/// CALM's threshold at (step, most steps) of a generation; the threshold itself when nothing is generated.
#[must_use]
pub fn decayed(threshold: f64, temperature: f64, step: Option<(u32, u32)>) -> f64 {
    let Some((at, most)) = step.filter(|(_, most)| *most > 0) else { return threshold };
    let share = f64::from(at) / f64::from(most);
    (0.9 * threshold + 0.1 * num::exp_f64(-temperature * share)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden vector G13: λ 0.8, temperature 4, N 100.
    #[test]
    fn g13_the_decayed_threshold_is_that_of_calm() {
        for (step, expected) in [(0, 0.82), (10, 0.787_032), (50, 0.733_534), (100, 0.721_832)] {
            let found = decayed(0.8, 4.0, Some((step, 100)));
            assert!((found - expected).abs() < 1e-6, "{step}: {found}");
        }
        assert!((decayed(0.8, 4.0, None) - 0.8).abs() < 1e-15);
    }
}
