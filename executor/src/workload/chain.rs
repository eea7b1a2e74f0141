//! The `chain` workload: variables defined by digits or by operations on earlier variables, one question.
//!
//! All arithmetic is modulo 10, so each value is one token. A problem is a pure function of
//! `(seed, level, split, index)`; its text is a pure function of the problem, a [`Wording`] and a [`Hint`].
//! Training data and evaluation come from this module, so they cannot drift apart.
//!
//! Not responsible for: running a model, sampling, scoring a set of answers.

use super::draw;
mod level;
mod problem;
mod proposal;
mod record;
mod solution;
mod vocabulary;
mod wording;

#[cfg(test)]
mod tests;

pub use level::{DEFAULT_LEVEL, LEVELS, Level};
pub use problem::{
    Digit, Expression, Name, Operand, Operation, Problem, ProblemId, Split, Statement, problem,
};
pub use proposal::{Flaw, Verdict, parse_verdict, verify_prompt};
pub use record::{Mixture, Record, judged_record, training_record};
pub use solution::parse_answer;
pub use vocabulary::{END_TOKEN, TOKENS, decode, encode, token_id, tokenizer_json};
pub use wording::{HINTS, Hint, WORDINGS, Wording};
