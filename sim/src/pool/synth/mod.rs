//! Generated streams, always labelled synthetic: Zipf ids, and trees that are searched level by level or by revisits.
//!
//! To add one, write its file and add a line to [`STREAMS`].

mod beam;
mod mcts;
mod tree;
mod zipf;

pub use zipf::zipf_ids;

use super::{BlockStream, PoolError};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// A registered generator of streams.
pub struct Generated {
    /// Its id.
    pub id: &'static str,
    /// What it is for, in one line.
    pub summary: &'static str,
    build: fn(Value, u64) -> Result<BlockStream, PoolError>,
    defaults: fn() -> Value,
}

impl Generated {
    /// The stream for these parameters, an object; what it does not name has its default.
    ///
    /// # Errors
    /// When a name is not known or a value out of range.
    pub fn build(&self, params: Value, seed: u64) -> Result<BlockStream, PoolError> {
        (self.build)(params, seed)
    }

    /// All parameters with their defaults, an object.
    #[must_use]
    pub fn defaults(&self) -> Value {
        (self.defaults)()
    }
}

impl std::fmt::Debug for Generated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generated").field("id", &self.id).finish_non_exhaustive()
    }
}

/// All generators, sorted by id.
pub const STREAMS: &[Generated] = &[
    Generated {
        id: "beam-trees",
        summary: "problems searched level by level, the best branches of a level going on; several problems at a time",
        build: |params, seed| beam::stream(&parsed("beam-trees", params)?, seed),
        defaults: || json(&beam::Params::default()),
    },
    Generated {
        id: "mcts-trees",
        summary: "problems searched by walks that come back to good branches (Monte Carlo tree search); several problems at a time",
        build: |params, seed| mcts::stream(&parsed("mcts-trees", params)?, seed),
        defaults: || json(&mcts::Params::default()),
    },
    Generated {
        id: "zipf",
        summary: "independent single blocks whose popularity falls as a power of their rank",
        build: |params, seed| zipf::stream(&parsed("zipf", params)?, seed),
        defaults: || json(&zipf::Params::default()),
    },
];

/// The generator called `id`.
///
/// # Errors
/// When there is none.
pub fn generator(id: &str) -> Result<&'static Generated, PoolError> {
    STREAMS.iter().find(|stream| stream.id == id).ok_or_else(|| PoolError::UnknownStream {
        given: id.to_owned(),
        known: STREAMS.iter().map(|stream| stream.id).collect(),
    })
}

fn parsed<T: DeserializeOwned>(stream: &'static str, params: Value) -> Result<T, PoolError> {
    let found = params.to_string();
    let given = if params.is_null() { Value::Object(serde_json::Map::new()) } else { params };
    serde_json::from_value(given).map_err(|error| PoolError::Spec {
        stream,
        what: "its parameters",
        found,
        accepted: error.to_string(),
    })
}

fn json(params: &impl Serialize) -> Value {
    serde_json::to_value(params).unwrap_or_default()
}

/// Refuses a parameter outside its range.
fn check(stream: &'static str, what: &'static str, found: f64, low: f64, high: f64) -> Result<(), PoolError> {
    if (low..=high).contains(&found) {
        return Ok(());
    }
    let (found, accepted) = (found.to_string(), format!("{low} to {high}"));
    Err(PoolError::Spec { stream, what, found, accepted })
}
