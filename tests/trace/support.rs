//! Small traces: generated, built by hand, copied, edited and sealed again.

use kvlab_sim::trace::synth::{SynthLength, SynthSpec, Synthetic};
use kvlab_sim::trace::{
    Chunk, DecodingInfo, Dtype, KeyState, LayerChunk, Leftover, LensFact, LensForms, LensPosition, ModelInfo,
    RawLensFact, RopeInfo, RuntimeInfo, SequenceEnd, SequenceStart, StoredFields, StoredWeights, ToolInfo,
    TraceError, TraceHeader, TraceWriter, WorkloadInfo,
};
use kvlab_sim::types::{ModelShape, Pos, TokenId};
use ndarray::{Array2, Array3, s};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub(crate) const SHAPE: ModelShape =
    ModelShape { layers: 2, q_heads: 2, kv_heads: 1, head_dim: 4, hidden: 3, vocab: 40 };

/// A generated trace of two sequences, the second of one token.
pub(crate) fn generated() -> Synthetic {
    let lengths = vec![SynthLength { prompt_len: 3, len: 9 }, SynthLength { prompt_len: 1, len: 1 }];
    Synthetic::build("sinks-and-hitters", SynthSpec { shape: SHAPE, lengths, seed: 5 }).unwrap()
}

/// A folder with a trace called `trace` in it.
pub(crate) struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn empty() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// Holds [`generated`] in shards of four positions.
    pub(crate) fn with_trace() -> Self {
        // Written once and copied from then on: a recording waits for the disk, a copy does not.
        static FILES: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
            let folder = Folder::empty();
            generated().write(&folder.trace(), Dtype::F32, 2, 4, Leftover::Refuse).unwrap();
            files(&folder.trace())
        });
        let folder = Self::empty();
        for (inside, content) in FILES.iter() {
            fs::create_dir_all(folder.path(inside).parent().unwrap()).unwrap();
            fs::write(folder.path(inside), content).unwrap();
        }
        folder
    }

    pub(crate) fn trace(&self) -> PathBuf {
        self.dir.path().join("trace")
    }

    pub(crate) fn partial(&self) -> PathBuf {
        self.dir.path().join("trace.partial")
    }

    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.trace().join(inside)
    }

    pub(crate) fn manifest(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("manifest.json")).unwrap()).unwrap()
    }

    /// Writes the manifest and the digest that belongs to it.
    pub(crate) fn seal_text(&self, text: &str) {
        self.seal_bytes(text.as_bytes());
    }

    /// The same, for what may be no text at all.
    pub(crate) fn seal_bytes(&self, bytes: &[u8]) {
        fs::write(self.path("manifest.json"), bytes).unwrap();
        fs::write(self.path("manifest.sha256"), format!("{}  manifest.json\n", sha256(bytes))).unwrap();
    }

    /// Edits the manifest and seals it, so that nothing but the edit is wrong.
    pub(crate) fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut manifest = self.manifest();
        edit(&mut manifest);
        self.seal_text(&serde_json::to_string_pretty(&manifest).unwrap());
    }

    /// Replaces a file of the trace, and its size and digest in the manifest.
    pub(crate) fn replace(&self, inside: &str, content: &[u8]) {
        reseal(&self.trace(), inside, content);
    }
}

/// Replaces a file of the trace at `root`, and its size and digest in the manifest.
pub(crate) fn reseal(root: &Path, inside: &str, content: &[u8]) {
    fs::write(root.join(inside), content).unwrap();
    let mut manifest: Value = serde_json::from_slice(&fs::read(root.join("manifest.json")).unwrap()).unwrap();
    for list in ["shards", "tables", "weights"] {
        for entry in manifest[list].as_array_mut().into_iter().flatten() {
            if entry["path"] == inside {
                entry["bytes"] = content.len().into();
                entry["sha256"] = sha256(content).into();
            }
        }
    }
    seal_manifest(root, serde_json::to_string(&manifest).unwrap().as_bytes());
}

/// Writes a manifest, whatever it says, with the digest that it has.
pub(crate) fn seal_manifest(root: &Path, bytes: &[u8]) {
    fs::write(root.join("manifest.json"), bytes).unwrap();
    fs::write(root.join("manifest.sha256"), format!("{}  manifest.json\n", sha256(bytes))).unwrap();
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every file below `root` with its content, sorted by path.
pub(crate) fn files(root: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let inside = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                files.push((inside, fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

/// The header of a recorded trace with all fields.
pub(crate) fn recorded_header(attention: Dtype) -> TraceHeader {
    let digest = || Some(sha256(b"weights"));
    TraceHeader {
        synthetic: None,
        tool: ToolInfo { name: "kvlab".to_owned(), version: "0.1.0".to_owned(), revision: None },
        model: ModelInfo {
            name: "tiny".to_owned(),
            family: "llama".to_owned(),
            source_file: Some("tiny.gguf".to_owned()),
            weights_sha256: digest(),
            tokenizer_sha256: digest(),
            graph_sha256: digest(),
            precision: "f32".to_owned(),
            config: serde_json::json!({ "rms_norm_eps": 1e-5 }),
        },
        shape: SHAPE,
        rope: Some(RopeInfo {
            style: "rotate-half".to_owned(),
            theta: 100_000.0,
            scaling: None,
            keys: KeyState::PostRope,
            inv_freq: Some(vec![1.0, 0.0625]),
            attention_scaling: Some(1.0),
        }),
        runtime: Some(RuntimeInfo {
            library: "onnxruntime".to_owned(),
            version: "1.32.0".to_owned(),
            provider: "cpu".to_owned(),
            requested_provider: "auto".to_owned(),
            fallback_reason: Some("no device".to_owned()),
            threads: 2,
            optimization_level: "all".to_owned(),
        }),
        decoding: DecodingInfo {
            mode: "greedy".to_owned(),
            max_new_tokens: 8,
            chat_template: true,
            batch: None,
            protocol: None,
        },
        workload: WorkloadInfo { name: "arithmetic".to_owned(), seed: 3, file_sha256: None },
        seed: 3,
        shard_tokens: 4,
        fields: StoredFields {
            hidden: true,
            attention: Some(attention),
            lens: Some(LensForms::Both),
            lens_top: 2,
        },
        weights: StoredWeights::default(),
        branches: None,
        requests: None,
        derived_from: Vec::new(),
        times: false,
    }
}

/// Tensors and facts of one made-up sequence, all numbers exact in half precision.
pub(crate) struct Recorded {
    pub(crate) tokens: Vec<TokenId>,
    /// `[layer]` of `[q_pos, hidden]`.
    pub(crate) hidden: Vec<Array2<f32>>,
    /// `[layer]` of `[q_head, q_pos, head_dim]`.
    pub(crate) q: Vec<Array3<f32>>,
    /// `[layer]` of `[kv_head, kv_pos, head_dim]`.
    pub(crate) kv: Vec<Array3<f32>>,
    pub(crate) lens: Vec<LensPosition>,
}

impl Recorded {
    pub(crate) fn new(len: u32, salt: u32) -> Self {
        let number = |a: usize, b: usize, c: usize| {
            f32::from(u8::try_from((a * 7 + b * 5 + c * 3) % 64).unwrap()) / 8.0
        };
        let salt = salt as usize;
        let positions = len as usize;
        let layers = usize::from(SHAPE.layers);
        // Probability 1/2 on the first token, the other half shared by two: entropy 1.5 ln 2.
        let half = std::f32::consts::LN_2;
        let fact = |token: u32| LensFact {
            entropy_nats: 1.5 * half,
            logsumexp: half,
            raw: Some(RawLensFact { entropy_nats: 3.0, logsumexp: 4.0 }),
            top: vec![(TokenId::new(token), 0.0), (TokenId::new(token + 1), -half)],
        };
        Self {
            tokens: (0..len).map(|pos| TokenId::new((pos * 3 + 1) % SHAPE.vocab)).collect(),
            hidden: (0..layers)
                .map(|l| Array2::from_shape_fn((positions, 3), |(p, c)| number(p + salt, c, l)))
                .collect(),
            q: (0..layers)
                .map(|l| Array3::from_shape_fn((2, positions, 4), |(h, p, c)| number(p, c + h, l + salt)))
                .collect(),
            kv: (0..layers)
                .map(|l| Array3::from_shape_fn((1, positions, 4), |(_, p, c)| -number(p + l, c, salt)))
                .collect(),
            lens: (len / 2..len)
                .map(|pos| LensPosition { pos: Pos::new(pos), layers: vec![fact(1), fact(2 + pos % 2)] })
                .collect(),
        }
    }

    /// The chunk of the positions `range`.
    pub(crate) fn chunk(&self, range: Range<usize>) -> Chunk<'_> {
        let inside = |fact: &&LensPosition| range.contains(&fact.pos.idx());
        let first = self.lens.iter().position(|fact| inside(&fact)).unwrap_or_default();
        let count = self.lens.iter().filter(inside).count();
        let layers = (0..self.q.len()).map(|layer| LayerChunk {
            hidden: Some(self.hidden[layer].slice(s![range.clone(), ..])),
            q: Some(self.q[layer].slice(s![.., range.clone(), ..])),
            k: Some(self.kv[layer].slice(s![.., range.clone(), ..])),
            v: Some(self.kv[layer].slice(s![.., range.clone(), ..])),
        });
        Chunk {
            tokens: &self.tokens[range.clone()],
            layers: layers.collect(),
            lens: &self.lens[first..first + count],
        }
    }

    /// Records the sequence in chunks of the given sizes; the last one is repeated.
    pub(crate) fn record(&self, writer: &mut TraceWriter, sizes: &[usize]) -> Result<(), TraceError> {
        writer.begin_sequence(start(u32::try_from(self.tokens.len()).unwrap()))?;
        let (mut done, mut turn) = (0, 0);
        while done < self.tokens.len() {
            let end = (done + sizes[turn.min(sizes.len() - 1)]).min(self.tokens.len());
            writer.push(&self.chunk(done..end))?;
            done = end;
            turn += 1;
        }
        writer.end_sequence(end())
    }
}

pub(crate) fn start(len: u32) -> SequenceStart {
    SequenceStart {
        item: "sum-1".to_owned(),
        prompt_len: len.div_ceil(2),
        bos_len: 1,
        prompt_text: Some("1 + 1 = ".to_owned()),
    }
}

pub(crate) fn end() -> SequenceEnd {
    SequenceEnd {
        finish_reason: "eos".to_owned(),
        generated_text: Some("2".to_owned()),
        expected_answer: Some("2".to_owned()),
        answer: Some("2".to_owned()),
        correct: Some(true),
    }
}
