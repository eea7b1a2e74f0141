//! What all cells of a study share, and how far the work is.

use crate::results::{Bootstrap, CellRow};
use crate::scenario::Scenario;
use crate::table::Value;
use crate::trace::{SequenceMeta, TraceSource};
use crate::types::ModelShape;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all cells of a study share.
pub(super) struct Context<'a> {
    pub(super) source: &'a dyn TraceSource,
    pub(super) digest: String,
    pub(super) scenario: &'a str,
    pub(super) shape: &'a ModelShape,
    pub(super) sequences: &'a [SequenceMeta],
    /// Problems with branch trees that are read.
    pub(super) problems: u32,
    /// Whether cells give rows by item.
    pub(super) has_items: bool,
    pub(super) bootstrap: Bootstrap,
    done: AtomicU64,
    total: u64,
    progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl<'a> Context<'a> {
    /// Of `scenario` over `source`.
    pub(super) fn of(scenario: &'a Scenario, source: &'a dyn TraceSource) -> Self {
        let limit = scenario.limit;
        let all = source.sequences();
        let sequences = &all[..all.len().min(limit.map_or(usize::MAX, |limit| limit as usize))];
        Self {
            source,
            digest: source.digest(),
            scenario: &scenario.id,
            shape: source.shape(),
            sequences,
            problems: source.problems().min(limit.unwrap_or(u32::MAX)),
            has_items: scenario.compare.is_some(),
            bootstrap: Bootstrap::by_item(sequences.iter().map(|meta| meta.item.as_str())),
            done: AtomicU64::new(0),
            total: 0,
            progress: &|_, _| {},
        }
    }

    /// The same, telling `progress` of `total` units of work.
    pub(super) fn telling(self, progress: &'a (dyn Fn(u64, u64) + Sync), total: u64) -> Self {
        Self { progress, total, ..self }
    }

    /// Counts one unit of work.
    pub(super) fn advance(&self) {
        (self.progress)(self.done.fetch_add(1, Ordering::Relaxed) + 1, self.total);
    }

    /// The key columns that all cells have.
    pub(super) fn keys(&self, study: &str) -> CellRow {
        let mut row = CellRow::default();
        row.text("scenario", self.scenario);
        row.text("source", self.source.name());
        row.set("synthetic", Value::Bool(self.source.is_synthetic()));
        row.text("arm", "replay");
        row.text("study", study);
        row.int("sequences", i64::try_from(self.sequences.len()).unwrap_or(i64::MAX));
        row
    }
}
