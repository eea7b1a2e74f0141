//! One problem at one setting, with what sums over problems do not keep.

use super::{Counts, Setting, StepTable};

/// What a setting gives on one problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProblemCounts {
    /// What is summed over problems.
    pub counts: Counts,
    /// Whether an answer is expected.
    pub is_gradable: bool,
    /// Branches that may answer.
    pub branches: u64,
    /// Verified branches whose probability of yes is on another side of ½ than at the last layer.
    pub flipped: u64,
    /// Token-layers of verifier prompts as run; 0 when verification is skipped.
    pub verify_work: u64,
    /// Token-layers of verifier prompts to the last layer, whether or not they are run.
    pub verify_full: u64,
    /// Token-layers of the branches' prompts as computed, the gate included.
    pub prefill: u64,
    /// Token-layers of the branches' prompts, computed each for itself.
    pub prefill_unshared: u64,
}

impl StepTable<'_> {
    /// What a setting gives on the problem at index `at` of those that the table was built from; nothing beyond them.
    #[must_use]
    pub fn problem(&self, at: usize, setting: &Setting) -> Option<ProblemCounts> {
        let facts = self.problems.get(at)?;
        let composition = facts.composition(setting.tau);
        let counts = facts.at(self.rules(), setting);
        let mut found = ProblemCounts {
            counts,
            is_gradable: facts.full.correct.is_some(),
            branches: composition.exits.len() as u64,
            prefill: composition.prompts.prefill,
            prefill_unshared: composition.prompts.prefill_unshared,
            ..ProblemCounts::default()
        };
        for exits in composition.exits.iter().map(|&at| &facts.exits[at]) {
            found.verify_full += u64::from(exits.tokens) * u64::from(exits.layers);
            if counts.skipped == 0 {
                let (layers_run, score) = exits.stop(setting.theta, setting.epsilon);
                found.verify_work += u64::from(exits.tokens) * u64::from(layers_run);
                found.flipped += u64::from((score >= 0.5) != exits.full_says_yes);
            }
        }
        Some(found)
    }
}
