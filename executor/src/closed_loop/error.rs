//! What can be wrong with an execution besides the model and the policies.

use kvlab_sim::types::{KvHead, LayerIdx, Pos};

use crate::decode::Quantity;

/// An execution that cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClosedLoopError {
    /// There is nothing to run.
    #[error("failed to execute: there is no problem to run")]
    NoItems,
    /// The scenario has no stacks.
    #[error(
        "failed to execute the scenario `{scenario}`: it has no `eviction` section (`eviction` and `trees` are what is executed)"
    )]
    NoEviction {
        /// Id of the scenario.
        scenario: String,
    },
    /// The scenario has no stacks over branch trees.
    #[error("failed to execute the scenario `{scenario}`: it has no `trees` section")]
    NoTrees {
        /// Id of the scenario.
        scenario: String,
    },
    /// The scenario has no block caches over a trace.
    #[error(
        "failed to serve the scenario `{scenario}`: it has no `pool` section, or one with a generated stream; the prompts of problems are served"
    )]
    NoPool {
        /// Id of the scenario.
        scenario: String,
    },
    /// A policy asked for a vector that is evicted or was not remembered.
    #[error(
        "failed to evict with `{policy}`: {quantity} at position {pos} in layer {layer}, KV head {head} is not at hand"
    )]
    NotAtHand {
        /// Label of the stack.
        policy: String,
        /// Which vector.
        quantity: Quantity,
        /// The layer.
        layer: LayerIdx,
        /// The KV head.
        head: KvHead,
        /// The position.
        pos: Pos,
    },
    /// A stack accumulates attention, and the prefix was made without.
    #[error("failed to execute `{policy}`: it accumulates attention, and the prompt was prefilled without")]
    NothingAccumulated {
        /// Label of the stack.
        policy: String,
    },
}
