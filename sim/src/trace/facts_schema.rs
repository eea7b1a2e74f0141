//! The facts tables: their columns in file order, declared once, and a buffer of rows for each.
//!
//! The list is part of the format, as [`super::FIELDS`] is, which is made from it.

use super::{Dtype, TraceVersion};
use crate::table::{Column, Table, TableError, Text};

/// Kind of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Int,
    Real,
    Bool,
    Text,
}

impl Kind {
    /// The storage type of such a column.
    pub(crate) fn dtype(self) -> &'static [Dtype] {
        match self {
            Self::Int => &[Dtype::I64],
            Self::Real => &[Dtype::F64],
            Self::Bool => &[Dtype::BOOL],
            Self::Text => &[Dtype::UTF8],
        }
    }
}

/// A column of a facts table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Col {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Whether a value may be absent.
    pub(crate) optional: bool,
    pub(crate) unit: &'static str,
    pub(crate) doc: &'static str,
}

const fn col(name: &'static str, kind: Kind, unit: &'static str, doc: &'static str) -> Col {
    Col { name, kind, optional: false, unit, doc }
}

const fn optional(column: Col) -> Col {
    Col { optional: true, ..column }
}

const fn key(name: &'static str) -> Col {
    col(name, Kind::Int, "", "key")
}

/// A facts table. Its first columns are the key: rows are sorted by them.
#[derive(Debug)]
pub(crate) struct FactTable {
    /// Path inside the trace.
    pub(crate) path: &'static str,
    /// Names of the key columns.
    pub(crate) axes: &'static [&'static str],
    /// The format version that brought it.
    pub(crate) since: TraceVersion,
    /// All columns, the key first.
    pub(crate) columns: &'static [Col],
}

impl FactTable {
    /// The path without folder and suffix: what its fields begin with.
    pub(crate) fn name(&self) -> &'static str {
        self.path.trim_start_matches("facts/").trim_end_matches(".parquet")
    }

    /// The columns that are fields.
    pub(crate) fn fields(&self) -> &'static [Col] {
        &self.columns[self.axes.len()..]
    }
}

const V1_0: TraceVersion = TraceVersion { major: 1, minor: 0 };
const V1_1: TraceVersion = TraceVersion { major: 1, minor: 1 };

pub(crate) const TOKENS: &str = "facts/tokens.parquet";
pub(crate) const LENS: &str = "facts/lens.parquet";
pub(crate) const LENS_TOP: &str = "facts/lens_top.parquet";
/// Fields of the lens table that a trace may be without.
pub(crate) const RAW_LENS: [&str; 2] = ["lens.raw_entropy_nats", "lens.raw_logsumexp"];
pub(crate) const BRANCHES: &str = "facts/branches.parquet";
pub(crate) const BRANCH_TOKENS: &str = "facts/branch_tokens.parquet";
pub(crate) const BRANCH_SIMILARITY: &str = "facts/branch_similarity.parquet";
pub(crate) const BRANCH_OUTCOMES: &str = "facts/branch_outcomes.parquet";
pub(crate) const BRANCH_STEPS: &str = "facts/branch_steps.parquet";
pub(crate) const BRANCH_VERDICTS: &str = "facts/branch_verdicts.parquet";
pub(crate) const REQUESTS: &str = "facts/requests.parquet";
pub(crate) const REQUEST_BLOCKS: &str = "facts/request_blocks.parquet";

/// All facts tables, sorted by path.
pub(crate) static TABLES: &[FactTable] = &[
    FactTable {
        path: BRANCH_OUTCOMES,
        axes: &["problem", "branch", "prefix"],
        since: V1_1,
        columns: &[
            key("problem"),
            key("branch"),
            col("prefix", Kind::Text, "", "key: `own` or `root`, the prefix that the branch was decoded on"),
            optional(col("answer", Kind::Text, "", "the answer found in the generated text")),
            optional(col("correct", Kind::Bool, "", "whether it is the expected one")),
            col("finish_reason", Kind::Text, "", "why generation stopped: `eos`, `length` or `stop`"),
            col("generated_tokens", Kind::Int, "tokens", "length of the generated text"),
            col("mean_top1_prob", Kind::Real, "", "C1: mean of the largest probability over the steps"),
            col(
                "geometric_mean_prob",
                Kind::Real,
                "",
                "C2: exp of the mean log-probability of the token taken",
            ),
            col("min_prob", Kind::Real, "", "C3: smallest probability of a token taken"),
            col("mean_entropy_nats", Kind::Real, "nats", "mean entropy of the steps; C4 is its negative"),
            col(
                "mean_top20_surprise_nats",
                Kind::Real,
                "nats",
                "C5: mean over the steps of top20_surprise_nats",
            ),
            col("mean_uniform_kl_nats", Kind::Real, "nats", "C6: mean over the steps of uniform_kl_nats"),
            col(
                "verdict_tokens",
                Kind::Int,
                "tokens",
                "length of the verifier's prompt; 0 when it was not run",
            ),
        ],
    },
    FactTable {
        path: BRANCH_SIMILARITY,
        axes: &["problem", "branch", "state"],
        since: V1_1,
        columns: &[
            key("problem"),
            key("branch"),
            col(
                "state",
                Kind::Int,
                "",
                "key: 0 for the embedding output, s for the residual stream after layer s - 1",
            ),
            col(
                "cos_last",
                Kind::Real,
                "",
                "cosine between the states at the last prompt token of root and branch",
            ),
            col(
                "cos_mean",
                Kind::Real,
                "",
                "cosine between the root's last state and the mean over the branch's suffix",
            ),
        ],
    },
    FactTable {
        path: BRANCH_STEPS,
        axes: &["problem", "branch", "prefix", "step"],
        since: V1_1,
        columns: &[
            key("problem"),
            key("branch"),
            col("prefix", Kind::Text, "", "key: `own` or `root`"),
            key("step"),
            col("token", Kind::Int, "", "vocabulary id of the token taken"),
            col("prob", Kind::Real, "", "its probability"),
            col("top1_prob", Kind::Real, "", "largest probability"),
            col("entropy_nats", Kind::Real, "nats", "entropy of the distribution"),
            col(
                "top20_surprise_nats",
                Kind::Real,
                "nats",
                "mean of -ln p over the min(20, vocab) most likely tokens",
            ),
            col(
                "uniform_kl_nats",
                Kind::Real,
                "nats",
                "KL divergence from the uniform distribution to this one",
            ),
            col("in_answer", Kind::Bool, "", "whether the token belongs to the answer found"),
        ],
    },
    FactTable {
        path: BRANCH_TOKENS,
        axes: &["problem", "branch", "pos"],
        since: V1_1,
        columns: &[
            key("problem"),
            key("branch"),
            key("pos"),
            col("token", Kind::Int, "", "vocabulary id in the branch's own prompt"),
            col(
                "in_prefix",
                Kind::Bool,
                "",
                "whether it belongs to the prefix, true exactly for pos < prefix_tokens",
            ),
        ],
    },
    FactTable {
        path: BRANCH_VERDICTS,
        axes: &["problem", "branch", "prefix", "layer"],
        since: V1_1,
        columns: &[
            key("problem"),
            key("branch"),
            col("prefix", Kind::Text, "", "key: `own` or `root`, the outcome that is judged"),
            key("layer"),
            col("p_yes", Kind::Real, "", "softmax over the yes and no logits, with the final norm"),
            col("raw_p_yes", Kind::Real, "", "the same without the final norm"),
            col("entropy_nats", Kind::Real, "nats", "entropy over the vocabulary, with the final norm"),
            col("raw_entropy_nats", Kind::Real, "nats", "the same without the final norm"),
            col(
                "top1_token",
                Kind::Int,
                "",
                "id of the largest logit, with the final norm; ties go to the lower id",
            ),
            col("top1_prob", Kind::Real, "", "its probability"),
            col("top2_prob", Kind::Real, "", "the second largest probability"),
            col("cos_previous", Kind::Real, "", "cosine with the state before the layer"),
            col(
                "js_previous_nats",
                Kind::Real,
                "nats",
                "Jensen-Shannon divergence to the distribution before the layer",
            ),
        ],
    },
    FactTable {
        path: BRANCHES,
        axes: &["problem", "branch"],
        since: V1_1,
        columns: &[
            key("problem"),
            col("branch", Kind::Int, "", "key: 0 is the root prefix"),
            optional(col(
                "parent",
                Kind::Int,
                "",
                "the branch it grows from, a smaller number; absent for the root",
            )),
            col("depth", Kind::Int, "", "edges to the root"),
            optional(col(
                "seq",
                Kind::Int,
                "",
                "the recorded sequence whose prompt this is, if there is one",
            )),
            col("wording", Kind::Int, "", "template of the prefix; the root's is 0"),
            col(
                "wording_level",
                Kind::Int,
                "",
                "0 identical, 1 minor rewording, 2 other structure, 3 other framing",
            ),
            optional(col("hint", Kind::Int, "", "hint in the suffix, if there is one")),
            col("prefix_tokens", Kind::Int, "tokens", "own prefix"),
            col("suffix_tokens", Kind::Int, "tokens", "what follows the prefix in the prompt"),
            col(
                "prompt_sha256",
                Kind::Text,
                "",
                "SHA-256 of the prompt's ids as little-endian 32-bit numbers",
            ),
        ],
    },
    FactTable {
        path: LENS,
        axes: &["seq", "pos", "layer"],
        since: V1_0,
        columns: &[
            key("seq"),
            key("pos"),
            key("layer"),
            col("entropy_nats", Kind::Real, "nats", "entropy of softmax(unembed(final_norm(hidden)))"),
            optional(col(
                "raw_entropy_nats",
                Kind::Real,
                "nats",
                "entropy of softmax(unembed(hidden)), without the final norm",
            )),
            col(
                "logsumexp",
                Kind::Real,
                "nats",
                "log of the sum of exp(logit) over the vocabulary, with the final norm",
            ),
            optional(col(
                "raw_logsumexp",
                Kind::Real,
                "nats",
                "log of the sum of exp(logit) over the vocabulary, without the final norm",
            )),
            col(
                "top1_token",
                Kind::Int,
                "",
                "vocabulary id of the largest logit, with the final norm; ties go to the lower id",
            ),
            col("top1_logit", Kind::Real, "nats", "largest logit, with the final norm"),
            col("top1_prob", Kind::Real, "", "exp(top1_logit - logsumexp)"),
            col(
                "agrees_with_last",
                Kind::Bool,
                "",
                "whether top1_token equals that of the last layer at the same position",
            ),
        ],
    },
    FactTable {
        path: LENS_TOP,
        axes: &["seq", "pos", "layer", "rank"],
        since: V1_0,
        columns: &[
            key("seq"),
            key("pos"),
            key("layer"),
            key("rank"),
            col("token", Kind::Int, "", "its vocabulary id"),
            col("logit", Kind::Real, "nats", "the rank-th largest logit, with the final norm"),
        ],
    },
    FactTable {
        path: REQUEST_BLOCKS,
        axes: &["request", "block"],
        since: V1_1,
        columns: &[
            key("request"),
            key("block"),
            col(
                "hash",
                Kind::Int,
                "",
                "id of the block: equal ids mean equal tokens in it and in all blocks before it",
            ),
        ],
    },
    FactTable {
        path: REQUESTS,
        axes: &["request"],
        since: V1_1,
        columns: &[
            key("request"),
            col("timestamp_ms", Kind::Int, "ms", "arrival, from the beginning of the trace"),
            col("input_tokens", Kind::Int, "tokens", "prompt"),
            col("output_tokens", Kind::Int, "tokens", "generated"),
            col("blocks", Kind::Int, "", "rows in request_blocks"),
        ],
    },
    FactTable {
        path: TOKENS,
        axes: &["seq", "pos"],
        since: V1_0,
        columns: &[
            key("seq"),
            key("pos"),
            col("token", Kind::Int, "", "vocabulary id of the token fed to the model at this position"),
            col("is_prompt", Kind::Bool, "", "whether the token was given and not generated"),
        ],
    },
];

/// The place of the table at `path` in [`TABLES`].
pub(crate) fn place(path: &str) -> Option<usize> {
    TABLES.iter().position(|table| table.path == path)
}

/// The columns of the table at `path`; those of the tokens for a path that is none of ours.
pub(crate) fn columns(path: &str) -> &'static [Col] {
    place(path).map_or(&TABLES[TABLES.len() - 1], |at| &TABLES[at]).columns
}

/// Rows of one facts table on their way to the file. Values are pushed by column number, in the order above; a value of
/// another kind than its column is left out, and [`Rows::take`] finds the columns of unequal length.
#[derive(Debug)]
pub(crate) struct Rows {
    names: &'static [Col],
    columns: Vec<Column>,
}

impl Rows {
    pub(crate) fn new(path: &str) -> Self {
        let names = columns(path);
        Self { names, columns: names.iter().map(|column| empty(column.kind)).collect() }
    }

    /// The columns without rows.
    pub(crate) fn prototype(&self) -> Table {
        let mut table = Table::new();
        for column in self.names {
            table
                .push(column.name, empty(column.kind))
                .expect("column names are unique and empty columns equally long");
        }
        table
    }

    pub(crate) fn int(&mut self, column: usize, value: impl Into<i64>) {
        self.optional_int(column, Some(value.into()));
    }

    pub(crate) fn optional_int(&mut self, column: usize, value: Option<i64>) {
        if let Column::Int(values) = &mut self.columns[column] {
            values.push(value);
        }
    }

    pub(crate) fn real(&mut self, column: usize, value: f32) {
        self.optional_real(column, Some(value));
    }

    pub(crate) fn optional_real(&mut self, column: usize, value: Option<f32>) {
        if let Column::Real(values) = &mut self.columns[column] {
            values.push(value.map(f64::from));
        }
    }

    pub(crate) fn bool(&mut self, column: usize, value: bool) {
        self.optional_bool(column, Some(value));
    }

    pub(crate) fn optional_bool(&mut self, column: usize, value: Option<bool>) {
        if let Column::Bool(values) = &mut self.columns[column] {
            values.push(value);
        }
    }

    pub(crate) fn text(&mut self, column: usize, value: Option<&str>) {
        if let Column::Text(values) = &mut self.columns[column] {
            values.push(value.map(Text::from));
        }
    }

    /// The rows so far as a table; the buffer is empty afterwards.
    pub(crate) fn take(&mut self) -> Result<Table, TableError> {
        let mut table = Table::new();
        for (name, column) in self.names.iter().zip(&mut self.columns) {
            table.push(name.name, std::mem::replace(column, empty(name.kind)))?;
        }
        Ok(table)
    }
}

fn empty(kind: Kind) -> Column {
    match kind {
        Kind::Int => Column::Int(Vec::new()),
        Kind::Real => Column::Real(Vec::new()),
        Kind::Bool => Column::Bool(Vec::new()),
        Kind::Text => Column::Text(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_begin_with_their_keys() {
        assert!(TABLES.windows(2).all(|pair| pair[0].path < pair[1].path));
        for table in TABLES {
            let keys: Vec<&str> =
                table.columns[..table.axes.len()].iter().map(|column| column.name).collect();
            assert_eq!(keys, table.axes, "{}", table.path);
            assert!(table.fields().iter().all(|column| column.doc != "key"), "{}", table.path);
        }
    }
}
