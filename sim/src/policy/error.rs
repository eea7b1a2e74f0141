//! What can be wrong with a policy, its parameters or its scores.

use crate::types::{KvHead, LayerIdx, Pos, SeqIdx};

/// A policy that cannot be built or cannot decide.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// No policy of that family has this id.
    #[error("no {family} policy is called `{given}`{}; known: {}", nearest.map_or(String::new(), |n| format!(" (did you mean `{n}`?)")), known.join(", "))]
    UnknownKind {
        /// The family's word.
        family: &'static str,
        /// The id given.
        given: String,
        /// The closest known id.
        nearest: Option<&'static str>,
        /// All known ids.
        known: Vec<&'static str>,
    },
    /// The parameters do not fit.
    #[error("`{kind}`: parameter `{path}`: {reason}")]
    BadParams {
        /// The policy.
        kind: String,
        /// Path inside `params`.
        path: String,
        /// What the parser said, with the accepted keys or types.
        reason: String,
    },
    /// A parameter is out of range.
    #[error("`{kind}`: parameter `{param}` is {found}; accepted: {accepted}")]
    OutOfRange {
        /// The policy.
        kind: &'static str,
        /// The parameter.
        param: &'static str,
        /// The value found.
        found: String,
        /// What is accepted.
        accepted: &'static str,
    },
    /// The parts of a budget do not fit into it.
    #[error(
        "a budget of {capacity} tokens cannot hold {demand}: {needed} tokens are needed{}",
        works.filter(|works| works != needed).map_or(String::new(), |works| format!("; the smallest budget that works is {works}"))
    )]
    BudgetTooSmall {
        /// C: tokens after an eviction.
        capacity: u32,
        /// What must fit, in words with the numbers.
        demand: String,
        /// Tokens that must fit.
        needed: u32,
        /// Smallest budget that works, with the eviction period and all else; absent when none is found.
        works: Option<u32>,
    },
    /// The eviction period does not divide the budget.
    #[error(
        "the budget of {capacity} tokens is no multiple of the eviction period of {period} tokens; {}",
        match below {
            Some(below) => format!("the nearest budgets are {below} and {above}"),
            None => format!("the smallest budget that works is {above}"),
        }
    )]
    PeriodMismatch {
        /// C: tokens after an eviction.
        capacity: u32,
        /// Eviction period.
        period: u32,
        /// Largest multiple below; absent when it cannot hold what must stay.
        below: Option<u32>,
        /// Smallest multiple above that works.
        above: u32,
    },
    /// A score is NaN.
    #[error("`{policy}` scored NaN at sequence {seq}, layer {layer}, KV head {head}, position {pos}")]
    NotANumber {
        /// The scoring policy.
        policy: &'static str,
        /// Sequence.
        seq: SeqIdx,
        /// Layer.
        layer: LayerIdx,
        /// KV head.
        head: KvHead,
        /// Position of the token.
        pos: Pos,
    },
    /// Something that a policy needs is not there.
    #[error("`{policy}` needs {what}, which is not at hand")]
    Missing {
        /// The policy.
        policy: &'static str,
        /// What is missing, in words.
        what: &'static str,
    },
    /// A policy cannot work here.
    #[error("`{policy}`: {reason}")]
    Refused {
        /// The policy.
        policy: &'static str,
        /// Why.
        reason: String,
    },
    /// A policy returned another number of scores or positions than asked.
    #[error("`{policy}` broke its contract: {rule}")]
    Contract {
        /// The policy.
        policy: &'static str,
        /// The rule.
        rule: &'static str,
    },
}
