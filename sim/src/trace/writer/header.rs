//! What a recorder hands in: the header once, then sequences in chunks of positions.

use super::facts::LensPosition;
use crate::trace::facts_schema::{LENS, LENS_TOP, RAW_LENS, REQUEST_BLOCKS, REQUESTS, TABLES, TOKENS};
use crate::trace::manifest::{
    DecodingInfo, FieldInfo, Manifest, ModelInfo, NO_RAW_LENS, RopeInfo, RuntimeInfo, SequenceInfo,
    SyntheticInfo, ToolInfo, WorkloadInfo,
};
use crate::trace::shard::TensorField;
use crate::trace::{
    BranchesInfo, DerivedFrom, Dtype, FIELDS, RequestsInfo, StoredBranches, StoredRequests, StoredWeights,
    TRACE_VERSION, TraceError, branches,
};
use crate::types::{ModelShape, Pos, TokenId};
use ndarray::{ArrayView2, ArrayView3};
use serde::{Deserialize, Serialize};

/// Largest finite half float.
const HALF_MAX: f32 = 65504.0;

/// Which fields a trace stores. Tokens are always stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredFields {
    /// Whether the residual stream after each layer is stored.
    pub hidden: bool,
    /// Storage type of queries, keys and values, `F32` or `F16`; absent to store none.
    pub attention: Option<Dtype>,
    /// Which lens facts are stored; absent for none.
    pub lens: Option<LensForms>,
    /// Ranks of the largest logits stored with each lens fact; 0 for none.
    pub lens_top: u16,
}

/// In which forms the lens looked at hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LensForms {
    /// With the final norm and without it.
    Both,
    /// With the final norm only: half of the rows.
    Normed,
}

/// What is known about a recording before its first token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceHeader {
    /// Present when the content is generated and not recorded.
    pub synthetic: Option<SyntheticInfo>,
    /// The program that writes.
    pub tool: ToolInfo,
    /// The model.
    pub model: ModelInfo,
    /// Its shape.
    pub shape: ModelShape,
    /// Position encoding.
    pub rope: Option<RopeInfo>,
    /// What runs the model. Required unless the trace is synthetic.
    pub runtime: Option<RuntimeInfo>,
    /// How tokens are chosen.
    pub decoding: DecodingInfo,
    /// Where the prompts come from.
    pub workload: WorkloadInfo,
    /// The recording's seed.
    pub seed: u64,
    /// Positions a shard holds. [`TraceHeader::SHARD_TOKENS`] is a good number.
    pub shard_tokens: u32,
    /// The fields to store.
    pub fields: StoredFields,
    /// The weights to store.
    pub weights: StoredWeights,
    /// The branch facts to store; absent for none.
    pub branches: Option<StoredBranches>,
    /// What holds for the requests to store; absent for none.
    pub requests: Option<StoredRequests>,
    /// The traces that this one is made from.
    pub derived_from: Vec<DerivedFrom>,
    /// Whether measured times are stored.
    pub times: bool,
}

/// The beginning of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceStart {
    /// Id of the problem.
    pub item: String,
    /// Tokens given, at positions `0..prompt_len`.
    pub prompt_len: u32,
    /// Begin-of-sequence tokens among them, at the start.
    pub bos_len: u32,
    /// The prompt as text.
    pub prompt_text: Option<String>,
}

/// What is known about a sequence after its last token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceEnd {
    /// Why generation stopped: `eos`, `length`, `stop` or `given`.
    pub finish_reason: String,
    /// The continuation as text.
    pub generated_text: Option<String>,
    /// The right answer, where there is one.
    pub expected_answer: Option<String>,
    /// The answer found in the continuation.
    pub answer: Option<String>,
    /// Whether the two agree.
    pub correct: Option<bool>,
}

/// Consecutive positions of one sequence, from the first that was not pushed yet.
#[derive(Clone, Debug, Default)]
pub struct Chunk<'a> {
    /// The tokens fed to the model, `[q_pos]`.
    pub tokens: &'a [TokenId],
    /// Tensors of those positions, `[layer]`; empty when the trace stores no tensors.
    pub layers: Vec<LayerChunk<'a>>,
    /// Lens facts of any of those positions, in order; empty when the trace stores none.
    pub lens: &'a [LensPosition],
}

/// Tensors of one layer. Exactly the fields that the header names are given. Any memory layout will do.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerChunk<'a> {
    /// The residual stream after the layer, `[q_pos, hidden]`.
    pub hidden: Option<ArrayView2<'a, f32>>,
    /// Queries, `[q_head, q_pos, head_dim]`.
    pub q: Option<ArrayView3<'a, f32>>,
    /// Keys, `[kv_head, kv_pos, head_dim]`.
    pub k: Option<ArrayView3<'a, f32>>,
    /// Values, `[kv_head, kv_pos, head_dim]`.
    pub v: Option<ArrayView3<'a, f32>>,
}

impl<'a> LayerChunk<'a> {
    /// The field called `name` as one `[position, width]` view a head.
    pub(super) fn heads(&self, name: &str) -> Option<Vec<ArrayView2<'a, f32>>> {
        let with_heads = match name {
            "hidden" => return self.hidden.map(|hidden| vec![hidden]),
            "q" => self.q,
            "k" => self.k,
            _ => self.v,
        };
        with_heads.map(|view| view.into_outer_iter().collect())
    }
}

impl TraceHeader {
    /// The usual number of positions a shard.
    pub const SHARD_TOKENS: u32 = 256;

    /// The tensor fields stored, in file order.
    pub(super) fn tensor_fields(&self) -> Vec<TensorField> {
        FIELDS
            .iter()
            .filter(|field| field.is_tensor())
            .filter_map(|field| {
                let hidden = self.fields.hidden.then_some(Dtype::F32);
                let dtype = if field.name == "hidden" { hidden } else { self.fields.attention };
                dtype.map(|dtype| TensorField { name: field.name, dtype })
            })
            .collect()
    }

    /// The facts tables that a trace with this header has, sorted by path.
    pub(super) fn tables(&self) -> Vec<&'static str> {
        let mut tables = vec![TOKENS];
        tables.extend(self.fields.lens.map(|_| LENS));
        tables.extend((self.fields.lens_top > 0).then_some(LENS_TOP));
        tables.extend(self.branches.iter().flat_map(branches::tables));
        tables.extend(self.requests.iter().flat_map(|_| [REQUEST_BLOCKS, REQUESTS]));
        tables.sort_unstable();
        tables
    }

    /// Whether no lens fact is left out.
    pub(super) fn looks_raw(&self) -> bool {
        self.fields.lens != Some(LensForms::Normed)
    }

    /// The manifest of a trace with this header, before any sequence.
    pub(super) fn manifest(&self) -> Manifest {
        let tensors = self.tensor_fields();
        let tables: Vec<&str> = self.tables();
        let fields = FIELDS.iter().filter_map(|field| match field.name.split_once('.') {
            None => tensors.iter().find(|t| t.name == field.name).map(|t| FieldInfo::known(t.name, t.dtype)),
            Some(("weights", name)) => {
                self.weights.dtype(name).map(|dtype| FieldInfo::known(field.name, dtype))
            }
            Some((table, _)) => TABLES
                .iter()
                .any(|known| known.name() == table && tables.contains(&known.path))
                .then_some(field)
                .filter(|field| self.looks_raw() || !RAW_LENS.contains(&field.name))
                .map(|field| FieldInfo::known(field.name, field.dtypes[0])),
        });
        Manifest {
            format: TRACE_VERSION,
            complete: true,
            requires: if self.looks_raw() { Vec::new() } else { vec![NO_RAW_LENS.to_owned()] },
            synthetic: self.synthetic.clone(),
            tool: self.tool.clone(),
            model: self.model.clone(),
            shape: self.shape,
            rope: self.rope.clone(),
            final_norm: self.weights.final_norm.clone(),
            runtime: self.runtime.clone(),
            decoding: self.decoding.clone(),
            workload: self.workload.clone(),
            seed: self.seed,
            shard_tokens: self.shard_tokens,
            lens_top: self.fields.lens_top,
            fields: fields.collect(),
            sequences: Vec::new(),
            branches: self.branches.as_ref().map(|stored| BranchesInfo {
                yes_token: stored.yes_token,
                no_token: stored.no_token,
                problems: Vec::new(),
            }),
            requests: self.requests.map(|stored| RequestsInfo {
                count: 0,
                blocks: 0,
                block_tokens: stored.block_tokens,
            }),
            derived_from: self.derived_from.clone(),
            shards: Vec::new(),
            tables: Vec::new(),
            weights: Vec::new(),
            times: None,
        }
    }

    /// Finds at the start what would be refused at the end.
    pub(super) fn check(&self) -> Result<(), TraceError> {
        self.shape.check()?;
        let refuse =
            |what: &str, found: String, accepted: &str| Err(TraceError::chunk(what, found, accepted));
        if self.shard_tokens == 0 {
            return refuse("shard_tokens", "0".to_owned(), "at least 1");
        }
        if !matches!(self.fields.attention, None | Some(Dtype::F32 | Dtype::F16)) {
            return refuse("fields.attention", format!("{:?}", self.fields.attention), "F32 or F16");
        }
        if let Some(dtype) = [self.weights.w_o, self.weights.unembedding]
            .into_iter()
            .flatten()
            .find(|dtype| !matches!(dtype, Dtype::F32 | Dtype::F16))
        {
            return refuse("weights", format!("{dtype:?}"), "F32 or F16");
        }
        if self.fields.lens_top > 0 && self.fields.lens.is_none() {
            return refuse("fields.lens_top", self.fields.lens_top.to_string(), "0 without lens facts");
        }
        if u32::from(self.fields.lens_top) > self.shape.vocab {
            return refuse(
                "fields.lens_top",
                self.fields.lens_top.to_string(),
                "at most the vocabulary size",
            );
        }
        if self.requests.is_some_and(|stored| stored.block_tokens == 0) {
            return refuse("requests.block_tokens", "0".to_owned(), "at least 1");
        }
        if let Some(id) = self
            .branches
            .iter()
            .flat_map(|stored| [stored.yes_token, stored.no_token])
            .flatten()
            .find(|&id| id >= self.shape.vocab)
        {
            return refuse("branches", format!("verifier token {id}"), "ids below the vocabulary size");
        }
        if self.synthetic.is_none()
            && self.requests.is_none()
            && (self.runtime.is_none() || self.model.weights_sha256.is_none())
        {
            let accepted = "`runtime` and `model.weights_sha256`, unless `synthetic` is given";
            return refuse("header", "a recorded trace without them".to_owned(), accepted);
        }
        Ok(())
    }
}

impl SequenceStart {
    pub(super) fn info(self, seq: u32, len: u32, lens_positions: u32, end: SequenceEnd) -> SequenceInfo {
        SequenceInfo {
            seq,
            item: self.item,
            prompt_len: self.prompt_len,
            len,
            bos_len: self.bos_len,
            padding_len: 0,
            lens_positions,
            finish_reason: end.finish_reason,
            prompt_text: self.prompt_text,
            generated_text: end.generated_text,
            expected_answer: end.expected_answer,
            answer: end.answer,
            correct: end.correct,
        }
    }
}

/// Checks a chunk as a whole before any of it is taken; gives its number of positions.
pub(super) fn check_chunk(
    chunk: &Chunk<'_>,
    header: &TraceHeader,
    seq: u32,
    len: u32,
    last_lens: Option<Pos>,
) -> Result<u32, TraceError> {
    let added = u32::try_from(chunk.tokens.len())
        .ok()
        .filter(|&added| added > 0 && len.checked_add(added).is_some())
        .ok_or_else(|| {
            TraceError::chunk("chunk.tokens", chunk.tokens.len(), "1 to 2^32 - 1 positions a sequence")
        })?;
    if let Some(token) = chunk.tokens.iter().find(|token| token.get() >= header.shape.vocab) {
        return Err(TraceError::chunk(
            "chunk.tokens",
            format!("id {token}"),
            format!("ids below {}", header.shape.vocab),
        ));
    }
    check_tensors(chunk, header, seq, len)?;
    check_lens(chunk, header, seq, len..len + added, last_lens)?;
    Ok(added)
}

fn check_tensors(chunk: &Chunk<'_>, header: &TraceHeader, seq: u32, len: u32) -> Result<(), TraceError> {
    let fields = header.tensor_fields();
    let layers = if fields.is_empty() { 0 } else { usize::from(header.shape.layers) };
    if chunk.layers.len() != layers {
        return Err(TraceError::chunk("chunk.layers", chunk.layers.len(), layers));
    }
    for (layer, tensors) in (0..header.shape.layers).zip(&chunk.layers) {
        let given = [
            ("hidden", tensors.hidden.is_some()),
            ("k", tensors.k.is_some()),
            ("q", tensors.q.is_some()),
            ("v", tensors.v.is_some()),
        ];
        for (name, is_given) in given {
            let what = || format!("`{name}` of layer {layer}");
            let Some(field) = fields.iter().find(|field| field.name == name) else {
                if is_given {
                    return Err(TraceError::chunk(what(), "a tensor", "none: the header does not name it"));
                }
                continue;
            };
            let Some(heads) = tensors.heads(name) else {
                return Err(TraceError::chunk(what(), "no tensor", "one: the header names it"));
            };
            let count = field.heads(&header.shape).map_or(1, usize::from);
            let dim = (chunk.tokens.len(), field.width(&header.shape));
            if heads.len() != count || heads.iter().any(|head| head.dim() != dim) {
                let found = heads.first().map_or((0, 0), ArrayView2::dim);
                let found = format!("[{}, {}, {}]", heads.len(), found.0, found.1);
                return Err(TraceError::chunk(what(), found, format!("[{count}, {}, {}]", dim.0, dim.1)));
            }
            for (head, view) in (0_u16..).zip(&heads) {
                let head = field.heads(&header.shape).map(|_| head);
                check_values(view, *field, seq, layer, head, len)?;
            }
        }
    }
    Ok(())
}

fn check_values(
    view: &ArrayView2<'_, f32>,
    field: TensorField,
    seq: u32,
    layer: u16,
    head: Option<u16>,
    len: u32,
) -> Result<(), TraceError> {
    let most = if field.dtype == Dtype::F16 { HALF_MAX } else { f32::MAX };
    for (pos, row) in (len..).zip(view.outer_iter()) {
        if let Some(&value) = row.iter().find(|value| !(value.abs() <= most)) {
            let field = field.name;
            return Err(if value.is_finite() {
                TraceError::HalfOverflow { field, seq, layer, head, pos, value }
            } else {
                TraceError::NonFinite { field, seq, layer, head, pos, value }
            });
        }
    }
    Ok(())
}

fn check_lens(
    chunk: &Chunk<'_>,
    header: &TraceHeader,
    seq: u32,
    positions: std::ops::Range<u32>,
    last_lens: Option<Pos>,
) -> Result<(), TraceError> {
    if header.fields.lens.is_none() && !chunk.lens.is_empty() {
        return Err(TraceError::chunk("chunk.lens", "lens facts", "none: the header does not name them"));
    }
    let mut previous = last_lens;
    let ranks = usize::from(header.fields.lens_top.max(1));
    for LensPosition { pos, layers } in chunk.lens {
        let what = |part: &str| format!("lens facts at position {pos}: {part}");
        if !positions.contains(&pos.get()) || previous.is_some_and(|previous| previous >= *pos) {
            let accepted = format!("each position of {}..{} once, in order", positions.start, positions.end);
            return Err(TraceError::chunk("chunk.lens", format!("position {pos}"), accepted));
        }
        previous = Some(*pos);
        if layers.len() != usize::from(header.shape.layers) {
            return Err(TraceError::chunk(what("layers"), layers.len(), header.shape.layers));
        }
        for (layer, fact) in (0_u16..).zip(layers) {
            if fact.top.len() != ranks {
                return Err(TraceError::chunk(what("top"), fact.top.len(), format!("{ranks} ranks")));
            }
            let out_of_order = fact.top.windows(2).any(|pair| pair[0].1 < pair[1].1);
            if out_of_order || fact.top.iter().any(|(token, _)| token.get() >= header.shape.vocab) {
                let accepted = format!("ids below {}, largest logit first", header.shape.vocab);
                return Err(TraceError::chunk(what("top"), format!("{:?}", fact.top), accepted));
            }
            if fact.raw.is_some() != header.looks_raw() {
                let is_there = |raw: bool| if raw { "given" } else { "none" };
                let (found, accepted) = (is_there(fact.raw.is_some()), is_there(header.looks_raw()));
                return Err(TraceError::chunk(what("without the final norm"), found, accepted));
            }
            let raw = fact.raw.iter().flat_map(|raw| {
                [("lens.raw_entropy_nats", raw.entropy_nats), ("lens.raw_logsumexp", raw.logsumexp)]
            });
            let normed = [("lens.entropy_nats", fact.entropy_nats), ("lens.logsumexp", fact.logsumexp)];
            let named = normed.into_iter().chain(raw);
            let logits = fact.top.iter().map(|&(_, logit)| ("lens_top.logit", logit));
            if let Some((field, value)) = named.chain(logits).find(|(_, value)| !value.is_finite()) {
                return Err(TraceError::NonFinite { field, seq, layer, head: None, pos: pos.get(), value });
            }
        }
    }
    Ok(())
}
