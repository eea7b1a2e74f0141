//! Free running: greedy generation under a policy.

use serde::{Deserialize, Serialize};

use super::{outcome::Footprint, prefix::Prefix, run::LiveRun};
use crate::{decode::greedy, error::ExecutorError, open_loop::says_any};

/// When a generation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits<'a> {
    /// Most tokens that are generated.
    pub max_new_tokens: u32,
    /// Texts that end the continuation when they appear in it.
    pub stops: &'a [String],
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FinishReason {
    /// An end token.
    End,
    /// A stop text.
    Stop,
    /// The limit of tokens.
    Length,
}

impl FinishReason {
    /// The word used in tables and traces.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::End => "eos",
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// A continuation made under a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreeRun {
    /// The tokens, an end token included.
    pub tokens: Vec<u32>,
    /// Their text, where the model has a tokenizer.
    pub text: Option<String>,
    /// Why it ended.
    pub finish: FinishReason,
    /// What it held and evicted.
    pub footprint: Footprint,
}

/// Decodes greedily from where `run` forked. Every token is fed, the last one too, as in a recording; `each` sees the logits
/// after each fed token, `[vocab]`.
///
/// # Errors
/// As [`LiveRun::step`], and the tokenizer.
pub fn generate(
    mut run: LiveRun<'_, '_>,
    prefix: &Prefix,
    limits: Limits<'_>,
    each: impl FnMut(Vec<f32>),
) -> Result<FreeRun, ExecutorError> {
    let made = decode(&mut run, prefix, limits, each)?;
    Ok(FreeRun { footprint: run.finish(), ..made })
}

/// The steps of [`generate`]; what was held and evicted is not said yet.
pub(crate) fn decode(
    run: &mut LiveRun<'_, '_>,
    prefix: &Prefix,
    limits: Limits<'_>,
    mut each: impl FnMut(Vec<f32>),
) -> Result<FreeRun, ExecutorError> {
    let mut tokens = Vec::new();
    let mut finish = FinishReason::Length;
    let mut next = prefix.next();
    while tokens.len() < limits.max_new_tokens as usize {
        tokens.push(next);
        let logits = run.step(next)?;
        let token = std::mem::replace(&mut next, greedy(&logits));
        each(logits);
        let Some(codec) = run.codec() else {
            continue;
        };
        if codec.is_end(token) {
            finish = FinishReason::End;
            break;
        }
        if says_any(codec, &tokens, limits.stops)? {
            finish = FinishReason::Stop;
            break;
        }
    }
    let text = run.codec().map(|codec| codec.decode(&tokens)).transpose()?;
    Ok(FreeRun { tokens, text, finish, footprint: Footprint::default() })
}
