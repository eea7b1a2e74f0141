//! What all cells of a study share, and how far the work is.

use crate::results::{Bootstrap, CellRow, sha256_hex};
use crate::scenario::{Compare, Scenario};
use crate::table::Value;
use crate::trace::{SequenceMeta, TraceError, TraceSource};
use crate::types::ModelShape;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all cells of a study share.
pub(super) struct Context<'a> {
    pub(super) source: &'a dyn TraceSource,
    pub(super) digest: String,
    pub(super) scenario: &'a str,
    pub(super) shape: &'a ModelShape,
    pub(super) sequences: Vec<SequenceMeta>,
    /// Places in the trace of the problems with branch trees that are read.
    pub(super) problems: Vec<u32>,
    /// How they were drawn, in words; absent where the first ones are read.
    drawn: Option<String>,
    /// Whether cells of evictions give rows by item.
    pub(super) has_items: bool,
    /// Whether those of exits do.
    pub(super) has_exit_items: bool,
    /// Whether those of a pool do.
    pub(super) has_pool_items: bool,
    pub(super) bootstrap: Bootstrap,
    done: AtomicU64,
    total: u64,
    progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl<'a> Context<'a> {
    /// Of `scenario` over `source`.
    ///
    /// # Errors
    /// When the ids of problems with branch trees are asked for, to draw some of them, and cannot be read.
    pub(super) fn of(scenario: &'a Scenario, source: &'a dyn TraceSource) -> Result<Self, TraceError> {
        let (sequences, problems) = (read_sequences(scenario, source), read_problems(scenario, source)?);
        let compare = scenario.compare.as_ref();
        let pools = || scenario.pool.iter().flat_map(|study| &study.policies);
        let is_of_pool =
            |compare: &Compare| pools().any(|choice| Some(&choice.label) == compare.baseline.as_ref());
        Ok(Self {
            source,
            digest: source.digest(),
            scenario: &scenario.id,
            shape: source.shape(),
            drawn: scenario.draw.map(|draw| draw.words(scenario.limit)),
            problems,
            has_items: compare.is_some_and(|compare| compare.baseline.is_some()),
            has_exit_items: compare.is_some_and(|compare| compare.exit.is_some()),
            has_pool_items: compare.is_some_and(is_of_pool),
            bootstrap: Bootstrap::by_item(sequences.iter().map(|meta| meta.item.as_str())),
            sequences,
            done: AtomicU64::new(0),
            total: 0,
            progress: &|_, _| {},
        })
    }

    /// The same, telling `progress` of `total` units of work.
    pub(super) fn telling(self, progress: &'a (dyn Fn(u64, u64) + Sync), total: u64) -> Self {
        Self { progress, total, ..self }
    }

    /// Counts one unit of work.
    pub(super) fn advance(&self) {
        (self.progress)(self.done.fetch_add(1, Ordering::Relaxed) + 1, self.total);
    }

    /// What the id of a cell says about the sequences that are read.
    pub(super) fn sequences_key(&self) -> serde_json::Value {
        self.read_key(self.sequences.len(), self.sequences.iter().map(|meta| meta.seq.get()))
    }

    /// What the id of a cell says about the problems with branch trees that are read.
    pub(super) fn problems_key(&self) -> serde_json::Value {
        self.read_key(self.problems.len(), self.problems.iter().copied())
    }

    /// The number where the first ones are read; which ones, too, where they are drawn.
    fn read_key(&self, count: usize, places: impl Iterator<Item = u32>) -> serde_json::Value {
        if self.drawn.is_none() {
            return count.into();
        }
        let bytes: Vec<u8> = places.flat_map(u32::to_le_bytes).collect();
        serde_json::json!({ "count": count, "drawn": sha256_hex(&bytes) })
    }

    /// Says in a row how its sequences or problems were drawn.
    pub(super) fn tell_drawn(&self, row: &mut CellRow) {
        if let Some(drawn) = &self.drawn {
            row.text("drawn", drawn.clone());
        }
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

/// The sequences of `source` that `scenario` reads, in their order.
pub(crate) fn read_sequences(scenario: &Scenario, source: &dyn TraceSource) -> Vec<SequenceMeta> {
    let all = source.sequences();
    let items: Vec<&str> = all.iter().map(|meta| meta.item.as_str()).collect();
    scenario.read_of(&items).into_iter().map(|at| all[at].clone()).collect()
}

/// Places of the problems with branch trees of `source` that `scenario` reads, rising.
///
/// # Errors
/// When they are drawn and their ids cannot be read.
pub(crate) fn read_problems(scenario: &Scenario, source: &dyn TraceSource) -> Result<Vec<u32>, TraceError> {
    let count = source.problems();
    if scenario.draw.is_none() {
        return Ok((0..count.min(scenario.limit.unwrap_or(u32::MAX))).collect());
    }
    let ids: Vec<String> =
        (0..count).map(|index| source.problem_item(index)).collect::<Result<_, TraceError>>()?;
    let items: Vec<&str> = ids.iter().map(String::as_str).collect();
    Ok(scenario.read_of(&items).into_iter().filter_map(|at| u32::try_from(at).ok()).collect())
}
