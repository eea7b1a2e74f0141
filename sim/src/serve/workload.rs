//! What a serving run is given: problems with decisions, when they arrive, and how they are served.

use super::{ProblemDecisions, ServeError};
use crate::num;
use crate::rng::{Purpose, StreamKey};
use crate::types::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When problems arrive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", from = "RawArrivals")]
pub enum Arrivals {
    /// Each when the one before is answered: latency of a single user.
    #[default]
    OneByOne,
    /// All at time 0: throughput.
    AtOnce,
    /// With independent exponential gaps.
    Poisson {
        /// Problems a second.
        per_second: f64,
        /// Seed of the gaps.
        seed: u64,
    },
    /// At recorded times; the last one repeats for problems without a time.
    Recorded {
        /// Milliseconds from the first one, rising.
        millis: Vec<u64>,
    },
}

/// As they stand in a scenario: beside the kind of a variant without fields serde would let any key pass, beside that of an empty one it does not.
#[derive(Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum RawArrivals {
    OneByOne {},
    AtOnce {},
    Poisson { per_second: f64, seed: u64 },
    Recorded { millis: Vec<u64> },
}

impl From<RawArrivals> for Arrivals {
    fn from(raw: RawArrivals) -> Self {
        match raw {
            RawArrivals::OneByOne {} => Self::OneByOne,
            RawArrivals::AtOnce {} => Self::AtOnce,
            RawArrivals::Poisson { per_second, seed } => Self::Poisson { per_second, seed },
            RawArrivals::Recorded { millis } => Self::Recorded { millis },
        }
    }
}

impl Arrivals {
    /// Arrival of each of `count` problems; nothing for those that wait for the one before.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times in range")]
    pub fn times(&self, count: usize) -> Vec<Option<Nanos>> {
        match self {
            Self::OneByOne => (0..count).map(|at| (at == 0).then_some(Nanos::ZERO)).collect(),
            Self::AtOnce => vec![Some(Nanos::ZERO); count],
            Self::Poisson { per_second, seed } => {
                let mut draws = StreamKey::new(*seed, Purpose::Workload, "arrivals").stream();
                let mut now = 0.0_f64;
                (0..count)
                    .map(|_| {
                        now += -num::ln(draws.uniform()) / per_second * 1e9;
                        Some(Nanos::new(now.min(9e18) as u64))
                    })
                    .collect()
            }
            Self::Recorded { millis } => {
                let last = millis.last().copied().unwrap_or(0);
                let at = |index: usize| millis.get(index).copied().unwrap_or(last).saturating_mul(1_000_000);
                (0..count).map(|index| Some(Nanos::new(at(index)))).collect()
            }
        }
    }
}

/// How batches are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scheduler {
    /// Tokens of a physical block, all layers and KV heads.
    pub block_tokens: u32,
    /// Physical blocks that there are; absent for no limit.
    pub capacity_blocks: Option<u32>,
    /// Most tokens a pass; absent for no limit.
    pub batch_tokens: Option<u32>,
    /// Most sequences a pass; absent for no limit.
    pub batch_rows: Option<u32>,
    /// Most prompt tokens of one sequence a pass; absent for whole prompts.
    pub prefill_chunk: Option<u32>,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self {
            block_tokens: 16,
            capacity_blocks: None,
            batch_tokens: None,
            batch_rows: None,
            prefill_chunk: None,
        }
    }
}

/// What becomes of a prefix that branches have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PrefixMemory {
    /// Its blocks have several readers and are charged once.
    #[default]
    Shared,
    /// Every branch gets a physical copy, moved when the branch begins.
    Replicated,
}

/// How a cache grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Growth {
    /// New tokens are written behind the old ones.
    #[default]
    InPlace,
    /// Every decode step copies the whole cache into a larger one.
    Concatenated,
}

/// Which tokens a branch may evict when its first ones belong to others too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SharedEviction {
    /// Shared tokens stay; the branch makes room among its own. A prefix that fills the budget is cut to half of it once, before
    /// branches begin.
    #[default]
    ReadOnlyPrefix,
    /// Any token; blocks that others read are copied first.
    CopyOnEvict,
}

/// Periodic eviction while decoding: a branch with more than `budget` tokens, a multiple of `period`, is cut to `budget`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchEviction {
    /// Tokens after an eviction.
    pub budget: u32,
    /// Tokens between evictions.
    pub period: u32,
    /// What happens to shared tokens.
    #[serde(default)]
    pub shared: SharedEviction,
}

/// How problems are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServeSettings {
    /// How batches are made.
    pub scheduler: Scheduler,
    /// What becomes of common prefixes.
    pub prefix: PrefixMemory,
    /// How caches grow.
    pub growth: Growth,
    /// Eviction while decoding; absent for none.
    pub eviction: Option<BranchEviction>,
    /// Whether invariants are checked after every change instead of at the end.
    #[serde(skip)]
    pub checks_each_event: bool,
}

/// Refuses decisions that contradict each other.
pub(super) fn check(problem: &ProblemDecisions) -> Result<(), ServeError> {
    let refuse = |branch: Option<usize>, why: String| {
        let branch = branch.and_then(|at| u32::try_from(at).ok());
        Err(ServeError::Decisions { item: problem.item.clone(), branch, why })
    };
    for (at, branch) in problem.branches.iter().enumerate() {
        let parent = match branch.parent {
            None => problem.root_tokens,
            Some(parent) if (parent as usize) < at => {
                let parent = &problem.branches[parent as usize];
                parent.prompt_tokens.saturating_add(parent.generated_tokens.saturating_sub(1))
            }
            Some(parent) => return refuse(Some(at), format!("its parent {parent} does not come before it")),
        };
        if branch.prompt_tokens == 0 {
            return refuse(Some(at), "its prompt has no token".to_owned());
        }
        if branch.reused_tokens > parent || branch.reused_tokens >= branch.prompt_tokens {
            let (reused, prompt) = (branch.reused_tokens, branch.prompt_tokens);
            return refuse(
                Some(at),
                format!(
                    "{reused} tokens are taken over, of {parent} that are there and before the last of {prompt}"
                ),
            );
        }
    }
    match problem.winner {
        Some(winner) if winner as usize >= problem.branches.len() => {
            refuse(None, format!("branch {winner} wins, of {}", problem.branches.len()))
        }
        _ => Ok(()),
    }
}
