//! What policies decided for a problem, as plain numbers: the only thing about a problem that time accounting needs.
//!
//! A replay of recorded branch trees fills these from its decisions, a generator from its parameters. Nothing here says why
//! a branch shares or skips, only how much work follows.

use crate::cost::{Row, Work};
use serde::Serialize;

/// Decisions for one problem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProblemDecisions {
    /// The problem; the unit that bootstrap intervals resample.
    pub item: String,
    /// Tokens of the root prefix. It is computed once when any branch takes it over.
    pub root_tokens: u32,
    /// Whether the root prefix is computed even when no branch takes it over, because a gate compares with its states.
    pub needs_root: bool,
    /// The branches, a parent before its children. The root itself is not listed.
    pub branches: Vec<BranchDecisions>,
    /// Index into `branches` of the one whose answer is given; nothing when the problem has no answer.
    pub winner: Option<u32>,
}

/// Decisions for one branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BranchDecisions {
    /// Index into [`ProblemDecisions::branches`] of the branch it grows from; nothing when it grows from the root.
    pub parent: Option<u32>,
    /// What it needs of that branch.
    pub follows: Follows,
    /// Tokens of the prompt that it is decoded behind: the root's prefix and its own suffix when it shares, its own prompt
    /// otherwise.
    pub prompt_tokens: u32,
    /// Tokens at the front of that prompt whose keys and values are taken over from what it grows from; the others are
    /// computed. At most the tokens that the parent has.
    pub reused_tokens: u32,
    /// What was computed to decide about sharing, besides the prompt itself; nothing when no gate ran.
    pub gate: Option<PartialPass>,
    /// Tokens generated, a decode-level exit taken into account.
    pub generated_tokens: u32,
    /// The verifier's pass; nothing when verification was skipped.
    pub verify: Option<PartialPass>,
}

/// What a branch needs of the one that it grows from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Follows {
    /// Its prompt goes on behind what that one wrote: it waits for the end.
    #[default]
    Text,
    /// Its prompt begins with the same tokens: it waits until those that it takes over are computed.
    Prompt,
}

/// A pass that may end before the last layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartialPass {
    /// Tokens that it computes.
    pub tokens: u32,
    /// Layers that it runs, from the first one.
    pub layers: u16,
    /// How often the unembedding is applied: 1 for a usual pass, once a probed layer with an exit rule, 0 when hidden states
    /// are enough.
    pub heads: u16,
}

impl PartialPass {
    /// `passes` as one batch of a model of `all` layers. It ends when its last row does: all rows run as many layers as the longest.
    pub(super) fn together(passes: &[Self], all: u16) -> Work {
        let row = |pass: &Self| Row { new_tokens: pass.tokens, context_tokens: 0 };
        Work {
            rows: passes.iter().map(row).collect(),
            layers: passes.iter().map(|pass| pass.layers).max().unwrap_or(0).min(all),
            heads: passes.iter().map(|pass| u32::from(pass.heads)).sum(),
            head_products: passes.iter().map(|pass| u32::from(pass.heads)).max().unwrap_or(0),
            copied_tokens: 0,
        }
    }

    /// What the rows of such a batch need by themselves.
    pub(super) fn token_layers(passes: &[Self], all: u16) -> u64 {
        passes.iter().map(|pass| u64::from(pass.tokens) * u64::from(pass.layers.min(all))).sum()
    }
}
