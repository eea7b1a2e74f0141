//! Stop at a layer whose lens entropy is low and stable: level 2 of CGEE in RKSC.
//!
//! A pass stops after zero-based block l when l ≥ `min_layer`, the entropy e_l is below θ, and each of the last
//! `patience` changes |e_l − e_{l−1}| is below ε. Entropies count from `min_layer` on, so the earliest exit is after
//! block `min_layer + patience`. Paper: RKSC (arXiv 2606.09937); code AnirudhSekar/RKSC `rksc.ipynb`. The notebook
//! reads raw states without the final norm (`lens: raw`, as published; its verdict is read there too); the default here is
//! the logit lens with it. Its adaptive θ, which depends on the order of problems, is `entropy-adaptive`. Needs: lens facts. Cost: O(layers) a position, plus
//! V · hidden multiply-adds a probed layer in a live run.

use super::{Exit, ExitView, LayerFacts, Unit};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

pub use super::Lens;

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "entropy",
    family: Family::Exit,
    summary: "stop where the lens entropy is below theta and changed by less than epsilon (CGEE level 2)",
    citation: "RKSC, arXiv 2606.09937; AnirudhSekar/RKSC rksc.ipynb",
    needs: Needs::LENS,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Exit> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Entropy::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// θ: entropy below which a layer may exit, nats.
    theta: f64 = 8.0,
    /// ε: largest change between consecutive layers, nats.
    epsilon: f64 = 3.0,
    /// First zero-based layer whose entropy is looked at.
    min_layer: u16 = 2,
    /// Consecutive changes that must be small.
    patience: u16 = 1,
    /// Which states the entropy is read from.
    lens: Lens = Lens::FinalNorm,
    /// Unit of theta and epsilon: nats, or a share of ln V.
    unit: Unit = Unit::Nats,
}

/// The entropy exit.
#[derive(Debug)]
pub struct Entropy {
    params: Params,
}

impl Entropy {
    /// # Errors
    /// When a threshold is negative or no number, or the patience is 0.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        for (param, found) in [("theta", params.theta), ("epsilon", params.epsilon)] {
            if !(found >= 0.0) {
                return Err(PolicyError::OutOfRange {
                    kind: SPEC.id,
                    param,
                    found: found.to_string(),
                    accepted: "0 or more nats",
                });
            }
        }
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

impl Params {
    /// Layers run when entropies are compared with `theta` and `epsilon`, both in nats.
    pub(crate) fn layers_run(&self, layers: &[LayerFacts], theta: f64, epsilon: f64) -> u16 {
        let (mut stable, mut previous) = (0u16, None::<f64>);
        super::first_layer(layers.len(), self.min_layer, |layer| {
            let entropy = layers[layer].entropy(self.lens);
            // What is no number never stops a pass and counts as no predecessor.
            let is_small = previous.is_some_and(|before| (entropy - before).abs() < epsilon);
            stable = if is_small { stable.saturating_add(1) } else { 0 };
            previous = entropy.is_finite().then_some(entropy);
            entropy < theta && stable >= self.patience
        })
    }
}

impl Exit for Entropy {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, view: &ExitView<'_>) -> u16 {
        let nats = self.params.unit.nats(view.vocab);
        self.params.layers_run(view.layers, self.params.theta * nats, self.params.epsilon * nats)
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

    fn as_entropy(&self) -> Option<Params> {
        Some(self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TokenId;

    fn facts(entropies: &[f32]) -> Vec<LayerFacts> {
        let facts = |&entropy_nats: &f32| LayerFacts {
            entropy_nats,
            raw_entropy_nats: Some(10.0),
            top1: TokenId::new(0),
            top1_prob: 1.0,
            top2_prob: None,
            cos_previous: None,
            js_previous_nats: None,
            p_yes: None,
            raw_p_yes: None,
        };
        entropies.iter().map(facts).collect()
    }

    fn run(exit: &Entropy, entropies: &[f32]) -> u16 {
        exit.layers_run(&ExitView::of(&facts(entropies), 1000))
    }

    fn exit(theta: f64, epsilon: f64, min_layer: u16, patience: u16) -> Entropy {
        Entropy::checked(Params { theta, epsilon, min_layer, patience, ..Params::default() }).unwrap()
    }

    #[test]
    fn the_earliest_exit_is_one_layer_after_the_minimum() {
        // All entropies pass; with l_min = 2 and patience 1 the first difference exists at block 3: four layers run.
        assert_eq!(run(&exit(5.0, 1.0, 2, 1), &[1.0; 8]), 4);
        assert_eq!(run(&exit(5.0, 1.0, 2, 3), &[1.0; 8]), 6);
    }

    #[test]
    fn theta_zero_never_exits_and_both_conditions_are_needed() {
        assert_eq!(run(&exit(0.0, 1.0, 0, 1), &[0.0; 4]), 4);
        // Low but jumping: 3 → 0.5 → 3 → 0.5.
        assert_eq!(run(&exit(1.0, 1.0, 0, 1), &[3.0, 0.5, 3.0, 0.5]), 4);
        // Stable but high, then low: exits where the second low value confirms the first.
        assert_eq!(run(&exit(1.0, 1.0, 0, 1), &[9.0, 9.0, 0.4, 0.3, 0.2]), 4);
    }

    #[test]
    fn a_non_finite_entropy_neither_passes_nor_confirms() {
        assert_eq!(run(&exit(5.0, 5.0, 0, 1), &[1.0, f32::NAN, 1.0, 1.0, 1.0]), 4);
    }

    #[test]
    fn negative_and_nan_thresholds_are_refused() {
        assert!(Entropy::checked(Params { theta: -1.0, ..Params::default() }).is_err());
        assert!(Entropy::checked(Params { epsilon: f64::NAN, ..Params::default() }).is_err());
    }
}
