//! Bytes that nobody vouches for: whatever a file says, the answer is a value or an error. No panic, no hang, and no allocation
//! that the size of the file does not explain.
//!
//! Seeded and bounded. `KVLAB_FUZZ_CASES` is the number of mutants a target (64 without it), `KVLAB_FUZZ_SEED` another start.

use crate::support::alloc;
use crate::support::mutate::{Mutator, cases};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::parquet_from_bytes;
use kvlab_sim::trace::edit::to_jsonl;
use kvlab_sim::trace::mooncake::{self, ImportOptions};
use kvlab_sim::trace::{Trace, TraceSource, statistics, summary, verify};
use std::fs;
use std::path::{Path, PathBuf};

/// The largest single allocation that reading any file of the corpus may need: they are all far below a megabyte.
const MOST_BYTES: usize = 64 << 20;

fn golden(inside: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(inside)
}

/// Gives mutants of the corpus to `target`, and names the case that goes wrong.
pub(crate) fn fuzz(name: &str, corpus: &[Vec<u8>], target: impl FnMut(&[u8])) {
    fuzz_some(name, corpus, cases(), target);
}

/// The same with a number of cases of its own, for targets that take their time.
pub(crate) fn fuzz_some(name: &str, corpus: &[Vec<u8>], cases: u32, mut target: impl FnMut(&[u8])) {
    for case in 0..cases {
        let bytes = Mutator::new(name, case).mutant(corpus);
        alloc::reset();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| target(&bytes)));
        let largest = alloc::largest();
        assert!(
            outcome.is_ok(),
            "{name}, case {case}: a panic; the file begins with {:?}",
            &bytes[..bytes.len().min(64)]
        );
        assert!(
            largest < MOST_BYTES,
            "{name}, case {case}: {largest} bytes in one piece for a file of {}",
            bytes.len()
        );
    }
}

/// Copies a folder of files.
fn copied(from: &Path, to: &Path) {
    for (inside, content) in crate::trace::files(from) {
        let path = to.join(inside);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// Everything that can be asked of a trace, as far as it goes.
fn read_all(root: &Path) {
    drop(verify(root));
    let Ok(trace) = Trace::open(root) else { return };
    for meta in trace.sequences() {
        drop(trace.tokens(meta.seq));
        drop(trace.lens_top(meta.seq));
        for layer in trace.shape().layer_ids().take(3) {
            drop(trace.layer(meta.seq, layer));
            drop(trace.hidden(meta.seq, layer));
            drop(trace.w_o(layer));
        }
    }
    drop((trace.final_norm(), trace.unembedding()));
    for index in 0..trace.problems().min(4) {
        drop(trace.problem(index));
    }
    drop(summary(&trace));
    for name in trace.manifest().field_names() {
        drop(statistics(&trace, &name));
    }
    let lines = root.with_file_name("lines");
    drop(to_jsonl(&trace, &lines));
    drop(fs::remove_dir_all(&lines));
}

/// Mutants of one file of the small trace of a version, sealed again, so that only the file's own content is wrong.
fn trace_file(inside: &str) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("trace");
    copied(&golden("traces/v1.1"), &root);
    let content = fs::read(root.join(inside)).unwrap();
    fuzz(inside, &[content], |bytes| {
        crate::trace::reseal(&root, inside, bytes);
        read_all(&root);
    });
}

#[test]
fn manifests() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("trace");
    copied(&golden("traces/v1.1"), &root);
    let corpus =
        ["v1.0", "v1.1"].map(|version| fs::read(golden(&format!("traces/{version}/manifest.json"))).unwrap());
    fuzz("manifest", &corpus, |bytes| {
        crate::trace::seal_manifest(&root, bytes);
        read_all(&root);
    });
}

#[test]
fn tensor_files() {
    trace_file("tensors/00000-00000004.safetensors");
    trace_file("weights/layer001.w_o.safetensors");
    trace_file("weights/final_norm.safetensors");
}

#[test]
fn facts_files() {
    for table in
        ["tokens", "lens", "lens_top", "branches", "branch_tokens", "branch_outcomes", "branch_verdicts"]
    {
        trace_file(&format!("facts/{table}.parquet"));
    }
}

#[test]
fn tables_of_other_writers() {
    let corpus = ["pandas", "polars", "required"]
        .map(|name| fs::read(golden(&format!("tables/{name}.parquet"))).unwrap());
    fuzz("parquet", &corpus, |bytes| drop(parquet_from_bytes(bytes.to_vec().into(), Path::new("mutant"))));
}

#[test]
fn scenarios() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let corpus: Vec<Vec<u8>> = crate::trace::files(&root)
        .into_iter()
        .filter(|(name, _)| name.ends_with(".yaml"))
        .map(|(_, content)| content)
        .collect();
    assert!(corpus.len() > 2);
    fuzz("scenario", &corpus, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(scenario) = Scenario::parse(text, "mutant") {
            drop(scenario.plan(100));
        }
    });
}

#[test]
fn request_lines() {
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines.jsonl");
    let target = folder.path().join("trace");
    let corpus =
        [br#"{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, 13]}
{"timestamp": 10.5, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14, 15]}
"#
        .to_vec()];
    fuzz("mooncake", &corpus, |bytes| {
        fs::write(&lines, bytes).unwrap();
        let options = ImportOptions { block_tokens: Some(512), complete_part: true };
        if mooncake::import(&lines, options, &target).is_ok() {
            verify(&target).unwrap();
            fs::remove_dir_all(&target).unwrap();
        }
    });
}
