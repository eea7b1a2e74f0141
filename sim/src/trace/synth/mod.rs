//! Generated traces: the same interface as recorded ones, always labelled synthetic.
//!
//! A generator is seeded and keyed by coordinates: what is drawn for (sequence, layer, head) depends on nothing else,
//! and a longer sequence begins with the shorter one. To add a workload, write its file and add a line to
//! [`WORKLOADS`].

mod branch_trees;
mod noise;
mod sinks_and_hitters;
mod source;

pub use branch_trees::{BRANCH_TREES, BRANCH_TREES_SUMMARY, BranchParams, SyntheticBranches};
pub use source::{SynthLength, SynthSpec, Synthetic};

use super::{LayerTensors, LensPosition, TraceError};
use crate::types::{LayerIdx, SeqIdx, TokenId};

/// What a generator computes. All of it is a function of the arguments.
pub trait Generator: Sync {
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
    /// The generator.
    pub generator: &'static dyn Generator,
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
        generator: &noise::Noise,
    },
    Workload {
        id: "sinks-and-hitters",
        summary: "attention with sinks, heavy hitters and locality, heavy-tailed value ranges, entropy that falls with depth",
        generator: &sinks_and_hitters::SinksAndHitters,
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
