//! Branch trees and requests: round trips, interrupted recordings, and facts that cannot be.

use super::support::{Folder, SHAPE, files, recorded_header};
use kvlab_sim::table::{Column, Table, read_parquet, write_parquet};
use kvlab_sim::trace::synth::{BranchParams, SyntheticBranches};
use kvlab_sim::trace::{
    Dtype, Leftover, Prefix, Problem, Request, StoredBranches, StoredFields, StoredRequests, Trace,
    TraceError, TraceHeader, TraceSource, TraceWriter, verify,
};
use std::fs;

/// Two problems of three branches each, in the shape of the other small traces.
pub(crate) fn trees() -> SyntheticBranches {
    let params = BranchParams {
        problems: 2,
        branches: 2,
        depth: 1,
        prefix_tokens: 5,
        suffix_tokens: 2,
        generated: 3,
        ..BranchParams::default()
    };
    SyntheticBranches::build(SHAPE, 3, params).unwrap()
}

pub(crate) fn problems() -> Vec<Problem> {
    let trees = trees();
    (0..trees.problems()).map(|index| trees.problem(index).unwrap()).collect()
}

pub(crate) fn with_branches(header: TraceHeader) -> TraceHeader {
    let branches = StoredBranches {
        similarity: true,
        steps: true,
        verdicts: true,
        yes_token: Some(3),
        no_token: Some(4),
    };
    TraceHeader { branches: Some(branches), ..header }
}

fn written() -> Folder {
    let folder = Folder::empty();
    trees().write(&folder.trace(), Leftover::Refuse).unwrap();
    folder
}

#[test]
fn branch_trees_come_back_as_they_were() {
    let folder = written();
    let report = verify(&folder.trace()).unwrap();
    assert_eq!((report.sequences, report.problems, report.branch_outcomes), (0, 2, 8));
    assert!(report.synthetic && report.unlisted.is_empty(), "{:?}", report.unlisted);
    let trace = Trace::open(&folder.trace()).unwrap();
    assert_eq!(trace.problems(), 2);
    for (index, problem) in (0..).zip(problems()) {
        assert_eq!(trace.problem(index).unwrap(), problem);
    }
    assert!(matches!(trace.problem(2), Err(TraceError::OutOfRange { what: "problem", .. })));
    assert_eq!(folder.manifest()["requires"], serde_json::json!(["no-sequences"]));
}

#[test]
fn optional_branch_facts_may_be_left_out() {
    let folder = Folder::empty();
    let fields = StoredFields { hidden: false, attention: None, lens: None, lens_top: 0 };
    let stored =
        StoredBranches { similarity: false, steps: false, verdicts: false, yes_token: None, no_token: None };
    let header = TraceHeader { fields, branches: Some(stored), ..recorded_header(Dtype::F32) };
    let mut writer = TraceWriter::create(&folder.trace(), header, Leftover::Refuse).unwrap();
    let mut bare = problems().remove(0);
    for branch in &mut bare.branches {
        branch.similarity.clear();
        for outcome in [&mut branch.own, &mut branch.root].into_iter().flatten() {
            outcome.steps.clear();
            outcome.verdict = None;
        }
    }
    writer.push_problem(&bare).unwrap();
    let error = writer.push_problem(&problems()[1]).unwrap_err();
    assert!(error.to_string().contains("similarity: found 3, accepted: 0 states"), "{error}");
    writer.finish().unwrap();
    verify(&folder.trace()).unwrap();
    assert_eq!(Trace::open(&folder.trace()).unwrap().problem(0).unwrap(), bare);
}

#[test]
fn an_interrupted_recording_of_problems_goes_on() {
    let undisturbed = written();
    for cut in 0..=2 {
        let folder = Folder::empty();
        let header = TraceHeader { derived_from: Vec::new(), ..header_of_trees() };
        let mut writer = TraceWriter::create(&folder.trace(), header, Leftover::Resume).unwrap();
        for problem in &problems()[..cut] {
            writer.push_problem(problem).unwrap();
        }
        drop(writer);
        if cut == 2 {
            fs::write(folder.partial().join("journal/batch00001.branches.parquet"), b"cut").unwrap();
        }
        trees().write(&folder.trace(), Leftover::Resume).unwrap();
        assert_eq!(files(&folder.trace()), files(&undisturbed.trace()), "{cut}");
    }
}

#[test]
fn interrupted_before_the_last_rename_it_is_only_moved() {
    let folder = written();
    let finished = files(&folder.trace());
    fs::rename(folder.trace(), folder.partial()).unwrap();
    trees().write(&folder.trace(), Leftover::Resume).unwrap();
    assert_eq!(files(&folder.trace()), finished);
}

/// The header that the generator writes, read back from what it wrote.
fn header_of_trees() -> TraceHeader {
    let folder = written();
    let trace = Trace::open(&folder.trace()).unwrap();
    let manifest = trace.manifest().clone();
    TraceHeader {
        synthetic: manifest.synthetic,
        tool: manifest.tool,
        model: manifest.model,
        shape: manifest.shape,
        rope: None,
        runtime: None,
        decoding: manifest.decoding,
        workload: manifest.workload,
        seed: manifest.seed,
        shard_tokens: manifest.shard_tokens,
        fields: StoredFields { hidden: false, attention: None, lens: None, lens_top: 0 },
        weights: Default::default(),
        branches: Some(StoredBranches {
            similarity: true,
            steps: true,
            verdicts: true,
            yes_token: None,
            no_token: None,
        }),
        requests: None,
        times: false,
        derived_from: Vec::new(),
    }
}

/// Edits one column of a facts table, seals the trace, and expects that it is refused with these words.
fn refused(words: &str, table: &str, column: &str, edit: impl FnOnce(&mut Column)) {
    let folder = written();
    let inside = format!("facts/{table}.parquet");
    let facts = read_parquet(&folder.path(&inside)).unwrap();
    let mut edit = Some(edit);
    let mut edited = Table::new();
    for (name, values) in facts.names().iter().zip(facts.columns()) {
        let mut values = values.clone();
        if let Some(edit) = edit.take_if(|_| name == column) {
            edit(&mut values);
        }
        edited.push(name, values).unwrap();
    }
    assert!(edit.is_none(), "no column {column}");
    write_parquet(&edited, &folder.path(&inside)).unwrap();
    folder.replace(&inside, &fs::read(folder.path(&inside)).unwrap());
    let error = verify(&folder.trace()).unwrap_err();
    assert!(error.to_string().contains(words), "`{words}` is not in: {error}");
}

fn int(row: usize, value: impl Into<Option<i64>>) -> impl FnOnce(&mut Column) {
    let value = value.into();
    move |column| match column {
        Column::Int(values) => values[row] = value,
        other => panic!("{}", other.kind()),
    }
}

fn real(row: usize, value: f64) -> impl FnOnce(&mut Column) {
    move |column| match column {
        Column::Real(values) => values[row] = Some(value),
        other => panic!("{}", other.kind()),
    }
}

fn text(row: usize, value: Option<&str>) -> impl FnOnce(&mut Column) {
    let value = value.map(Into::into);
    move |column| match column {
        Column::Text(values) => values[row] = value,
        other => panic!("{}", other.kind()),
    }
}

#[test]
fn branch_facts_that_cannot_be_are_refused_with_their_place() {
    refused("parent, row 1 of the problem: found nothing", "branches", "parent", int(1, None));
    refused("parent, row 1 of the problem: found 2", "branches", "parent", int(1, 2));
    refused("parent, row 0 of the problem: found 0", "branches", "parent", int(0, 0));
    refused("depth, row 1 of the problem: found 2, accepted: 1", "branches", "depth", int(1, 2));
    refused("wording_level, row 1", "branches", "wording_level", int(1, 4));
    refused("seq, row 1", "branches", "seq", int(1, 0));
    refused("rows of problem 0", "branches", "suffix_tokens", int(1, 3));
    refused("with SHA-256", "branch_tokens", "token", int(4, 7));
    refused("in_prefix", "branch_tokens", "in_prefix", |column| {
        if let Column::Bool(values) = column {
            values[4] = Some(false);
        }
    });
    refused("cos_last, row 0", "branch_similarity", "cos_last", real(0, 1.5));
    refused("state, row 1", "branch_similarity", "state", int(1, 2));
    refused("branch, row 1", "branch_outcomes", "branch", int(1, 0));
    refused(
        "prefix, row 0 of the problem: found `roots`",
        "branch_outcomes",
        "prefix",
        text(0, Some("roots")),
    );
    refused("prefix, row 0 of the problem: found nothing", "branch_outcomes", "prefix", text(0, None));
    refused("accepted: an answer, since it is correct", "branch_outcomes", "answer", |column| {
        if let Column::Text(values) = column {
            values.fill(None);
        }
    });
    refused("rows of problem 0", "branch_outcomes", "generated_tokens", int(0, 4));
    refused("confidences", "branch_outcomes", "mean_top1_prob", real(0, 0.5));
    refused("prob", "branch_steps", "prob", real(0, 1.0));
    refused("entropy_nats", "branch_steps", "entropy_nats", real(0, 8.0));
    refused("step, row 1 of the problem: found 0", "branch_steps", "step", int(1, 0));
    refused("p_yes, row 0", "branch_verdicts", "p_yes", real(0, -0.5));
    refused("top2_prob", "branch_verdicts", "top2_prob", real(0, 1.0));
    refused("js_previous_nats", "branch_verdicts", "js_previous_nats", real(0, 0.75));
    refused("rows of problem 0", "branch_outcomes", "verdict_tokens", int(0, 0));
}

#[test]
fn a_branch_of_a_recorded_sequence_has_its_prompt() {
    let folder = Folder::empty();
    let header = with_branches(recorded_header(Dtype::F32));
    let mut writer = TraceWriter::create(&folder.trace(), header, Leftover::Refuse).unwrap();
    let recorded = super::support::Recorded::new(9, 1);
    recorded.record(&mut writer, &[4]).unwrap();
    let mut problem = problems().remove(0);
    problem.branches[0].seq = Some(kvlab_sim::types::SeqIdx::new(0));
    // The prompt of the sequence is its first five tokens.
    problem.branches[0].tokens = recorded.tokens[..5].to_vec();
    writer.push_problem(&problem).unwrap();
    problem.branches[0].tokens[2] = problem.branches[0].tokens[1];
    writer.push_problem(&problem).unwrap();
    writer.finish().unwrap();
    let error = verify(&folder.trace()).unwrap_err();
    assert!(error.to_string().contains("problem 1, branch 0: found 5 tokens"), "{error}");
}

#[test]
fn problems_that_do_not_fit_are_refused_whole() {
    let folder = Folder::empty();
    let header = with_branches(recorded_header(Dtype::F32));
    let mut writer = TraceWriter::create(&folder.trace(), header, Leftover::Refuse).unwrap();
    let good = problems().remove(0);
    let mut refuse = |words: &str, edit: &dyn Fn(&mut Problem)| {
        let mut bad = good.clone();
        edit(&mut bad);
        let error = writer.push_problem(&bad).unwrap_err();
        assert!(error.to_string().contains(words), "`{words}` is not in: {error}");
    };
    refuse("problem 0: found 0", &|p| p.branches.clear());
    refuse("branch 1: parent", &|p| p.branches[1].parent = Some(1));
    refuse("branch 0: parent", &|p| p.branches[0].parent = Some(0));
    refuse("prefix_len", &|p| p.branches[1].prefix_len = 8);
    refuse("tokens", &|p| p.branches[1].tokens[0] = kvlab_sim::types::TokenId::new(40));
    refuse("similarity", &|p| p.branches[1].similarity[1].cos_last = f32::NAN);
    refuse("own outcome: steps", &|p| p.branches[1].own.as_mut().unwrap().steps.clear());
    refuse("root outcome: confidences", &|p| {
        p.branches[1].root.as_mut().unwrap().confidences.min_prob = 0.125;
    });
    refuse("own outcome: verdict", &|p| {
        p.branches[1].own.as_mut().unwrap().verdict.as_mut().unwrap().layers.clear();
    });
    let request = Request { timestamp_ms: 0, input_tokens: 1, output_tokens: 1, hashes: Vec::new() };
    assert!(writer.push_requests(&[request]).is_err(), "the header names no requests");
    assert_eq!(writer.finished_problems(), 0);
    assert_eq!(good.branches[1].outcome(Prefix::Own), good.branches[1].own.as_ref());
}

fn requests() -> Vec<Request> {
    (0..5_000_u64)
        .map(|at| Request {
            timestamp_ms: at * 3,
            input_tokens: 900,
            output_tokens: 7,
            hashes: vec![0, 1 + at % 3],
        })
        .collect()
}

#[test]
fn requests_come_back_in_batches_and_need_nothing_else() {
    let folder = Folder::empty();
    let fields = StoredFields { hidden: false, attention: None, lens: None, lens_top: 0 };
    let mut header = TraceHeader {
        fields,
        runtime: None,
        rope: None,
        requests: Some(StoredRequests { block_tokens: 512 }),
        ..recorded_header(Dtype::F32)
    };
    header.model.weights_sha256 = None;
    let mut writer = TraceWriter::create(&folder.trace(), header.clone(), Leftover::Refuse).unwrap();
    let all = requests();
    let mut late = all[0].clone();
    writer.push_requests(&all[..3000]).unwrap();
    assert!(writer.push_requests(std::slice::from_ref(&late)).is_err(), "it arrives before the last one");
    late.timestamp_ms = 99_999;
    late.hashes = vec![1, 2, 3];
    assert!(writer.push_requests(&[late]).is_err(), "three blocks of 512 for 900 tokens");
    drop(writer);
    let mut writer = TraceWriter::create(&folder.trace(), header, Leftover::Resume).unwrap();
    assert_eq!(writer.finished_requests(), 3000);
    writer.push_requests(&all[3000..]).unwrap();
    writer.finish().unwrap();
    assert_eq!(verify(&folder.trace()).unwrap().requests, 5000);
    let trace = Trace::open(&folder.trace()).unwrap();
    let mut found = Vec::new();
    trace
        .for_each_request(|at, request| {
            assert_eq!(at as usize, found.len());
            found.push(request.clone());
            Ok(())
        })
        .unwrap();
    assert_eq!(found, all);
    let error =
        trace.layer(kvlab_sim::types::SeqIdx::new(0), kvlab_sim::types::LayerIdx::new(0)).unwrap_err();
    assert!(matches!(error, TraceError::OutOfRange { .. } | TraceError::MissingField { .. }), "{error}");
}
