//! Generated traces: the same interface as recorded ones, always labelled synthetic.
//!
//! A generator is seeded and keyed by coordinates: what is drawn for (sequence, layer, head) depends on nothing else,
//! and a longer sequence begins with the shorter one. To add a workload, write its file and add a line to
//! [`WORKLOADS`].

mod branch_trees;
mod fit;
mod noise;
mod sinks_and_hitters;
mod source;

pub use branch_trees::{BRANCH_TREES, BRANCH_TREES_SUMMARY, BranchParams, SyntheticBranches};
pub use fit::{Fit, FitRow, fit};
pub use sinks_and_hitters::SinksParams;
pub use source::{SynthLength, SynthSpec, Synthetic};

use super::{LayerTensors, LensPosition, TraceError};
use crate::types::{LayerIdx, SeqIdx, TokenId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// What a generator computes. All of it is a function of the arguments.
pub trait Generator: std::fmt::Debug + Send + Sync {
    /// Queries, keys and values of one layer of one sequence, at all its positions.
    fn layer(&self, spec: &SynthSpec, seq: SeqIdx, layer: LayerIdx) -> LayerTensors;

    /// Lens facts, with `ranks` logits each, for the positions that predict a generated token: from the prompt's last
    /// one to the sequence's last one.
    fn lens(&self, spec: &SynthSpec, seq: SeqIdx, ranks: u16) -> Vec<LensPosition>;

    /// The tokens of one sequence, `[q_pos]`.
    fn tokens(&self, spec: &SynthSpec, seq: SeqIdx) -> Vec<TokenId>;
}

/// A registered generator.
pub struct Workload {
    /// Its id.
    pub id: &'static str,
    /// What it is for, in one line.
    pub summary: &'static str,
    /// Makes the generator from its parameters, an object; what it does not name has its default.
    build: fn(Value) -> Result<Box<dyn Generator>, TraceError>,
    /// All parameters with their defaults.
    defaults: fn() -> Value,
}

impl Workload {
    /// All parameters with their defaults, an object.
    #[must_use]
    pub fn defaults(&self) -> Value {
        (self.defaults)()
    }
}

impl std::fmt::Debug for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workload").field("id", &self.id).finish_non_exhaustive()
    }
}

/// All generators, sorted by id.
pub const WORKLOADS: &[Workload] = &[
    Workload {
        id: "noise",
        summary: "independent normal queries, keys and values: nothing for a policy to find",
        build: |params| parsed::<NoParams>(params).map(|_| Box::new(noise::Noise) as Box<dyn Generator>),
        defaults: || json(&NoParams {}),
    },
    Workload {
        id: "sinks-and-hitters",
        summary: "attention with sinks, heavy hitters and locality, heavy-tailed value ranges, entropy that falls with depth",
        build: |params| {
            let params: SinksParams = parsed(params)?;
            params.check()?;
            Ok(Box::new(sinks_and_hitters::SinksAndHitters { params }))
        },
        defaults: || json(&SinksParams::default()),
    },
];

/// The generator called `id`.
#[must_use]
pub fn workload(id: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.id == id)
}

/// Refuses a parameter outside its range.
fn check_params(what: &'static str, found: f64, low: f64, high: f64) -> Result<(), TraceError> {
    if (low..=high).contains(&found) {
        Ok(())
    } else {
        Err(TraceError::Spec { what, found: found.to_string(), accepted: format!("{low} to {high}") })
    }
}

/// The parameters of a generator that has none.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParams {}

/// Parameters from an object.
fn parsed<T: DeserializeOwned>(params: Value) -> Result<T, TraceError> {
    let found = params.to_string();
    serde_json::from_value(params).map_err(|error| TraceError::Spec {
        what: "params",
        found,
        accepted: error.to_string(),
    })
}

fn json(params: &impl Serialize) -> Value {
    serde_json::to_value(params).unwrap_or_default()
}

/// Parameters of branch trees from an object; what it does not name has its default.
///
/// # Errors
/// When a name or a kind of value is not known.
pub fn branch_params(params: Value) -> Result<BranchParams, TraceError> {
    parsed(params)
}

/// Parameters of `sinks-and-hitters` from an object; what it does not name has its default.
///
/// # Errors
/// When a name or a kind of value is not known.
pub fn sinks_params(params: Value) -> Result<SinksParams, TraceError> {
    parsed(params)
}
