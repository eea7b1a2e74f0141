//! Every field that a trace may hold: its name, place, axes, storage type, unit and meaning, declared once.
//!
//! The list is part of the format: adding a row is a new minor version, changing one a new major version. A test
//! holds a digest of the list to remind of that.

use super::TraceVersion;
use super::facts_schema::TABLES;
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// Storage type of a field. The spelling is that of safetensors for tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// Parquet INT64.
    I64,
    /// Parquet DOUBLE that holds binary32 values exactly.
    F64,
    /// Parquet BOOLEAN.
    BOOL,
    /// Parquet UTF-8 text.
    UTF8,
}

impl Dtype {
    /// The spelling in files.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::I64 => "I64",
            Self::F64 => "F64",
            Self::BOOL => "BOOL",
            Self::UTF8 => "UTF8",
        }
    }
}

/// One recordable field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name: a tensor name without the layer, `table.column`, or `weights.` and the name of a matrix.
    pub name: &'static str,
    /// Axes, outermost first. Facts are rows of a table, so their axes are the key columns.
    pub axes: &'static [&'static str],
    /// Storage types that a reader accepts; the first is the usual one.
    pub dtypes: &'static [Dtype],
    /// Unit; empty for pure numbers.
    pub unit: &'static str,
    /// The format version that brought it.
    pub since: TraceVersion,
    /// Whether every trace holds it.
    pub required: bool,
    /// What it says.
    pub doc: &'static str,
}

impl Field {
    /// Whether the field is stored in the safetensors shards.
    #[must_use]
    pub fn is_tensor(&self) -> bool {
        !self.name.contains('.')
    }
}

const V1_0: TraceVersion = TraceVersion { major: 1, minor: 0 };
const V1_1: TraceVersion = TraceVersion { major: 1, minor: 1 };

const fn tensor(
    name: &'static str,
    axes: &'static [&'static str],
    dtypes: &'static [Dtype],
    doc: &'static str,
) -> Field {
    Field { name, axes, dtypes, unit: "", since: V1_0, required: false, doc }
}

const fn weight(
    name: &'static str,
    axes: &'static [&'static str],
    dtypes: &'static [Dtype],
    doc: &'static str,
) -> Field {
    Field { name, axes, dtypes, unit: "", since: V1_1, required: false, doc }
}

/// Fields that are not columns of a facts table.
const MATRICES: &[Field] = &[
    tensor("hidden", &["q_pos", "hidden"], &[Dtype::F32], "residual stream after the layer, before any norm"),
    tensor(
        "k",
        &["kv_head", "kv_pos", "head_dim"],
        &[Dtype::F32, Dtype::F16],
        "keys, rotated at their original positions when `rope.keys` is `post-rope`",
    ),
    tensor(
        "q",
        &["q_head", "q_pos", "head_dim"],
        &[Dtype::F32, Dtype::F16],
        "queries, rotated like the keys; query head h reads KV head h / (q_heads / kv_heads)",
    ),
    tensor("v", &["kv_head", "kv_pos", "head_dim"], &[Dtype::F32, Dtype::F16], "values"),
    weight("weights.final_norm", &["hidden"], &[Dtype::F32], "gain of the norm in front of the unembedding"),
    weight(
        "weights.unembedding",
        &["vocab", "hidden"],
        &[Dtype::F32, Dtype::F16],
        "output matrix: logits are unembedding · final_norm(hidden)",
    ),
    weight(
        "weights.w_o",
        &["hidden", "q_head", "head_dim"],
        &[Dtype::F32, Dtype::F16],
        "output matrix of the attention, one a layer: the attention adds Σ w_o · (output of each query head)",
    ),
];

/// All fields, sorted by name: tensors, weights, and the columns of the facts tables.
pub static FIELDS: LazyLock<Vec<Field>> = LazyLock::new(|| {
    let columns = TABLES.iter().flat_map(|table| {
        table.fields().iter().map(move |column| Field {
            name: format!("{}.{}", table.name(), column.name).leak(),
            axes: table.axes,
            dtypes: column.kind.dtype(),
            unit: column.unit,
            since: table.since,
            required: table.name() == "tokens",
            doc: column.doc,
        })
    });
    let mut fields: Vec<Field> = MATRICES.iter().copied().chain(columns).collect();
    fields.sort_by_key(|field| field.name);
    fields
});

/// The field called `name`.
#[must_use]
pub fn field(name: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn the_list_is_sorted_and_unique() {
        assert!(FIELDS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn a_changed_list_is_a_new_version() {
        let list: String = FIELDS
            .iter()
            .map(|f| {
                format!("{} {:?} {:?} {} {} {}\n", f.name, f.axes, f.dtypes, f.unit, f.since, f.required)
            })
            .collect();
        let digest = format!("{:x}", Sha256::digest(&list));
        // When this fails: bump TRACE_VERSION (minor for an added optional field, else major), add a fixture of the
        // new version under tests/golden/traces/, update docs/trace-format.md and CHANGELOG.md, then this line.
        assert_eq!(
            (&digest[..16], super::super::TRACE_VERSION.to_string().as_str()),
            ("7519ba151921aea2", "1.1"),
            "{list}"
        );
    }

    #[test]
    fn no_field_is_newer_than_the_version_written() {
        assert!(FIELDS.iter().all(|field| field.since <= super::super::TRACE_VERSION));
    }
}
