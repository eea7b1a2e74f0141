//! Reading a trace: lazily, through memory maps that live as long as one call, and strictly.
//!
//! Opening reads the manifest and asks for the size of every file. A tensor is read when it is asked for; the map of
//! its shard is dropped afterwards, so memory does not grow with the trace. [`super::verify`] reads everything.

mod tensors;

use super::branches::{self, Problem};
use super::facts::{self, LensTable};
use super::facts_schema::{
    BRANCH_OUTCOMES, BRANCH_SIMILARITY, BRANCH_STEPS, BRANCH_TOKENS, BRANCH_VERDICTS, LENS, LENS_TOP,
    RAW_LENS, REQUEST_BLOCKS, REQUESTS, TABLES, TOKENS, place,
};
use super::folder::{self, open_inside, sha256_of_file};
use super::manifest::{Manifest, ProblemInfo};
use super::map::map;
use super::requests::{self, Request};
use super::shard::{self, Layout, TensorField};
use super::source::{LayerTensors, LensRow, SequenceMeta, TraceSource};
use super::{RopeInfo, SequenceInfo, ShardInfo, TraceError, Weight, times, weights};
use crate::cost::Measurement;
use crate::table::{Table, TableFile};
use crate::types::{LayerIdx, ModelShape, SeqIdx, TokenId};
use bytes::Bytes;
use ndarray::{Array2, Array3, Axis};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// An opened trace.
#[derive(Debug)]
pub struct Trace {
    root: PathBuf,
    name: String,
    digest: String,
    manifest: Manifest,
    sequences: Vec<SequenceMeta>,
    /// The tensor fields that this build knows, in file order.
    fields: Vec<TensorField>,
    /// For each sequence, its shards in the manifest.
    shards: Vec<Range<usize>>,
    /// Checked shard headers, as far as they were needed, `[shard]`.
    layouts: Vec<OnceLock<Layout>>,
    /// Opened facts tables, `[table]` as in `facts_schema::TABLES`.
    tables: Vec<OnceLock<TableFile>>,
    /// Rows of the branch tables before each problem, and after the last one.
    problem_rows: Vec<ProblemRows>,
}

/// Rows of each branch table.
#[derive(Clone, Copy, Debug, Default)]
struct ProblemRows {
    branches: u64,
    tokens: u64,
    similarity: u64,
    outcomes: u64,
    steps: u64,
    verdicts: u64,
}

impl ProblemRows {
    fn after(self, info: &ProblemInfo, layers: u64) -> Self {
        Self {
            branches: self.branches + u64::from(info.branches),
            tokens: self.tokens.saturating_add(info.tokens),
            similarity: self.similarity + u64::from(info.branches.saturating_sub(1)) * (layers + 1),
            outcomes: self.outcomes + u64::from(info.outcomes),
            steps: self.steps.saturating_add(info.steps),
            verdicts: self.verdicts + u64::from(info.verdicts) * layers,
        }
    }

    fn of(self, table: &str) -> u64 {
        match table {
            BRANCH_TOKENS => self.tokens,
            BRANCH_SIMILARITY => self.similarity,
            BRANCH_OUTCOMES => self.outcomes,
            BRANCH_STEPS => self.steps,
            BRANCH_VERDICTS => self.verdicts,
            _ => self.branches,
        }
    }
}

impl Trace {
    /// Opens the trace in the folder `root`.
    ///
    /// # Errors
    /// When the manifest is missing, damaged, unfinished, of another major version or not accepted, or when a file that
    /// it names is missing, a link, or of another size.
    pub fn open(root: &Path) -> Result<Self, TraceError> {
        let (manifest, digest) = folder::read_manifest(root)?;
        let fields = shard::tensor_fields(&manifest);
        for shard in &manifest.shards {
            check_size(root, &shard.path, shard.bytes)?;
            let least = data_bytes(&fields, &manifest.shape, shard);
            if least.is_none_or(|least| shard.bytes < least) {
                let accepted = format!("the bytes of {} positions", shard.end - shard.start);
                return Err(TraceError::malformed(
                    &root.join(&shard.path),
                    "file",
                    format!("{} bytes", shard.bytes),
                    accepted,
                ));
            }
        }
        for table in &manifest.tables {
            check_size(root, &table.path, table.bytes)?;
        }
        for weight in &manifest.weights {
            check_size(root, &weight.path, weight.bytes)?;
        }
        if let Some(times) = &manifest.times {
            check_size(root, &times.path, times.bytes)?;
        }
        let shards = manifest.sequences.iter().map(|sequence| {
            let start = manifest.shards.partition_point(|shard| shard.seq < sequence.seq);
            start..manifest.shards.partition_point(|shard| shard.seq <= sequence.seq)
        });
        let absolute = root.canonicalize().map_err(|error| TraceError::io(root, error))?;
        Ok(Self {
            name: absolute.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            digest,
            sequences: manifest.sequences.iter().map(meta).collect(),
            fields,
            shards: shards.collect(),
            layouts: manifest.shards.iter().map(|_| OnceLock::new()).collect(),
            tables: TABLES.iter().map(|_| OnceLock::new()).collect(),
            problem_rows: problem_rows(&manifest),
            root: root.to_owned(),
            manifest,
        })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What is known about a sequence: texts, answers, why it ended.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn sequence(&self, seq: SeqIdx) -> Result<&SequenceInfo, TraceError> {
        self.manifest.sequences.get(seq.idx()).ok_or(TraceError::OutOfRange {
            what: "sequence",
            given: u64::from(seq.get()),
            count: self.manifest.sequences.len() as u64,
        })
    }

    /// The tokens of a sequence, `[q_pos]`.
    ///
    /// # Errors
    /// When there is no such sequence, or the table is damaged.
    pub fn tokens(&self, seq: SeqIdx) -> Result<Vec<TokenId>, TraceError> {
        let info = self.sequence(seq)?;
        let before: u64 = self.manifest.sequences[..seq.idx()].iter().map(|s| u64::from(s.len)).sum();
        let table = self.rows(TOKENS, before, u64::from(info.len))?;
        facts::tokens(&table, info, &self.manifest.shape, &self.root.join(TOKENS))
    }

    /// The rows of `facts/lens.parquet` of a sequence, all columns, checked.
    ///
    /// # Errors
    /// When there is no such sequence, the trace has no lens facts, or the table is damaged.
    pub fn lens_table(&self, seq: SeqIdx) -> Result<LensTable, TraceError> {
        let info = self.sequence(seq)?;
        self.require("lens.top1_token")?;
        let rows = self.lens_rows(seq);
        let table = self.rows(LENS, rows.start, rows.end - rows.start)?;
        let has_raw = self.manifest.holds(RAW_LENS[0]);
        facts::lens(&table, info, &self.manifest.shape, has_raw, &self.root.join(LENS))
    }

    /// The largest logits behind each row of [`Trace::lens_table`], `[row][rank]`, largest first.
    ///
    /// # Errors
    /// When there is no such sequence, the trace has no such facts, or the table is damaged.
    pub fn lens_top(&self, seq: SeqIdx) -> Result<Vec<Vec<(TokenId, f32)>>, TraceError> {
        let (info, lens) = (self.sequence(seq)?, self.lens_table(seq)?);
        self.require("lens_top.token")?;
        let (rows, ranks) = (self.lens_rows(seq), u64::from(self.manifest.lens_top));
        let table = self.rows(LENS_TOP, rows.start * ranks, (rows.end - rows.start) * ranks)?;
        facts::lens_top(
            &table,
            info,
            &lens,
            self.manifest.lens_top,
            &self.manifest.shape,
            &self.root.join(LENS_TOP),
        )
    }

    /// Hands every request to `each`, in order, with its index. A few thousand are in memory at a time.
    ///
    /// # Errors
    /// When the trace holds no requests, the tables are damaged, or `each` gives an error.
    pub fn for_each_request(
        &self,
        mut each: impl FnMut(u64, &Request) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        const BATCH: u64 = 4096;
        self.require("requests.timestamp_ms")?;
        let count = self.manifest.requests.as_ref().map_or(0, |info| info.count);
        let (path, blocks_path) = (self.root.join(REQUESTS), self.root.join(REQUEST_BLOCKS));
        let (mut at, mut block) = (0, 0);
        while at < count {
            let table = self.rows(REQUESTS, at, BATCH.min(count - at))?;
            let blocks = requests::blocks(&table, &path)?;
            let hashes = self.rows(REQUEST_BLOCKS, block, blocks)?;
            for request in requests::decode(at, &table, &path, &hashes, &blocks_path)? {
                each(at, &request)?;
                at += 1;
            }
            block = block.saturating_add(blocks);
        }
        Ok(())
    }

    /// The residual stream after `layer`, `[q_pos, hidden]`.
    ///
    /// # Errors
    /// When there is no such sequence or layer, the trace holds no hidden states, or they cannot be read.
    pub fn hidden(&self, seq: SeqIdx, layer: LayerIdx) -> Result<Array2<f32>, TraceError> {
        let len = self.sequence(seq)?.len;
        self.hidden_window(seq, layer, 0..len)
    }

    /// As [`Trace::hidden`], at the positions `window`.
    ///
    /// # Errors
    /// As [`Trace::hidden`], and when there are no such positions.
    pub fn hidden_window(
        &self,
        seq: SeqIdx,
        layer: LayerIdx,
        window: Range<u32>,
    ) -> Result<Array2<f32>, TraceError> {
        let [hidden] = self.tensors(seq, layer, ["hidden"], window)?;
        Ok(hidden.index_axis_move(Axis(0), 0))
    }

    /// As [`TraceSource::layer`], at the positions `window`. Only the shards that they lie in are read.
    ///
    /// # Errors
    /// As [`TraceSource::layer`], and when there are no such positions.
    pub fn layer_window(
        &self,
        seq: SeqIdx,
        layer: LayerIdx,
        window: Range<u32>,
    ) -> Result<LayerTensors, TraceError> {
        let [q, k, v] = self.tensors(seq, layer, ["q", "k", "v"], window)?;
        Ok(LayerTensors { q, k, v })
    }

    pub(super) fn require(&self, field: &'static str) -> Result<(), TraceError> {
        if self.manifest.holds(field) {
            Ok(())
        } else {
            Err(TraceError::MissingField { field, held: self.manifest.field_names() })
        }
    }

    /// Rows of `facts/lens.parquet` that belong to a sequence.
    fn lens_rows(&self, seq: SeqIdx) -> Range<u64> {
        let layers = u64::from(self.manifest.shape.layers);
        let sequences = &self.manifest.sequences;
        let before: u64 = sequences[..seq.idx()].iter().map(|s| u64::from(s.lens_positions)).sum();
        before * layers..(before + u64::from(sequences[seq.idx()].lens_positions)) * layers
    }

    fn rows(&self, table: &'static str, start: u64, count: u64) -> Result<Table, TraceError> {
        let file = self.table_file(table)?;
        let range = usize::try_from(start).ok().zip(usize::try_from(start.saturating_add(count)).ok());
        let (start, end) = range.unwrap_or((usize::MAX, usize::MAX));
        file.read(start..end).map_err(TraceError::table)
    }

    /// The facts table at `inside`. Its digest is checked when it is first used: facts are small, and the decoder
    /// should not be the first to meet damage.
    pub(super) fn table_file(&self, inside: &'static str) -> Result<&TableFile, TraceError> {
        let cell = &self.tables[place(inside).unwrap_or_default()];
        if let Some(file) = cell.get() {
            return Ok(file);
        }
        let Some(info) = self.manifest.table(inside) else {
            return Err(TraceError::MissingField { field: inside, held: self.manifest.field_names() });
        };
        let (mut file, path) = open_inside(&self.root, inside)?;
        let (_, found) = sha256_of_file(&mut file, &path)?;
        if found != info.sha256 {
            return Err(TraceError::Checksum { path, expected: info.sha256.clone(), found });
        }
        let opened =
            TableFile::open(Bytes::from_owner(map(&file, &path)?), &path).map_err(TraceError::table)?;
        if opened.rows() as u64 != info.rows {
            return Err(TraceError::malformed(&path, "rows", opened.rows(), info.rows.to_string()));
        }
        Ok(cell.get_or_init(|| opened))
    }
}

impl TraceSource for Trace {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> String {
        self.digest.clone()
    }

    fn is_synthetic(&self) -> bool {
        self.manifest.synthetic.is_some()
    }

    fn shape(&self) -> &ModelShape {
        &self.manifest.shape
    }

    fn sequences(&self) -> &[SequenceMeta] {
        &self.sequences
    }

    fn layer(&self, seq: SeqIdx, layer: LayerIdx) -> Result<LayerTensors, TraceError> {
        let len = self.sequence(seq)?.len;
        self.layer_window(seq, layer, 0..len)
    }

    fn lens(&self, seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
        Ok(self.lens_table(seq)?.rows)
    }

    fn request_block_tokens(&self) -> Option<u32> {
        self.manifest.requests.as_ref().map(|info| info.block_tokens)
    }

    fn visit_requests(
        &self,
        each: &mut dyn FnMut(u64, &Request) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        self.for_each_request(each)
    }

    fn prompt_tokens(&self, seq: SeqIdx) -> Result<Vec<TokenId>, TraceError> {
        let mut tokens = self.tokens(seq)?;
        tokens.truncate(self.sequence(seq)?.prompt_len as usize);
        Ok(tokens)
    }

    fn problems(&self) -> u32 {
        let problems = self.manifest.branches.as_ref().map_or(0, |branches| branches.problems.len());
        u32::try_from(problems).unwrap_or(u32::MAX)
    }

    fn problem(&self, index: u32) -> Result<Problem, TraceError> {
        self.require("branches.depth")?;
        let problems = self.manifest.branches.as_ref().map_or(&[][..], |branches| &branches.problems);
        let at = index as usize;
        let Some(info) = problems.get(at) else {
            let count = problems.len() as u64;
            return Err(TraceError::OutOfRange { what: "problem", given: u64::from(index), count });
        };
        branches::problem(info, &self.manifest, &|table| {
            let (start, end) = (self.problem_rows[at].of(table), self.problem_rows[at + 1].of(table));
            Ok((self.rows(table, start, end - start)?, self.root.join(table)))
        })
    }

    fn problem_item(&self, index: u32) -> Result<String, TraceError> {
        let problems = self.manifest.branches.as_ref().map_or(&[][..], |branches| &branches.problems);
        problems.get(index as usize).map(|info| info.item.clone()).ok_or(TraceError::OutOfRange {
            what: "problem",
            given: u64::from(index),
            count: problems.len() as u64,
        })
    }

    fn rope(&self) -> Option<&RopeInfo> {
        self.manifest.rope.as_ref()
    }

    fn times(&self) -> Result<Vec<Measurement>, TraceError> {
        times::read(self)
    }

    fn w_o(&self, layer: LayerIdx) -> Result<Array3<f32>, TraceError> {
        let shape = &self.manifest.shape;
        if layer.get() >= shape.layers {
            let (given, count) = (u64::from(layer.get()), u64::from(shape.layers));
            return Err(TraceError::OutOfRange { what: "layer", given, count });
        }
        let dims = (shape.hidden as usize, usize::from(shape.q_heads), usize::from(shape.head_dim));
        Ok(shaped(weights::read(self, Weight::WO(layer))?, dims))
    }

    fn final_norm(&self) -> Result<Vec<f32>, TraceError> {
        weights::read(self, Weight::FinalNorm)
    }

    fn final_norm_eps(&self) -> Option<f64> {
        self.manifest.final_norm.as_ref().map(|norm| norm.eps)
    }

    fn last_hidden(&self, seq: SeqIdx) -> Result<Array2<f32>, TraceError> {
        self.hidden(seq, LayerIdx::new(self.manifest.shape.layers.saturating_sub(1)))
    }

    fn unembedding(&self) -> Result<Array2<f32>, TraceError> {
        let shape = &self.manifest.shape;
        let dims = (shape.vocab as usize, shape.hidden as usize);
        Ok(shaped(weights::read(self, Weight::Unembedding)?, dims))
    }
}

/// Values in the shape that they were checked to have.
fn shaped<D: ndarray::Dimension>(
    values: Vec<f32>,
    dims: impl Into<ndarray::StrideShape<D>>,
) -> ndarray::Array<f32, D> {
    ndarray::Array::from_shape_vec(dims, values).expect("the header was checked to have this shape")
}

fn problem_rows(manifest: &Manifest) -> Vec<ProblemRows> {
    let layers = u64::from(manifest.shape.layers);
    let problems = manifest.branches.iter().flat_map(|branches| &branches.problems);
    let mut rows = vec![ProblemRows::default()];
    for info in problems {
        rows.push(rows.last().copied().unwrap_or_default().after(info, layers));
    }
    rows
}

fn meta(info: &SequenceInfo) -> SequenceMeta {
    SequenceMeta {
        seq: SeqIdx::new(info.seq),
        item: info.item.clone(),
        prompt_len: info.prompt_len,
        len: info.len,
    }
}

fn check_size(root: &Path, inside: &str, expected: u64) -> Result<(), TraceError> {
    let (file, path) = open_inside(root, inside)?;
    let found = file.metadata().map_err(|error| TraceError::io(&path, error))?.len();
    if found == expected { Ok(()) } else { Err(TraceError::Size { path, expected, found }) }
}

/// Bytes of the known tensors of a shard; `None` when no file can be that large.
fn data_bytes(fields: &[TensorField], shape: &ModelShape, shard: &ShardInfo) -> Option<u64> {
    fields.iter().try_fold(0_u64, |total, field| {
        let heads = field.heads(shape).map_or(1, u64::from);
        let scalars =
            heads.checked_mul(field.width(shape) as u64)?.checked_mul(u64::from(shard.end - shard.start))?;
        total.checked_add(scalars.checked_mul(field.scalar_bytes())?.checked_mul(u64::from(shape.layers))?)
    })
}
