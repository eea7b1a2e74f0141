//! Cost models: how long a pass over a batch takes, in integer nanoseconds that never come from a clock.
//!
//! A model is one file with an entry in [`COSTS`]. `unit` counts work, `roofline` asks a device's data sheet, `measured` is fitted to
//! times that were recorded as data.

mod error;
mod measured;
mod roofline;
mod tables;
mod unit;

pub use error::CostError;
pub use measured::{Fit, Measurement, fit, parse_times};
pub(crate) use measured::{TimesFrom, times_from, with_times};
pub use roofline::Roofline;
pub use tables::{Device, Model, Software, devices, models, software};

use crate::policy::RawParams;
use crate::types::Nanos;

/// One sequence of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Tokens that are computed.
    pub new_tokens: u32,
    /// Resident tokens that each of them attends to besides the ones before it in the same row.
    pub context_tokens: u32,
}

/// One pass: a batch through the first layers of the model, or all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// The sequences.
    pub rows: Vec<Row>,
    /// Layers that are run.
    pub layers: u16,
    /// Positions whose logits are computed, counted once for each layer that they are computed after.
    pub heads: u32,
    /// Products with the unembedding: 1 for a usual pass, one for each layer that is looked at.
    pub head_products: u32,
    /// Resident tokens whose keys and values are copied on the way: replicated prefixes, caches that grow by concatenation.
    pub copied_tokens: u64,
}

impl Work {
    /// Tokens computed over all rows.
    #[must_use]
    pub fn new_tokens(&self) -> u64 {
        self.rows.iter().map(|row| u64::from(row.new_tokens)).sum()
    }

    /// Tokens whose keys and values are read, over all rows.
    #[must_use]
    pub fn read_tokens(&self) -> u64 {
        self.rows.iter().map(|row| u64::from(row.context_tokens) + u64::from(row.new_tokens)).sum()
    }

    /// Pairs of a query and a key that it attends to, over all rows.
    #[must_use]
    pub fn attended_pairs(&self) -> u64 {
        let pairs = |row: &Row| {
            let (new, context) = (u64::from(row.new_tokens), u64::from(row.context_tokens));
            new * context + new * (new + 1) / 2
        };
        self.rows.iter().map(pairs).sum()
    }
}

/// Duration of passes over batches.
pub trait BatchCost: std::fmt::Debug + Send + Sync {
    /// Duration of `work`, at least 1 ns. It depends on nothing else.
    fn duration(&self, work: &Work) -> Nanos;

    /// Layers of the model; absent where time does not depend on them.
    fn layers(&self) -> Option<u16>;

    /// The same for a model of so many layers, where time did not depend on them.
    fn of_layers(self: Box<Self>, layers: u16) -> Box<dyn BatchCost>;

    /// The model, where the time is that of one.
    fn model(&self) -> Option<&Model> {
        None
    }

    /// The effective parameters, sources included.
    fn params(&self) -> serde_json::Value;
}

/// A registry line.
pub struct CostEntry {
    /// Its id.
    pub id: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Builds it from the parameters of a scenario.
    pub build: fn(&RawParams) -> Result<Box<dyn BatchCost>, CostError>,
}

impl std::fmt::Debug for CostEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CostEntry").field("id", &self.id).finish_non_exhaustive()
    }
}

/// All cost models, sorted by id.
pub const COSTS: &[CostEntry] = &[
    CostEntry {
        id: "measured",
        summary: "fitted by least squares to recorded times of passes",
        build: measured::build,
    },
    CostEntry {
        id: "roofline",
        summary: "the longer of computing and moving bytes, by data sheet, layer by layer",
        build: roofline::build,
    },
    CostEntry { id: "unit", summary: "a fixed time a pass and a token: counts work", build: unit::build },
];

/// The cost model called `id`.
///
/// # Errors
/// When there is none.
pub fn cost(id: &str) -> Result<&'static CostEntry, CostError> {
    COSTS.iter().find(|entry| entry.id == id).ok_or_else(|| CostError::Unknown {
        what: "cost model",
        given: id.to_owned(),
        known: COSTS.iter().map(|entry| entry.id.to_owned()).collect(),
    })
}

fn bad_params(kind: &str) -> impl FnOnce(crate::policy::PolicyError) -> CostError + use<'_> {
    move |error| CostError::Params { kind: kind.to_owned(), reason: error.to_string() }
}

/// Nanoseconds from seconds, rounded up, at least 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what fits")]
fn nanos(seconds: f64) -> Nanos {
    Nanos::new((seconds * 1e9).ceil().clamp(1.0, 9e18) as u64)
}
