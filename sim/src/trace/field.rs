//! Every field that a trace may hold: its name, place, axes, storage type, unit and meaning, declared once.
//!
//! The list is part of the format: adding a row is a new minor version, changing one a new major version. A test
//! holds a digest of the list to remind of that.

use super::TraceVersion;
use serde::{Deserialize, Serialize};

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
const LENS_AXES: &[&str] = &["seq", "pos", "layer"];
const LENS_TOP_AXES: &[&str] = &["seq", "pos", "layer", "rank"];
const TOKEN_AXES: &[&str] = &["seq", "pos"];

const fn tensor(
    name: &'static str,
    axes: &'static [&'static str],
    dtypes: &'static [Dtype],
    doc: &'static str,
) -> Field {
    Field { name, axes, dtypes, unit: "", since: V1_0, required: false, doc }
}

const fn fact(
    name: &'static str,
    axes: &'static [&'static str],
    dtype: &'static [Dtype],
    unit: &'static str,
    doc: &'static str,
) -> Field {
    Field { name, axes, dtypes: dtype, unit, since: V1_0, required: false, doc }
}

const fn required(field: Field) -> Field {
    Field { required: true, ..field }
}

const fn weight(
    name: &'static str,
    axes: &'static [&'static str],
    dtypes: &'static [Dtype],
    doc: &'static str,
) -> Field {
    Field { name, axes, dtypes, unit: "", since: V1_1, required: false, doc }
}

/// All fields, sorted by name.
pub const FIELDS: &[Field] = &[
    tensor("hidden", &["q_pos", "hidden"], &[Dtype::F32], "residual stream after the layer, before any norm"),
    tensor(
        "k",
        &["kv_head", "kv_pos", "head_dim"],
        &[Dtype::F32, Dtype::F16],
        "keys, rotated at their original positions when `rope.keys` is `post-rope`",
    ),
    fact(
        "lens.agrees_with_last",
        LENS_AXES,
        &[Dtype::BOOL],
        "",
        "whether top1_token equals that of the last layer at the same position",
    ),
    fact(
        "lens.entropy_nats",
        LENS_AXES,
        &[Dtype::F64],
        "nats",
        "entropy of softmax(unembed(final_norm(hidden)))",
    ),
    fact(
        "lens.logsumexp",
        LENS_AXES,
        &[Dtype::F64],
        "nats",
        "log of the sum of exp(logit) over the vocabulary, with the final norm",
    ),
    fact(
        "lens.raw_entropy_nats",
        LENS_AXES,
        &[Dtype::F64],
        "nats",
        "entropy of softmax(unembed(hidden)), without the final norm",
    ),
    fact(
        "lens.raw_logsumexp",
        LENS_AXES,
        &[Dtype::F64],
        "nats",
        "log of the sum of exp(logit) over the vocabulary, without the final norm",
    ),
    fact("lens.top1_logit", LENS_AXES, &[Dtype::F64], "nats", "largest logit, with the final norm"),
    fact("lens.top1_prob", LENS_AXES, &[Dtype::F64], "", "exp(top1_logit - logsumexp)"),
    fact(
        "lens.top1_token",
        LENS_AXES,
        &[Dtype::I64],
        "",
        "vocabulary id of the largest logit, with the final norm; ties go to the lower id",
    ),
    fact(
        "lens_top.logit",
        LENS_TOP_AXES,
        &[Dtype::F64],
        "nats",
        "the rank-th largest logit, with the final norm",
    ),
    fact("lens_top.token", LENS_TOP_AXES, &[Dtype::I64], "", "its vocabulary id"),
    tensor(
        "q",
        &["q_head", "q_pos", "head_dim"],
        &[Dtype::F32, Dtype::F16],
        "queries, rotated like the keys; query head h reads KV head h / (q_heads / kv_heads)",
    ),
    required(fact(
        "tokens.is_prompt",
        TOKEN_AXES,
        &[Dtype::BOOL],
        "",
        "whether the token was given and not generated",
    )),
    required(fact(
        "tokens.token",
        TOKEN_AXES,
        &[Dtype::I64],
        "",
        "vocabulary id of the token fed to the model at this position",
    )),
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
            ("69420d20b1f2430c", "1.1"),
            "{list}"
        );
    }

    #[test]
    fn no_field_is_newer_than_the_version_written() {
        assert!(FIELDS.iter().all(|field| field.since <= super::super::TRACE_VERSION));
    }
}
