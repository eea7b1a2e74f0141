//! What a study reads, as results say it; and the source of a study that reads no trace.

use crate::results::{SourceInfo, sha256_hex};
use crate::trace::{LayerTensors, LensRow, SequenceMeta, TraceError, TraceSource};
use crate::types::{LayerIdx, ModelShape, SeqIdx};

/// The source of a study that reads no trace: every stream of it is generated.
#[derive(Clone, Copy, Debug)]
pub struct Generated;

impl TraceSource for Generated {
    fn name(&self) -> &str {
        "generated"
    }

    fn digest(&self) -> String {
        sha256_hex(b"")
    }

    fn is_synthetic(&self) -> bool {
        true
    }

    fn shape(&self) -> &ModelShape {
        const NONE: ModelShape =
            ModelShape { layers: 1, q_heads: 1, kv_heads: 1, head_dim: 1, hidden: 1, vocab: 1 };
        &NONE
    }

    fn sequences(&self) -> &[SequenceMeta] {
        &[]
    }

    fn layer(&self, _seq: SeqIdx, _layer: LayerIdx) -> Result<LayerTensors, TraceError> {
        Err(TraceError::MissingField { field: "q", held: Vec::new() })
    }

    fn lens(&self, _seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
        Err(TraceError::MissingField { field: "lens.top1_token", held: Vec::new() })
    }
}

/// What results say about a trace; `model` and `provider` come from whoever opened it.
#[must_use]
pub fn source_info(source: &dyn TraceSource, model: &str, provider: &str) -> SourceInfo {
    let shape = source.shape();
    SourceInfo {
        name: source.name().to_owned(),
        digest: source.digest(),
        synthetic: source.is_synthetic(),
        model: model.to_owned(),
        provider: provider.to_owned(),
        sequences: u32::try_from(source.sequences().len()).unwrap_or(u32::MAX),
        tokens: source.sequences().iter().map(|meta| u64::from(meta.len)).sum(),
        layers: shape.layers,
        q_heads: shape.q_heads,
        kv_heads: shape.kv_heads,
        vocab: shape.vocab,
    }
}
