//! A problem as policies read it.

use super::TreeError;
use crate::policy::exit::LayerFacts;
use crate::trace::{Outcome, Prefix, Problem};

/// What holds for the model of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeModel {
    /// Decoder layers.
    pub layers: u16,
    /// Tokens of the vocabulary.
    pub vocab: u32,
}

/// A recorded problem with the verifier's facts in the form that exit policies read.
#[derive(Clone, Debug)]
pub struct TreeFacts {
    /// Its index in the trace.
    pub index: u32,
    /// The problem.
    pub problem: Problem,
    /// The branches that may answer: those that no other branch grows from, the root excepted.
    pub leaves: Vec<usize>,
    /// The verifier after each layer, `[branch][prefix][layer]`; empty where it was not run.
    verdicts: Vec<[Vec<LayerFacts>; 2]>,
}

impl TreeFacts {
    /// The facts of the problem at `index`.
    #[must_use]
    pub fn new(index: u32, problem: Problem) -> Self {
        let is_parent =
            |at: usize| problem.branches.iter().any(|b| b.parent.is_some_and(|p| p as usize == at));
        let leaves = (1..problem.branches.len()).filter(|&at| !is_parent(at)).collect();
        let layers = |outcome: Option<&Outcome>| -> Vec<LayerFacts> {
            let verdict = outcome.and_then(|outcome| outcome.verdict.as_ref());
            verdict.map(|verdict| verdict.layers.iter().map(LayerFacts::from).collect()).unwrap_or_default()
        };
        let verdicts =
            problem.branches.iter().map(|b| [layers(b.own.as_ref()), layers(b.root.as_ref())]).collect();
        Self { index, problem, leaves, verdicts }
    }

    /// What came of a branch behind a prefix.
    ///
    /// # Errors
    /// When it was not decoded there.
    pub fn outcome(&self, branch: usize, prefix: Prefix) -> Result<&Outcome, TreeError> {
        let found = self.problem.branches.get(branch).and_then(|found| found.outcome(prefix));
        found.ok_or(TreeError::NoOutcome { problem: self.index, branch, prefix })
    }

    /// The verifier after each layer, `[layer]`.
    ///
    /// # Errors
    /// When it was not run on that outcome.
    pub fn verdict(&self, branch: usize, prefix: Prefix) -> Result<&[LayerFacts], TreeError> {
        let found = self.verdicts.get(branch).map(|both| &both[usize::from(prefix == Prefix::Root)]);
        let found = found.filter(|layers| !layers.is_empty());
        found.map(Vec::as_slice).ok_or(TreeError::NoVerdict { problem: self.index, branch, prefix })
    }
}
