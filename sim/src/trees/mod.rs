//! Replay of branch trees: what sharing, verify skip, layer exit and the choice of a winner do to recorded branches.
//!
//! A trace holds each branch behind its own prefix and behind the root's, and the verifier's view after every layer. So whatever
//! these policies choose was recorded: reuse, skips, exit layers, winner, answer and correctness are **decisions**, exact for the
//! recorded model, at every threshold. What is not recorded is what a branch would have said had its decoding been stopped; see
//! [`DecodeExit`].

mod decide;
mod decode_exit;
mod facts;
mod lived;
mod sequence;
mod stack;

pub use decide::{BranchDecision, Choice, ProblemDecision, Work, full_pipeline, replay_problem};
pub(crate) use decide::{confidences, prompt_work};
pub use decode_exit::DecodeExit;
pub use facts::{TreeFacts, TreeModel};
pub use lived::{LivedBranch, LivedProblem};
pub use sequence::replay_all;
pub use stack::{TreeParts, TreeStack};

use crate::policy::PolicyError;
use crate::trace::Prefix;

/// A problem that a stack cannot be replayed on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A policy lacks something or broke a rule.
    #[error("problem {problem}: {source}")]
    Policy {
        /// Index of the problem.
        problem: u32,
        /// Why.
        source: PolicyError,
    },
    /// A branch was not decoded behind the prefix that it got.
    #[error("problem {problem}, branch {branch}: the trace has no outcome behind the {} prefix", prefix.word())]
    NoOutcome {
        /// Index of the problem.
        problem: u32,
        /// The branch.
        branch: usize,
        /// The prefix.
        prefix: Prefix,
    },
    /// A serving engine would take tokens over from a branch that no stack decodes.
    #[error(
        "problem {problem}, branch {branch}: {reused} tokens are cached by an inner branch, which is not decoded; token-exact sharing between earlier branches is \
         served in trees of one level, or with `against: root`"
    )]
    NotServed {
        /// Index of the problem.
        problem: u32,
        /// The branch.
        branch: usize,
        /// Tokens that it would take over.
        reused: u32,
    },
    /// The verifier was not recorded on an outcome that is verified.
    #[error("problem {problem}, branch {branch}: the trace has no verdict behind the {} prefix", prefix.word())]
    NoVerdict {
        /// Index of the problem.
        problem: u32,
        /// The branch.
        branch: usize,
        /// The prefix.
        prefix: Prefix,
    },
}
