//! What `kvlab model` says: the card of a model, and the checks of how it is run.

use std::{fs, path::Path};

use kvlab_executor::{
    ExecutorError, Model, ModelCard, ModelError, Quiet, TinySpec,
    parity::{CheckPlan, CheckRow, Verdict, check_model},
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::support::{chunk, embedded, golden_folder, load_options, tiny};

fn plan(expected: Option<&Path>) -> CheckPlan {
    CheckPlan { tokens: chunk(10), naive: true, expected: expected.map(Path::to_owned) }
}

fn of<'a>(rows: &'a [CheckRow], what: &str) -> &'a CheckRow {
    rows.iter().find(|row| row.what.starts_with(what)).unwrap_or_else(|| panic!("no row {what}: {rows:?}"))
}

#[test]
fn every_check_holds_for_models_of_every_family() {
    for name in ["llama3", "qwen2", "qwen3", "small/phi3", "small/mistral", "small/llama-yarn"] {
        let folder = golden_folder().join("export").join(name);
        let mut model = Model::load(&folder, &load_options(), &Quiet).unwrap();
        let expected = folder.join("golden.safetensors");
        // The smaller files have fewer states than the check wants: it looks at logits only where there are none.
        let with_states = !name.starts_with("small");
        let rows = check_model(&mut model, &plan(with_states.then_some(expected.as_path()))).unwrap();
        assert!(rows.iter().all(|row| row.verdict != Verdict::Failed), "{name}: {rows:?}");
        assert_eq!(of(&rows, "logits, naive pass").verdict, Verdict::Ok);
        if with_states {
            assert_eq!(of(&rows, "text to tokens").verdict, Verdict::Ok);
            assert_eq!(of(&rows, "states, expected file").verdict, Verdict::Ok);
        } else {
            assert_eq!(of(&rows, "text to tokens").verdict, Verdict::Skipped);
        }
    }
    let rows = check_model(&mut tiny(TinySpec::default()), &plan(None)).unwrap();
    assert!(rows.iter().all(|row| row.verdict != Verdict::Failed), "{rows:?}");
}

// Its vocabulary has the words of its tasks only, and says so by a word for all others.
#[test]
fn every_check_of_the_model_that_ships_holds_or_says_why_not() {
    let cache = tempfile::tempdir().unwrap();
    let rows = check_model(&mut embedded(cache.path()), &plan(None)).unwrap();
    assert!(rows.iter().all(|row| row.verdict != Verdict::Failed), "{rows:?}");
    assert_eq!(of(&rows, "text to tokens").verdict, Verdict::Skipped);
}

/// The golden file of `qwen2` with its logits changed by `change`.
fn changed(path: &Path, change: &dyn Fn(&mut Vec<f32>)) {
    let bytes = fs::read(golden_folder().join("export/qwen2/golden.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (ids, logits) = (file.tensor("input_ids").unwrap(), file.tensor("logits").unwrap());
    let mut values: Vec<f32> =
        logits.data().chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    change(&mut values);
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let logits = TensorView::new(Dtype::F32, vec![values.len() / 512, 512], &data).unwrap();
    fs::write(path, safetensors::serialize([("input_ids", ids), ("logits", logits)], None).unwrap()).unwrap();
}

#[test]
fn a_difference_to_the_expected_file_fails_and_a_bad_file_is_an_error() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("expected.safetensors");
    let folder = golden_folder().join("export/qwen2");
    let mut model = Model::load(&folder, &load_options(), &Quiet).unwrap();
    changed(&path, &|_| {});
    let rows = check_model(&mut model, &plan(Some(&path))).unwrap();
    assert_eq!(of(&rows, "logits, expected").verdict, Verdict::Ok);
    for value in [0.01, f32::NAN] {
        changed(&path, &|logits| logits[700] += value);
        let rows = check_model(&mut model, &plan(Some(&path))).unwrap();
        let row = of(&rows, "logits, expected");
        assert_eq!(row.verdict, Verdict::Failed, "{row:?}");
    }
    changed(&path, &|logits| logits.truncate(512));
    let error = check_model(&mut model, &plan(Some(&path))).unwrap_err().to_string();
    assert!(error.contains("logits is F32 of shape [1, 512], accepted is F32 of shape [40, 512]"), "{error}");
    fs::write(&path, b"nothing").unwrap();
    let error = check_model(&mut model, &plan(Some(&path))).unwrap_err();
    assert!(matches!(error, ExecutorError::Model(ModelError::Safetensors { .. })), "{error}");
}

#[test]
fn the_card_says_what_the_files_hold() {
    let card = ModelCard::read(&golden_folder().join("export/small/mistral")).unwrap();
    assert_eq!((card.input, card.config.family, card.longest_sequence), ("hugging-face", "mistral", 7));
    // 3 layers, 2 heads of 12 channels, keys and values.
    assert_eq!((card.kv_bytes_per_token_f32, card.kv_bytes_per_token_f16), (576, 288));
    assert_eq!((card.tokenizer_vocab, card.has_chat_template), (None, false));
    let file = fs::read(golden_folder().join("export/small/mistral/model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let count: usize = tensors.iter().map(|(_, tensor)| tensor.data().len()).sum();
    assert_eq!((card.weight_bytes, card.parameters), (count as u64, count as u64 / 4));
    assert_eq!(card.storage.values().sum::<u64>(), tensors.len() as u64);
    let card = ModelCard::read(&golden_folder().join("export/qwen3")).unwrap();
    assert_eq!(card.tokenizer_vocab, Some(512));
}

#[test]
fn folders_of_other_tools_are_refused_with_what_they_are() {
    for (file, word) in
        [("decoder_model_merged.onnx", "two graphs"), ("pytorch_model.bin", "pickled PyTorch weights")]
    {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), "{}").unwrap();
        fs::write(folder.path().join(file), "x").unwrap();
        let error = ModelCard::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("a .gguf file, a folder"), "{error}");
    }
}
