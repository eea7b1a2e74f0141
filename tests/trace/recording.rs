//! The writer: interrupted recordings, leftovers, and what it refuses to record.

use super::support::{Folder, Recorded, SHAPE, end, files, generated, recorded_header, start};
use kvlab_sim::trace::{
    Chunk, Dtype, Leftover, LensForms, SequenceStart, StoredFields, Trace, TraceError, TraceHeader,
    TraceWriter, verify,
};
use kvlab_sim::types::{ModelShape, Pos, TokenId};
use std::fs;

fn writer(folder: &Folder, leftover: Leftover) -> TraceWriter {
    TraceWriter::create(&folder.trace(), recorded_header(Dtype::F32), leftover).unwrap()
}

fn sequences() -> [Recorded; 3] {
    [Recorded::new(9, 1), Recorded::new(6, 2), Recorded::new(13, 3)]
}

/// Records all sequences that are not finished yet.
fn complete(mut writer: TraceWriter) {
    let finished = writer.finished().len();
    for sequence in &sequences()[finished..] {
        sequence.record(&mut writer, &[4]).unwrap();
    }
    writer.finish().unwrap();
}

/// Where recordings are cut: sequences finished, and calls made into the next one.
const CUTS: [(usize, usize); 6] = [(0, 0), (0, 3), (1, 0), (1, 2), (2, 4), (3, 0)];

/// Records until `whole` sequences are finished and `chunks` chunks of the next are pushed, then stops dead.
fn interrupt(folder: &Folder, whole: usize, chunks: usize) {
    let mut writer = writer(folder, Leftover::Resume);
    let sequences = sequences();
    for sequence in &sequences[..whole] {
        sequence.record(&mut writer, &[4]).unwrap();
    }
    if let Some(next) = sequences.get(whole).filter(|_| chunks > 0) {
        writer.begin_sequence(start(u32::try_from(next.tokens.len()).unwrap())).unwrap();
        for chunk in 0..chunks - 1 {
            writer.push(&next.chunk(chunk * 3..chunk * 3 + 3)).unwrap();
        }
    }
}

#[test]
fn an_interrupted_recording_leaves_nothing_that_is_accepted() {
    for (whole, chunks) in CUTS {
        let folder = Folder::empty();
        interrupt(&folder, whole, chunks);
        assert!(!folder.trace().exists(), "{whole} {chunks}");
        assert!(matches!(verify(&folder.partial()), Err(TraceError::Incomplete { .. })));
        // Not even under another name.
        fs::rename(folder.partial(), folder.trace()).unwrap();
        assert!(verify(&folder.trace()).is_err(), "{whole} {chunks}");
    }
}

#[test]
fn a_resumed_recording_is_the_undisturbed_one_byte_for_byte() {
    let undisturbed = Folder::empty();
    complete(writer(&undisturbed, Leftover::Refuse));
    for (whole, chunks) in CUTS {
        let folder = Folder::empty();
        interrupt(&folder, whole, chunks);
        let resumed = writer(&folder, Leftover::Resume);
        assert_eq!(resumed.finished().len(), whole);
        complete(resumed);
        assert_eq!(files(&folder.trace()), files(&undisturbed.trace()), "{whole} {chunks}");
        assert!(!folder.partial().exists());
    }
}

#[test]
fn interrupted_while_finishing_it_can_be_finished_again() {
    let undisturbed = Folder::empty();
    complete(writer(&undisturbed, Leftover::Refuse));
    let finished = files(&undisturbed.trace());
    // Of the files that are written at the end, in this order, the first `count` are there; then the journal goes,
    // entry by entry; the folder was not renamed yet.
    let last = [
        "facts/lens.parquet",
        "facts/lens_top.parquet",
        "facts/tokens.parquet",
        "manifest.json",
        "manifest.sha256",
    ];
    for count in 0..=last.len() + 3 {
        let folder = Folder::empty();
        interrupt(&folder, 3, 0);
        for inside in &last[..count.min(last.len())] {
            let (_, content) = finished.iter().find(|(found, _)| found == inside).unwrap();
            fs::write(folder.partial().join(inside), content).unwrap();
        }
        let journal = folder.partial().join("journal");
        match count.saturating_sub(last.len()) {
            0 => {}
            1 => fs::remove_file(journal.join("header.json")).unwrap(),
            2 => fs::remove_file(journal.join("00001.json")).unwrap(),
            _ => fs::remove_dir_all(journal).unwrap(),
        }
        assert!(matches!(Trace::open(&folder.partial()), Err(TraceError::Incomplete { .. })));
        let resumed = writer(&folder, Leftover::Resume);
        assert_eq!(resumed.finished().len(), 3);
        complete(resumed);
        assert_eq!(files(&folder.trace()), finished, "{count}");
    }
}

#[test]
fn a_sealed_recording_takes_no_other_header_and_no_more_sequences() {
    let folder = Folder::empty();
    complete(writer(&folder, Leftover::Refuse));
    fs::rename(folder.trace(), folder.partial()).unwrap();
    let header = TraceHeader { seed: 4, ..recorded_header(Dtype::F32) };
    let error = TraceWriter::create(&folder.trace(), header, Leftover::Resume).unwrap_err();
    assert!(matches!(error, TraceError::ResumeMismatch { .. }), "{error}");
    let mut resumed = writer(&folder, Leftover::Resume);
    assert!(matches!(resumed.begin_sequence(start(3)), Err(TraceError::Chunk { .. })));
    resumed.finish().unwrap();
    verify(&folder.trace()).unwrap();
}

#[test]
fn a_sequence_that_was_damaged_meanwhile_is_recorded_again() {
    let undisturbed = Folder::empty();
    complete(writer(&undisturbed, Leftover::Refuse));
    let folder = Folder::empty();
    interrupt(&folder, 2, 0);
    fs::write(folder.partial().join("tensors/00001-00000000.safetensors"), b"cut").unwrap();
    let resumed = writer(&folder, Leftover::Resume);
    assert_eq!(resumed.finished().len(), 1);
    complete(resumed);
    assert_eq!(files(&folder.trace()), files(&undisturbed.trace()));
}

#[test]
fn a_leftover_is_refused_discarded_or_resumed_as_asked() {
    let folder = Folder::empty();
    interrupt(&folder, 1, 2);
    let create = |leftover| TraceWriter::create(&folder.trace(), recorded_header(Dtype::F32), leftover);
    assert!(matches!(create(Leftover::Refuse), Err(TraceError::Leftover { .. })));
    assert_eq!(create(Leftover::Resume).unwrap().finished().len(), 1);
    assert_eq!(create(Leftover::Discard).unwrap().finished().len(), 0);
    assert_eq!(create(Leftover::Resume).unwrap().finished().len(), 0);
}

#[test]
fn other_settings_cannot_continue_a_recording() {
    let folder = Folder::empty();
    interrupt(&folder, 1, 0);
    let header = TraceHeader { seed: 4, ..recorded_header(Dtype::F32) };
    match TraceWriter::create(&folder.trace(), header, Leftover::Resume).unwrap_err() {
        TraceError::ResumeMismatch { part, begun, now, .. } => {
            assert_eq!((part.as_str(), begun, now), ("seed", "3".to_owned(), "4".to_owned()));
        }
        other => panic!("{other}"),
    }
    // What people choose comes before what follows from it and stands earlier in the header.
    let mut header = recorded_header(Dtype::F32);
    header.decoding.max_new_tokens += 1;
    header.workload.name = "other".to_owned();
    let error = TraceWriter::create(&folder.trace(), header, Leftover::Resume).unwrap_err();
    assert!(error.to_string().contains("begun with `workload.name`"), "{error}");
    // Inside a part of the header, and what is there now only.
    let mut header = recorded_header(Dtype::F32);
    header.decoding.batch = Some(8);
    let error = TraceWriter::create(&folder.trace(), header, Leftover::Resume).unwrap_err();
    assert!(error.to_string().ends_with("begun with `decoding.batch` null, now 8"), "{error}");
}

#[test]
fn two_recordings_to_the_same_target_do_not_meet() {
    let folder = Folder::empty();
    let first = writer(&folder, Leftover::Refuse);
    for leftover in [Leftover::Discard, Leftover::Resume] {
        let second = TraceWriter::create(&folder.trace(), recorded_header(Dtype::F32), leftover);
        assert!(matches!(second, Err(TraceError::Busy { .. })), "{leftover:?}");
    }
    complete(first);
    verify(&folder.trace()).unwrap();
}

#[test]
fn an_existing_target_is_never_touched() {
    let folder = Folder::with_trace();
    let before = files(&folder.trace());
    for leftover in [Leftover::Refuse, Leftover::Discard, Leftover::Resume] {
        let error = generated().write(&folder.trace(), Dtype::F32, 2, 4, leftover).unwrap_err();
        assert!(matches!(error, TraceError::Exists { .. }), "{error}");
    }
    assert_eq!(files(&folder.trace()), before);
}

/// A recording of another seed that is to replace what is there.
fn replacement(folder: &Folder) -> Result<TraceWriter, TraceError> {
    let header = TraceHeader { seed: 4, ..recorded_header(Dtype::F32) };
    TraceWriter::create(&folder.trace(), header, Leftover::Replace)
}

#[test]
fn a_trace_is_replaced_when_the_new_one_is_whole_and_not_before() {
    let folder = Folder::empty();
    complete(writer(&folder, Leftover::Refuse));
    let (old, aside) = (files(&folder.trace()), folder.trace().with_extension("replaced"));
    let mut new = replacement(&folder).unwrap();
    sequences()[0].record(&mut new, &[4]).unwrap();
    drop(new);
    // Killed here, the old one is where it was, and the new one beside it is no trace.
    assert_eq!(files(&folder.trace()), old);
    assert!(folder.partial().exists() && !aside.exists());
    complete(replacement(&folder).unwrap());
    assert_eq!(Trace::open(&folder.trace()).unwrap().manifest().seed, 4);
    assert!(!folder.partial().exists() && !aside.exists());
    // What is no trace is not replaced, by whatever name.
    fs::write(folder.trace().join("manifest.json"), "{}").unwrap();
    assert!(matches!(replacement(&folder), Err(TraceError::Exists { .. })));
    fs::remove_dir_all(folder.trace()).unwrap();
    complete(writer(&folder, Leftover::Refuse));
    fs::create_dir(&aside).unwrap();
    fs::write(aside.join("thesis.txt"), "x").unwrap();
    assert!(matches!(replacement(&folder), Err(TraceError::Exists { path }) if path == aside));
    assert!(aside.join("thesis.txt").exists());
}

/// The change of places, cut between its steps: both traces are whole, and the next recording finishes it.
#[test]
fn killed_while_two_traces_change_places_neither_is_lost() {
    let (folder, other) = (Folder::empty(), Folder::empty());
    complete(writer(&folder, Leftover::Refuse));
    complete(replacement(&other).unwrap());
    let (old, new) = (files(&folder.trace()), files(&other.trace()));
    let aside = folder.trace().with_extension("replaced");
    fs::rename(folder.trace(), &aside).unwrap();
    // Without the new one the old one is asked for, and refused to be overlooked.
    for leftover in [Leftover::Refuse, Leftover::Discard, Leftover::Resume] {
        let error = TraceWriter::create(&folder.trace(), recorded_header(Dtype::F32), leftover).unwrap_err();
        assert!(matches!(error, TraceError::Aside { .. }), "{error}");
    }
    fs::rename(other.trace(), folder.partial()).unwrap();
    let error = Trace::open(&folder.trace()).unwrap_err();
    assert!(error.to_string().contains("trace.replaced: the trace that was at"), "{error}");
    assert_eq!(files(&aside), old);
    let header = TraceHeader { seed: 4, ..recorded_header(Dtype::F32) };
    complete(TraceWriter::create(&folder.trace(), header, Leftover::Resume).unwrap());
    assert_eq!(files(&folder.trace()), new);
    assert!(!aside.exists() && !folder.partial().exists());
    // Cut while the old one was removed: it is named, and the next replacement takes it away.
    fs::create_dir_all(aside.join("tensors")).unwrap();
    fs::write(aside.join("tensors/00000-00000000.safetensors"), "x").unwrap();
    let found = kvlab_sim::trace::leftovers(&folder.trace());
    assert_eq!(found.iter().map(|(path, _)| path).collect::<Vec<_>>(), [&aside]);
    complete(replacement(&folder).unwrap());
    assert_eq!(files(&folder.trace()), new);
    assert!(!aside.exists());
}

#[test]
fn a_value_that_is_no_number_is_refused_with_its_place() {
    let folder = Folder::empty();
    let mut writer = writer(&folder, Leftover::Refuse);
    writer.begin_sequence(start(6)).unwrap();
    let mut bad = Recorded::new(6, 1);
    bad.q[1][[1, 2, 3]] = f32::NAN;
    let error = writer.push(&bad.chunk(0..6)).unwrap_err();
    assert!(
        matches!(error, TraceError::NonFinite { field: "q", seq: 0, layer: 1, head: Some(1), pos: 2, .. }),
        "{error}"
    );
    bad = Recorded::new(6, 1);
    bad.hidden[0][[4, 0]] = f32::INFINITY;
    let error = writer.push(&bad.chunk(0..6)).unwrap_err();
    assert!(matches!(error, TraceError::NonFinite { field: "hidden", head: None, pos: 4, .. }), "{error}");
    bad = Recorded::new(6, 1);
    bad.lens[0].layers[1].logsumexp = f32::NAN;
    let error = writer.push(&bad.chunk(0..6)).unwrap_err();
    assert!(
        matches!(error, TraceError::NonFinite { field: "lens.logsumexp", layer: 1, pos: 3, .. }),
        "{error}"
    );
    // Nothing of a refused chunk was taken: the right one goes in whole.
    let good = Recorded::new(6, 1);
    writer.push(&good.chunk(0..6)).unwrap();
    writer.end_sequence(end()).unwrap();
    writer.finish().unwrap();
    verify(&folder.trace()).unwrap();
}

/// H07: the recorder stops at the first value that overflows.
#[test]
fn h07_a_value_beyond_half_precision_is_refused_and_not_made_infinite() {
    let folder = Folder::empty();
    let mut writer =
        TraceWriter::create(&folder.trace(), recorded_header(Dtype::F16), Leftover::Refuse).unwrap();
    writer.begin_sequence(start(6)).unwrap();
    let mut wide = Recorded::new(6, 1);
    wide.kv[0][[0, 5, 0]] = 65505.0;
    let error = writer.push(&wide.chunk(0..6)).unwrap_err();
    assert!(
        matches!(error, TraceError::HalfOverflow { field: "k", layer: 0, head: Some(0), pos: 5, .. }),
        "{error}"
    );
    // Hidden states are always stored whole.
    let mut wide = Recorded::new(6, 1);
    wide.hidden[0][[5, 0]] = 1e6;
    writer.push(&wide.chunk(0..6)).unwrap();
}

#[test]
fn chunks_that_do_not_fit_are_refused() {
    let folder = Folder::empty();
    let mut writer = writer(&folder, Leftover::Refuse);
    let good = Recorded::new(6, 1);
    let refused = |result: Result<(), TraceError>, words: &str| {
        let error = result.unwrap_err();
        assert!(matches!(error, TraceError::Chunk { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    refused(writer.push(&good.chunk(0..6)), "no open sequence");
    refused(writer.end_sequence(end()), "no open sequence");
    writer.begin_sequence(start(6)).unwrap();
    refused(writer.begin_sequence(start(6)).map(drop), "sequence 0 open");
    refused(writer.push(&Chunk::default()), "found 0");
    let without_layers = Chunk { layers: Vec::new(), ..good.chunk(0..6) };
    refused(writer.push(&without_layers), "chunk.layers: found 0, accepted: 2");
    let short = Chunk { tokens: &good.tokens[..5], ..good.chunk(0..6) };
    refused(writer.push(&short), "`hidden` of layer 0: found [1, 6, 3], accepted: [1, 5, 3]");
    let mut without_q = good.chunk(0..6);
    without_q.layers[1].q = None;
    refused(writer.push(&without_q), "`q` of layer 1: found no tensor");
    let unknown = [TokenId::new(SHAPE.vocab); 6];
    refused(writer.push(&Chunk { tokens: &unknown, ..good.chunk(0..6) }), "id 40");
    let mut lens = good.lens.clone();
    lens.swap(0, 1);
    refused(writer.push(&Chunk { lens: &lens, ..good.chunk(0..6) }), "position 3");
    lens = good.lens.clone();
    lens[0].pos = Pos::new(6);
    refused(writer.push(&Chunk { lens: &lens, ..good.chunk(0..6) }), "position 6");
    lens = good.lens.clone();
    lens[0].layers.pop();
    refused(writer.push(&Chunk { lens: &lens, ..good.chunk(0..6) }), "layers: found 1, accepted: 2");
    lens = good.lens.clone();
    lens[0].layers[0].top.swap(0, 1);
    refused(writer.push(&Chunk { lens: &lens, ..good.chunk(0..6) }), "largest logit first");
    writer.push(&good.chunk(0..2)).unwrap();
    refused(writer.end_sequence(end()), "at least the prompt's 3");
    refused(writer.finish().map(drop), "sequence 0 open");
}

#[test]
fn headers_that_no_reader_would_accept_are_refused_at_the_start() {
    let folder = Folder::empty();
    let good = recorded_header(Dtype::F32);
    let fields = good.fields;
    for bad in [
        TraceHeader { shape: ModelShape { q_heads: 3, kv_heads: 2, ..SHAPE }, ..good.clone() },
        TraceHeader { shape: ModelShape { layers: 0, ..SHAPE }, ..good.clone() },
        TraceHeader { shard_tokens: 0, ..good.clone() },
        TraceHeader { runtime: None, ..good.clone() },
        TraceHeader { fields: StoredFields { attention: Some(Dtype::I64), ..fields }, ..good.clone() },
        TraceHeader { fields: StoredFields { lens: None, ..fields }, ..good.clone() },
        TraceHeader { fields: StoredFields { lens_top: 41, ..fields }, ..good.clone() },
    ] {
        assert!(TraceWriter::create(&folder.trace(), bad.clone(), Leftover::Refuse).is_err(), "{bad:?}");
    }
    assert!(files(folder.trace().parent().unwrap()).is_empty());
    let mut writer = writer(&folder, Leftover::Refuse);
    for (prompt_len, bos_len) in [(0, 0), (2, 3)] {
        assert!(writer.begin_sequence(SequenceStart { prompt_len, bos_len, ..start(1) }).is_err());
    }
    // A trace without a sequence is none.
    assert!(writer.finish().is_err());
}

/// Facts of both forms or of one, as the header says and the manifest repeats.
#[test]
fn lens_facts_are_of_the_forms_that_the_header_names() {
    let folder = Folder::empty();
    let mut header = recorded_header(Dtype::F32);
    header.fields.lens = Some(LensForms::Normed);
    let mut writer = TraceWriter::create(&folder.trace(), header, Leftover::Refuse).unwrap();
    writer.begin_sequence(start(9)).unwrap();
    let mut sequence = Recorded::new(9, 1);
    let error = writer.push(&sequence.chunk(0..9)).unwrap_err().to_string();
    assert!(error.contains("without the final norm") && error.contains("none"), "{error}");
    sequence.lens.iter_mut().flat_map(|at| &mut at.layers).for_each(|fact| fact.raw = None);
    writer.push(&sequence.chunk(0..9)).unwrap();
    writer.end_sequence(end()).unwrap();
    writer.finish().unwrap();
    verify(&folder.trace()).unwrap();
    // The word and the fields of the manifest belong together.
    let (path, record) = (folder.trace().join("manifest.json"), folder.trace().join("manifest.sha256"));
    let (text, line) = (fs::read_to_string(&path).unwrap(), fs::read_to_string(&record).unwrap());
    let (_, rest) = line.split_once(' ').unwrap();
    for (to, expected) in
        [("", "no lens.raw_entropy_nats"), ("\"no-such-thing\"", "requires `no-such-thing`")]
    {
        let changed = text.replace("\"no-raw-lens\"", to);
        assert_ne!(changed, text);
        fs::write(&path, &changed).unwrap();
        let digest = kvlab_sim::results::sha256_hex(changed.as_bytes());
        fs::write(&record, format!("{digest} {rest}")).unwrap();
        let error = verify(&folder.trace()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_trace_may_hold_facts_alone() {
    let folder = Folder::empty();
    let fields = StoredFields { hidden: false, attention: None, lens: Some(LensForms::Both), lens_top: 0 };
    let header = TraceHeader { fields, ..recorded_header(Dtype::F32) };
    let mut writer = TraceWriter::create(&folder.trace(), header, Leftover::Refuse).unwrap();
    let mut sequence = Recorded::new(9, 1);
    sequence.lens.iter_mut().flat_map(|at| &mut at.layers).for_each(|fact| fact.top.truncate(1));
    writer.begin_sequence(start(9)).unwrap();
    writer.push(&Chunk { layers: Vec::new(), ..sequence.chunk(0..9) }).unwrap();
    writer.end_sequence(end()).unwrap();
    writer.finish().unwrap();
    let report = verify(&folder.trace()).unwrap();
    assert_eq!((report.shards, report.tensor_values, report.lens_facts), (0, 0, 10));
}
