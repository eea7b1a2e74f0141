//! Stop at a layer whose lens entropy is low and stable: level 2 of CGEE in RKSC.
//!
//! A pass stops after zero-based block l when l ≥ `min_layer`, the entropy e_l is below θ, and each of the last
//! `patience` changes |e_l − e_{l−1}| is below ε. Entropies count from `min_layer` on, so the earliest exit is after
//! block `min_layer + patience`. Paper: RKSC (arXiv 2606.09937); code AnirudhSekar/RKSC `rksc.ipynb`. The notebook
//! reads raw states without the final norm (`lens: raw`); the default here is the logit lens with it. Its adaptive θ,
//! which depends on the order of problems, is not applied. Needs: lens facts. Cost: O(layers) a position, plus
//! V · hidden multiply-adds a probed layer in a live run.

use super::Exit;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};
use crate::trace::LensRow;
use serde::{Deserialize, Serialize};

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

/// Which states the entropy is read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lens {
    /// softmax(unembed(final_norm(hidden))).
    #[default]
    FinalNorm,
    /// softmax(unembed(hidden)), as in the RKSC notebook.
    Raw,
}

impl Lens {
    /// The word used in tables.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::FinalNorm => "final-norm",
            Self::Raw => "raw",
        }
    }

    /// The entropy that this lens reads, in nats.
    #[must_use]
    pub fn entropy_nats(self, row: &LensRow) -> f32 {
        match self {
            Self::FinalNorm => row.entropy_nats,
            Self::Raw => row.raw_entropy_nats,
        }
    }
}

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

impl Exit for Entropy {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, rows: &[LensRow]) -> u16 {
        let Params { theta, epsilon, min_layer, patience, lens } = self.params;
        let mut previous: Option<f64> = None;
        let mut stable = 0;
        let mut layer = 0u16;
        for row in rows {
            if layer >= min_layer {
                let entropy = f64::from(lens.entropy_nats(row));
                stable = match previous {
                    Some(before) if (entropy - before).abs() < epsilon => stable + 1,
                    _ => 0,
                };
                if stable >= patience && entropy < theta {
                    return layer + 1;
                }
                // A value that is no number clears the history and never passes a threshold.
                previous = entropy.is_finite().then_some(entropy);
            }
            layer += 1;
        }
        layer
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LayerIdx, Pos, TokenId};

    fn rows(entropies: &[f32]) -> Vec<LensRow> {
        (0u16..)
            .zip(entropies)
            .map(|(layer, &entropy)| LensRow {
                pos: Pos::new(0),
                layer: LayerIdx::new(layer),
                entropy_nats: entropy,
                raw_entropy_nats: 10.0,
                top1: TokenId::new(0),
                top1_prob: 1.0,
                agrees_with_last: true,
            })
            .collect()
    }

    fn exit(theta: f64, epsilon: f64, min_layer: u16, patience: u16) -> Entropy {
        Entropy::checked(Params { theta, epsilon, min_layer, patience, lens: Lens::FinalNorm }).unwrap()
    }

    #[test]
    fn the_earliest_exit_is_one_layer_after_the_minimum() {
        // All entropies pass; with l_min = 2 and patience 1 the first difference exists at block 3: four layers run.
        assert_eq!(exit(5.0, 1.0, 2, 1).layers_run(&rows(&[1.0; 8])), 4);
        assert_eq!(exit(5.0, 1.0, 2, 3).layers_run(&rows(&[1.0; 8])), 6);
    }

    #[test]
    fn theta_zero_never_exits_and_both_conditions_are_needed() {
        assert_eq!(exit(0.0, 1.0, 0, 1).layers_run(&rows(&[0.0; 4])), 4);
        // Low but jumping: 3 → 0.5 → 3 → 0.5.
        assert_eq!(exit(1.0, 1.0, 0, 1).layers_run(&rows(&[3.0, 0.5, 3.0, 0.5])), 4);
        // Stable but high, then low: exits where the second low value confirms the first.
        assert_eq!(exit(1.0, 1.0, 0, 1).layers_run(&rows(&[9.0, 9.0, 0.4, 0.3, 0.2])), 4);
    }

    #[test]
    fn a_non_finite_entropy_neither_passes_nor_confirms() {
        assert_eq!(exit(5.0, 5.0, 0, 1).layers_run(&rows(&[1.0, f32::NAN, 1.0, 1.0, 1.0])), 4);
    }

    #[test]
    fn negative_and_nan_thresholds_are_refused() {
        assert!(Entropy::checked(Params { theta: -1.0, ..Params::default() }).is_err());
        assert!(Entropy::checked(Params { epsilon: f64::NAN, ..Params::default() }).is_err());
    }
}
