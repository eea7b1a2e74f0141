//! VaSE-AttnV: the N_v widest value states (sinks among them) are kept, the other K − N_v slots are sampled without
//! replacement with the smoothed window attention as weights, and the recent buffer stays. The ablations of the paper are
//! parameters.

use super::{CompositionEntry, KeepOrder, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::reserve::{random, value_magnitude};
use crate::policy::score::window_mass;
use crate::policy::select::weighted_sample;
use crate::policy::{Family, Magnitude, Needs, PolicyError, PolicySpec, Randomness, RawParams};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "vase-attnv",
    family: Family::Composition,
    summary: "N_v widest values reserved, the rest sampled by smoothed window attention",
    citation: "VaSE, arXiv 2606.03928, mode `range_sink_sample_attn`",
    needs: Needs::QKV,
    randomness: Randomness::Random,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

/// How the slots that are not reserved are filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rest {
    /// Sampled with the attention as weights.
    #[default]
    Sample,
    /// The highest attention.
    TopK,
}

/// What the reserved slots go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reserved {
    /// The largest value states.
    #[default]
    Values,
    /// Tokens at random.
    Random,
}

params! {
    /// N_v in tokens, sinks included. Absent: `value_share` decides.
    value_tokens: Option<u32> = None,
    /// N_v as a share of the budget C.
    value_share: f64 = 0.25,
    /// What is reserved: values, or random tokens (VaSE's attn_random).
    reserved: Reserved = Reserved::Values,
    /// Measure of the value: range, l1, l2, variance or absmax.
    measure: Magnitude = Magnitude::Range,
    /// How the other slots are filled: sample, or top-k (VaSE's range_attn).
    rest: Rest = Rest::Sample,
    /// Power of the sampling weights.
    exponent: f64 = 1.0,
    /// Width of the average pooling over slots; odd, 1 for none.
    pool: u32 = 5,
    /// Divides the attention logits.
    temperature: f32 = 1.0,
    /// First tokens that are protected, inside N_v; null: the study's. 0 is VaSE's range_sample_attn.
    sinks: Option<u32> = None,
    /// Order of the kept tokens in the cache: selector or position.
    order: KeepOrder = KeepOrder::Selector,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let refused = |reason: &str| Err(PolicyError::Refused { policy: SPEC.id, reason: reason.to_owned() });
    if raw.has("value_tokens") && raw.has("value_share") {
        return refused("`value_tokens` and `value_share` both say N_v; give one of them");
    }
    // 1 is what it is anyway.
    if params.rest == Rest::TopK && (params.exponent - 1.0).abs() > 0.0 {
        return refused("`exponent` is the power of sampling weights; with `rest: top-k` nothing is sampled");
    }
    let score = window_mass::Params {
        window: knobs.window,
        pool: params.pool,
        temperature: params.temperature,
        ..window_mass::Params::default()
    };
    let (tokens, share) = (params.value_tokens, params.value_share);
    let reserve = match params.reserved {
        Reserved::Values => {
            let measure = params.measure;
            let base = value_magnitude::Params::default();
            Part::with("value-magnitude", &value_magnitude::Params { tokens, share, measure, ..base })?
        }
        Reserved::Random => Part::with("random", &random::Params { tokens, share })?,
    };
    let select = match params.rest {
        Rest::Sample => {
            Part::with("weighted-sample", &weighted_sample::Params { exponent: params.exponent })?
        }
        Rest::TopK => Part::plain("top-k"),
    };
    let knobs = knobs.with_sinks(params.sinks);
    let spec = StackSpec::periodic(SPEC.id, knobs, Part::with("window-mass", &score)?)?;
    Ok(StackSpec { reserve, select, order: params.order, ..spec })
}
