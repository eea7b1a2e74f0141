//! Share policies: which branches are decoded behind the root's prefix, and what they need not compute.

pub mod always;
pub mod asks;
pub mod exact_prefix;
pub mod off;
pub mod radix;

use super::{PolicyError, PolicySpec};
use crate::trace::{Prefix, Problem};
use crate::types::TokenId;
use serde::{Deserialize, Serialize};

/// A branch that may share.
#[derive(Clone, Copy, Debug)]
pub struct ShareView<'a> {
    /// Its problem, with similarities but perhaps without outcomes.
    pub problem: &'a Problem,
    /// Its index among the problem's branches; never the root.
    pub branch: usize,
    /// Layers of the model.
    pub layers: u16,
}

/// What a branch gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sharing {
    /// The prefix that it is decoded behind.
    pub prefix: Prefix,
    /// Tokens of its prompt whose keys and values are there already.
    pub reused_tokens: u32,
    /// The similarity that decided, where one did.
    pub sigma: Option<f64>,
}

impl Sharing {
    /// The branch computes its own prompt.
    pub const NOTHING: Self = Self { prefix: Prefix::Own, reused_tokens: 0, sigma: None };
}

/// Decides what a branch shares.
pub trait Share: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// What a branch gets.
    ///
    /// # Errors
    /// When the trace lacks what the policy looks at.
    fn decide(&self, view: &ShareView<'_>) -> Result<Sharing, PolicyError>;

    /// Layers run over the whole prompt of every branch before it is decided about; 0 when the decision costs no pass.
    fn gate_layers(&self, _layers: u16) -> u16 {
        0
    }

    /// Whether the root's prefix is computed once for all branches.
    fn prefills_root(&self) -> bool {
        true
    }

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;

    /// The similarity gate behind it, whose threshold has an exact step function.
    fn as_asks(&self) -> Option<asks::Params> {
        None
    }
}

/// The sequences whose keys and values a token-exact cache holds when a branch comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Against {
    /// The root's prefix only.
    Root,
    /// The prompts of the branches before it, as in a serving engine.
    #[default]
    Earlier,
}

impl Against {
    /// The longest prefix of a branch's prompt that is cached, in tokens. One token is always left to compute.
    #[must_use]
    pub fn cached_tokens(self, view: &ShareView<'_>) -> usize {
        let branches = &view.problem.branches;
        let Some(branch) = branches.get(view.branch) else { return 0 };
        let longest = match self {
            Self::Root => branches.first().map_or(0, |root| {
                let prefix = &root.tokens[..(root.prefix_len as usize).min(root.tokens.len())];
                common(prefix, &branch.tokens)
            }),
            Self::Earlier => branches[..view.branch]
                .iter()
                .filter(|earlier| earlier.parent.is_some())
                .map(|earlier| common(&earlier.tokens, &branch.tokens))
                .max()
                .unwrap_or(0),
        };
        longest.min(branch.tokens.len().saturating_sub(1))
    }
}

/// Leading tokens that two sequences have in common.
#[must_use]
pub fn common(left: &[TokenId], right: &[TokenId]) -> usize {
    left.iter().zip(right).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
pub(crate) mod for_tests {
    use crate::trace::{Branch, Problem};
    use crate::types::TokenId;

    /// A root and its branches with these prompts, all prefix, and nothing else.
    pub(crate) fn problem(prompts: &[Vec<u32>]) -> Problem {
        let branch = |(at, prompt): (usize, &Vec<u32>)| Branch {
            parent: (at > 0).then_some(0),
            seq: None,
            wording: 0,
            wording_level: 0,
            hint: None,
            prefix_len: crate::num::count(prompt.len()),
            tokens: prompt.iter().copied().map(TokenId::new).collect(),
            similarity: Vec::new(),
            own: None,
            root: None,
        };
        let branches = prompts.iter().enumerate().map(branch).collect();
        Problem { item: "p".to_owned(), expected_answer: None, branches }
    }
}
