//! R-KV by its authors' code (score `r-kv`), driven by the study's period; no sinks unless asked for. The recent buffer is the
//! study's, where the code keeps the `window` last tokens.

use super::{CompositionEntry, Knobs, Part, StackSpec};
use crate::policy::doc::{defaults, params};
use crate::policy::score::r_kv::{self, Form};
use crate::policy::{Family, Needs, PolicyError, PolicySpec, Randomness, RawParams};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "r-kv",
    family: Family::Composition,
    summary: "top-K by window attention minus key redundancy, the authors' form",
    citation: "Cai et al. 2025, arXiv 2505.24133; Zefan-Cai/R-KV rkv/compression/r1_kv.py",
    needs: Needs::QK,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: CompositionEntry =
    CompositionEntry { spec: &SPEC, build, defaults: defaults::<Params>, docs: Params::DOCS };

params! {
    /// Weight of the importance; the redundancy gets the rest.
    lambda: f32 = 0.07,
    /// Recent queries looked at.
    window: u32 = 8,
    /// Width of the maximum pooling over slots; odd, 1 for none.
    pool: u32 = 7,
    /// First tokens that are protected.
    sinks: u32 = 0,
}

fn build(knobs: &Knobs, raw: &RawParams) -> Result<StackSpec, PolicyError> {
    let params: Params = raw.parse(SPEC.id)?;
    let score = r_kv::Params {
        form: Form::Original,
        lambda: params.lambda,
        window: params.window,
        pool: params.pool,
        ..r_kv::Params::default()
    };
    StackSpec::periodic(SPEC.id, Knobs { sinks: params.sinks, ..*knobs }, Part::with("r-kv", &score)?)
}
