//! What an exit policy sees of a pass: facts of each layer, from a recording or from a running model.

use crate::num;
use crate::trace::{LensRow, VerdictLayer};
use crate::types::TokenId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which states a lens reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

    /// The entropy that this lens reads, in nats; nothing where the recording did not look through it.
    #[must_use]
    pub fn entropy_nats(self, row: &LensRow) -> Option<f32> {
        match self {
            Self::FinalNorm => Some(row.entropy_nats),
            Self::Raw => row.raw_entropy_nats,
        }
    }
}

/// The unit of entropy thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Nats.
    #[default]
    Nats,
    /// A share of the largest possible entropy, ln V.
    ShareOfLnVocab,
}

impl Unit {
    /// The word used in tables.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::ShareOfLnVocab => "share-of-ln-vocab",
        }
    }

    /// Nats of one unit on a vocabulary of `vocab` tokens.
    #[must_use]
    pub fn nats(self, vocab: u32) -> f64 {
        match self {
            Self::Nats => 1.0,
            Self::ShareOfLnVocab => num::ln(f64::from(vocab)),
        }
    }
}

/// Facts about the state after one layer at one position. What a source does not know is absent, and a policy that needs it
/// never exits there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerFacts {
    /// Entropy over the vocabulary in nats, with the final norm.
    pub entropy_nats: f32,
    /// The same without the final norm; nothing where nobody looked.
    pub raw_entropy_nats: Option<f32>,
    /// The largest logit's token, with the final norm.
    pub top1: TokenId,
    /// Its probability.
    pub top1_prob: f32,
    /// The second largest probability.
    pub top2_prob: Option<f32>,
    /// Cosine with the state before the layer.
    pub cos_previous: Option<f32>,
    /// Jensen–Shannon divergence to the distribution before the layer, nats.
    pub js_previous_nats: Option<f32>,
    /// Softmax over the verifier's yes and no, with the final norm.
    pub p_yes: Option<f32>,
    /// The same without the final norm.
    pub raw_p_yes: Option<f32>,
}

impl LayerFacts {
    /// The entropy that a lens reads, in nats; not a number where nobody looked, which stops nothing.
    #[must_use]
    pub fn entropy(&self, lens: Lens) -> f64 {
        f64::from(match lens {
            Lens::FinalNorm => self.entropy_nats,
            Lens::Raw => self.raw_entropy_nats.unwrap_or(f32::NAN),
        })
    }

    /// The verifier's probability of yes that a lens reads.
    #[must_use]
    pub fn verdict(&self, lens: Lens) -> Option<f64> {
        let value = match lens {
            Lens::FinalNorm => self.p_yes,
            Lens::Raw => self.raw_p_yes,
        };
        value.map(f64::from)
    }
}

impl From<&LensRow> for LayerFacts {
    fn from(row: &LensRow) -> Self {
        Self {
            entropy_nats: row.entropy_nats,
            raw_entropy_nats: row.raw_entropy_nats,
            top1: row.top1,
            top1_prob: row.top1_prob,
            top2_prob: None,
            cos_previous: None,
            js_previous_nats: None,
            p_yes: None,
            raw_p_yes: None,
        }
    }
}

impl From<&VerdictLayer> for LayerFacts {
    fn from(layer: &VerdictLayer) -> Self {
        Self {
            entropy_nats: layer.entropy_nats,
            raw_entropy_nats: Some(layer.raw_entropy_nats),
            top1: layer.top1,
            top1_prob: layer.top1_prob,
            top2_prob: Some(layer.top2_prob),
            cos_previous: Some(layer.cos_previous),
            js_previous_nats: Some(layer.js_previous_nats),
            p_yes: Some(layer.p_yes),
            raw_p_yes: Some(layer.raw_p_yes),
        }
    }
}

/// One position that a pass may stop at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExitView<'a> {
    /// Facts after each layer, `[layer]`. A running model that stops asks with as many layers as it has run.
    pub layers: &'a [LayerFacts],
    /// Tokens of the vocabulary: ln of it is the largest entropy.
    pub vocab: u32,
    /// Layers run at earlier exits, oldest first, when the pass belongs to a series; only `entropy-adaptive` looks.
    pub history: &'a [u16],
    /// Layers of the model.
    pub model_layers: u16,
    /// (step, most steps) of a generation, for thresholds that decay; absent when nothing is generated.
    pub step: Option<(u32, u32)>,
}

impl<'a> ExitView<'a> {
    /// A pass by itself.
    #[must_use]
    pub fn of(layers: &'a [LayerFacts], vocab: u32) -> Self {
        let model_layers = u16::try_from(layers.len()).unwrap_or(u16::MAX);
        Self { layers, vocab, history: &[], model_layers, step: None }
    }
}
