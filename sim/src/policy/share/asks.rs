//! A branch whose states look like the root's is decoded behind the root's prefix: ASKS in RKSC.
//!
//! σ is a weighted mean over layers of the cosines between hidden states of the root's prompt and the branch's; a branch with σ ≥ τ drops
//! its own wording and goes on behind the root's. Quality is at risk by the exchange of the prompt, not by an approximation.
//! Paper: RKSC (arXiv 2606.09937); code AnirudhSekar/RKSC `rksc.ipynb`. Three forms of σ exist: `exponential` (class), `uniform` (what every
//! published similarity experiment computes) and `seed` (exponent α·l/L). Differs from the code, whose solver never evaluates the gate. The states come
//! from somewhere: read from the branch's own prompt they cost a forward pass over it, which is charged in full even where part of it could
//! be kept, as the paper's cost model does. Needs: similarity. Cost: O(layers) a branch, and the gate's pass in a live run.

use super::{Share, ShareView, Sharing};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::exit::check_range;
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};
use crate::trace::{Prefix, Similarity};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "asks",
    family: Family::Share,
    summary: "a branch whose hidden states look like the root's gets the root's prefix (ASKS)",
    citation: "RKSC, arXiv 2606.09937; AnirudhSekar/RKSC rksc.ipynb",
    needs: Needs::SIMILARITY,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Share> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Asks::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

/// How layers are weighed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weights {
    /// exp(α·i/(n−1)) for the i-th of n states.
    #[default]
    Exponential,
    /// All alike.
    Uniform,
    /// exp(α·i/n), i from 1.
    Seed,
}

/// Which vectors are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The last prompt token of both.
    #[default]
    Last,
    /// The root's last token and the mean over the branch's suffix.
    Mean,
}

/// The layers whose outputs are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layers {
    /// All.
    #[default]
    All,
    /// The last half, rounded up.
    LastHalf,
    /// The first quarter, at least one: the cheap gate.
    FirstQuarter,
    /// None: the embedding output only.
    Embedding,
}

/// Where the branch's states come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StatesFrom {
    /// A pass over the branch's own prompt, as deep as the layers that are compared.
    #[default]
    BranchPrompt,
    /// A table of similarities by pairs of templates, made beforehand: costs nothing per branch.
    TemplateTable,
}

params! {
    /// Smallest similarity at which a branch shares.
    tau: f64 = 0.82,
    /// How layers are weighed: exponential, uniform, or the seed document's form.
    weights: Weights = Weights::Exponential,
    /// Steepness of the weights; 0 is uniform.
    alpha: f64 = 1.5,
    /// Vectors compared: the last token of both, or the mean over the branch's suffix.
    states: State = State::Last,
    /// Layers compared: all, last-half, first-quarter, embedding.
    layers: Layers = Layers::All,
    /// Whether the embedding output is among the states, before the first layer.
    with_embedding: bool = false,
    /// Where a branch's states come from, which decides what the gate costs.
    states_from: StatesFrom = StatesFrom::BranchPrompt,
}

/// The similarity gate.
#[derive(Debug)]
pub struct Asks {
    params: Params,
}

impl Asks {
    /// # Errors
    /// When a parameter is no number, or α is beyond ±100.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "tau", params.tau, (-1e9, 1e9), "a finite number")?;
        check_range(SPEC.id, "alpha", params.alpha, (-100.0, 100.0), "-100 to 100")?;
        Ok(Self { params })
    }
}

/// What a branch of similarity `sigma` gets at a threshold, behind a root with `prefix_len` tokens of prefix.
#[must_use]
pub fn sharing(sigma: f64, tau: f64, prefix_len: u32) -> Sharing {
    let (prefix, reused_tokens) = if sigma >= tau { (Prefix::Root, prefix_len) } else { (Prefix::Own, 0) };
    Sharing { prefix, reused_tokens, sigma: Some(sigma) }
}

impl Params {
    /// σ of a branch from its cosines, `[state]`: 0 for the embedding output, `s` for after layer `s - 1`. At most 1.
    ///
    /// # Errors
    /// When there are no cosines.
    pub fn sigma(&self, similarity: &[Similarity]) -> Result<f64, PolicyError> {
        let missing =
            PolicyError::Missing { policy: SPEC.id, what: "cosines between the states of branch and root" };
        let layers = similarity.len().saturating_sub(1);
        if layers == 0 {
            return Err(missing);
        }
        let range = match self.layers {
            Layers::All => 1..=layers,
            Layers::LastHalf => layers - layers.div_ceil(2) + 1..=layers,
            Layers::FirstQuarter => 1..=(layers / 4).max(1),
            Layers::Embedding => 0..=0,
        };
        let from = if self.with_embedding { 0 } else { *range.start() };
        let kept = if from == 0 && *range.start() > 1 {
            // The embedding and a later stretch.
            std::iter::once(0).chain(range).collect::<Vec<usize>>()
        } else {
            (from..=*range.end()).collect()
        };
        let weights = self.weights(kept.len());
        let mut sigma = 0.0;
        for (state, weight) in kept.into_iter().zip(weights) {
            let Similarity { cos_last, cos_mean } = similarity[state];
            let cosine = if self.states == State::Last { cos_last } else { cos_mean };
            sigma += weight * f64::from(cosine);
        }
        Ok(sigma.min(1.0))
    }

    /// The weights of `count` states, first to last. They add up to 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "states are few")]
    pub fn weights(&self, count: usize) -> Vec<f64> {
        let n = count as f64;
        let raw = |at: usize| match self.weights {
            Weights::Uniform => 1.0,
            Weights::Exponential if count == 1 => 1.0,
            Weights::Exponential => num::exp_f64(self.alpha * at as f64 / (n - 1.0)),
            Weights::Seed => num::exp_f64(self.alpha * (at + 1) as f64 / n),
        };
        let raw: Vec<f64> = (0..count).map(raw).collect();
        let total: f64 = raw.iter().sum();
        raw.into_iter().map(|weight| weight / total).collect()
    }
}

impl Share for Asks {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn decide(&self, view: &ShareView<'_>) -> Result<Sharing, PolicyError> {
        let branches = &view.problem.branches;
        let (Some(root), Some(branch)) = (branches.first(), branches.get(view.branch)) else {
            return Ok(Sharing::NOTHING);
        };
        Ok(sharing(self.params.sigma(&branch.similarity)?, self.params.tau, root.prefix_len))
    }

    fn gate_layers(&self, layers: u16) -> u16 {
        match (self.params.states_from, self.params.layers) {
            (StatesFrom::TemplateTable, _) | (_, Layers::Embedding) => 0,
            (StatesFrom::BranchPrompt, Layers::FirstQuarter) => (layers / 4).max(1),
            (StatesFrom::BranchPrompt, Layers::All | Layers::LastHalf) => layers,
        }
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }

    fn as_asks(&self) -> Option<Params> {
        Some(self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-6), "{found:?} {expected:?}");
    }

    /// Golden vector G1.
    #[test]
    fn g1_weights_grow_exponentially_with_depth() {
        close(&Params::default().weights(4), &[0.101_536, 0.167_405, 0.276_004, 0.455_054]);
        close(&Params::default().weights(5), &[0.082_414, 0.119_911, 0.174_470, 0.253_852, 0.369_353]);
        let flat = Params { alpha: 0.0, ..Params::default() }.weights(7);
        close(&flat, &Params { weights: Weights::Uniform, ..Params::default() }.weights(7));
    }

    fn cosines(values: &[f32]) -> Vec<Similarity> {
        values.iter().map(|&cos| Similarity { cos_last: cos, cos_mean: -cos }).collect()
    }

    /// Golden vector G2: at τ = 0.80, W and S refuse what U accepts.
    #[test]
    fn g2_the_three_forms_of_sigma() {
        let seen = cosines(&[0.5, 0.99, 0.95, 0.80, 0.60]);
        for (weights, expected) in
            [(Weights::Exponential, 0.753_392), (Weights::Uniform, 0.835), (Weights::Seed, 0.772_845)]
        {
            let params = Params { weights, ..Params::default() };
            let sigma = params.sigma(&seen).unwrap();
            assert!((sigma - expected).abs() < 1e-6, "{weights:?} {sigma}");
            let mean = Params { states: State::Mean, ..params }.sigma(&seen).unwrap();
            assert!((mean + sigma).abs() < 1e-12);
        }
    }

    #[test]
    fn layers_are_the_ones_named() {
        let seen = cosines(&[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]);
        let uniform = |layers, with_embedding| {
            let params = Params { weights: Weights::Uniform, layers, with_embedding, ..Params::default() };
            params.sigma(&seen).unwrap()
        };
        for (layers, with_embedding, expected) in [
            (Layers::All, false, 0.45),
            (Layers::All, true, 0.4),
            (Layers::LastHalf, false, 0.65),
            (Layers::LastHalf, true, 0.52),
            (Layers::FirstQuarter, false, 0.15),
            (Layers::FirstQuarter, true, 0.1),
            (Layers::Embedding, false, 0.0),
        ] {
            assert!((uniform(layers, with_embedding) - expected).abs() < 1e-7, "{layers:?} {with_embedding}");
        }
        assert!(Params::default().sigma(&[]).is_err());
    }
}
