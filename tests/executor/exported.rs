//! Decoders that other tools exported as ONNX graphs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kvlab_executor::{
    Model, ModelCard, Quiet, Taps,
    parity::{CheckPlan, Verdict, check_model},
};

use super::support::{chunk, golden_folder, load_options};

fn exported(name: &str) -> PathBuf {
    golden_folder().join("export/onnx").join(name)
}

/// A copy of a folder that may be damaged.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in crate::trace::files(&exported(name)) {
        fs::write(folder.path().join(name), content).unwrap();
    }
    folder
}

fn refusal(path: &Path) -> String {
    Model::load(path, &load_options(), &Quiet).unwrap_err().to_string()
}

#[test]
fn exported_graphs_give_what_their_sources_and_they_themselves_give() {
    for (name, golden) in [
        ("llama3-optimum", "../../llama3/golden.safetensors"),
        ("mistral-fp32", "golden.safetensors"),
        ("qwen2-int4", "golden.safetensors"),
        ("qwen3-fp32", "golden.safetensors"),
    ] {
        let mut model = Model::load(&exported(name), &load_options(), &Quiet).unwrap();
        let expected = Some(exported(name).join(golden));
        let plan = CheckPlan { tokens: chunk(10), naive: true, expected };
        let rows = check_model(&mut model, &plan).unwrap();
        assert!(rows.iter().all(|row| row.verdict != Verdict::Failed), "{name}: {rows:?}");
        assert!(rows.iter().any(|row| row.what == "logits, the exported graph"), "{name}");
    }
}

#[test]
fn the_same_weights_exported_and_not_give_the_same_numbers() {
    let mut folder = Model::load(&golden_folder().join("export/llama3"), &load_options(), &Quiet).unwrap();
    let mut graph = Model::load(&exported("llama3-optimum"), &load_options(), &Quiet).unwrap();
    let tokens = [5, 77, 300, 12, 400];
    let states = |model: &mut Model| {
        let mut decoder = model.decoder().unwrap();
        decoder.forward(&tokens, Taps { hidden: true, ..Taps::NONE }).unwrap().hidden.unwrap()
    };
    assert_eq!(states(&mut folder), states(&mut graph));
    assert_eq!(folder.config().rope_theta.to_bits(), graph.config().rope_theta.to_bits());
}

#[test]
fn what_the_configuration_leaves_out_is_read_from_the_graph() {
    let card = ModelCard::read(&exported("mistral-fp32")).unwrap();
    assert_eq!((card.input, card.config.family, card.config.ffn), ("onnx", "mistral", 48));
    assert_eq!(card.config.sliding_window.map(|window| (window.tokens, window.first_layer)), Some((6, 0)));
    assert_eq!((card.config.rope_theta, card.config.rms_eps as f32), (10_000.0, 1e-6));
    assert!(card.note.is_some_and(|note| note.contains("no position_ids")));
    // A path to the graph itself is as good as its folder.
    assert_eq!(ModelCard::read(&exported("mistral-fp32").join("model.onnx")).unwrap(), card);
    let card = ModelCard::read(&exported("llama3-optimum")).unwrap();
    assert_eq!((card.input, card.note), ("onnx", None));
    let card = ModelCard::read(&exported("qwen2-int4")).unwrap();
    assert!(card.config.qkv_bias && card.storage["U8"] > 0);
}

#[test]
fn a_graph_may_be_a_link_into_a_cache() {
    let (cache, folder) = (copy("qwen3-fp32"), tempfile::tempdir().unwrap());
    for (target, link) in [
        ("model.onnx", "model.onnx"),
        ("model.onnx.data", "model.onnx.data"),
        ("genai_config.json", "genai_config.json"),
    ] {
        let blob = cache.path().join(format!("{target}.blob"));
        fs::rename(cache.path().join(target), &blob).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(&blob, folder.path().join(link)).unwrap();
        #[cfg(not(unix))]
        fs::copy(&blob, folder.path().join(link)).unwrap();
    }
    Model::load(folder.path(), &load_options(), &Quiet).unwrap();
}

#[test]
fn a_graph_that_computes_something_else_than_its_configuration_says_is_refused() {
    let folder = copy("llama3-optimum");
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    for (right, wrong, said) in [
        ("\"rope_theta\": 500000.0", "\"rope_theta\": 100.0", "largest difference between logits"),
        // Slightly off: it shows some positions away.
        ("\"rope_theta\": 500000.0", "\"rope_theta\": 450000.0", "largest difference between logits"),
        ("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0.5", "largest difference between logits"),
        ("\"vocab_size\": 512", "\"vocab_size\": 500", "the vocabulary of the graph is 512, accepted is 500"),
        (
            "\"num_hidden_layers\": 4",
            "\"num_hidden_layers\": 3",
            "17 groups, accepted is 13 groups for 3 layers",
        ),
        (
            "\"num_key_value_heads\": 2",
            "\"num_key_value_heads\": 4",
            "before attention is a matrix of 32 rows for k_proj",
        ),
    ] {
        assert!(text.contains(right), "{right}");
        fs::write(&config, text.replace(right, wrong)).unwrap();
        let error = refusal(folder.path());
        assert!(error.contains(said), "{wrong}: {error}");
    }
}

#[test]
fn missing_and_damaged_parts_are_named() {
    let folder = copy("qwen2-int4");
    let (graph, data) = (folder.path().join("model.onnx"), folder.path().join("model.onnx.data"));
    let (whole_graph, whole_data) = (fs::read(&graph).unwrap(), fs::read(&data).unwrap());
    fs::write(&data, &whole_data[..whole_data.len() - 1]).unwrap();
    let error = refusal(folder.path());
    assert!(error.contains("bytes inside the file") && error.contains("model.onnx.data"), "{error}");
    fs::remove_file(&data).unwrap();
    assert!(refusal(folder.path()).contains("model.onnx.data"));
    fs::write(&data, &whole_data).unwrap();
    fs::write(&graph, &whole_graph[..whole_graph.len() / 2]).unwrap();
    assert!(refusal(folder.path()).contains("accepted is an ONNX model"));
    // Constants stay in the folder: the same number of letters, so that the message is still one.
    let find =
        |bytes: &[u8], word: &[u8]| bytes.windows(word.len()).position(|window| window == word).unwrap();
    let mut outside = whole_graph.clone();
    let at = find(&outside, b"model.onnx.data");
    outside[at..at + 15].copy_from_slice(b"../del.onnx.dat");
    fs::write(&graph, &outside).unwrap();
    let error = refusal(folder.path());
    assert!(error.contains("../del.onnx.dat") && error.contains("a file beside the graph"), "{error}");
    fs::write(&graph, &whole_graph).unwrap();
    fs::remove_file(folder.path().join("genai_config.json")).unwrap();
    assert!(refusal(folder.path()).contains("config.json or genai_config.json"));
}

#[test]
fn merged_graphs_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    fs::write(folder.path().join("decoder_model_merged.onnx"), "x").unwrap();
    assert!(refusal(folder.path()).contains("two graphs behind a switch"));
}
