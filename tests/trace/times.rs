//! Measured times in a trace: kept, covered by digests, resumed, cut and joined with it.

use super::support::{Folder, Recorded, recorded_header};
use kvlab_sim::cost::Measurement;
use kvlab_sim::trace::edit::{Selection, Storage, merge, slice};
use kvlab_sim::trace::{Dtype, Leftover, Trace, TraceError, TraceHeader, TraceSource, TraceWriter, verify};
use serde_json::json;
use std::fs;
use std::path::Path;

fn header() -> TraceHeader {
    TraceHeader { times: true, ..recorded_header(Dtype::F32) }
}

fn measured(nanos: u64, layers: Option<u16>) -> Measurement {
    Measurement {
        part: Some("prefill".to_owned()),
        rows: 1,
        new_tokens: 4,
        layers,
        heads: 1,
        head_products: 1,
        nanos,
        ..Measurement::default()
    }
}

fn times() -> Vec<Measurement> {
    vec![measured(9000, None), measured(5000, Some(1))]
}

fn writer(folder: &Folder, leftover: Leftover) -> TraceWriter {
    TraceWriter::create(&folder.trace(), header(), leftover).unwrap()
}

fn complete(mut writer: TraceWriter) {
    if writer.misses_times() {
        writer.put_times(&times()).unwrap();
    }
    Recorded::new(9, 1).record(&mut writer, &[4]).unwrap();
    writer.finish().unwrap();
}

fn opened(path: &Path) -> Trace {
    verify(path).unwrap();
    Trace::open(path).unwrap()
}

#[test]
fn times_are_kept_and_damage_is_found() {
    let folder = Folder::empty();
    complete(writer(&folder, Leftover::Refuse));
    let trace = opened(&folder.trace());
    assert_eq!(trace.times().unwrap(), times());
    let info = trace.manifest().times.as_ref().unwrap();
    assert_eq!((info.path.as_str(), info.rows), ("facts/times.jsonl", 2));
    // Another number of the same length: only the digest tells.
    let path = folder.path("facts/times.jsonl");
    let damaged = fs::read_to_string(&path).unwrap().replace("9000", "9001");
    fs::write(&path, damaged).unwrap();
    assert!(matches!(verify(&folder.trace()), Err(TraceError::Checksum { .. })));
    assert!(matches!(Trace::open(&folder.trace()).unwrap().times(), Err(TraceError::Checksum { .. })));
}

#[test]
fn a_header_with_times_asks_for_them_and_one_without_takes_none() {
    let folder = Folder::empty();
    let mut writer = writer(&folder, Leftover::Refuse);
    Recorded::new(9, 1).record(&mut writer, &[4]).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("no times"), "{error}");
    let folder = Folder::empty();
    let mut writer =
        TraceWriter::create(&folder.trace(), recorded_header(Dtype::F32), Leftover::Refuse).unwrap();
    assert!(writer.put_times(&times()).is_err());
    Recorded::new(9, 1).record(&mut writer, &[4]).unwrap();
    writer.finish().unwrap();
    assert!(!folder.manifest().as_object().unwrap().contains_key("times"));
    assert!(matches!(opened(&folder.trace()).times(), Err(TraceError::MissingField { .. })));
}

#[test]
fn an_interrupted_recording_keeps_the_times_it_has() {
    let folder = Folder::empty();
    let mut begun = writer(&folder, Leftover::Refuse);
    begun.put_times(&times()).unwrap();
    drop(begun);
    let resumed = writer(&folder, Leftover::Resume);
    assert!(!resumed.misses_times());
    complete(resumed);
    assert_eq!(opened(&folder.trace()).times().unwrap(), times());
    // Damaged meanwhile: measured again.
    let folder = Folder::empty();
    let mut begun = writer(&folder, Leftover::Refuse);
    begun.put_times(&times()).unwrap();
    drop(begun);
    fs::write(folder.partial().join("facts/times.jsonl"), "cut").unwrap();
    assert!(writer(&folder, Leftover::Resume).misses_times());
    // Whole, sealed, and only to be moved.
    let folder = Folder::empty();
    complete(writer(&folder, Leftover::Refuse));
    fs::rename(folder.trace(), folder.partial()).unwrap();
    writer(&folder, Leftover::Resume).finish().unwrap();
    assert_eq!(opened(&folder.trace()).times().unwrap(), times());
}

#[test]
fn a_slice_of_whole_layers_takes_them_along_and_a_join_does_not() {
    let folder = Folder::empty();
    complete(writer(&folder, Leftover::Refuse));
    let whole = opened(&folder.trace());
    let beside = |name: &str| folder.trace().with_file_name(name);
    let report = slice(&whole, &Selection::default(), Storage::default(), &beside("all"), "a test").unwrap();
    assert!(report.left_out.is_empty());
    assert_eq!(opened(&beside("all")).times().unwrap(), times());
    let one = Selection { layers: Some(vec![1]), ..Selection::default() };
    let report = slice(&whole, &one, Storage::default(), &beside("one"), "a test").unwrap();
    assert!(report.left_out.iter().any(|what| what.starts_with("measured times")), "{report:?}");
    let report = merge(&[&whole, &whole], &beside("joined"), "a test").unwrap();
    assert!(report.left_out.iter().any(|what| what.starts_with("measured times")), "{report:?}");
    assert!(opened(&beside("joined")).times().is_err());
}

#[test]
fn what_no_recorder_writes_is_refused() {
    let folder = Folder::empty();
    complete(writer(&folder, Leftover::Refuse));
    let manifest = folder.manifest();
    for (key, wrong) in [("path", json!("facts/other.jsonl")), ("rows", json!(0)), ("sha256", json!("12"))] {
        let mut changed = manifest.clone();
        changed["times"][key] = wrong;
        folder.seal_text(&changed.to_string());
        let error = Trace::open(&folder.trace()).unwrap_err().to_string();
        assert!(error.contains(&format!("times.{key}")), "{error}");
    }
    let folder = Folder::empty();
    let mut writer = writer(&folder, Leftover::Refuse);
    writer.put_times(&[measured(10, Some(3))]).unwrap();
    Recorded::new(9, 1).record(&mut writer, &[4]).unwrap();
    writer.finish().unwrap();
    let error = verify(&folder.trace()).unwrap_err().to_string();
    assert!(error.contains("line 1: layers"), "a model of two layers runs no three: {error}");
}
