//! Model files that nobody vouches for: GGUF, safetensors, exported graphs, configuration and tokenizer.

use crate::executor::gguf_files::write_llama;
use crate::executor::support::{golden_folder, load_options};
use crate::fuzz::fuzz_some;
use crate::support::mutate::cases;
use kvlab_executor::{Model, ModelCard, Quiet};
use std::fs;
use std::path::Path;

#[test]
fn gguf_files() {
    let (folder, options) = (tempfile::tempdir().unwrap(), load_options());
    let path = folder.path().join("mutant.gguf");
    let blocks = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf/blocks.gguf");
    write_llama(&path);
    let corpus = [fs::read(&path).unwrap(), fs::read(blocks).unwrap()];
    fuzz_some("gguf", &corpus, cases().div_ceil(4), |bytes| {
        fs::write(&path, bytes).unwrap();
        drop(Model::load(&path, &options, &Quiet));
    });
}

#[test]
fn hugging_face_folders() {
    let (folder, options) = (tempfile::tempdir().unwrap(), load_options());
    for (name, content) in crate::trace::files(&golden_folder().join("export/llama3")) {
        fs::write(folder.path().join(name), content).unwrap();
    }
    for file in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "model.safetensors",
    ] {
        let path = folder.path().join(file);
        let content = fs::read(&path).unwrap();
        fuzz_some(file, std::slice::from_ref(&content), cases().div_ceil(8), |bytes| {
            fs::write(&path, bytes).unwrap();
            drop(Model::load(folder.path(), &options, &Quiet));
        });
        fs::write(&path, content).unwrap();
    }
}

#[test]
fn exported_graphs() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in crate::trace::files(&golden_folder().join("export/onnx/qwen2-int4")) {
        fs::write(folder.path().join(name), content).unwrap();
    }
    for file in ["model.onnx", "genai_config.json"] {
        let path = folder.path().join(file);
        let content = fs::read(&path).unwrap();
        fuzz_some(file, std::slice::from_ref(&content), cases().div_ceil(8), |bytes| {
            fs::write(&path, bytes).unwrap();
            // The card only: a changed graph that is read is no business of the runtime's.
            drop(ModelCard::read(folder.path()));
        });
        fs::write(&path, content).unwrap();
    }
}
