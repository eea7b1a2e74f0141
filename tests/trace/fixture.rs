//! Traces of each released version of the format still open, and read the same numbers.
//!
//! Fixtures are never changed. A new version gets a folder of its own under `tests/golden/traces/`:
//! add its number below, then run `cargo test --test suite -- --ignored trace::fixture::make_the_current_fixture`.

use super::branches::{problems, with_branches};
use super::support::{Folder, Recorded, SHAPE, files, recorded_header, seal_manifest};
use super::weights::{values, with_weights};
use kvlab_sim::trace::{
    Dtype, Leftover, TRACE_VERSION, Trace, TraceSource, TraceVersion, TraceWriter, Weight, verify,
};
use kvlab_sim::types::SeqIdx;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// Released versions, with the digest of the manifest of their fixture.
const RELEASED: &[(TraceVersion, &str)] = &[
    (TraceVersion { major: 1, minor: 0 }, "4591616af3dfa5456ae819b3c33371bfad8d7b02c2b827310c3bb738ba7e7987"),
    (TraceVersion { major: 1, minor: 1 }, "9f437f5fc7494ded3c8a08033aed6db88ea9a1df3e62daac14cba9980678dbd5"),
];

fn fixture(version: TraceVersion) -> PathBuf {
    fixture_at(&format!("v{version}"))
}

fn fixture_at(version: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/traces").join(version)
}

fn sequences() -> [Recorded; 2] {
    [Recorded::new(11, 1), Recorded::new(1, 2)]
}

#[test]
fn the_current_version_has_a_fixture() {
    assert!(RELEASED.iter().any(|(version, _)| *version == TRACE_VERSION));
}

#[test]
fn every_released_version_still_opens() {
    for (version, digest) in RELEASED.iter().filter(|(version, _)| version.major == TRACE_VERSION.major) {
        let root = fixture(*version);
        let report = verify(&root).unwrap();
        assert_eq!((report.format, report.digest.as_str()), (*version, *digest));
        assert_eq!((report.sequences, report.tokens, report.lens_facts), (2, 12, 14));
        let trace = Trace::open(&root).unwrap();
        for (seq, sequence) in (0..).map(SeqIdx::new).zip(sequences()) {
            assert_eq!(trace.tokens(seq).unwrap(), sequence.tokens);
            for layer in SHAPE.layer_ids() {
                assert_eq!(trace.hidden(seq, layer).unwrap(), sequence.hidden[layer.idx()]);
                assert_eq!(trace.layer(seq, layer).unwrap().q, sequence.q[layer.idx()]);
                assert_eq!(trace.layer(seq, layer).unwrap().v, sequence.kv[layer.idx()]);
            }
            let rows: Vec<_> =
                sequence.lens.iter().flat_map(|position| position.rows().collect::<Vec<_>>()).collect();
            assert_eq!(trace.lens(seq).unwrap(), rows);
        }
        let is_old = *version == TraceVersion { major: 1, minor: 0 };
        assert_eq!(trace.final_norm().is_err(), is_old);
        assert_eq!(trace.rope().unwrap().inv_freq.is_none(), is_old);
        let found: Vec<_> = (0..trace.problems()).map(|index| trace.problem(index).unwrap()).collect();
        assert_eq!(found, if is_old { Vec::new() } else { problems() });
        for layer in SHAPE.layer_ids().filter(|_| !is_old) {
            let w_o = trace.w_o(layer).unwrap();
            assert_eq!(w_o.as_slice().unwrap(), values(Weight::WO(layer)));
        }
    }
}

/// Whether a reader of format 1.0 opens a manifest: what that version asks of one, and no more. It knows the keys and fields below,
/// and leaves alone what is new and optional.
fn opens_with_1_0(manifest: &Value) -> bool {
    const KEYS: [&str; 18] = [
        "format",
        "complete",
        "requires",
        "synthetic",
        "tool",
        "model",
        "shape",
        "rope",
        "runtime",
        "decoding",
        "workload",
        "seed",
        "shard_tokens",
        "lens_top",
        "fields",
        "sequences",
        "shards",
        "tables",
    ];
    let knows = |field: &str| {
        ["hidden", "k", "q", "v"].contains(&field)
            || ["lens.", "lens_top.", "tokens."].iter().any(|table| field.starts_with(table))
    };
    let fields = manifest["fields"].as_array().unwrap();
    let required = |field: &Value| field["required"] == true;
    KEYS.iter().all(|key| manifest.get(key).is_some())
        && manifest["format"]["major"] == 1
        && manifest["complete"] == true
        && manifest["requires"] == json!([])
        && !manifest["sequences"].as_array().unwrap().is_empty()
        && fields.iter().all(|field| knows(field["name"].as_str().unwrap()) || !required(field))
        && manifest["tables"]
            .as_array()
            .unwrap()
            .iter()
            .all(|table| table["path"].as_str().unwrap().starts_with("facts/"))
        && manifest["shards"]
            .as_array()
            .unwrap()
            .iter()
            .all(|shard| shard["path"].as_str().unwrap().starts_with("tensors/"))
}

/// {1.0, 1.1} readers, and {1.0, 1.1, later 1.x, 2.0} traces; a trace without sequences is of 1.1 alone.
#[test]
fn old_and_new_readers_and_traces_go_together_as_the_table_says() {
    let folder = Folder::empty();
    let with_format = |version: &str, major: u16, minor: u16| {
        let mut manifest: Value =
            serde_json::from_slice(&fs::read(fixture_at(version).join("manifest.json")).unwrap()).unwrap();
        manifest["format"] = json!({ "major": major, "minor": minor });
        manifest
    };
    let mut later = with_format("v1.1", 1, 9);
    later["something_new"] = json!({ "of": "later" });
    later["fields"].as_array_mut().unwrap().push(json!({
        "name": "zebra", "axes": [], "dtype": "I8", "unit": "", "required": false
    }));
    let mut none = with_format("v1.1", 1, 1);
    none["requires"] = json!(["no-sequences"]);
    none["sequences"] = json!([]);
    let mut downgraded = with_format("v1.1", 1, 0);
    for (trace, manifest, old, new) in [
        ("1.0", with_format("v1.0", 1, 0), true, true),
        ("1.1", with_format("v1.1", 1, 1), true, true),
        ("later 1.x", later, true, true),
        ("2.0", with_format("v1.1", 2, 0), false, false),
    ] {
        assert_eq!(opens_with_1_0(&manifest), old, "1.0 reads {trace}");
        let root = folder.trace().with_file_name(trace.replace(' ', "-"));
        let from = fixture_at(if trace == "1.0" { "v1.0" } else { "v1.1" });
        for (inside, content) in files(&from) {
            fs::create_dir_all(root.join(&inside).parent().unwrap()).unwrap();
            fs::write(root.join(inside), content).unwrap();
        }
        // `zebra` is in no shard of the copy: a reader that knows it not does not look for it.
        seal_manifest(&root, manifest.to_string().as_bytes());
        let opened = Trace::open(&root).and_then(|trace| trace.tokens(SeqIdx::new(0)));
        assert_eq!(opened.is_ok(), new, "1.1 reads {trace}: {opened:?}");
        // What 1.1 brought does not pass as 1.0.
        if trace == "1.1" {
            downgraded["format"] = json!({ "major": 1, "minor": 0 });
            seal_manifest(&root, downgraded.to_string().as_bytes());
            assert!(Trace::open(&root).is_err());
        }
    }
    assert!(!opens_with_1_0(&none), "a 1.0 reader needs a sequence");
}

#[test]
#[ignore = "writes into the source tree; only for a new version of the format"]
fn make_the_current_fixture() {
    let header = with_branches(with_weights(recorded_header(Dtype::F16)));
    let mut writer = TraceWriter::create(&fixture(TRACE_VERSION), header, Leftover::Discard).unwrap();
    for weight in writer.missing_weights() {
        writer.put_weight(weight, &values(weight)).unwrap();
    }
    for sequence in sequences() {
        sequence.record(&mut writer, &[4]).unwrap();
    }
    for problem in problems() {
        writer.push_problem(&problem).unwrap();
    }
    // The digest to enter above is the first word of `manifest.sha256`.
    writer.finish().unwrap();
}
