//! Model folders in the Hugging Face layout, against golden passes; and inputs that are refused.

use std::{fs, path::Path};

use half::bf16;
use kvlab_executor::{
    CacheMemory, DecodeError, ExecutorError, LensOptions, LoadOptions, Model, ModelCard, ModelError,
    Quantity, Quiet, Taps,
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::support::{Golden, chunk, golden_folder, load_options, worst, worst64};

fn load_error(path: &Path) -> ExecutorError {
    Model::load(path, &load_options(), &Quiet).unwrap_err()
}

#[test]
fn inputs_that_are_not_supported_are_named_with_what_is() {
    let folder = tempfile::tempdir().unwrap();
    let text = load_error(folder.path()).to_string();
    assert!(text.contains("a folder without config.json") && text.contains("a .gguf file"), "{text}");
    let other = folder.path().join("model.tflite");
    fs::write(&other, b"x").unwrap();
    let text = load_error(&other).to_string();
    assert!(text.contains("a .tflite file") && text.contains("model.onnx"), "{text}");
    let missing = folder.path().join("nothing.gguf");
    assert!(matches!(load_error(&missing), ExecutorError::Model(ModelError::Io { .. })));
}

#[test]
fn features_that_are_not_done_are_refused_by_name() {
    let base = r#"{"model_type": "MT", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2,
        "intermediate_size": 8, "vocab_size": 8, "rms_norm_eps": 1e-6 EXTRA}"#;
    let cases = [
        ("gemma", "", "its family is \"gemma\"; supported are llama, mistral, phi3, qwen2, qwen3"),
        ("llama", r#", "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}"#, "rope scaling is dynamic"),
        ("llama", r#", "rope_scaling": {"rope_type": "yarn"}"#, "rope scaling factor is absent"),
        (
            "phi3",
            r#", "rope_scaling": {"rope_type": "longrope"}"#,
            "original_max_position_embeddings is absent",
        ),
        ("phi3", r#", "partial_rotary_factor": 0.75"#, "partial_rotary_factor is 0.75; supported is 1"),
        (
            "qwen2",
            r#", "use_sliding_window": true, "sliding_window": 4, "layer_types": ["chunked_attention"]"#,
            "layer_types is [\"chunked_attention\"]",
        ),
        ("mistral", r#", "sliding_window": 0"#, "sliding window: it is 0, accepted is 1 or more tokens"),
        ("llama", r#", "attention_bias": true"#, "attention_bias is true"),
        ("llama", r#", "hidden_act": "gelu""#, "the activation is gelu; supported is silu"),
        // H14: heads that do not divide, of a model.
        ("llama", r#", "num_key_value_heads": 3"#, "key-value heads: it is 3 for 2 query heads"),
        ("llama", r#", "head_dim": 5"#, "head width: it is 5, accepted is an even number"),
        ("llama", r#", "quantization_config": {}"#, "quantization_config is present"),
        ("llama", "", "failed to read"),
    ];
    for (family, extra, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let text = base.replace("MT", family).replace("EXTRA", extra);
        fs::write(folder.path().join("config.json"), text).unwrap();
        let error = load_error(folder.path()).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

const TEXT: &str = "The lighthouse at Cape Merrin was built in 1871 by engineers. Anna has 3 boxes of 12 pencils; how many pencils?";

fn check_family(family: &str) {
    let folder = golden_folder().join("export").join(family);
    let golden = Golden::open(&folder.join("golden.safetensors"));
    let mut model = Model::load(&folder, &load_options(), &Quiet).unwrap();
    let tokens = golden.ids("input_ids");
    assert_eq!(model.codec().unwrap().encode(TEXT).unwrap(), tokens);
    let mut decoder = model.decoder().unwrap();
    let pass = decoder.forward(&tokens, Taps::STATES).unwrap();
    let error = worst(&decoder.logits(&pass).unwrap(), &golden.f32("logits"));
    assert!(error < 1e-3, "logits: {error}");
    let states = golden.f32("hidden_states");
    let error = worst(pass.hidden.as_ref().unwrap().as_slice().unwrap(), &states[40 * 64..]);
    assert!(error < 1e-3, "hidden: {error}");
    for (name, own) in [("k", &pass.keys), ("v", &pass.values)] {
        let error = worst(own.as_ref().unwrap().as_slice().unwrap(), &golden.f32(name));
        assert!(error < 1e-3, "{name}: {error}");
    }
    let rows: Vec<usize> = (0..40).collect();
    let lens = decoder.lens(&pass, &rows, LensOptions::default()).unwrap();
    let entropy: Vec<f64> = lens.iter().flatten().map(|facts| facts.normed.entropy_nats).collect();
    let error = worst64(&entropy, &golden.f64("lens_entropy")[40..]);
    assert!(error < 1e-3, "entropy: {error}");
    let mut decoder = model.decoder().unwrap();
    let made = decoder.generate(&tokens, chunk(16), 16, &|_| false).unwrap();
    let greedy = golden.ids("greedy_ids");
    assert_eq!(made, greedy);

    // Another implementation's eviction: its kept sets, and what it goes on with at the true positions.
    let mut decoder = model.decoder().unwrap();
    decoder.forward(&tokens, Taps::NONE).unwrap();
    for (layer, sets) in golden.ids("evict_kept").chunks(2 * 20).enumerate() {
        let sets: Vec<Vec<u32>> = sets.chunks(20).map(<[u32]>::to_vec).collect();
        decoder.retain(layer, &sets).unwrap();
    }
    let expected = golden.f32("evict_step_logits_true_positions");
    for (token, expected) in greedy.iter().zip(expected.chunks(512)) {
        let pass = decoder.forward(&[*token], Taps::NONE).unwrap();
        let error = worst(&decoder.last_logits(&pass).unwrap(), expected);
        assert!(error < 1e-3, "after eviction: {error}");
    }
}

#[test]
fn llama_with_rope_scaling_agrees_with_the_golden_pass() {
    check_family("llama3");
}

#[test]
fn qwen2_with_biases_agrees_with_the_golden_pass() {
    check_family("qwen2");
}

#[test]
fn qwen3_with_head_norms_agrees_with_the_golden_pass() {
    check_family("qwen3");
}

/// Smaller golden models: one pass, and in chunks with greedy decoding.
fn check_small(name: &str) {
    let folder = golden_folder().join("export/small").join(name);
    let golden = Golden::open(&folder.join("golden.safetensors"));
    let mut model = Model::load(&folder, &load_options(), &Quiet).unwrap();
    let tokens = golden.ids("input_ids");
    let (layers, hidden) = (model.config().layers, model.config().hidden);
    let mut decoder = model.decoder().unwrap();
    let pass = decoder.forward(&tokens, Taps::STATES).unwrap();
    let error = worst(&decoder.logits(&pass).unwrap(), &golden.f32("logits"));
    assert!(error < 1e-4, "logits: {error}");
    let states = golden.f32("hidden_states");
    let own = pass.hidden.as_ref().unwrap().as_slice().unwrap();
    let row = tokens.len() * hidden;
    let error = worst(&own[..(layers - 1) * row], &states[row..]);
    assert!(error < 1e-4, "hidden: {error}");
    let mut decoder = model.decoder().unwrap();
    assert_eq!(decoder.generate(&tokens, chunk(5), 6, &|_| false).unwrap(), golden.ids("greedy_ids"));
}

#[test]
fn mistral_with_a_window_agrees_with_the_golden_pass() {
    check_small("mistral");
}

#[test]
fn phi3_with_joined_projections_agrees_with_the_golden_pass() {
    check_small("phi3");
}

#[test]
fn phi3_with_longrope_agrees_with_the_golden_pass() {
    check_small("phi3-longrope");
}

#[test]
fn qwen2_with_a_window_from_some_layer_on_agrees_with_the_golden_pass() {
    check_small("qwen2-window");
}

#[test]
fn llama_with_yarn_agrees_with_the_golden_pass() {
    check_small("llama-yarn");
}

#[test]
fn llama_with_linear_scaling_agrees_with_the_golden_pass() {
    check_small("llama-linear");
}

/// A copy of a golden folder with its weights written by `write`.
fn copy_of(family: &str, write: impl FnOnce(&Path, &SafeTensors<'_>)) -> tempfile::TempDir {
    let (from, to) = (golden_folder().join("export").join(family), tempfile::tempdir().unwrap());
    fs::copy(from.join("config.json"), to.path().join("config.json")).unwrap();
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    write(to.path(), &SafeTensors::deserialize(&bytes).unwrap());
    to
}

fn logits(folder: &Path) -> Vec<f32> {
    let mut model = Model::load(folder, &load_options(), &Quiet).unwrap();
    let mut decoder = model.decoder().unwrap();
    let pass = decoder.forward(&[5, 9, 300], Taps::NONE).unwrap();
    decoder.last_logits(&pass).unwrap()
}

#[test]
fn several_files_with_an_index_are_one_model() {
    let expected = logits(&golden_folder().join("export").join("llama3"));
    let folder = copy_of("llama3", |folder, all| {
        let mut map = serde_json::Map::new();
        for part in 0..2 {
            let name = format!("model-0000{}-of-00002.safetensors", part + 1);
            let tensors: Vec<_> = all.iter().enumerate().filter(|(index, _)| index % 2 == part).collect();
            let tensors = tensors.into_iter().map(|(_, (tensor, view))| {
                map.insert(tensor.to_owned(), name.clone().into());
                (tensor.to_owned(), view)
            });
            fs::write(folder.join(&name), safetensors::serialize(tensors, None).unwrap()).unwrap();
        }
        let index = serde_json::json!({ "weight_map": map }).to_string();
        fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    });
    assert_eq!(logits(folder.path()), expected);
    let escape = r#"{"weight_map": {"a": "../secret.safetensors"}}"#;
    fs::write(folder.path().join("model.safetensors.index.json"), escape).unwrap();
    let text = load_error(folder.path()).to_string();
    assert!(
        text.contains("\"../secret.safetensors\", accepted is a name inside the model's folder"),
        "{text}"
    );
}

#[test]
fn half_width_weights_are_widened() {
    let expected = logits(&golden_folder().join("export").join("llama3"));
    let folder = copy_of("llama3", |folder, all| {
        let narrow: Vec<(String, Vec<usize>, Vec<u8>)> = all
            .iter()
            .map(|(name, view)| {
                let values =
                    view.data().chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
                let bytes = values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect();
                (name.to_owned(), view.shape().to_vec(), bytes)
            })
            .collect();
        let views = narrow
            .iter()
            .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap()));
        fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    });
    // Weights lose 8 of their 24 bits: logits of size 10 move by a few hundredths.
    let error = worst(&logits(folder.path()), &expected);
    assert!(error > 0.0 && error < 0.5, "{error}");
}

/// Fewer layers than are stored would run, and be recorded as if they were the model.
#[test]
fn a_configuration_of_another_model_is_refused_with_its_key() {
    let with = |family: &str, key: &str, value: serde_json::Value| {
        let folder = copy_of(family, |folder, all| {
            fs::write(folder.join("model.safetensors"), safetensors::serialize(all.iter(), None).unwrap())
                .unwrap();
        });
        let path = folder.path().join("config.json");
        let mut config: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        config[key] = value;
        fs::write(&path, config.to_string()).unwrap();
        folder
    };
    for (family, key, value, expected) in [
        ("llama3", "num_hidden_layers", 3.into(), "num_hidden_layers is 3, but the tensors are of 4 layers"),
        ("llama3", "num_hidden_layers", 5.into(), "num_hidden_layers is 5, but the tensors are of 4 layers"),
        (
            "llama3",
            "vocab_size",
            500.into(),
            "vocab_size is 500, but \"model.embed_tokens.weight\" has 512 rows",
        ),
        ("llama3", "tie_word_embeddings", true.into(), "\"lm_head.weight\" is stored and differs"),
        ("qwen2", "tie_word_embeddings", false.into(), "\"lm_head.weight\" is not stored"),
        ("qwen2", "num_key_value_heads", 1.into(), "the configuration needs [16, 64]"),
    ] {
        let folder = with(family, key, value);
        let card = ModelCard::read(folder.path()).unwrap_err().to_string();
        assert!(card.contains(expected), "{key}: {card}");
        assert_eq!(load_error(folder.path()).to_string(), card);
    }
    // A head that is stored once more is no contradiction.
    let folder = copy_of("qwen2", |folder, all| {
        let head = all.tensor("model.embed_tokens.weight").unwrap();
        let tensors = all.iter().chain([("lm_head.weight", head)]);
        fs::write(folder.join("model.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
    });
    assert!(ModelCard::read(folder.path()).unwrap().config.tied);
}

/// The libraries that read them speak of their own types.
#[test]
fn texts_of_a_folder_that_cannot_be_read_are_named_in_words_of_ours() {
    let folder = copy_of("qwen2", |folder, all| {
        fs::write(folder.join("model.safetensors"), safetensors::serialize(all.iter(), None).unwrap())
            .unwrap();
    });
    let ends = folder.path().join("generation_config.json");
    let tokenizer = folder.path().join("tokenizer.json");
    for (file, text, expected) in [
        (&ends, r#"{"eos_token_id": "end"}"#, "expected a token id, 0 to 4294967295, or a list of token ids"),
        (&ends, r#"{"eos_token_id": [2, -1]}"#, "generation_config.json: invalid value: integer `-1`"),
        (&tokenizer, "{", "tokenizer.json: it is no JSON: EOF while parsing an object at line 1 column 1"),
        (
            &tokenizer,
            r#"{"model": {"type": "Runes"}}"#,
            "tokenizer.json: `model.type` is \"Runes\"; accepted are BPE",
        ),
        (&tokenizer, "[]", "tokenizer.json: `model.type` is absent"),
    ] {
        fs::write(file, text).unwrap();
        let card = ModelCard::read(folder.path()).unwrap_err().to_string();
        assert!(card.contains(expected) && card.contains(&*folder.path().to_string_lossy()), "{card}");
        assert!(!card.contains("untagged"), "{card}");
        fs::remove_file(file).unwrap();
    }
    fs::write(&ends, r#"{"eos_token_id": [2, 3]}"#).unwrap();
    assert!(ModelCard::read(folder.path()).is_ok());
}

#[test]
fn damaged_weights_files_are_errors() {
    let folder = copy_of("qwen2", |folder, _| fs::write(folder.join("model.safetensors"), b"short").unwrap());
    let text = load_error(folder.path()).to_string();
    assert!(text.contains("the file is 5 bytes long, accepted is 8 bytes"), "{text}");
    fs::write(folder.path().join("model.safetensors"), [u64::MAX.to_le_bytes(), [0; 8]].concat()).unwrap();
    let text = load_error(folder.path()).to_string();
    assert!(text.contains("the size of the header is 18446744073709551615"), "{text}");
    let whole = fs::read(golden_folder().join("export/qwen2/model.safetensors")).unwrap();
    fs::write(folder.path().join("model.safetensors"), &whole[..whole.len() - 4]).unwrap();
    let text = load_error(folder.path()).to_string();
    assert!(text.contains("the end of tensor"), "{text}");
}

/// Where a pass stops when half of the rows of a matrix are loud: finite weights whose products are not. The cache stays on the host, and as on a device.
fn place_of_a_loud_half(tensor: &str, is_first: bool) -> (Quantity, usize, Option<usize>, u32, u32) {
    let folder = copy_of("llama3", |folder, all| {
        let loud: Vec<(String, Vec<usize>, Vec<u8>)> = all
            .iter()
            .map(|(name, view)| {
                let mut bytes = view.data().to_vec();
                if name == tensor {
                    let half = bytes.len() / 2;
                    let rows = if is_first { &mut bytes[..half] } else { &mut bytes[half..] };
                    rows.chunks_exact_mut(4).for_each(|four| four.copy_from_slice(&3e38_f32.to_le_bytes()));
                }
                (name.to_owned(), view.shape().to_vec(), bytes)
            })
            .collect();
        let views = loud
            .iter()
            .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    });
    let places = [CacheMemory::Host, CacheMemory::Device].map(|cache| {
        let options = LoadOptions { cache, ..load_options() };
        let mut model = Model::load(folder.path(), &options, &Quiet).unwrap();
        let mut decoder = model.decoder().unwrap();
        let error = decoder.forward(&[7, 8], Taps::NONE).unwrap_err();
        let DecodeError::NonFinite { quantity, layer, head, pos, token, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(
            (decoder.next_position(), decoder.cache().layers()[0].slots()),
            (0, 0),
            "the cache is unchanged"
        );
        (quantity, layer, head, pos, token)
    });
    assert_eq!(places[0], places[1]);
    places[0]
}

#[test]
fn a_number_that_is_not_finite_stops_the_pass_with_its_place() {
    let of_values = place_of_a_loud_half("model.layers.2.self_attn.v_proj.weight", false);
    assert_eq!(of_values, (Quantity::Value, 2, Some(1), 0, 7));
    // A hidden state that nobody looks at.
    let of_hidden = place_of_a_loud_half("model.layers.0.mlp.down_proj.weight", true);
    assert_eq!(of_hidden, (Quantity::Hidden, 0, None, 0, 7));
}
