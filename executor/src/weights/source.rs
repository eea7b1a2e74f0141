//! From named tensors in a file to the checked weights of a layer.

use std::path::Path;

use super::names::{Outer, Part, Spelling};
use crate::{
    family::{DecoderConfig, ModelError, RowOrder},
    gguf::DenseTensor,
};

/// The weights of one layer. Matrices are `[out, in]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerWeights {
    /// `[hidden]`
    pub(crate) attention_norm: Vec<f32>,
    /// `[q_head * head_dim, hidden]`, rows of a head in half-split order.
    pub(crate) query: Vec<f32>,
    /// `[kv_head * head_dim, hidden]`, rows of a head in half-split order.
    pub(crate) key: Vec<f32>,
    /// `[kv_head * head_dim, hidden]`
    pub(crate) value: Vec<f32>,
    /// Query, key and value bias, one after the other.
    pub(crate) qkv_bias: Option<Vec<f32>>,
    /// Norms of queries and of keys, each `[head_dim]`.
    pub(crate) qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// `[hidden, q_head * head_dim]`
    pub(crate) output: Vec<f32>,
    /// `[hidden]`
    pub(crate) ffn_norm: Vec<f32>,
    /// `[ffn, hidden]`
    pub(crate) gate: Vec<f32>,
    /// `[ffn, hidden]`
    pub(crate) up: Vec<f32>,
    /// `[hidden, ffn]`
    pub(crate) down: Vec<f32>,
}

/// Gives the weights of a model, piece by piece.
pub(crate) trait WeightSource {
    fn layer(&self, layer: usize) -> Result<LayerWeights, ModelError>;
    /// `[vocab, hidden]`
    fn embedding(&self) -> Result<Vec<f32>, ModelError>;
    /// `[hidden]`
    fn final_norm(&self) -> Result<Vec<f32>, ModelError>;
    /// `[vocab, hidden]`, or nothing when the embedding serves.
    fn head(&self) -> Result<Option<Vec<f32>>, ModelError>;
}

/// A file, or several, with named tensors.
pub(crate) trait TensorFile {
    fn path(&self) -> &Path;
    fn spelling(&self) -> Spelling;
    fn read(&self, name: &str) -> Result<Option<DenseTensor>, ModelError>;
}

/// Weights of a file, checked against a configuration.
pub(crate) struct FileWeights<'a> {
    pub(crate) file: &'a dyn TensorFile,
    pub(crate) config: &'a DecoderConfig,
    /// How the file orders the rows of queries and keys.
    pub(crate) row_order: RowOrder,
}

impl FileWeights<'_> {
    fn read(&self, name: String, expected: &[usize]) -> Result<Vec<f32>, ModelError> {
        let path = || self.file.path().to_owned();
        let Some(matrix) = self.file.read(&name)? else {
            return Err(ModelError::MissingTensor { path: path(), tensor: name });
        };
        if matrix.shape != expected {
            let expected = expected.to_vec();
            return Err(ModelError::TensorShape {
                path: path(),
                tensor: name,
                found: matrix.shape,
                expected,
            });
        }
        match matrix.data.iter().position(|value| !value.is_finite()) {
            None => Ok(matrix.data),
            Some(element) => {
                let value = matrix.data[element];
                Err(ModelError::NonFiniteWeight { path: path(), tensor: name, element, value })
            }
        }
    }

    fn part(&self, layer: usize, part: Part) -> Result<Vec<f32>, ModelError> {
        self.read(self.file.spelling().layer(part, layer), &part.shape(self.config))
    }

    fn outer(&self, part: Outer) -> Result<Vec<f32>, ModelError> {
        self.read(self.file.spelling().outer(part), &part.shape(self.config))
    }

    /// A query or key matrix, or bias, with its rows in half-split order.
    fn rotated_part(&self, layer: usize, part: Part, heads: usize) -> Result<Vec<f32>, ModelError> {
        Ok(self.in_half_split_order(self.part(layer, part)?, heads))
    }

    fn in_half_split_order(&self, data: Vec<f32>, heads: usize) -> Vec<f32> {
        match self.row_order {
            RowOrder::HalfSplit => data,
            RowOrder::Interleaved => half_split_rows(&data, heads, self.config.head_dim),
        }
    }

    /// Query, key and value matrix.
    fn projections(&self, layer: usize) -> Result<[Vec<f32>; 3], ModelError> {
        let config = self.config;
        let (hidden, q, kv) = (config.hidden, config.q_width(), config.kv_width());
        if !config.fused {
            return Ok([
                self.rotated_part(layer, Part::Query, config.q_heads)?,
                self.rotated_part(layer, Part::Key, config.kv_heads)?,
                self.part(layer, Part::Value)?,
            ]);
        }
        let mut query = self.part(layer, Part::JoinedAttention)?;
        let mut key = query.split_off(q * hidden);
        let value = key.split_off(kv * hidden);
        Ok([
            self.in_half_split_order(query, config.q_heads),
            self.in_half_split_order(key, config.kv_heads),
            value,
        ])
    }

    /// Gate and up matrix.
    fn gate_and_up(&self, layer: usize) -> Result<[Vec<f32>; 2], ModelError> {
        let (hidden, ffn) = (self.config.hidden, self.config.ffn);
        if !self.config.fused {
            return Ok([self.part(layer, Part::Gate)?, self.part(layer, Part::Up)?]);
        }
        let mut gate = self.part(layer, Part::JoinedFfn)?;
        let up = gate.split_off(ffn * hidden);
        Ok([gate, up])
    }

    fn qkv_bias(&self, layer: usize) -> Result<Vec<f32>, ModelError> {
        let config = self.config;
        let mut bias = self.rotated_part(layer, Part::QueryBias, config.q_heads)?;
        bias.extend(self.rotated_part(layer, Part::KeyBias, config.kv_heads)?);
        bias.extend(self.part(layer, Part::ValueBias)?);
        Ok(bias)
    }
}

impl WeightSource for FileWeights<'_> {
    fn layer(&self, layer: usize) -> Result<LayerWeights, ModelError> {
        let config = self.config;
        let [query, key, value] = self.projections(layer)?;
        let [gate, up] = self.gate_and_up(layer)?;
        let norms =
            || Ok::<_, ModelError>((self.part(layer, Part::QueryNorm)?, self.part(layer, Part::KeyNorm)?));
        Ok(LayerWeights {
            attention_norm: self.part(layer, Part::AttentionNorm)?,
            query,
            key,
            value,
            qkv_bias: config.qkv_bias.then(|| self.qkv_bias(layer)).transpose()?,
            qk_norm: config.qk_norm.then(norms).transpose()?,
            output: self.part(layer, Part::Output)?,
            ffn_norm: self.part(layer, Part::FfnNorm)?,
            gate,
            up,
            down: self.part(layer, Part::Down)?,
        })
    }

    fn embedding(&self) -> Result<Vec<f32>, ModelError> {
        self.outer(Outer::Embedding)
    }

    fn final_norm(&self) -> Result<Vec<f32>, ModelError> {
        self.outer(Outer::FinalNorm)
    }

    fn head(&self) -> Result<Option<Vec<f32>>, ModelError> {
        if self.config.tied {
            return Ok(None);
        }
        self.outer(Outer::Head).map(Some)
    }
}

/// Row `2 i + j` of a head becomes row `j * head_dim / 2 + i`.
fn half_split_rows(data: &[f32], heads: usize, head_dim: usize) -> Vec<f32> {
    let columns = data.len() / (heads * head_dim);
    let mut out = Vec::with_capacity(data.len());
    for head in data.chunks_exact(head_dim * columns) {
        for j in 0..2 {
            for i in 0..head_dim / 2 {
                let row = 2 * i + j;
                out.extend_from_slice(&head[row * columns..(row + 1) * columns]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::half_split_rows;

    #[test]
    fn interleaved_rows_become_half_split_rows() {
        // Two heads of four rows with one column: 0 2 | 1 3 within each.
        let data = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0];
        assert_eq!(half_split_rows(&data, 2, 4), [0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0]);
        // Two columns travel together.
        let data = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5];
        assert_eq!(half_split_rows(&data, 1, 4), [0.0, 0.5, 2.0, 2.5, 1.0, 1.5, 3.0, 3.5]);
    }
}
