//! What can happen, and in which order things at the same time happen.

use super::Pass;
use crate::ledger::BranchKey;
use crate::types::{BranchId, LayerIdx, Nanos, ReqId};
use serde::Serialize;

/// The order of events at one instant. What becomes free "now" can be used "now", and scheduling sees everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Phase {
    /// Results of a pass become visible.
    Completion = 0,
    /// Blocks become free.
    Release = 1,
    /// Branches begin.
    Structure = 2,
    /// Requests and tokens arrive.
    Arrival = 3,
    /// Policies see what arrived.
    Observation = 4,
    /// Policies decide.
    Decision = 5,
    /// The next pass is chosen.
    Scheduling = 6,
    /// The run ends.
    End = 7,
}

/// Something that will happen. Events drive the engine; what they did is told by [`super::Record`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A prefill chunk or a decode step is computed.
    PassFinished {
        /// Whose pass.
        branch: BranchKey,
        /// What it computed.
        pass: Pass,
    },
    /// A branch lets go of its blocks.
    ReleaseDue {
        /// The branch.
        branch: BranchKey,
    },
    /// A branch begins with what its parent holds.
    BranchForked {
        /// The parent.
        parent: BranchKey,
        /// The new branch of the same request.
        child: BranchId,
    },
    /// A request asks to be admitted.
    RequestArrived {
        /// The request.
        req: ReqId,
    },
    /// Computed tokens are stored.
    TokensArrived {
        /// Whose tokens.
        branch: BranchKey,
        /// The pass that computed them.
        pass: Pass,
    },
    /// The next eviction of a branch is due.
    EvictDue {
        /// The branch.
        branch: BranchKey,
    },
    /// The next pass of a branch is to be chosen.
    StepDue {
        /// The branch.
        branch: BranchKey,
    },
    /// Nothing is left to do.
    End,
}

impl Event {
    /// When, within an instant, it happens.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match self {
            Self::PassFinished { .. } => Phase::Completion,
            Self::ReleaseDue { .. } => Phase::Release,
            Self::BranchForked { .. } => Phase::Structure,
            Self::RequestArrived { .. } | Self::TokensArrived { .. } => Phase::Arrival,
            Self::EvictDue { .. } => Phase::Decision,
            Self::StepDue { .. } => Phase::Scheduling,
            Self::End => Phase::End,
        }
    }

    /// The branch it concerns; the first one for an event that concerns none.
    #[must_use]
    pub const fn branch(&self) -> BranchKey {
        match *self {
            Self::PassFinished { branch, .. }
            | Self::ReleaseDue { branch }
            | Self::TokensArrived { branch, .. }
            | Self::EvictDue { branch }
            | Self::StepDue { branch } => branch,
            Self::BranchForked { parent, child } => BranchKey { req: parent.req, branch: child },
            Self::RequestArrived { req } => BranchKey::root(req),
            Self::End => BranchKey::root(ReqId::new(0)),
        }
    }

    /// The layer it concerns; the first one for an event that concerns all. No event of today concerns a single layer.
    #[must_use]
    pub const fn layer(&self) -> LayerIdx {
        LayerIdx::new(0)
    }
}

/// The total order of events: fields in the order of their declaration.
///
/// What an event means stands before `seq`, so that the order in which events were scheduled cannot change a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventKey {
    /// When it happens.
    pub time: Nanos,
    /// Its phase within the instant.
    pub phase: Phase,
    /// The request it concerns.
    pub req: ReqId,
    /// The branch it concerns.
    pub branch: BranchId,
    /// The layer it concerns.
    pub layer: LayerIdx,
    /// How many events were scheduled before it.
    pub seq: u64,
}

impl EventKey {
    /// The key of `event` at `time`, scheduled as number `seq`.
    #[must_use]
    pub const fn new(time: Nanos, event: &Event, seq: u64) -> Self {
        let BranchKey { req, branch } = event.branch();
        Self { time, phase: event.phase(), req, branch, layer: event.layer(), seq }
    }
}

impl std::fmt::Display for EventKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { time, phase, req, branch, layer, seq } = self;
        write!(f, "time {time} ns phase {phase:?} request {req} branch {branch} layer {layer} seq {seq}")
    }
}
