//! The result tables: what a run writes and what plots read, and nothing else.
//!
//! `cells` has one row per cell of a study, `series` is long form: one row per (cell, metric, layer, x). Studies of branch trees add
//! `problems`, one row per cell and problem, `steps`, the exact step functions of thresholds, and `joint`, the facts that give any setting of them. Rows are collected
//! as [`CellRow`] and [`SeriesRow`], intervals come from a [`Bootstrap`].
//! Both are written with a manifest `results.json` into one folder; see [`write()`] and [`read()`].

mod diff;
mod digest;
mod drawn;
mod error;
mod expect;
mod io;
mod joint;
mod paired;
mod pareto;
mod part;
mod plan;
mod rows;
mod standing;
mod stats;
mod version;

pub use diff::{Diff, DiffOptions, Divergence, Match, TableDiff, diff};
pub use digest::{cell_id, sha256_hex};
pub use drawn::{
    CALIBRATION_COLUMNS, CLAIM_COLUMNS, PHASE_COLUMNS, RECOMMENDED_COLUMNS, RETAINED_COLUMNS,
    SPEEDUP_COLUMNS, WORDING_COLUMNS,
};
pub use error::ResultsError;
pub use expect::{Verdict, verdicts};
pub use io::{Formats, command_in, read, scenario_in, tables_in, write};
pub use joint::JOINT_COLUMNS;
pub use paired::{mcnemar, sign_flip, smallest_p};
pub use pareto::{KNEE, ParetoAxis, ParetoError, front, knee, pareto};
pub(crate) use part::{Named, gather};
pub use part::{Outcome, Part, Parts, save as save_part};
pub use plan::{Section, StudyPlan, Unit, UnitKind};
pub(crate) use rows::{CellColumn, cell_columns, ordered_cells};
pub use rows::{CellRow, NOTES, SeriesRow, cells_table, series_table, table_of};
use rows::{part_cells_table, series_of};
pub use standing::{Standing, Unfinished};
pub use stats::{Bootstrap, Estimate};
pub use version::{RESULTS_VERSION, ResultsVersion};

use crate::table::Table;
use serde::{Deserialize, Serialize};

/// The cell id under which series about the recording itself are stored.
pub const RECORDING: &str = "recording";

/// Columns of `cells` before the metrics, with kind and meaning. Order is the order in the file.
pub const CELL_KEYS: &[(&str, &str, &str)] = &[
    ("cell", "text", "content hash of everything that decides the row (12 hex digits)"),
    ("scenario", "text", "id of the scenario"),
    ("source", "text", "name of the trace"),
    ("synthetic", "bool", "whether the trace was generated and not recorded"),
    ("arm", "text", "`replay` (open loop on a trace) or `real` (policy in the loop of the model)"),
    ("study", "text", "`eviction`, `exit` or `trees`"),
    ("policy", "text", "label of the policy stack"),
    ("params", "text", "the effective parameters, canonical JSON"),
    ("seed", "int", "seed of the policy's random streams; absent where no draw is made"),
    ("budget_tokens", "int", "C = K + B: tokens resident per layer and KV head right after an eviction"),
    ("kv_budget_tokens", "int", "K: tokens chosen by the selector"),
    ("recent_tokens", "int", "B (= R): most recent tokens, always kept"),
    ("value_tokens", "int", "N_v: tokens reserved for the widest value states, inside K"),
    ("sink_tokens", "int", "first tokens always kept, inside K"),
    ("period_tokens", "int", "an eviction is due when the number of stored tokens is a multiple of this"),
    ("window_tokens", "int", "recent queries whose attention is scored"),
    (
        "granularity",
        "text",
        "what is kept or evicted as one: `token-layer` or `block:N`; absent for a token of a KV head",
    ),
    ("attend", "text", "which resident tokens a query attends to; absent for all of them"),
    ("store", "text", "in which representation tokens are stored; absent where it is as the model made them"),
    ("lens", "text", "`final-norm` or `raw`"),
    (
        "theta",
        "real",
        "entropy below which a layer may exit; nats, or a share of ln V when `theta_unit` says so",
    ),
    ("theta_unit", "text", "`nats` or `share-of-ln-vocab`"),
    ("epsilon", "real", "largest entropy change between consecutive layers at exit, in the unit of theta"),
    ("status", "text", "`ok`, `failed` or `skipped`"),
    ("error", "text", "why the cell failed or was skipped"),
    ("lint", "text", "what is vacuous or unreachable about the thresholds, in words; absent when nothing is"),
    ("sequences", "int", "recorded sequences that the row covers"),
    ("log_digest", "text", "SHA-256 over the records of the event engine, first 16 hex digits"),
];

/// Columns of `cells` that only some studies have, between the keys and the metrics, with kind and meaning.
pub const MORE_CELL_KEYS: &[(&str, &str, &str)] = &[
    ("problems", "int", "recorded problems with branch trees that the row covers"),
    (
        "drawn",
        "text",
        "how they, or the sequences, were drawn from those of the trace; absent where the first ones, or all, are read",
    ),
    ("share", "text", "the share policy: which branches are decoded behind the root's prefix"),
    ("verify", "text", "the verify policy: whether the branches of a problem are verified"),
    ("exit", "text", "the exit policy: after which layer a verification stops"),
    ("winner", "text", "the winner policy: which branch answers"),
    ("tau", "real", "smallest similarity at which a branch shares"),
    ("tau_conf", "real", "smallest confidence of the surest branch at a skip of verification"),
    (
        "hole_policy",
        "text",
        "what is done about keys and values that exits leave out: `verify-only`, `copy-state`, `recompute` or `forbid`",
    ),
    ("margin", "real", "smallest lead of the surest branch at a skip of verification"),
    ("baseline", "text", "the cell that columns `..._vs_baseline` compare this one with, on the same items"),
];

/// Columns of `steps`, the exact step functions of thresholds, with kind and meaning.
pub const STEP_COLUMNS: &[(&str, &str, &str)] = &[
    ("stack", "text", "label of the stack"),
    (
        "group",
        "text",
        "content hash of everything that decides the step functions but the thresholds (12 hex digits)",
    ),
    ("params", "text", "the stack's effective parameters, canonical JSON"),
    (
        "axis",
        "text",
        "the threshold that moves: tau, tau-conf, margin, theta or epsilon; the others are as in the next columns",
    ),
    ("tau", "real", "smallest similarity at which a branch shares"),
    ("tau_conf", "real", "smallest confidence of the surest branch at a skip"),
    ("margin", "real", "smallest lead of the surest branch at a skip"),
    ("theta_nats", "real", "entropy below which a layer may exit, nats"),
    ("epsilon_nats", "real", "largest entropy change at an exit, nats"),
    ("above", "real", "values of the axis above this belong to the step; absent for no lower end"),
    ("upto", "real", "values up to and including this belong to the step; absent for no upper end"),
    ("shared_branches", "int", "branches decoded behind the root's prefix"),
    ("skipped_problems", "int", "problems whose verification is skipped"),
    ("verified_branches", "int", "branches that are verified"),
    ("exited_branches", "int", "verified branches that stop before the last layer"),
    ("layers_run", "int", "layers run over all verified branches"),
    ("correct_problems", "int", "problems answered as expected"),
    ("agreeing_problems", "int", "problems with the answer of the full pipeline"),
    ("harmed_problems", "int", "problems that only the full pipeline answers rightly"),
    ("helped_problems", "int", "problems that only this setting answers rightly"),
    ("branches", "int", "branches that may answer: the denominator of shared_branches"),
    ("problems", "int", "problems: the denominator of skipped_problems and agreeing_problems"),
    (
        "gradable_problems",
        "int",
        "problems with an expected answer: the denominator of correct, harmed and helped",
    ),
    ("layers", "int", "layers of the model: times verified_branches, the denominator of layers_run"),
];

/// Columns of `problems`, one row a cell over branch trees and problem, with kind and meaning.
pub const PROBLEM_COLUMNS: &[(&str, &str, &str)] = &[
    ("cell", "text", "the cell"),
    ("problem", "int", "index of the problem in the trace"),
    ("item", "text", "id of the problem: the unit of bootstrap intervals and paired comparisons"),
    ("branches", "int", "branches that may answer"),
    ("shared_branches", "int", "branches decoded behind the root's prefix"),
    ("reused_tokens", "int", "prompt tokens that were there already"),
    ("skipped", "bool", "whether verification was skipped"),
    ("exited_branches", "int", "verified branches that stop before the last layer"),
    ("layers_run", "int", "layers run over all verified branches"),
    ("generated_tokens", "int", "tokens generated over all branches"),
    ("winner", "int", "index of the winning branch; absent when there is none"),
    ("answer", "text", "its answer; absent when it has none"),
    ("correct", "bool", "whether that is expected; absent when nothing is"),
    ("full_answer", "text", "the full pipeline's answer"),
    ("full_correct", "bool", "whether that is expected"),
];

/// Columns of `fidelity`, how well an estimate of the replay ranks and predicts what was executed, with kind and meaning.
pub const FIDELITY_COLUMNS: Columns = &[
    ("estimate", "text", "metric of the replay"),
    ("outcome", "text", "metric of the runs: next_token_kl, top1_agreement or accuracy"),
    ("budget_tokens", "int", "only cells of this budget are ranked; absent for all"),
    (
        "tau_b",
        "real",
        "Kendall's rank correlation of estimate and outcome over cells, each turned so that larger is better: 1 for the same order",
    ),
    ("tau_b_problem_lo", "real", "95 % bootstrap interval over problems, lower end"),
    ("tau_b_problem_hi", "real", "upper end"),
    ("tau_b_policy_lo", "real", "95 % bootstrap interval over policies, lower end"),
    ("tau_b_policy_hi", "real", "upper end"),
    ("cells", "int", "cells that are ranked"),
    ("policies", "int", "policies behind them"),
    ("problems", "int", "problems behind each"),
    (
        "leave_policy_out",
        "real",
        "mean absolute error of the outcome predicted by a rising curve that was fitted without the policy",
    ),
    (
        "mean_alone",
        "real",
        "the same when the mean outcome of the other policies is the prediction: what is to be beaten",
    ),
    ("leave_problems_out", "real", "mean absolute error on problems that the curve was not fitted on"),
    ("chosen", "bool", "whether this estimate predicts the outcome best"),
];

/// Columns of `items`, one row a cell, item and metric of studies that compare, with kind and meaning.
pub const ITEM_COLUMNS: &[(&str, &str, &str)] = &[
    ("cell", "text", "the cell"),
    (
        "item",
        "text",
        "id of the problem or prompt: the unit of bootstrap intervals and paired comparisons; a run of requests where a pool's are of no problem",
    ),
    ("metric", "text", "id of the metric"),
    ("value", "real", "its value over the item's sequences or requests"),
    ("n", "int", "sequences, or requests of a pool, behind the value"),
];

/// Columns of a table: name, kind (`text`, `int`, `real` or `bool`) and meaning.
pub type Columns = &'static [(&'static str, &'static str, &'static str)];

/// Tables that only some studies write, with their columns.
pub const MORE_TABLES: &[(&str, Columns)] = &[
    ("problems", PROBLEM_COLUMNS),
    ("steps", STEP_COLUMNS),
    ("joint", JOINT_COLUMNS),
    ("fidelity", FIDELITY_COLUMNS),
    ("items", ITEM_COLUMNS),
    ("retained", RETAINED_COLUMNS),
    ("phases", PHASE_COLUMNS),
    ("speedups", SPEEDUP_COLUMNS),
    ("wordings", WORDING_COLUMNS),
    ("claims", CLAIM_COLUMNS),
    ("calibration", CALIBRATION_COLUMNS),
    ("recommended", RECOMMENDED_COLUMNS),
];

/// Columns of `series`, with kind and meaning.
pub const SERIES_COLUMNS: &[(&str, &str, &str)] = &[
    ("cell", "text", "the cell, or `recording` for series about the trace itself"),
    ("metric", "text", "id of the metric"),
    ("stat", "text", "`mean`, `p10`, `p50`, `p90` or `count`"),
    ("layer", "int", "zero-based layer; absent when the value is over all layers"),
    ("x", "real", "position on the metric's x axis"),
    ("x_hi", "real", "right edge of the bin, for histograms"),
    ("value", "real", "the value"),
    ("n", "int", "how many observations are behind the value"),
];

/// What is known about a run besides its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultsManifest {
    /// Version of the table layout.
    pub version: ResultsVersion,
    /// Tool name and version, e.g. `kvlab 0.1.0`.
    pub tool: String,
    /// The scenario's id.
    pub scenario: String,
    /// The question that the scenario asks.
    pub why: String,
    /// SHA-256 of the scenario text after flags were applied.
    pub scenario_digest: String,
    /// The scenario as run (YAML).
    pub scenario_text: String,
    /// The traces that were read.
    pub sources: Vec<SourceInfo>,
    /// How the results were made, as a command line.
    pub command: String,
}

/// One trace behind the results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceInfo {
    /// Name in the `source` column.
    pub name: String,
    /// SHA-256 over the trace's manifest.
    pub digest: String,
    /// Whether it was generated and not recorded.
    pub synthetic: bool,
    /// The model's name, or the generator's.
    pub model: String,
    /// The execution provider that ran; empty for synthetic traces.
    pub provider: String,
    /// Recorded sequences.
    pub sequences: u32,
    /// Recorded tokens over all sequences, prompts included.
    pub tokens: u64,
    /// Decoder layers.
    pub layers: u16,
    /// Query heads.
    pub q_heads: u16,
    /// KV heads.
    pub kv_heads: u16,
    /// Vocabulary size: ln of it is the largest entropy.
    pub vocab: u32,
}

/// A finished run: manifest and tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// What is known about the run.
    pub manifest: ResultsManifest,
    /// One row per cell.
    pub cells: Table,
    /// Long-form series.
    pub series: Table,
    /// Tables that only some studies have, by name, in the order of [`MORE_TABLES`].
    pub more: Vec<(String, Table)>,
}

impl Results {
    /// A table of [`MORE_TABLES`]; absent when the study has none.
    #[must_use]
    pub fn more(&self, name: &str) -> Option<&Table> {
        self.more.iter().find(|(known, _)| known == name).map(|(_, table)| table)
    }
}
