//! GGUF files of three families, written here from the golden folders and loaded again.
//!
//! The writer is the test's own; it permutes the rows of llama files as files in the wild have them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kvlab_executor::{ExecutorError, Model, ModelError, Quiet, Taps, TextError};
use safetensors::SafeTensors;
use serde_json::Value as Json;

use super::support::{Golden, golden_folder, load_options, worst};

/// Metadata and tensors of a file in the making.
struct Writer {
    architecture: &'static str,
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Vec<usize>, Vec<u8>)>,
}

fn text(value: &str) -> Vec<u8> {
    [(value.len() as u64).to_le_bytes().to_vec(), value.as_bytes().to_vec()].concat()
}

impl Writer {
    fn key(&mut self, key: &str, kind: u32, value: &[u8]) {
        let key = key.replace("ARCH", self.architecture);
        self.keys.push((key, [&kind.to_le_bytes(), value].concat()));
    }

    fn count(&mut self, key: &str, value: &Json) {
        let value = u32::try_from(value.as_u64().unwrap()).unwrap();
        self.key(key, 4, &value.to_le_bytes());
    }

    fn texts(&mut self, key: &str, values: &[String]) {
        let head = [8_u32.to_le_bytes().to_vec(), (values.len() as u64).to_le_bytes().to_vec()].concat();
        let items: Vec<u8> = values.iter().flat_map(|value| text(value)).collect();
        self.key(key, 9, &[head, items].concat());
    }

    fn write(&self, path: &Path) {
        let counts = [self.tensors.len() as u64, self.keys.len() as u64].map(u64::to_le_bytes).concat();
        let mut out = [b"GGUF".to_vec(), 3_u32.to_le_bytes().to_vec(), counts].concat();
        for (key, value) in &self.keys {
            out.extend([text(key), value.clone()].concat());
        }
        let mut offset = 0;
        for (name, shape, data) in &self.tensors {
            out.extend(text(name));
            out.extend(u32::try_from(shape.len()).unwrap().to_le_bytes());
            shape.iter().rev().for_each(|size| out.extend((*size as u64).to_le_bytes()));
            out.extend(0_u32.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += data.len().next_multiple_of(32);
        }
        for (_, _, data) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(data);
        }
        fs::write(path, out).unwrap();
    }
}

/// Names in a GGUF file for those in a Hugging Face folder.
const NAMES: [(&str, &str); 17] = [
    ("model.embed_tokens.", "token_embd."),
    ("model.norm.", "output_norm."),
    ("lm_head.", "output."),
    ("model.layers.", "blk."),
    ("input_layernorm.", "attn_norm."),
    ("post_attention_layernorm.", "ffn_norm."),
    ("self_attn.q_proj.", "attn_q."),
    ("self_attn.k_proj.", "attn_k."),
    ("self_attn.v_proj.", "attn_v."),
    ("self_attn.o_proj.", "attn_output."),
    ("self_attn.q_norm.", "attn_q_norm."),
    ("self_attn.k_norm.", "attn_k_norm."),
    ("self_attn.qkv_proj.", "attn_qkv."),
    ("mlp.gate_up_proj.", "ffn_up."),
    ("mlp.gate_proj.", "ffn_gate."),
    ("mlp.up_proj.", "ffn_up."),
    ("mlp.down_proj.", "ffn_down."),
];

/// Row `j * half + i` of a head goes to row `2 i + j`.
fn interleave(data: &[u8], shape: &[usize], head_dim: usize) -> Vec<u8> {
    let row = data.len() / shape[0];
    let half = head_dim / 2;
    let mut out = vec![0; data.len()];
    for from in 0..shape[0] {
        let (head, within) = (from / head_dim, from % head_dim);
        let to = head * head_dim + 2 * (within % half) + within / half;
        out[to * row..(to + 1) * row].copy_from_slice(&data[from * row..(from + 1) * row]);
    }
    out
}

fn build(folder: &Path, architecture: &'static str) -> Writer {
    let json =
        |name: &str| -> Json { serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap() };
    let config = json("config.json");
    let width = |name: &str| config[name].as_u64().unwrap();
    let head_dim = config["head_dim"].as_u64().unwrap_or(width("hidden_size") / width("num_attention_heads"));
    // Where the base stands depends on the release.
    let theta = config["rope_theta"].as_f64().or(config["rope_parameters"]["rope_theta"].as_f64()).unwrap();
    let mut writer = Writer { architecture, keys: Vec::new(), tensors: Vec::new() };
    writer.key("general.architecture", 8, &text(architecture));
    let counts = [
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("feed_forward_length", "intermediate_size"),
        ("context_length", "max_position_embeddings"),
    ];
    for (key, name) in counts {
        writer.count(&format!("ARCH.{key}"), &config[name]);
    }
    writer.count("ARCH.attention.key_length", &head_dim.into());
    writer.key("ARCH.rope.freq_base", 12, &theta.to_le_bytes());
    let epsilon = config["rms_norm_eps"].as_f64().unwrap();
    writer.key("ARCH.attention.layer_norm_rms_epsilon", 12, &epsilon.to_le_bytes());
    writer.key("tokenizer.ggml.model", 8, &text("gpt2"));
    writer.key("tokenizer.ggml.pre", 8, &text("gpt-2"));
    let (mut tokens, mut merges) = ((0..width("vocab_size")).map(|id| format!("t{id}")).collect(), vec![]);
    if folder.join("tokenizer.json").exists() {
        (tokens, merges) = vocabulary(&json("tokenizer.json"));
    }
    writer.texts("tokenizer.ggml.tokens", &tokens);
    writer.texts("tokenizer.ggml.merges", &merges);
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let head_dim = usize::try_from(head_dim).unwrap();
    for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().iter() {
        let rotated = name.contains("q_proj") || name.contains("k_proj");
        let data = match rotated && architecture == "llama" {
            true => interleave(tensor.data(), tensor.shape(), head_dim),
            false => tensor.data().to_vec(),
        };
        let name = NAMES.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
        writer.tensors.push((name, tensor.shape().to_vec(), data));
    }
    if let Some(scaling) = config["rope_scaling"].as_object() {
        let number = |key: &str| scaling[key].as_f64().unwrap();
        let divisors = (0..head_dim / 2).map(|index| {
            let exponent =
                f64::from(u32::try_from(2 * index).unwrap()) / f64::from(u32::try_from(head_dim).unwrap());
            let turns =
                number("original_max_position_embeddings") / (std::f64::consts::TAU * theta.powf(exponent));
            let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
            let ramp = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            1.0 / ((1.0 - ramp) / number("factor") + ramp)
        });
        #[expect(clippy::cast_possible_truncation, reason = "the file holds f32")]
        let data: Vec<u8> = divisors.flat_map(|divisor| (divisor as f32).to_le_bytes()).collect();
        writer.tensors.push(("rope_freqs.weight".to_owned(), vec![head_dim / 2], data));
    }
    writer
}

/// Tokens by id, and merges.
fn vocabulary(tokenizer: &Json) -> (Vec<String>, Vec<String>) {
    let mut tokens = vec![String::new(); 512];
    for (token, id) in tokenizer["model"]["vocab"].as_object().unwrap() {
        tokens[usize::try_from(id.as_u64().unwrap()).unwrap()] = token.clone();
    }
    let merge = |merge: &Json| match merge.as_array() {
        Some(pair) => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        None => merge.as_str().unwrap().to_owned(),
    };
    (tokens, tokenizer["model"]["merges"].as_array().unwrap().iter().map(merge).collect())
}

fn folder(family: &str) -> PathBuf {
    golden_folder().join("export").join(family)
}

/// Writes the golden Llama as a GGUF file.
pub(crate) fn write_llama(path: &Path) {
    build(&folder("llama3"), "llama").write(path);
}

#[test]
fn gguf_files_of_three_families_agree_with_the_golden_passes() {
    let work = tempfile::tempdir().unwrap();
    for (family, architecture) in [("llama3", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")] {
        let path = work.path().join(format!("{family}.gguf"));
        build(&folder(family), architecture).write(&path);
        let mut model = Model::load(&path, &load_options(), &Quiet).unwrap();
        let golden = Golden::open(&folder(family).join("golden.safetensors"));
        let mut decoder = model.decoder().unwrap();
        let pass = decoder.forward(&golden.ids("input_ids"), Taps::STATES).unwrap();
        let error = worst(&decoder.logits(&pass).unwrap(), &golden.f32("logits"));
        assert!(error < 1e-3, "{family}: logits {error}");
        let error = worst(pass.keys.unwrap().as_slice().unwrap(), &golden.f32("k"));
        assert!(error < 1e-3, "{family}: keys {error}");
    }
}

#[test]
fn gguf_files_with_a_window_joined_projections_or_yarn_agree_with_the_golden_passes() {
    let work = tempfile::tempdir().unwrap();
    for (name, architecture) in [("phi3", "phi3"), ("llama-yarn", "llama"), ("mistral", "llama")] {
        let path = work.path().join(format!("{name}.gguf"));
        let mut writer = build(&folder("small").join(name), architecture);
        match name {
            "phi3" => writer.count("ARCH.attention.sliding_window", &9.into()),
            "mistral" => writer.count("ARCH.attention.sliding_window", &7.into()),
            _ => {
                writer.key("ARCH.rope.scaling.type", 8, &text("yarn"));
                writer.key("ARCH.rope.scaling.factor", 12, &4.0_f64.to_le_bytes());
                writer.count("ARCH.rope.scaling.original_context_length", &16.into());
            }
        }
        writer.write(&path);
        let mut model = Model::load(&path, &load_options(), &Quiet).unwrap();
        let golden = Golden::open(&folder("small").join(name).join("golden.safetensors"));
        let mut decoder = model.decoder().unwrap();
        let pass = decoder.forward(&golden.ids("input_ids"), Taps::NONE).unwrap();
        let error = worst(&decoder.logits(&pass).unwrap(), &golden.f32("logits"));
        assert!(error < 1e-4, "{name}: logits {error}");
    }
}

#[test]
fn gguf_files_that_do_not_fit_are_refused_by_name() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("model.gguf");
    let refused = |change: &dyn Fn(&mut Writer)| -> ExecutorError {
        let mut writer = build(&folder("qwen2"), "qwen2");
        change(&mut writer);
        writer.write(&path);
        Model::load(&path, &load_options(), &Quiet).unwrap_err()
    };
    let without = |writer: &mut Writer, name: &str| writer.tensors.retain(|tensor| tensor.0 != name);
    let error = refused(&|writer| without(writer, "blk.3.ffn_up.weight"));
    assert!(error.to_string().contains("\"blk.3.ffn_up.weight\" is missing"), "{error}");
    let error = refused(&|writer| {
        let tensor = writer.tensors.iter_mut().find(|tensor| tensor.0 == "blk.0.attn_k.weight").unwrap();
        tensor.1 = vec![tensor.1[1], tensor.1[0]];
    });
    assert!(error.to_string().contains("has shape [64, 32], the configuration needs [32, 64]"), "{error}");
    let error = refused(&|writer| {
        let tensor = writer.tensors.iter_mut().find(|tensor| tensor.0 == "blk.2.ffn_norm.weight").unwrap();
        tensor.2[8..12].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    assert!(
        matches!(&error, ExecutorError::Model(ModelError::NonFiniteWeight { element: 2, .. })),
        "{error}"
    );
    for (key, value, expected) in [
        ("block_count", 3, "qwen2.block_count is 3, but the tensors are of 4 layers"),
        ("vocab_size", 500, "qwen2.vocab_size is 500, but \"token_embd.weight\" has 512 rows"),
    ] {
        let error = refused(&|writer| {
            writer.keys.retain(|found| !found.0.ends_with(key));
            writer.count(&format!("ARCH.{key}"), &value.into());
        });
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = refused(&|writer| writer.keys.retain(|key| !key.0.ends_with("block_count")));
    assert!(error.to_string().contains("\"qwen2.block_count\" is missing"), "{error}");
    let error = refused(&|writer| {
        writer.keys.retain(|key| key.0 != "tokenizer.ggml.pre");
        writer.key("tokenizer.ggml.pre", 8, &text("martian"));
    });
    assert!(matches!(&error, ExecutorError::Text(TextError::Unsupported { .. })), "{error}");
    assert!(error.to_string().contains("\"martian\"; supported are gpt-2, smollm"), "{error}");
    let error = refused(&|writer| writer.key("ARCH.rope.scaling.type", 8, &text("dynamic")));
    assert!(
        error.to_string().contains("rope scaling is dynamic; supported is none, linear, yarn"),
        "{error}"
    );
    let error = refused(&|writer| writer.key("ARCH.rope.scaling.type", 8, &text("yarn")));
    assert!(error.to_string().contains("\"qwen2.rope.scaling.factor\" is missing"), "{error}");
    let error = refused(&|writer| writer.count("ARCH.expert_count", &8.into()));
    assert!(error.to_string().contains("a mixture of experts"), "{error}");
}
