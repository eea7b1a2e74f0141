//! Recording: what is written is what was run, and an interrupted recording goes on.

use std::num::NonZeroUsize;
use std::process::Command;

use kvlab_executor::{
    ExecutorError, Forecast, LensOptions, Model, OpenLoop, PlannedWeights, PromptForm, PromptLens, Quiet,
    RecordError, RecordItem, RecordPlan, SlidingWindow, Taps, TinySpec, record,
};
use kvlab_sim::trace::edit::{Selection, Storage, slice};
use kvlab_sim::trace::{
    Dtype, Leftover, LensForms, LensRow, StoredFields, ToolInfo, Trace, TraceSource, WorkloadInfo,
    statistics, verify,
};
use kvlab_sim::types::{LayerIdx, SeqIdx};

use super::support::{chunk, tiny, worst};

fn plan() -> RecordPlan {
    RecordPlan {
        weights: PlannedWeights { w_o: Some(Dtype::F32), head: Some(Dtype::F32) },
        max_bytes: None,
        times: false,
        open_loop: OpenLoop {
            chunk: chunk(5),
            max_new_tokens: 6,
            fields: StoredFields {
                hidden: true,
                attention: Some(Dtype::F32),
                lens: Some(LensForms::Both),
                lens_top: 3,
            },
            prompt_lens: PromptLens::Every(NonZeroUsize::new(4).unwrap()),
        },
        tool: ToolInfo { name: "kvlab".to_owned(), version: "0".to_owned(), revision: None },
        workload: WorkloadInfo { name: "test".to_owned(), seed: 1, file_sha256: None },
        seed: 1,
        grader: None,
    }
}

fn item(name: &str, begin: u32) -> RecordItem {
    RecordItem {
        item: name.to_owned(),
        prompt: PromptForm::Tokens((begin..begin + 12).collect()),
        stops: Vec::new(),
        expected_answer: None,
    }
}

#[test]
fn a_recording_holds_what_was_run() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("trace");
    let mut model: Model = tiny(TinySpec::default());
    let items = [item("a", 3), item("b", 20)];
    let finished = record(&mut model, &items, &plan(), &target, Leftover::Refuse, &Quiet).unwrap();
    assert_eq!(finished.path, target);
    verify(&target).unwrap();
    let trace = Trace::open(&target).unwrap();
    let manifest = trace.manifest();
    assert_eq!((manifest.sequences.len(), manifest.sequences[1].len), (2, 18));
    assert_eq!((manifest.model.family.as_str(), manifest.model.precision.as_str()), ("tiny", "f32"));
    assert_eq!(manifest.sequences[0].finish_reason, "length");
    // Prompt positions 0, 4, 8 and the last, and six generated ones.
    assert_eq!(manifest.sequences[0].lens_positions, 10);

    let tokens: Vec<u32> = trace.tokens(SeqIdx::new(1)).unwrap().iter().map(|token| token.get()).collect();
    let mut decoder = model.decoder().unwrap();
    let made = decoder.generate(&tokens[..12], chunk(12), 6, &|_| false).unwrap();
    assert_eq!(tokens[12..], made);
    let mut decoder = model.decoder().unwrap();
    let pass = decoder.forward(&tokens, Taps::STATES).unwrap();
    let lens = decoder.lens(&pass, &[17], LensOptions::default()).unwrap();
    let rows = trace.lens(SeqIdx::new(1)).unwrap();
    for layer in 0..3_u16 {
        let recorded = trace.layer(SeqIdx::new(1), LayerIdx::new(layer)).unwrap();
        let own = pass.keys.as_ref().unwrap().index_axis(ndarray::Axis(0), usize::from(layer)).to_owned();
        let stored: Vec<f32> = recorded.k.iter().copied().collect();
        assert!(worst(own.as_slice().unwrap(), &stored) < 1e-5);
        let row = rows.iter().find(|row| row.pos.get() == 17 && row.layer.get() == layer).unwrap();
        let expected = &lens[usize::from(layer)][0];
        assert!((f64::from(row.entropy_nats) - expected.normed.entropy_nats).abs() < 1e-4);
        assert!(
            (f64::from(row.raw_entropy_nats.unwrap()) - expected.raw.as_ref().unwrap().entropy_nats).abs()
                < 1e-4
        );
        assert_eq!(row.top1.get(), expected.normed.top[0].token);
    }
}

/// A lens that looks at normed states only leaves out the other form: the rest is the same to the bit, the manifest says so, and it stays so in a part of the trace.
#[test]
fn a_recording_without_the_raw_lens_is_the_other_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut model: Model = tiny(TinySpec::default());
    let items = [item("a", 3), item("b", 20)];
    let mut recorded = |name: &str, forms: LensForms| {
        let mut plan = plan();
        plan.open_loop.fields.lens = Some(forms);
        let forecast = Forecast::of(&mut model, &items, &plan).unwrap().most_bytes;
        let target = folder.path().join(name);
        record(&mut model, &items, &plan, &target, Leftover::Refuse, &Quiet).unwrap();
        assert!(verify(&target).unwrap().lens_recomputed > 0, "{name}");
        (Trace::open(&target).unwrap(), forecast)
    };
    let ((both, most), (normed, less)) =
        (recorded("both", LensForms::Both), recorded("normed", LensForms::Normed));
    assert!(less < most, "{less}, {most}");
    assert!(both.manifest().requires.is_empty());
    assert_eq!(normed.manifest().requires, ["no-raw-lens"]);
    for name in ["lens.raw_entropy_nats", "lens.raw_logsumexp"] {
        assert!(both.manifest().holds(name) && !normed.manifest().holds(name));
        assert!(statistics(&normed, name).is_err());
    }
    let part = folder.path().join("part");
    let selection = Selection { sequences: Some(vec![1]), ..Selection::default() };
    slice(&normed, &selection, Storage::default(), &part, "slice").unwrap();
    verify(&part).unwrap();
    let part = Trace::open(&part).unwrap();
    assert_eq!(part.manifest().requires, ["no-raw-lens"]);
    for seq in [SeqIdx::new(0), SeqIdx::new(1)] {
        let (both, normed) = (both.lens_table(seq).unwrap(), normed.lens_table(seq).unwrap());
        assert!(both.rows.iter().all(|row| row.raw_entropy_nats.is_some()) && !both.rows.is_empty());
        let without: Vec<LensRow> =
            both.rows.iter().map(|row| LensRow { raw_entropy_nats: None, ..*row }).collect();
        assert_eq!(normed.rows, without);
        assert!(normed.raw_logsumexp.iter().all(Option::is_none));
        assert_eq!((normed.logsumexp, normed.top1_logit), (both.logsumexp, both.top1_logit));
    }
    assert_eq!(part.lens(SeqIdx::new(0)).unwrap(), normed.lens(SeqIdx::new(1)).unwrap());
    // An exit that reads the form that is missing is left out by name; the other runs.
    let mut replay = Command::new(env!("CARGO_BIN_EXE_kvlab"));
    replay.current_dir(folder.path()).args(["replay", "normed", "--theta", "1", "--epsilon", "0.5"]);
    replay.args(["--lens", "final-norm,raw", "--min-exit-layer", "0"]);
    let done = replay.args(["--out", "exits"]).output().unwrap();
    let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert_eq!(done.status.code(), Some(4), "{text}");
    assert!(!text.contains("no entropy is compared with it"), "{text}");
    let results = kvlab_sim::results::read(&folder.path().join("exits")).unwrap();
    let (lens, status, notes) = (
        results.cells.text("lens").unwrap(),
        results.cells.text("status").unwrap(),
        results.cells.text("error").unwrap(),
    );
    for (row, lens) in lens.iter().enumerate() {
        let Some(lens) = lens else { continue };
        let reason = notes[row].clone().unwrap_or_default();
        match lens.as_str() {
            "raw" => {
                assert_eq!(status[row].as_deref(), Some("skipped"));
                assert!(
                    reason.contains("`entropy` with `lens: raw` reads `lens.raw_entropy_nats`"),
                    "{reason}"
                );
                assert!(reason.contains("kvlab record --lens both"), "{reason}");
            }
            _ => assert_eq!(status[row].as_deref(), Some("ok")),
        }
    }
}

#[test]
fn an_interrupted_recording_goes_on_with_the_same_prompts_only() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("trace");
    let mut model = tiny(TinySpec::default());
    // The second prompt has a token that the model does not have: the recording stops after the first.
    let mut broken = item("b", 20);
    broken.prompt = PromptForm::Tokens(vec![20, 999]);
    let error =
        record(&mut model, &[item("a", 3), broken], &plan(), &target, Leftover::Refuse, &Quiet).unwrap_err();
    assert!(matches!(error, ExecutorError::Decode(_)), "{error}");
    assert!(!target.exists());
    let others = [item("c", 3), item("b", 20)];
    let error = record(&mut model, &others, &plan(), &target, Leftover::Resume, &Quiet).unwrap_err();
    assert!(matches!(error, ExecutorError::Record(RecordError::OtherPrompts { seq: 0, .. })), "{error}");
    let items = [item("a", 3), item("b", 20)];
    let resumed = record(&mut model, &items, &plan(), &target, Leftover::Resume, &Quiet).unwrap();
    let straight = folder.path().join("straight");
    let straight = record(&mut model, &items, &plan(), &straight, Leftover::Refuse, &Quiet).unwrap();
    assert_eq!(resumed.digest, straight.digest);
    let error = record(&mut model, &[], &plan(), &target, Leftover::Refuse, &Quiet).unwrap_err();
    assert!(matches!(error, ExecutorError::Record(RecordError::NoPrompts)));
    let empty = RecordItem { prompt: PromptForm::Tokens(Vec::new()), ..item("a", 3) };
    let target = folder.path().join("empty");
    let error = record(&mut model, &[empty], &plan(), &target, Leftover::Refuse, &Quiet).unwrap_err();
    assert!(error.to_string().contains("its prompt has no tokens"), "{error}");
    assert!(!target.exists());
}

/// Two problems are recorded, then the third one stops the recording.
#[test]
fn an_interrupted_recording_is_not_continued_with_less_than_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("trace");
    let mut model = tiny(TinySpec::default());
    let mut broken = item("c", 20);
    broken.prompt = PromptForm::Tokens(vec![20, 999]);
    let items = [item("a", 3), item("b", 20), broken];
    record(&mut model, &items, &plan(), &target, Leftover::Refuse, &Quiet).unwrap_err();
    let mut again = |items: &[RecordItem], max_bytes| {
        let plan = RecordPlan { max_bytes, ..plan() };
        record(&mut model, items, &plan, &target, Leftover::Resume, &Quiet).unwrap_err()
    };
    let fewer = again(&items[..1], None);
    assert!(
        matches!(fewer, ExecutorError::Record(RecordError::FewerPrompts { held: 2, asked: 1 })),
        "{fewer}"
    );
    let ExecutorError::Record(RecordError::TooLarge { needed, .. }) = again(&items[..2], Some(1)) else {
        panic!("one byte is enough for nothing");
    };
    let error = again(&items[..2], Some(needed));
    let ExecutorError::Record(RecordError::HoldsMore { held, problems: 2, max }) = error else {
        panic!("{error}");
    };
    assert!(held > max && max == needed);
    let plan = RecordPlan { max_bytes: Some(held), ..plan() };
    record(&mut model, &items[..2], &plan, &target, Leftover::Resume, &Quiet).unwrap();
    assert_eq!(Trace::open(&target).unwrap().sequences().len(), 2);
    assert!(folder_bytes(&target) <= held);
}

#[test]
fn a_sequence_beyond_the_window_of_a_layer_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("trace");
    // 12 prompt tokens and 6 new ones: 18 fit into 18 and not into 17.
    for (tokens, fits) in [(18, true), (17, false)] {
        let sliding_window = Some(SlidingWindow { tokens, first_layer: 2 });
        let mut model = tiny(TinySpec { sliding_window, ..TinySpec::default() });
        let done = record(&mut model, &[item("a", 3)], &plan(), &target, Leftover::Refuse, &Quiet);
        if fits {
            done.unwrap();
            std::fs::remove_dir_all(&target).unwrap();
            continue;
        }
        let ExecutorError::Record(error) = done.unwrap_err() else { panic!("another error") };
        assert!(matches!(error, RecordError::BeyondWindow { window: 17, layer: 2, .. }), "{error}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}

/// Bytes of all files of a folder.
fn folder_bytes(path: &std::path::Path) -> u64 {
    let files = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    files
        .map(
            |file| {
                if file.path().is_dir() { folder_bytes(&file.path()) } else { file.metadata().unwrap().len() }
            },
        )
        .sum()
}

#[test]
fn a_recording_keeps_within_the_bytes_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = tiny(TinySpec::default());
    let items: Vec<RecordItem> = (0..6).map(|i| item(&format!("item {i}"), i)).collect();
    let mut record_within = |name: &str, max_bytes| {
        let target = folder.path().join(name);
        let plan = RecordPlan { max_bytes, ..plan() };
        let done = record(&mut model, &items, &plan, &target, Leftover::Refuse, &Quiet);
        done.map(|_| (Trace::open(&target).unwrap().manifest().sequences.len(), folder_bytes(&target)))
    };
    let (all, whole) = record_within("whole", None).unwrap();
    assert_eq!(all, 6);
    let mut counts = Vec::new();
    for max in (0..12).map(|step| 90_000 + step * 10_000) {
        match record_within(&format!("max {max}"), Some(max)) {
            Ok((count, bytes)) => {
                assert!(
                    (1..=6).contains(&count) && bytes <= max,
                    "{count} problems in {bytes} bytes of {max}"
                );
                counts.push(count);
            }
            Err(ExecutorError::Record(RecordError::TooLarge { needed, max: allowed, .. })) => {
                assert!(counts.is_empty() && allowed == max && needed > max, "{needed} of {max}");
                assert!(!folder.path().join(format!("max {max}")).exists());
                counts.clear();
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(counts.is_sorted() && counts.first() < counts.last(), "{counts:?}");
    assert_eq!(record_within("more than enough", Some(10_000_000)).unwrap(), (6, whole));
}

#[test]
fn a_forecast_is_no_less_than_what_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("trace");
    let mut model = tiny(TinySpec::default());
    let items = [item("a", 3), item("b", 20), item("c", 9)];
    let forecast = Forecast::of(&mut model, &items, &plan()).unwrap();
    record(&mut model, &items, &plan(), &target, Leftover::Refuse, &Quiet).unwrap();
    assert!(
        folder_bytes(&target) <= forecast.most_bytes,
        "{} of {}",
        folder_bytes(&target),
        forecast.most_bytes
    );
    assert_eq!(forecast.sequences, 3);
    assert!(forecast.most_time > std::time::Duration::ZERO);
}
