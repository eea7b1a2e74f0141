//! Stop where a logistic classifier says that the last layer would agree: CALM's learned exit (E7), on recorded facts.
//!
//! The paper's classifier reads the hidden state, which a trace of branches does not keep. This one reads what is recorded: p = sigmoid(b + w ·
//! [entropy / ln V, largest probability, margin, cosine with the layer before, divergence from it]). Refused without weights: there is no
//! sensible default. Needs: verifier facts. Cost: as `entropy-below`.

use super::{Exit, ExitView, Unit, check_range, first_layer};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "classifier",
    family: Family::Exit,
    summary: "stop where a given logistic classifier on recorded facts is sure; refused without weights (CALM, classifier)",
    citation: "Schuster et al. 2022, arXiv 2207.07061",
    needs: Needs::VERDICTS,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Exit> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Classifier::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! { owned;
    /// Bias, then the weights of entropy / ln V, largest probability, margin, cosine and divergence: six numbers.
    weights: Vec<f64> = Vec::new(),
    /// Probability above which a layer may exit.
    confidence: f64 = 0.9,
    /// First zero-based layer that may exit.
    min_layer: u16 = 0,
}

/// The policy.
#[derive(Debug)]
pub struct Classifier {
    params: Params,
}

impl Classifier {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        check_range(SPEC.id, "confidence", params.confidence, (0.0, 1.0), "0 to 1")?;
        if params.weights.len() != 6 || params.weights.iter().any(|weight| !weight.is_finite()) {
            let reason = format!(
                "`weights` holds {} numbers; accepted: six finite ones (see `kvlab list policies --params classifier`)",
                params.weights.len()
            );
            return Err(PolicyError::Refused { policy: SPEC.id, reason });
        }
        Ok(Self { params })
    }
}

impl Exit for Classifier {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn layers_run(&self, view: &ExitView<'_>) -> u16 {
        let most = Unit::ShareOfLnVocab.nats(view.vocab);
        first_layer(view.layers.len(), self.params.min_layer, |layer| {
            let facts = &view.layers[layer];
            let (Some(second), Some(cosine), Some(divergence)) =
                (facts.top2_prob, facts.cos_previous, facts.js_previous_nats)
            else {
                return false;
            };
            let top = f64::from(facts.top1_prob);
            let features = [
                f64::from(facts.entropy_nats) / most,
                top,
                top - f64::from(second),
                f64::from(cosine),
                f64::from(divergence),
            ];
            let sum = features
                .iter()
                .zip(&self.params.weights[1..])
                .fold(self.params.weights[0], |sum, (x, w)| sum + x * w);
            1.0 / (1.0 + num::exp_f64(-sum)) >= self.params.confidence
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
