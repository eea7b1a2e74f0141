//! What policies may know of the model beside the cache: its rotation and what its heads write with.

use kvlab_sim::{policy::Needs, rope::Rope, types::LayerIdx};

use crate::{error::ExecutorError, model::Model, record::rope_info};

/// The rotation of a model, and its attention output matrices where a policy needs them.
#[derive(Debug, Default)]
pub(super) struct Known {
    rope: Option<Rope>,
    /// `[layer][q_head]`, each `[hidden, head_dim]` flattened; empty where nobody needs them.
    output_weights: Vec<Vec<Vec<f32>>>,
}

impl Known {
    /// What `needs` asks for.
    ///
    /// # Errors
    /// The weights cannot be read.
    pub(super) fn of(model: &Model, needs: Needs) -> Result<Self, ExecutorError> {
        let rope = if needs.rope { Rope::new(&rope_info(model)).ok() } else { None };
        if !needs.output_weights {
            return Ok(Self { rope, output_weights: Vec::new() });
        }
        let (layers, heads, width) = (model.config().layers, model.config().q_heads, model.config().head_dim);
        let output_weights = model.with_weights(|weights| {
            let mut all = Vec::with_capacity(layers);
            for layer in 0..layers {
                let matrix = weights.layer(layer)?.output;
                // A row of the matrix has the channels of every head in turn.
                let of_head = |head: usize| -> Vec<f32> {
                    let rows = matrix.chunks_exact(heads * width);
                    rows.flat_map(|row| &row[head * width..(head + 1) * width]).copied().collect()
                };
                all.push((0..heads).map(of_head).collect());
            }
            Ok(all)
        })?;
        Ok(Self { rope, output_weights })
    }

    /// The rotation.
    pub(super) fn rope(&self) -> Option<&Rope> {
        self.rope.as_ref()
    }

    /// What query head `q_head` of `layer` writes with.
    pub(super) fn output_weights(&self, layer: LayerIdx, q_head: usize) -> Option<&[f32]> {
        self.output_weights.get(layer.idx())?.get(q_head).map(Vec::as_slice)
    }
}
