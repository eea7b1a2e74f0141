//! Bugs that others reported in public, tried on this program: each test says which (H01 to H19 of our list, with the source).

use super::support::{embedded, golden_folder, load_options, tiny, worst};
use kvlab_executor::{LensOptions, Model, Quiet, Taps, TinySpec};
use kvlab_sim::trace::Trace;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn kvlab(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvlab"));
    command.current_dir(folder);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A copy of an exported model with a tokenizer, which holds its weights in a second file, and a file of one question.
fn exported() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("a/b");
    fs::create_dir_all(&model).unwrap();
    for (name, content) in crate::trace::files(&golden_folder().join("export/onnx/qwen3-fp32")) {
        fs::write(model.join(name), content).unwrap();
    }
    // A template, so that a question can be asked. The tokenizer knows a single token.
    let path = model.join("tokenizer_config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["chat_template"] = "<|endoftext|><|endoftext|>{{ messages[0].content }}".into();
    fs::write(&path, config.to_string()).unwrap();
    fs::write(folder.path().join("questions.jsonl"), "{\"id\":\"one\",\"question\":\"How many pencils?\"}\n")
        .unwrap();
    folder
}

fn record(folder: &Path, from: &Path, model: &Path, out: &Path) -> Output {
    let mut command = kvlab(from);
    command.args(["record", "--ep", "cpu", "--threads", "2", "--max-new-tokens", "2", "--model"]).arg(model);
    command.arg("--problems").arg(folder.join("questions.jsonl")).arg("--out").arg(out).output().unwrap()
}

/// H01 (onnxruntime#20559): a file of a newer revision than the runtime reads.
#[test]
fn h01_a_revision_that_the_runtime_does_not_read_is_told_with_the_remedy() {
    let folder = exported();
    let graph = folder.path().join("a/b/model.onnx");
    let mut bytes = fs::read(&graph).unwrap();
    // Field 1 of the model, a number of one byte.
    assert_eq!(bytes[0], 8);
    bytes[1] = 99;
    fs::write(&graph, bytes).unwrap();
    let output = record(folder.path(), folder.path(), Path::new("a/b"), Path::new("trace"));
    let message = said(&output);
    assert_eq!(output.status.code(), Some(3), "{message}");
    for words in ["model.onnx", "is 99", "accepted is at most 1", "older `onnx`", "--ort-lib"] {
        assert!(message.contains(words), "{words}: {message}");
    }
    assert!(!folder.path().join("trace").exists() && !folder.path().join("trace.partial").exists());
}

/// H02 (onnxruntime#6696): weights in a second file, and a program started from anywhere.
#[test]
fn h02_external_weights_are_found_beside_their_graph_and_missed_by_their_path() {
    let folder = exported();
    let (root, model) = (folder.path(), folder.path().join("a/b"));
    let ways = [
        (root.to_owned(), Path::new("a/b").to_owned()),
        (Path::new("/").to_owned(), model.join("model.onnx")),
        (root.join("a"), Path::new("b").to_owned()),
    ];
    let mut digests = Vec::new();
    for (at, (from, path)) in ways.iter().enumerate() {
        let out = root.join(format!("trace{at}"));
        let output = record(root, from, path, &out);
        assert!(output.status.success(), "{}", said(&output));
        digests.push(kvlab_sim::trace::TraceSource::digest(&Trace::open(&out).unwrap()));
    }
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:?}");
    fs::remove_file(model.join("model.onnx.data")).unwrap();
    let output = record(root, root, Path::new("a/b"), Path::new("gone"));
    let (message, path) = (said(&output), model.join("model.onnx.data"));
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains(path.to_str().unwrap()) && message.contains("the data of \""), "{message}");
    assert!(!root.join("gone").exists());
}

/// H03 (onnx#3991): weights that are said to lie outside of the model's folder, or beyond the end of their file.
#[test]
fn h03_external_weights_stay_in_their_folder_and_in_their_file() {
    let folder = exported();
    let (graph, data) = (folder.path().join("a/b/model.onnx"), folder.path().join("a/b/model.onnx.data"));
    let whole = fs::read(&graph).unwrap();
    let name = b"model.onnx.data";
    let places: Vec<usize> =
        (0..whole.len() - name.len()).filter(|&at| whole[at..].starts_with(name)).collect();
    // As many letters, so that the message is still one.
    for outside in ["../../secret.bi", "/etc/./hostname", "sub/../../../x."] {
        assert_eq!(outside.len(), name.len());
        let mut bytes = whole.clone();
        for &at in &places {
            bytes[at..at + name.len()].copy_from_slice(outside.as_bytes());
        }
        fs::write(&graph, bytes).unwrap();
        let error = Model::load(&graph, &load_options(), &Quiet).unwrap_err().to_string();
        assert!(error.contains(outside) && error.contains("the place of the data of \""), "{error}");
    }
    fs::write(&graph, &whole).unwrap();
    let bytes = fs::read(&data).unwrap();
    fs::write(&data, &bytes[..bytes.len() - 4]).unwrap();
    let error = Model::load(&graph, &load_options(), &Quiet).unwrap_err().to_string();
    assert!(error.contains("bytes inside the file") && error.contains("the data of \""), "{error}");
}

/// H04 (ort#560): a library that is not there. What needs it fails at once, with the path and the variable, and leaves nothing behind.
#[test]
fn h04_a_missing_runtime_library_fails_at_once_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("s.yaml"),
        "id: s\nwhy: w\neviction: {budgets: 16, recent: 4, policies: [{use: full}]}\n",
    )
    .unwrap();
    for args in [
        &["record", "--count", "1", "--out", "r"][..],
        &["record", "--branches", "2", "--count", "1", "--out", "r"],
        &["exec", "s.yaml", "--count", "1", "--out", "r"],
        &["fidelity", "s.yaml", "--count", "1", "--out", "r"],
        &["demo", "--quick", "--out", "r"],
    ] {
        let mut command = kvlab(folder.path());
        command.env("ORT_DYLIB_PATH", "/nonexistent.so").env("KVLAB_CACHE", folder.path().join("cache"));
        let output = command.args(args).output().unwrap();
        let message = said(&output);
        assert!(!output.status.success() && output.status.code().is_some(), "{args:?}: {message}");
        assert!(
            message.contains("/nonexistent.so") && message.contains("ORT_DYLIB_PATH"),
            "{args:?}: {message}"
        );
        assert!(
            !folder.path().join("r/cells.parquet").exists()
                && !folder.path().join("r/manifest.json").exists()
        );
    }
}

/// H05 (onnxruntime#23372): a GPU that was asked for is taken or missed aloud, and what ran is written down.
#[test]
fn h05_a_gpu_that_cannot_be_had_is_an_error_or_told_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let run = |ep: &str, out: &str| {
        let args = ["record", "--count", "1", "--max-new-tokens", "2", "--ep", ep, "--out", out];
        kvlab(folder.path()).args(args).output().unwrap()
    };
    let auto = run("auto", "auto");
    assert!(auto.status.success(), "{}", said(&auto));
    let trace = Trace::open(&folder.path().join("auto")).unwrap();
    let ran = trace.manifest().runtime.clone().unwrap();
    assert_eq!(ran.requested_provider, "auto");
    let asked = run("cuda", "cuda");
    if ran.provider == "cuda" {
        assert!(asked.status.success() && ran.fallback_reason.is_none(), "{}", said(&asked));
        return;
    }
    let reason = ran.fallback_reason.unwrap();
    assert!(said(&auto).contains("CPU") && said(&auto).contains(&reason), "{reason}: {}", said(&auto));
    assert!(asked.status.code() == Some(3) && said(&asked).contains(&reason), "{}", said(&asked));
    assert!(!folder.path().join("cuda").exists() && !folder.path().join("cuda.partial").exists());
}

/// H06 (pytorch#88718): results of a model may differ in their last bits with the number of threads, so a trace says how many there were; and
/// the same number gives the same trace.
#[test]
fn h06_a_recording_says_its_threads_and_is_the_same_again() {
    let folder = tempfile::tempdir().unwrap();
    let trace = |threads: &str, out: &str| {
        let args = [
            "record",
            "--count",
            "1",
            "--max-new-tokens",
            "8",
            "--ep",
            "cpu",
            "--threads",
            threads,
            "--out",
            out,
        ];
        let output = kvlab(folder.path()).args(args).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        Trace::open(&folder.path().join(out)).unwrap()
    };
    let digest = |trace: &Trace| kvlab_sim::trace::TraceSource::digest(trace);
    let (one, two, again) = (trace("1", "one"), trace("2", "two"), trace("2", "again"));
    let threads = |trace: &Trace| trace.manifest().runtime.as_ref().unwrap().threads;
    assert_eq!((threads(&one), threads(&two)), (1, 2));
    assert_eq!(digest(&two), digest(&again));
    assert_ne!(digest(&one), digest(&two), "the number of threads is a part of what is recorded");
}

/// H10 (onnxruntime#4110): outputs that were added to a graph are there, change nothing, and are what was computed.
#[test]
fn h10_tapped_states_are_those_of_the_untapped_pass() {
    for spec in [TinySpec::default(), TinySpec { qk_norm: true, qkv_bias: true, ..TinySpec::default() }] {
        let mut model = tiny(spec);
        let tokens: Vec<u32> = (0..17).map(|i| (i * 37 + 11) % 61).collect();
        let mut decoder = model.decoder().unwrap();
        let all = Taps { attention: true, ..Taps::STATES };
        let tapped = decoder.forward(&tokens, all).unwrap();
        let logits = decoder.logits(&tapped).unwrap();
        let mut decoder = model.decoder().unwrap();
        let plain = decoder.forward(&tokens, Taps::NONE).unwrap();
        assert!(worst(&decoder.logits(&plain).unwrap(), &logits) < 1e-6);
        let hidden = tapped.hidden.as_ref().unwrap();
        assert_eq!(hidden.dim(), (3, 17, 32));
        let last = hidden.index_axis(ndarray::Axis(0), 2);
        assert!(last.iter().zip(tapped.last_hidden.iter()).all(|(a, b)| a.to_bits() == b.to_bits()));
        // The attention of a row is what its query and all keys give: taps of fused nodes would not fit together.
        let (queries, keys) = (tapped.queries.as_ref().unwrap(), tapped.keys.as_ref().unwrap());
        let width = queries.dim().3;
        for (layer, attention) in tapped.attention.as_ref().unwrap().iter().enumerate() {
            let logit = |key: usize| -> f64 {
                let channels = 0..width;
                let dot: f32 = channels.map(|c| queries[[layer, 0, 16, c]] * keys[[layer, 0, key, c]]).sum();
                f64::from(dot) / (width as f64).sqrt()
            };
            let sum: f64 = (0..17).map(|key| logit(key).exp()).sum();
            for key in 0..17 {
                let share = f64::from(attention[[0, 16, key]]);
                assert!((share - logit(key).exp() / sum).abs() < 1e-5, "layer {layer}, key {key}");
            }
        }
    }
}

/// H15 (VeloxQuant-MLX#171): the first 200 of 300 tokens leave, and one more is decoded.
#[test]
fn h15_the_next_position_after_an_eviction_is_the_next_of_the_sequence() {
    let mut model = tiny(TinySpec { layers: 1, ..TinySpec::default() });
    let tokens: Vec<u32> = (0..301).map(|i| (i * 37 + 11) % 61).collect();
    let heads = model.config().kv_heads;
    let mut decoder = model.decoder().unwrap();
    decoder.forward(&tokens[..300], Taps::NONE).unwrap();
    decoder.retain(0, &vec![(200..300).collect(); heads]).unwrap();
    assert_eq!(decoder.next_position(), 300);
    let pass = decoder.forward(&tokens[300..], Taps::NONE).unwrap();
    assert_eq!(pass.positions, [300]);
    assert!(decoder.cache().layers()[0].resident(0).eq(200..301), "original positions are kept");
    let evicted = decoder.last_logits(&pass).unwrap();
    // With one layer, keys and values depend on their own token alone, and attention on distances: the suffix by itself gives the same.
    let mut decoder = model.decoder().unwrap();
    let pass = decoder.forward(&tokens[200..], Taps::NONE).unwrap();
    // Angles of 300 radians are rounded to f32 in the table: 300 * 2^-24 = 1.8e-5 each.
    assert!(worst(&evicted, &decoder.last_logits(&pass).unwrap()) < 1e-3);
}

/// H19 (TransformerLens#1076): each layer is normed by its own scale. A residual stream that grows tenfold a layer says the same at every layer, and
/// what it says is what the last layer's logits say.
#[test]
fn h19_the_lens_norms_each_layer_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = embedded(folder.path());
    let mut decoder = model.decoder().unwrap();
    let pass = decoder.forward(&[5, 9, 30, 12], Taps { hidden: true, ..Taps::NONE }).unwrap();
    let row: Vec<f32> = pass.last_row().iter().copied().collect();
    let grown = ndarray::Array2::from_shape_fn((5, row.len()), |(layer, at)| {
        row[at] * 10_f32.powi(i32::try_from(layer).unwrap())
    });
    let facts = decoder.head().lens(grown.view(), LensOptions::default()).unwrap();
    // By hand: the entropy of the softmax of the model's own logits, in double precision.
    let logits: Vec<f64> = decoder.last_logits(&pass).unwrap().into_iter().map(f64::from).collect();
    let largest = logits.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    let entropy: f64 = logits
        .iter()
        .map(|logit| (logit - largest).exp() / sum)
        .map(|p| if p > 0.0 { -p * p.ln() } else { 0.0 })
        .sum();
    for (layer, seen) in facts.iter().enumerate() {
        assert!(
            (seen.normed.entropy_nats - entropy).abs() < 1e-3,
            "layer {layer}: {} {entropy}",
            seen.normed.entropy_nats
        );
        assert!((f64::from(seen.normed.top[0].logit) - largest).abs() < 1e-2, "layer {layer}");
    }
    // With one scale for all, the first of them would be nearly even.
    let (first, vocab) =
        (facts[0].raw.as_ref().unwrap().entropy_nats, facts[4].raw.as_ref().unwrap().entropy_nats);
    assert!(first > vocab, "without norms the rows differ: {first} {vocab}");
    // A pass of the model: the last layer's view is the model's own output.
    let lens = decoder.lens(&pass, &[3], LensOptions { top: 1, ..LensOptions::default() }).unwrap();
    assert!((f64::from(lens.last().unwrap()[0].normed.top[0].logit) - largest).abs() < 1e-4);
}
