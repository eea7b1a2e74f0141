//! The file that trained gates are read from.
//!
//! Safetensors, in the layout that microsoft/SeerAttention (`seer_attn/decode_sparse/attn_gate_inf.py`) saves: for each layer `N`, under
//! any name that has `layers.N.` in it and ends so,
//!
//! - `attngate_linear_q.weight`, `[kv_head, member, head_dim, gate_dim]`, a matrix for each query head of the group (one
//!   matrix for the mean of the group's queries, `[kv_head, head_dim, gate_dim]`, is refused);
//! - `attngate_linear_k.weight`, `[kv_head, 3 · head_dim, gate_dim]`: maximum, minimum and mean of the keys of a block;
//! - `attngate_qnorm.weight` and `attngate_knorm.weight`, `[gate_dim]`, both or neither.
//!
//! F32, F16 and BF16. Other tensors (a whole checkpoint, say) are passed over.

use super::seer_gate::GateWeights;
use crate::types::{KvHead, LayerIdx};
use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Why a file of gates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GateFileError {
    /// It cannot be read.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What stopped the reading.
        reason: String,
    },
    /// A tensor is missing or not what it should be.
    #[error("{}: layer {layer}: `{tensor}` is {found}; accepted: {accepted}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The layer.
        layer: u16,
        /// End of the tensor's name.
        tensor: &'static str,
        /// What was found.
        found: String,
        /// What would do.
        accepted: String,
    },
    /// It has no gates.
    #[error("{}: no tensor is called `…layers.N.…attngate_linear_q.weight`: this is no file of gates", path.display())]
    NoGates {
        /// The file.
        path: PathBuf,
    },
}

const QUERY: &str = "attngate_linear_q.weight";
const KEY: &str = "attngate_linear_k.weight";
const QUERY_NORM: &str = "attngate_qnorm.weight";
const KEY_NORM: &str = "attngate_knorm.weight";
const PARTS: [&str; 4] = [QUERY, KEY, QUERY_NORM, KEY_NORM];

/// Gates by layer and KV head.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gates {
    /// `[kv_head]` of each layer.
    layers: BTreeMap<u16, Vec<GateWeights>>,
    digest: Option<String>,
}

/// One tensor of a layer, as numbers.
struct Part {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Gates {
    /// Gates from code, `[layer][kv_head]`.
    #[must_use]
    pub fn of_layers(layers: Vec<Vec<GateWeights>>) -> Self {
        Self { layers: (0..).zip(layers).collect(), digest: None }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, has no gates, or a gate is not whole; all with the file's name.
    pub fn load(path: &Path) -> Result<Self, GateFileError> {
        let unreadable = |reason: String| GateFileError::Unreadable { path: path.to_owned(), reason };
        let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|error| unreadable(format!("it is no safetensors file ({error})")))?;
        let mut found: BTreeMap<u16, BTreeMap<&'static str, TensorView<'_>>> = BTreeMap::new();
        for (name, tensor) in file.iter() {
            let (Some(layer), Some(part)) =
                (layer_of(name), PARTS.into_iter().find(|part| name.ends_with(part)))
            else {
                continue;
            };
            if found.entry(layer).or_default().insert(part, tensor).is_some() {
                return Err(unreadable(format!("two tensors are `{part}` of layer {layer}")));
            }
        }
        if found.is_empty() {
            return Err(GateFileError::NoGates { path: path.to_owned() });
        }
        let layers = found
            .into_iter()
            .map(|(layer, parts)| Ok((layer, Layer { path, layer, parts }.gates()?)))
            .collect::<Result<_, GateFileError>>()?;
        let digest = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { layers, digest: Some(digest) })
    }

    /// The gate of a head.
    #[must_use]
    pub fn of(&self, layer: LayerIdx, head: KvHead) -> Option<&GateWeights> {
        self.layers.get(&layer.get())?.get(head.idx())
    }

    /// How many there are, in words.
    #[must_use]
    pub fn extent(&self) -> String {
        let heads = self.layers.values().map(Vec::len).max().unwrap_or(0);
        format!("{} layers of {heads} KV heads", self.layers.len())
    }

    /// Rows of a gate.
    #[must_use]
    pub fn gate_dim(&self) -> usize {
        self.layers.values().flatten().map(|gate| gate.gate_dim).max().unwrap_or(0)
    }

    /// SHA-256 of the file; absent for gates from code.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }
}

/// N of `layers.N` in a tensor's name.
fn layer_of(name: &str) -> Option<u16> {
    let mut parts = name.split('.').skip_while(|part| *part != "layers");
    parts.next()?;
    parts.next()?.parse().ok()
}

/// The tensors of one layer.
struct Layer<'a> {
    path: &'a Path,
    layer: u16,
    parts: BTreeMap<&'static str, TensorView<'a>>,
}

impl Layer<'_> {
    fn bad(
        &self,
        tensor: &'static str,
        found: impl Into<String>,
        accepted: impl Into<String>,
    ) -> GateFileError {
        let (path, layer) = (self.path.to_owned(), self.layer);
        GateFileError::Tensor { path, layer, tensor, found: found.into(), accepted: accepted.into() }
    }

    fn part(&self, name: &'static str) -> Result<Option<Part>, GateFileError> {
        let Some(tensor) = self.parts.get(name) else {
            return Ok(None);
        };
        let data = tensor.data();
        let halves =
            |of: fn([u8; 2]) -> f32| data.as_chunks::<2>().0.iter().map(|bytes| of(*bytes)).collect();
        let values: Vec<f32> = match tensor.dtype() {
            Dtype::F32 => data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            Dtype::F16 => halves(|bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => halves(|bytes| bf16::from_le_bytes(bytes).to_f32()),
            other => return Err(self.bad(name, format!("{other:?}"), "F32, F16, BF16")),
        };
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            return Err(self.bad(name, format!("not finite: it has {value}"), "finite numbers"));
        }
        Ok(Some(Part { shape: tensor.shape().to_vec(), values }))
    }

    fn needed(&self, name: &'static str) -> Result<Part, GateFileError> {
        self.part(name)?
            .ok_or_else(|| self.bad(name, "missing", "a tensor of that name for each layer that has a gate"))
    }

    fn gates(&self) -> Result<Vec<GateWeights>, GateFileError> {
        let (query, key) = (self.needed(QUERY)?, self.needed(KEY)?);
        let &[heads, group, head_dim, gate_dim] = query.shape.as_slice() else {
            let accepted = "[kv_head, member, head_dim, gate_dim]";
            return Err(self.bad(QUERY, format!("of shape {:?}", query.shape), accepted));
        };
        if [heads, group, head_dim, gate_dim].contains(&0) {
            return Err(self.bad(QUERY, format!("of shape {:?}", query.shape), "no axis of length 0"));
        }
        if key.shape != [heads, 3 * head_dim, gate_dim] {
            let accepted = format!(
                "{:?}: maximum, minimum and mean of the keys of a block, for the same heads as the queries",
                [heads, 3 * head_dim, gate_dim]
            );
            return Err(self.bad(KEY, format!("of shape {:?}", key.shape), accepted));
        }
        let (query_norm, key_norm) = (self.norm(QUERY_NORM, gate_dim)?, self.norm(KEY_NORM, gate_dim)?);
        if query_norm.is_empty() != key_norm.is_empty() {
            let missing = if query_norm.is_empty() { QUERY_NORM } else { KEY_NORM };
            return Err(self.bad(missing, "missing", "both norms, or none"));
        }
        let of_head = |head: usize| {
            let matrix = |member: usize| {
                let size = head_dim * gate_dim;
                transposed(&query.values[(head * group + member) * size..][..size], gate_dim)
            };
            let size = 3 * head_dim * gate_dim;
            GateWeights {
                query: (0..group).map(matrix).collect(),
                key: transposed(&key.values[head * size..][..size], gate_dim),
                gate_dim,
                query_norm: query_norm.clone(),
                key_norm: key_norm.clone(),
            }
        };
        Ok((0..heads).map(of_head).collect())
    }

    fn norm(&self, name: &'static str, gate_dim: usize) -> Result<Vec<f32>, GateFileError> {
        match self.part(name)? {
            Some(part) if part.shape == [gate_dim] => Ok(part.values),
            Some(part) => {
                Err(self.bad(name, format!("of shape {:?}", part.shape), format!("{:?}", [gate_dim])))
            }
            None => Ok(Vec::new()),
        }
    }
}

/// `[row, column]` to `[column, row]`; `columns` of them.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| values.iter().skip(column).step_by(columns).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::serialize;

    /// Shape and numbers by name.
    type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

    /// Two KV heads of three query heads, two channels, a gate of four.
    fn file(change: impl Fn(&mut Tensors)) -> tempfile::NamedTempFile {
        let numbers = |count: u16| (0..count).map(f32::from).collect::<Vec<f32>>();
        let mut tensors = Tensors::new();
        tensors.insert(
            "model.layers.1.self_attn.attn_gate.attngate_linear_q.weight".into(),
            (vec![2, 3, 2, 4], numbers(48)),
        );
        tensors.insert(
            "model.layers.1.self_attn.attn_gate.attngate_linear_k.weight".into(),
            (vec![2, 6, 4], numbers(48)),
        );
        tensors.insert("model.layers.1.mlp.gate_proj.weight".into(), (vec![1], vec![0.0]));
        change(&mut tensors);
        let bytes: BTreeMap<&String, (&Vec<usize>, Vec<u8>)> = tensors
            .iter()
            .map(|(name, (shape, values))| {
                (name, (shape, values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()))
            })
            .collect();
        let views = bytes.iter().map(|(name, (shape, bytes))| {
            (name.as_str(), TensorView::new(Dtype::F32, (*shape).clone(), bytes).unwrap())
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), serialize(views, None).unwrap()).unwrap();
        file
    }

    // Matrices lie the other way round in the file: channel c of gate row g is at c · 4 + g.
    #[test]
    fn gates_are_read_by_layer_and_head() {
        let gates = Gates::load(file(|_| {}).path()).unwrap();
        assert!(gates.of(LayerIdx::new(0), KvHead::new(0)).is_none());
        let gate = gates.of(LayerIdx::new(1), KvHead::new(1)).unwrap();
        // Head 1, member 2: numbers 40 to 47.
        assert_eq!(gate.query[2], [40.0, 44.0, 41.0, 45.0, 42.0, 46.0, 43.0, 47.0]);
        assert_eq!(gate.key[..6], [24.0, 28.0, 32.0, 36.0, 40.0, 44.0]);
        assert_eq!((gate.gate_dim, gates.gate_dim()), (4, 4));
        assert!(gate.query_norm.is_empty());
        assert_eq!(gates.digest().unwrap().len(), 64);
    }

    #[test]
    fn what_is_no_gate_is_refused_with_file_layer_and_tensor() {
        let name = |end: &str| format!("model.layers.1.self_attn.attn_gate.{end}");
        let load = |change: &dyn Fn(&mut Tensors)| {
            let file = file(change);
            let text = Gates::load(file.path()).unwrap_err().to_string();
            assert!(text.contains(&*file.path().to_string_lossy()), "{text}");
            text
        };
        let missing = load(&|tensors| drop(tensors.remove(&name(KEY))));
        assert!(
            missing.contains("layer 1") && missing.contains(KEY) && missing.contains("missing"),
            "{missing}"
        );
        let shape = load(&|tensors| tensors.get_mut(&name(KEY)).unwrap().0 = vec![2, 4, 6]);
        assert!(shape.contains("[2, 4, 6]") && shape.contains("[2, 6, 4]"), "{shape}");
        let group = load(&|tensors| tensors.get_mut(&name(QUERY)).unwrap().0 = vec![6, 2, 4]);
        assert!(group.contains("[6, 2, 4]") && group.contains("member"), "{group}");
        let nan = load(&|tensors| tensors.get_mut(&name(QUERY)).unwrap().1[5] = f32::NAN);
        assert!(nan.contains("NaN"), "{nan}");
        let norm = load(&|tensors| {
            tensors.insert(name(QUERY_NORM), (vec![4], vec![1.0; 4]));
        });
        assert!(norm.contains(KEY_NORM) && norm.contains("both norms"), "{norm}");
        let none = load(&|tensors| tensors.retain(|name, _| name.contains("mlp")));
        assert!(none.contains("no file of gates"), "{none}");
        let unreadable = Gates::load(Path::new("/nowhere/gate.safetensors")).unwrap_err().to_string();
        assert!(unreadable.contains("/nowhere/gate.safetensors"), "{unreadable}");
    }
}
