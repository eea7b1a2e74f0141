//! R-KV as VaSE re-implements and compares it (score `r-kv`, form `vase`); no sinks unless asked for.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::r_kv::{self, Form};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "r-kv-vase",
    family: Family::Composition,
    summary: "top-K by smoothed window attention minus key redundancy (VaSE's R-KV bars)",
    citation: "VaSE, arXiv 2606.03928, mode `attn_rkv`",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Weight of the importance; the redundancy gets the rest.
    lambda: f32 = 0.5,
    /// Width of the average pooling over slots; odd, 1 for none.
    pool: u32 = 5,
    /// First tokens that are protected.
    sinks: u32 = 0,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let score = r_kv::Params {
        form: Form::Vase,
        lambda: params.lambda,
        window: knobs.window,
        pool: params.pool,
        ..r_kv::Params::default()
    };
    StackSpec::periodic(SPEC.id, Knobs { sinks: params.sinks, ..*knobs }, Part::with("r-kv", &score)?)
}
