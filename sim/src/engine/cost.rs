//! What a pass costs in simulated time. Costs are integers and never come from the host's clock.

use crate::types::{Nanos, Pos, Tokens};
use serde::Serialize;

/// Kind of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassKind {
    /// A chunk of the prompt.
    Prefill,
    /// One generated token.
    Decode,
}

/// One run through the model for one branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Its kind.
    pub kind: PassKind,
    /// Position of its first token.
    pub first: Pos,
    /// Tokens it computes.
    pub tokens: Tokens,
}

/// Simulated duration of passes.
pub trait CostModel {
    /// Duration of `pass` for a branch with `live_entries` resident entries (layers and KV heads summed) before it.
    /// At least 1 ns: a pass that takes no time would be over before it began, and the queue refuses it.
    fn pass(&self, pass: &Pass, live_entries: u64) -> Nanos;
}

/// Fixed costs per pass and per token: time counts work, and says nothing about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitCost {
    /// Duration of a pass.
    pub per_pass: Nanos,
    /// Duration added for each of its tokens.
    pub per_token: Nanos,
}

impl Default for UnitCost {
    /// Every pass takes 1,000 ns, however many tokens it computes.
    fn default() -> Self {
        Self { per_pass: Nanos::new(1000), per_token: Nanos::ZERO }
    }
}

impl CostModel for UnitCost {
    fn pass(&self, pass: &Pass, _live_entries: u64) -> Nanos {
        let tokens = self.per_token.get().saturating_mul(u64::from(pass.tokens.get()));
        Nanos::new(self.per_pass.get().saturating_add(tokens))
    }
}
