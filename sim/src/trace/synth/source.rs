//! A generated trace as a source, made when it is asked for, and as a folder.

use super::{BRANCH_TREES, Generator, WORKLOADS, Workload, workload};
use crate::trace::folder::sha256;
use crate::trace::{
    Chunk, DecodingInfo, Dtype, FinishedTrace, LayerChunk, LayerTensors, Leftover, LensForms, LensRow,
    ModelInfo, SequenceEnd, SequenceMeta, SequenceStart, StoredFields, StoredWeights, SyntheticInfo,
    ToolInfo, TraceError, TraceHeader, TraceSource, TraceWriter, WorkloadInfo,
};
use crate::types::{LayerIdx, ModelShape, SeqIdx};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// Lengths of one generated sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SynthLength {
    /// Prompt tokens, at least 1.
    pub prompt_len: u32,
    /// All tokens, prompt included.
    pub len: u32,
}

/// What to generate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SynthSpec {
    /// Shape of the model that there is none of. `hidden` is not used.
    pub shape: ModelShape,
    /// The sequences.
    pub lengths: Vec<SynthLength>,
    /// The seed.
    pub seed: u64,
}

impl SynthSpec {
    /// Tokens of a sequence, prompt included.
    pub(super) fn len(&self, seq: SeqIdx) -> u32 {
        self.lengths[seq.idx()].len
    }

    /// Prompt tokens of a sequence.
    pub(super) fn prompt_len(&self, seq: SeqIdx) -> u32 {
        self.lengths[seq.idx()].prompt_len
    }

    fn check(&self) -> Result<(), TraceError> {
        self.shape.check()?;
        let refuse = |what: &'static str, found: String, accepted: &'static str| {
            Err(TraceError::Spec { what, found, accepted: accepted.to_owned() })
        };
        if self.lengths.is_empty() || self.lengths.len() >= 1 << 20 {
            return refuse("lengths", format!("{} sequences", self.lengths.len()), "1 to 2^20 - 1 sequences");
        }
        if let Some(length) =
            self.lengths.iter().find(|length| !(1..=length.len).contains(&length.prompt_len))
        {
            return refuse("lengths", format!("{length:?}"), "1 <= prompt_len <= len");
        }
        // Each of these is a coordinate of a random stream.
        let most = self.shape.layers.max(self.shape.q_heads);
        if most >= 1 << 12 {
            return refuse("shape", most.to_string(), "fewer than 4096 layers and heads");
        }
        Ok(())
    }
}

/// A generated trace. Tensors are made at each call and not kept.
#[derive(Debug)]
pub struct Synthetic {
    workload: &'static Workload,
    generator: Box<dyn Generator>,
    /// Parameters that were given.
    params: Value,
    spec: SynthSpec,
    name: String,
    sequences: Vec<SequenceMeta>,
}

impl Synthetic {
    /// The trace that the workload called `id` generates from `spec`. Nothing is generated yet.
    ///
    /// # Errors
    /// When there is no such workload, or the shape or a length is not acceptable.
    pub fn build(id: &str, spec: SynthSpec) -> Result<Self, TraceError> {
        Self::with_params(id, spec, Value::Object(serde_json::Map::new()))
    }

    /// As [`Synthetic::build`], with parameters of the workload: an object, see [`Workload::defaults`].
    ///
    /// # Errors
    /// When there is no such workload, or the shape, a length or a parameter is not acceptable.
    pub fn with_params(id: &str, spec: SynthSpec, params: Value) -> Result<Self, TraceError> {
        spec.check()?;
        let Some(workload) = workload(id) else {
            let known = WORKLOADS.iter().map(|workload| workload.id).chain([BRANCH_TREES]);
            let accepted = known.collect::<Vec<_>>().join(", ");
            return Err(TraceError::Spec { what: "workload", found: id.to_owned(), accepted });
        };
        let sequences = (0_u32..)
            .zip(&spec.lengths)
            .map(|(seq, length)| SequenceMeta {
                seq: SeqIdx::new(seq),
                item: format!("{id}-{seq}"),
                prompt_len: length.prompt_len,
                len: length.len,
            })
            .collect();
        let generator = (workload.build)(params.clone())?;
        Ok(Self { workload, generator, params, spec, name: format!("synthetic-{id}"), sequences })
    }

    /// What it was generated from.
    #[must_use]
    pub fn spec(&self) -> &SynthSpec {
        &self.spec
    }

    /// Writes the trace to the folder `target`, with `lens_top` logits a lens fact. One sequence is in memory at a time.
    ///
    /// # Errors
    /// As [`TraceWriter`].
    pub fn write(
        &self,
        target: &Path,
        attention: Dtype,
        lens_top: u16,
        shard_tokens: u32,
        leftover: Leftover,
    ) -> Result<FinishedTrace, TraceError> {
        let fields =
            StoredFields { hidden: false, attention: Some(attention), lens: Some(LensForms::Both), lens_top };
        let mut writer = TraceWriter::create(target, self.header(fields, shard_tokens), leftover)?;
        let finished = writer.finished().len();
        for meta in &self.sequences[finished..] {
            writer.begin_sequence(SequenceStart {
                item: meta.item.clone(),
                prompt_len: meta.prompt_len,
                bos_len: 0,
                prompt_text: None,
            })?;
            let tensors = self
                .spec
                .shape
                .layer_ids()
                .map(|layer| self.layer(meta.seq, layer))
                .collect::<Result<Vec<_>, _>>()?;
            let layers = tensors.iter().map(|layer| LayerChunk {
                hidden: None,
                q: Some(layer.q.view()),
                k: Some(layer.k.view()),
                v: Some(layer.v.view()),
            });
            let generator = &self.generator;
            writer.push(&Chunk {
                tokens: &generator.tokens(&self.spec, meta.seq),
                layers: layers.collect(),
                lens: &generator.lens(&self.spec, meta.seq, lens_top),
            })?;
            writer
                .end_sequence(SequenceEnd { finish_reason: "given".to_owned(), ..SequenceEnd::default() })?;
        }
        writer.finish()
    }

    fn header(&self, fields: StoredFields, shard_tokens: u32) -> TraceHeader {
        TraceHeader {
            synthetic: Some(SyntheticInfo { generator: self.workload.id.to_owned(), seed: self.spec.seed }),
            tool: ToolInfo {
                name: "kvlab".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                revision: None,
            },
            model: ModelInfo {
                name: self.name.clone(),
                family: "synthetic".to_owned(),
                source_file: None,
                weights_sha256: None,
                tokenizer_sha256: None,
                graph_sha256: None,
                precision: "f32".to_owned(),
                config: if self.params.as_object().is_some_and(|params| params.is_empty()) {
                    Value::Null
                } else {
                    self.params.clone()
                },
            },
            shape: self.spec.shape,
            rope: None,
            runtime: None,
            decoding: DecodingInfo {
                mode: "synthetic".to_owned(),
                max_new_tokens: 0,
                chat_template: false,
                batch: None,
                protocol: None,
            },
            workload: WorkloadInfo {
                name: self.workload.id.to_owned(),
                seed: self.spec.seed,
                file_sha256: None,
            },
            seed: self.spec.seed,
            shard_tokens,
            fields,
            weights: StoredWeights::default(),
            branches: None,
            requests: None,
            derived_from: Vec::new(),
            times: false,
        }
    }

    fn check_range(&self, what: &'static str, given: u64, count: u64) -> Result<(), TraceError> {
        if given < count { Ok(()) } else { Err(TraceError::OutOfRange { what, given, count }) }
    }
}

impl TraceSource for Synthetic {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> String {
        // Everything that is generated follows from these.
        let mut identity = serde_json::json!({ "generator": self.workload.id, "spec": self.spec });
        if self.params.as_object().is_some_and(|params| !params.is_empty()) {
            identity["params"] = self.params.clone();
        }
        sha256(identity.to_string().as_bytes())
    }

    fn is_synthetic(&self) -> bool {
        true
    }

    fn shape(&self) -> &ModelShape {
        &self.spec.shape
    }

    fn sequences(&self) -> &[SequenceMeta] {
        &self.sequences
    }

    fn layer(&self, seq: SeqIdx, layer: LayerIdx) -> Result<LayerTensors, TraceError> {
        self.check_range("sequence", u64::from(seq.get()), self.sequences.len() as u64)?;
        self.check_range("layer", u64::from(layer.get()), u64::from(self.spec.shape.layers))?;
        Ok(self.generator.layer(&self.spec, seq, layer))
    }

    fn lens(&self, seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
        self.check_range("sequence", u64::from(seq.get()), self.sequences.len() as u64)?;
        let positions = self.generator.lens(&self.spec, seq, 1);
        Ok(positions.iter().flat_map(|position| position.rows()).collect())
    }
}
