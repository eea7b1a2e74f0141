//! Traces made from traces: slices, joins, other storage types, JSON lines, Mooncake lines.

use super::branches::{problems, with_branches};
use super::support::{Folder, Recorded, SHAPE, files, recorded_header};
use super::weights::{values, with_weights};
use kvlab_sim::trace::edit::{Selection, Storage, merge, slice, to_jsonl};
use kvlab_sim::trace::mooncake::{self, ImportOptions};
use kvlab_sim::trace::{Dtype, Leftover, Trace, TraceError, TraceSource, TraceWriter, Weight, verify};
use kvlab_sim::types::{LayerIdx, SeqIdx, TokenId};
use std::fs;
use std::path::Path;

const HOW: &str = "a test";

/// Three sequences, all weights, two problems; branch 1 of problem 0 is the prompt of sequence 1.
fn rich(folder: &Folder) -> Trace {
    let header = with_branches(with_weights(recorded_header(Dtype::F32)));
    let mut writer = TraceWriter::create(&folder.trace(), header, Leftover::Refuse).unwrap();
    for weight in writer.missing_weights() {
        writer.put_weight(weight, &values(weight)).unwrap();
    }
    let sequences = [Recorded::new(9, 1), Recorded::new(6, 2), Recorded::new(13, 3)];
    for sequence in &sequences {
        sequence.record(&mut writer, &[4]).unwrap();
    }
    for (at, mut problem) in problems().into_iter().enumerate() {
        if at == 0 {
            problem.branches[1].tokens = sequences[1].tokens[..3].to_vec();
            problem.branches[1].prefix_len = 2;
            problem.branches[1].seq = Some(SeqIdx::new(1));
        }
        writer.push_problem(&problem).unwrap();
    }
    writer.finish().unwrap();
    Trace::open(&folder.trace()).unwrap()
}

fn opened(path: &Path) -> Trace {
    verify(path).unwrap();
    Trace::open(path).unwrap()
}

fn assert_same_sequence(a: &Trace, seq: u32, b: &Trace, other: u32) {
    let (seq, other) = (SeqIdx::new(seq), SeqIdx::new(other));
    assert_eq!(a.tokens(seq).unwrap(), b.tokens(other).unwrap());
    assert_eq!(a.lens_table(seq).unwrap(), b.lens_table(other).unwrap());
    assert_eq!(a.lens_top(seq).unwrap(), b.lens_top(other).unwrap());
    for layer in SHAPE.layer_ids() {
        assert_eq!(a.layer(seq, layer).unwrap(), b.layer(other, layer).unwrap());
        assert_eq!(a.hidden(seq, layer).unwrap(), b.hidden(other, layer).unwrap());
    }
}

#[test]
fn a_slice_holds_its_sequences_and_names_its_source() {
    let folder = Folder::empty();
    let whole = rich(&folder);
    let target = folder.trace().with_file_name("slice");
    let selection =
        Selection { sequences: Some(vec![2, 1]), problems: Some(vec![0]), ..Selection::default() };
    let report = slice(&whole, &selection, Storage::default(), &target, HOW).unwrap();
    assert_eq!((report.sequences, report.tokens, report.problems, report.loss), (2, 19, 1, None));
    let part = opened(&target);
    assert_same_sequence(&whole, 2, &part, 0);
    assert_same_sequence(&whole, 1, &part, 1);
    assert_eq!(part.w_o(LayerIdx::new(1)).unwrap(), whole.w_o(LayerIdx::new(1)).unwrap());
    // The branch still finds its sequence, at its place in the slice.
    assert_eq!(part.problem(0).unwrap().branches[1].seq, Some(SeqIdx::new(1)));
    let from = &part.manifest().derived_from;
    assert_eq!(
        (from.len(), from[0].digest.as_str(), from[0].how.as_str()),
        (1, whole.digest().as_str(), HOW)
    );
    // Without it, it is said to be left out.
    let target = folder.trace().with_file_name("other");
    let selection = Selection { sequences: Some(vec![0]), ..Selection::default() };
    let report = slice(&whole, &selection, Storage::default(), &target, HOW).unwrap();
    assert!(report.left_out[0].contains("1 branches"), "{:?}", report.left_out);
    assert_eq!(opened(&target).problem(0).unwrap().branches[1].seq, None);
}

#[test]
fn a_slice_of_everything_has_the_same_files() {
    let folder = Folder::empty();
    let whole = rich(&folder);
    let target = folder.trace().with_file_name("copy");
    slice(&whole, &Selection::default(), Storage::default(), &target, HOW).unwrap();
    let content =
        |root: &Path| files(root).into_iter().filter(|(inside, _)| inside.contains('/')).collect::<Vec<_>>();
    assert!(content(&target) == content(&folder.trace()));
}

#[test]
fn layers_are_numbered_anew_and_facts_about_all_of_them_are_left_out() {
    let folder = Folder::empty();
    let whole = rich(&folder);
    let target = folder.trace().with_file_name("slice");
    let selection = Selection { layers: Some(vec![1]), ..Selection::default() };
    let report = slice(&whole, &selection, Storage::default(), &target, HOW).unwrap();
    let part = opened(&target);
    assert_eq!((part.shape().layers, part.problems()), (1, 0));
    assert!(report.left_out[0].contains("branch facts"), "{:?}", report.left_out);
    let (first, last) = (LayerIdx::new(0), LayerIdx::new(1));
    for seq in (0..3).map(SeqIdx::new) {
        assert_eq!(part.layer(seq, first).unwrap(), whole.layer(seq, last).unwrap());
        // The last layer is there, so its lens facts are too.
        let of_last: Vec<_> = whole
            .lens(seq)
            .unwrap()
            .into_iter()
            .filter(|row| row.layer == last)
            .map(|row| row.entropy_nats)
            .collect();
        assert_eq!(part.lens(seq).unwrap().iter().map(|row| row.entropy_nats).collect::<Vec<_>>(), of_last);
    }
    assert_eq!(part.w_o(first).unwrap(), whole.w_o(last).unwrap());
    let target = folder.trace().with_file_name("first-layer");
    let selection = Selection { layers: Some(vec![0]), ..Selection::default() };
    let report = slice(&whole, &selection, Storage::default(), &target, HOW).unwrap();
    assert!(report.left_out.iter().any(|reason| reason.contains("lens facts")), "{:?}", report.left_out);
    assert!(opened(&target).lens(SeqIdx::new(0)).is_err());
}

#[test]
fn the_beginning_of_sequences_claims_nothing_about_their_end() {
    let folder = Folder::empty();
    let whole = rich(&folder);
    let target = folder.trace().with_file_name("slice");
    let selection = Selection { first: Some(7), ..Selection::default() };
    slice(&whole, &selection, Storage::default(), &target, HOW).unwrap();
    let part = opened(&target);
    let lens = |trace: &Trace, seq| trace.sequence(SeqIdx::new(seq)).unwrap().len;
    assert_eq!([0, 1, 2].map(|seq| lens(&part, seq)), [7, 6, 7]);
    let (cut, kept) = (part.sequence(SeqIdx::new(0)).unwrap(), part.sequence(SeqIdx::new(1)).unwrap());
    assert_eq!((cut.finish_reason.as_str(), &cut.answer, cut.correct), ("length", &None, None));
    assert_eq!((kept.finish_reason.as_str(), kept.correct), ("eos", Some(true)));
    let layer = LayerIdx::new(1);
    let all = whole.layer(SeqIdx::new(2), layer).unwrap();
    assert_eq!(part.layer(SeqIdx::new(2), layer).unwrap().k, all.k.slice(ndarray::s![.., ..7, ..]));
}

#[test]
fn joined_slices_are_the_whole() {
    let folder = Folder::empty();
    let whole = rich(&folder);
    let path = |name: &str| folder.trace().with_file_name(name);
    let part = |name: &str, sequences: Vec<u32>, problems: Vec<u32>| {
        let selection =
            Selection { sequences: Some(sequences), problems: Some(problems), ..Selection::default() };
        slice(&whole, &selection, Storage::default(), &path(name), HOW).unwrap();
        Trace::open(&path(name)).unwrap()
    };
    let (a, b) = (part("a", vec![0], vec![]), part("b", vec![1, 2], vec![0, 1]));
    let report = merge(&[&a, &b], &path("both"), HOW).unwrap();
    assert_eq!((report.sequences, report.problems), (3, 2));
    let both = opened(&path("both"));
    for seq in 0..3 {
        assert_same_sequence(&whole, seq, &both, seq);
    }
    assert_eq!(both.problem(0).unwrap(), whole.problem(0).unwrap());
    assert_eq!(both.manifest().derived_from.len(), 2);
    // Other settings do not join.
    let half = path("half");
    let storage = Storage { dtype: Some(Dtype::F16), shard_tokens: None };
    slice(&whole, &Selection::default(), storage, &half, HOW).unwrap();
    let error = merge(&[&whole, &Trace::open(&half).unwrap()], &path("none"), HOW).unwrap_err();
    assert!(error.to_string().contains("another `fields` in"), "{error}");
    assert!(!path("none").exists());
}

#[test]
fn rounding_is_stated_and_what_does_not_fit_is_refused() {
    let folder = Folder::with_trace();
    let whole = Trace::open(&folder.trace()).unwrap();
    let half = folder.trace().with_file_name("half");
    let storage = Storage { dtype: Some(Dtype::F16), shard_tokens: Some(3) };
    let report = slice(&whole, &Selection::default(), storage, &half, HOW).unwrap();
    let loss = report.loss.unwrap();
    // Ten tokens, two layers, four heads of four channels.
    assert_eq!(loss.values, 10 * 2 * 4 * 4);
    assert!(loss.changed > 0 && loss.max_abs > 0.0 && loss.max_rel <= 1.0 / 1024.0, "{loss:?}");
    let part = opened(&half);
    let (seq, layer) = (SeqIdx::new(0), LayerIdx::new(1));
    let rounded = whole.layer(seq, layer).unwrap().v.mapv(|value| half::f16::from_f32(value).to_f32());
    assert_eq!(part.layer(seq, layer).unwrap().v, rounded);
    // Back again loses nothing more.
    let back = folder.trace().with_file_name("back");
    let storage = Storage { dtype: Some(Dtype::F32), shard_tokens: Some(4) };
    assert_eq!(slice(&part, &Selection::default(), storage, &back, HOW).unwrap().loss, None);
    assert_eq!(opened(&back).layer(seq, layer).unwrap().v, rounded);

    let folder = Folder::empty();
    let mut writer =
        TraceWriter::create(&folder.trace(), recorded_header(Dtype::F32), Leftover::Refuse).unwrap();
    let mut wide = Recorded::new(6, 1);
    wide.kv[0][[0, 5, 0]] = 1e5;
    wide.record(&mut writer, &[4]).unwrap();
    writer.finish().unwrap();
    let target = folder.trace().with_file_name("half");
    let storage = Storage { dtype: Some(Dtype::F16), shard_tokens: None };
    let error = slice(&Trace::open(&folder.trace()).unwrap(), &Selection::default(), storage, &target, HOW)
        .unwrap_err();
    assert!(matches!(error, TraceError::HalfOverflow { field: "k", pos: 5, .. }), "{error}");
    assert!(!target.exists());
}

#[test]
fn selections_that_are_not_there_are_refused_before_anything_is_written() {
    let folder = Folder::with_trace();
    let whole = Trace::open(&folder.trace()).unwrap();
    let target = folder.trace().with_file_name("slice");
    for (words, selection) in [
        ("sequence 2", Selection { sequences: Some(vec![2]), ..Selection::default() }),
        ("layer 2", Selection { layers: Some(vec![2]), ..Selection::default() }),
        ("problem 0", Selection { problems: Some(vec![0]), ..Selection::default() }),
        ("one twice", Selection { sequences: Some(vec![0, 0]), ..Selection::default() }),
        ("no layer or no position", Selection { first: Some(0), ..Selection::default() }),
        ("nothing", Selection { sequences: Some(vec![]), ..Selection::default() }),
    ] {
        let error = slice(&whole, &selection, Storage::default(), &target, HOW).unwrap_err();
        assert!(error.to_string().contains(words), "`{words}` is not in: {error}");
        assert!(!target.exists());
    }
}

#[test]
fn facts_become_json_lines() {
    let folder = Folder::empty();
    let whole = rich(&folder);
    let target = folder.trace().with_file_name("lines");
    let lines = to_jsonl(&whole, &target).unwrap();
    let found = files(&target);
    let count: usize =
        found.iter().map(|(_, content)| content.iter().filter(|byte| **byte == b'\n').count()).sum();
    assert_eq!(lines, count as u64);
    let (_, tokens) = found.iter().find(|(name, _)| name == "tokens.jsonl").unwrap();
    let first: serde_json::Value =
        serde_json::from_slice(tokens.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!(first, serde_json::json!({ "seq": 0, "pos": 0, "token": 1, "is_prompt": true }));
    let (_, branches) = found.iter().find(|(name, _)| name == "branches.jsonl").unwrap();
    let root: serde_json::Value =
        serde_json::from_slice(branches.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!((&root["parent"], &root["depth"]), (&serde_json::Value::Null, &serde_json::json!(0)));
    assert!(matches!(to_jsonl(&whole, &target), Err(TraceError::Exists { .. })));
}

#[test]
fn branch_trees_go_to_mooncake_lines_and_back() {
    let folder = Folder::empty();
    super::branches::trees().write(&folder.trace(), Leftover::Refuse).unwrap();
    let trace = Trace::open(&folder.trace()).unwrap();
    let lines = folder.trace().with_file_name("trees.jsonl");
    let meta = mooncake::export(&trace, Some(4), 50, &lines).unwrap();
    assert_eq!((meta.lines, meta.block_tokens, meta.source.as_str()), (4, 4, trace.digest().as_str()));
    let text = fs::read_to_string(&lines).unwrap();
    // Seven tokens in blocks of four. Branch 1 has the root's wording, branch 2 may begin with the same block.
    let first = text.lines().next().unwrap();
    assert_eq!(first, r#"{"timestamp":0,"input_length":7,"output_length":3,"hash_ids":[0,1]}"#);
    assert!(text.lines().nth(2).unwrap().starts_with(r#"{"timestamp":50,"#), "{text}");

    let imported = folder.trace().with_file_name("requests");
    let done = mooncake::import(&lines, ImportOptions::default(), &imported).unwrap();
    assert_eq!((done.requests, done.dropped), (4, 0));
    let requests = opened(&imported);
    assert_eq!(requests.manifest().requests.as_ref().unwrap().block_tokens, 4);
    // What needs tensors, tokens or facts of a model says what is missing.
    let summary = kvlab_sim::trace::summary(&requests).unwrap();
    for study in summary.studies {
        let serves = study.study == "exact prefix sharing, block caches";
        assert_eq!(study.missing.is_empty(), serves, "{study:?}");
    }
    // Exported again, the same bytes; in blocks of another size, refused.
    let again = folder.trace().with_file_name("again.jsonl");
    mooncake::export(&requests, Some(4), 0, &again).unwrap();
    assert_eq!(fs::read_to_string(&again).unwrap(), text);
    assert!(mooncake::export(&requests, Some(16), 0, &again).is_err());
    // A size that contradicts the file beside the lines is refused, and so is none at all.
    let options = ImportOptions { block_tokens: Some(512), ..ImportOptions::default() };
    let error = mooncake::import(&lines, options, &folder.trace().with_file_name("x")).unwrap_err();
    assert!(error.to_string().contains("found 4, accepted: 512"), "{error}");
    fs::remove_file(mooncake::meta_path(&lines)).unwrap();
    let error =
        mooncake::import(&lines, ImportOptions::default(), &folder.trace().with_file_name("x")).unwrap_err();
    assert!(error.to_string().contains("block size: found none"), "{error}");
}

#[test]
fn sequences_are_requests_too() {
    let folder = Folder::with_trace();
    let lines = folder.trace().with_file_name("lines.jsonl");
    let meta = mooncake::export(&Trace::open(&folder.trace()).unwrap(), Some(2), 10, &lines).unwrap();
    assert_eq!(meta.lines, 2);
    let text = fs::read_to_string(&lines).unwrap();
    assert_eq!(
        text.lines().next().unwrap(),
        r#"{"timestamp":0,"input_length":3,"output_length":6,"hash_ids":[0,1]}"#
    );
}

/// Lines as other tools write them: a fraction of a millisecond, aliases, keys that we do not know.
const LINES: &str = concat!(
    r#"{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [0, 1]}"#,
    "\n",
    r#"{"created_time": 2.75, "input_tokens": 5, "output_tokens": 1, "hash_ids": [0, 2], "session_id": "a"}"#,
    "\n",
);

fn import(folder: &Folder, text: &str, complete_part: bool) -> Result<mooncake::Imported, TraceError> {
    let lines = folder.trace().with_file_name("lines.jsonl");
    fs::write(&lines, text).unwrap();
    let options = ImportOptions { block_tokens: Some(4), complete_part };
    drop(fs::remove_dir_all(folder.trace()));
    mooncake::import(&lines, options, &folder.trace())
}

/// H09: a file that was cut within its last line.
#[test]
fn h09_a_cut_line_is_an_error_with_its_place_and_its_complete_part_can_be_asked_for() {
    let folder = Folder::empty();
    let second = LINES.find("{\"created").unwrap();
    for cut in second + 1..LINES.len() - 1 {
        let text = &LINES[..cut];
        let error = import(&folder, text, false).unwrap_err().to_string();
        assert!(error.contains(&format!("line 2, from byte {second}")), "{cut}: {error}");
        assert!(error.contains("the file ends within this line"), "{cut}: {error}");
        assert!(!folder.trace().exists());
        let part = import(&folder, text, true).unwrap();
        assert_eq!((part.requests, part.dropped), (1, 1));
    }
    // Harmless cuts: behind a line, and without the last line feed.
    assert_eq!(import(&folder, &LINES[..second], false).unwrap().requests, 1);
    let whole = import(&folder, &LINES[..LINES.len() - 1], false).unwrap();
    assert_eq!((whole.requests, whole.dropped), (2, 0));
    // Half a line in the middle is no cut file: nothing is left out there.
    let broken = LINES.replacen("\"output_length\": 5, ", "", 1);
    assert!(import(&folder, &broken, true).unwrap_err().to_string().contains("line 1, from byte 0"));
}

#[test]
fn lines_that_cannot_be_are_refused_with_their_number() {
    let folder = Folder::empty();
    for (words, text) in [
        ("3 hash_ids, accepted: at most 2 ids", LINES.replace("[0, 2]", "[0, 2, 3]")),
        ("line 2, from byte 76", LINES.replace("2.75", "-1")),
        ("timestamp", LINES.replace("2.75", "1e300")),
        ("line 1, from byte 0", LINES.replace("[0, 1]", "[0, -1]")),
        ("timestamp_ms", LINES.replacen("\"timestamp\": 0", "\"timestamp\": 9", 1)),
        ("no request", "\n \n".to_owned()),
    ] {
        let error = import(&folder, &text, false).unwrap_err().to_string();
        assert!(error.contains(words), "`{words}` is not in: {error}");
        assert!(!folder.trace().exists());
    }
    import(&folder, LINES, false).unwrap();
    let trace = opened(&folder.trace());
    let mut times = Vec::new();
    trace
        .for_each_request(|_, request| {
            times.push(request.timestamp_ms);
            Ok(())
        })
        .unwrap();
    assert_eq!(times, [0, 2]);
}

#[test]
fn block_ids_follow_the_tokens() {
    let mut ids = mooncake::BlockIds::default();
    let tokens: Vec<TokenId> = (0..40).map(TokenId::new).collect();
    let whole = ids.of(&tokens, 16);
    assert_eq!(ids.of(&tokens[..33], 16)[..2], whole[..2]);
    assert_ne!(ids.of(&tokens[1..], 16)[0], whole[0]);
    assert_eq!(Weight::FinalNorm.path(), "weights/final_norm.safetensors");
}

/// Damage that no reader looks at is found before it is sealed with new digests.
#[test]
fn a_damaged_trace_is_not_made_into_a_sound_one() {
    for file in
        ["tensors/00000-00000000.safetensors", "weights/layer001.w_o.safetensors", "facts/lens.parquet"]
    {
        let folder = Folder::empty();
        drop(rich(&folder));
        let path = folder.trace().join(file);
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 9;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        let trace = Trace::open(&folder.trace()).unwrap();
        let target = folder.trace().with_file_name("target");
        let sliced = slice(&trace, &Selection::default(), Storage::default(), &target, HOW);
        assert!(matches!(sliced, Err(TraceError::Checksum { .. })), "{file}: {sliced:?}");
        let merged = merge(&[&trace], &target, HOW);
        assert!(matches!(merged, Err(TraceError::Checksum { .. })), "{file}: {merged:?}");
        assert!(!target.exists());
    }
}

/// What was generated stays so on its way through lines.
#[test]
fn generated_requests_are_labelled_after_a_round_trip() {
    let folder = Folder::empty();
    super::branches::trees().write(&folder.trace(), Leftover::Refuse).unwrap();
    let trace = Trace::open(&folder.trace()).unwrap();
    let lines = folder.trace().with_file_name("trees.jsonl");
    mooncake::export(&trace, None, 50, &lines).unwrap();
    let imported = folder.trace().with_file_name("requests");
    mooncake::import(&lines, ImportOptions::default(), &imported).unwrap();
    let requests = opened(&imported);
    assert!(trace.is_synthetic() && requests.is_synthetic());
    assert_eq!(requests.manifest().synthetic, trace.manifest().synthetic);
    // Without a size asked for, it is that of the requests.
    let again = folder.trace().with_file_name("again.jsonl");
    assert_eq!(mooncake::export(&requests, None, 0, &again).unwrap().block_tokens, 512);
}
