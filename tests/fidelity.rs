//! The same policy objects in the replay and in the loop of a model: equal states give equal evictions.
//!
//! Models here are small and random. What they say means nothing; what is kept, and when, must be exact.

mod identity;
mod resumed;
mod served;
mod trees;

use std::num::NonZeroUsize;
use std::path::Path;

use kvlab_executor::closed_loop::{
    ClosedLoopError, ExecPlan, FinishReason, Limits, LiveCell, LiveHead, LiveRun, Mode, Prefix, QueryRing,
    exec, force, generate,
};
use kvlab_executor::{
    ExecutorError, Graded, ItemSet, Model, OpenLoop, PlannedWeights, PromptForm, PromptLens, Quantity, Quiet,
    RecordItem, RecordPlan, Taps, TinySpec, record,
};
use kvlab_sim::policy::compose::{Knobs, Stack};
use kvlab_sim::policy::{HeadData, PolicyError, RawParams, registry};
use kvlab_sim::replay::{EvictionCell, LayerEviction, LayerModel, Settings, replay_cells};
use kvlab_sim::results::Results;
use kvlab_sim::rope::Rope;
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Value;
use kvlab_sim::trace::{
    Dtype, Leftover, SequenceMeta, StoredFields, ToolInfo, Trace, TraceSource, WorkloadInfo,
};
use kvlab_sim::types::{Pos, SeqIdx};

use crate::executor::support::{chunk, golden_folder, load_options, tiny};

/// Evictions at 32 stored tokens, first in the 8th decode step of a prompt of 24, then every 8 steps.
const KNOBS: Knobs = Knobs { capacity: 24, recent: 8, sinks: 2, period: 8, window: 8 };
const NEW: u32 = 44;
const SEED: u64 = 5;

fn prompt(begin: u32) -> Vec<u32> {
    (0..24).map(|i| (begin + i * 37 + 11) % 61).collect()
}

fn composition(id: &str, knobs: &Knobs) -> Stack {
    registry::composition(id).unwrap().stack(knobs, &RawParams::default()).unwrap()
}

fn prefix(model: &mut Model, tokens: &[u32]) -> Prefix {
    Prefix::new(model, tokens, chunk(16), KNOBS.window).unwrap()
}

fn seq(index: usize) -> SeqIdx {
    SeqIdx::new(u32::try_from(index).unwrap())
}

/// A stack that never evicts, and one whose budget is never exceeded, decode what a plain decoder decodes.
#[test]
fn without_evictions_the_loop_gives_the_full_caches_tokens() {
    let mut model = tiny(TinySpec::default());
    let tokens = prompt(0);
    let expected = model.decoder().unwrap().generate(&tokens, chunk(16), 40, &|_| false).unwrap();
    let prefix = prefix(&mut model, &tokens);
    for (id, capacity) in [("full", 24), ("snapkv", 256), ("vase-attnv", 256)] {
        let stack = composition(id, &Knobs { capacity, ..KNOBS });
        let run = LiveRun::fork(&mut model, &prefix, LiveCell::new(&stack, 0), seq(0)).unwrap();
        let limits = Limits { max_new_tokens: 40, stops: &[] };
        let run = generate(run, &prefix, limits, drop).unwrap();
        assert_eq!(run.tokens, expected, "{id}");
        assert_eq!((run.finish, run.footprint.eviction_count()), (FinishReason::Length, 0));
        // 64 tokens in 3 layers of 2 KV heads.
        assert_eq!((run.footprint.peak_entries, run.footprint.seen), (64 * 6, 64));
        assert_eq!(run.footprint.mean_keep_ratio, Some(1.0));
    }
}

fn recorded(model: &mut Model, folder: &Path) -> Trace {
    let plan = RecordPlan {
        weights: PlannedWeights { w_o: Some(Dtype::F32), head: None },
        max_bytes: None,
        times: false,
        open_loop: OpenLoop {
            chunk: chunk(16),
            max_new_tokens: NEW,
            fields: StoredFields { hidden: false, attention: Some(Dtype::F32), lens: None, lens_top: 0 },
            prompt_lens: PromptLens::Last,
        },
        tool: ToolInfo { name: "test".to_owned(), version: "0".to_owned(), revision: None },
        workload: WorkloadInfo { name: "ramp".to_owned(), seed: 0, file_sha256: None },
        seed: 0,
        grader: None,
    };
    let items: Vec<RecordItem> = [0, 9].into_iter().map(|begin| item(begin, prompt(begin))).collect();
    record(model, &items, &plan, folder, Leftover::Refuse, &Quiet).unwrap();
    Trace::open(folder).unwrap()
}

fn item(name: u32, tokens: Vec<u32>) -> RecordItem {
    RecordItem {
        item: name.to_string(),
        prompt: PromptForm::Tokens(tokens),
        stops: Vec::new(),
        expected_answer: None,
    }
}

/// Evictions that the replay makes, `[layer][eviction]`, or why it makes none.
fn replayed(
    trace: &Trace,
    meta: &SequenceMeta,
    stack: &Stack,
) -> Result<Vec<Vec<LayerEviction>>, PolicyError> {
    let cells = [EvictionCell { stack, seed: SEED }];
    let rope = Some(Rope::new(trace.rope().unwrap()).unwrap());
    let of_layer = |layer| {
        let tensors = trace.layer(meta.seq, layer).unwrap();
        let settings = Settings { output_error_every: 0, ..Settings::default() };
        let model = LayerModel { rope: rope.as_ref(), w_o: Some(trace.w_o(layer).unwrap()) };
        let outcomes = replay_cells(trace.shape(), meta, layer, &tensors, &model, &cells, settings).unwrap();
        outcomes.into_iter().next().unwrap().map(|outcome| outcome.evictions)
    };
    trace.shape().layer_ids().map(of_layer).collect()
}

/// Evictions that the closed loop makes on the recorded tokens, `[layer][eviction]`, or why it makes none.
fn lived(
    model: &mut Model,
    prefix: &Prefix,
    tokens: &[u32],
    stack: &Stack,
    seed: u64,
    index: usize,
) -> Result<Vec<Vec<LayerEviction>>, ExecutorError> {
    let run = LiveRun::fork(model, prefix, LiveCell::new(stack, seed), seq(index))?;
    Ok(force(run, tokens, &[])?.footprint.evictions)
}

/// Every composition, every scorer under plain parts, every budget and schedule under some scorers, and one reserve that must
/// refuse: other combinations of the same parts would show nothing new.
fn is_compared(name: &str) -> bool {
    let parts: Vec<&str> = name.split(" + ").collect();
    match parts[..] {
        [_, reserve, select] => {
            name == "recency + prompt + top-k"
                || (reserve, select) == ("none", "top-k")
                || !matches!(select, "top-k" | "weighted-sample")
        }
        _ => true,
    }
}

/// On recorded tokens states are the recorded ones until the first eviction, and those of layer 0 for ever: a token's keys,
/// values and queries there depend on the token and its position alone. Kept sets are compared in slot order.
#[test]
fn kept_sets_in_the_loop_are_those_of_the_replay() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = tiny(TinySpec::default());
    let trace = recorded(&mut model, &folder.path().join("trace"));
    let (mut stacks_that_evict, mut drifted, mut refused) = (0, 0, 0);
    for (index, meta) in trace.sequences().iter().enumerate() {
        let all: Vec<u32> = trace.tokens(meta.seq).unwrap().iter().map(|token| token.get()).collect();
        let (before, after) = all.split_at(meta.prompt_len as usize);
        let stacks: Vec<(String, Stack)> = kvlab_sim::contract::subjects()
            .into_iter()
            // Some parts refuse each other: a sampler and scores below 0.
            .filter_map(|subject| Some((subject.name().to_owned(), subject.build(&KNOBS).ok()?)))
            .filter(|(name, stack)| !stack.needs().future && is_compared(name))
            .collect();
        let all_stacks = stacks.iter().map(|(_, stack)| stack);
        let prefix = Prefix::for_stacks(&mut model, before, chunk(16), all_stacks).unwrap();
        assert_eq!(prefix.next(), after[0]);
        for (name, stack) in stacks {
            let expected = replayed(&trace, meta, &stack);
            let found = lived(&mut model, &prefix, after, &stack, SEED, index);
            let (expected, found) = match (expected, found) {
                (Ok(expected), Ok(found)) => (expected, found),
                (Err(expected), Err(found)) => {
                    assert_eq!(expected.to_string(), found.to_string(), "{name}: the reason");
                    refused += 1;
                    continue;
                }
                (expected, found) => panic!("{name}: {expected:?} in replay, {found:?} in the loop"),
            };
            stacks_that_evict += usize::from(!expected[0].is_empty());
            for (layer, (expected, found)) in expected.iter().zip(&found).enumerate() {
                assert_eq!(expected.len(), found.len(), "{name}, item {index}, layer {layer}: evictions");
                for (eviction, (expected, found)) in expected.iter().zip(found).enumerate() {
                    let place = format!("{name}, item {index}, layer {layer}, eviction {eviction}");
                    assert_eq!(expected.seen, found.seen, "{place}: tokens seen");
                    for (head, (expected, found)) in expected.heads.iter().zip(&found.heads).enumerate() {
                        // What is read otherwise changes deeper states from the first step on.
                        if layer == 0 || (eviction == 0 && !stack.is_read_otherwise()) {
                            assert_eq!(expected, found, "{place}, KV head {head}: kept set");
                        }
                        drifted += usize::from(expected != found);
                    }
                }
            }
        }
    }
    assert_eq!(refused, 2, "a prompt that does not fit, for two items");
    assert!(stacks_that_evict > 150, "{stacks_that_evict} stacks evicted");
    assert!(drifted > 0, "deeper layers see other states after an eviction: the loop is closed");
}

#[test]
fn distributions_are_the_full_caches_until_the_first_eviction() {
    let mut model = tiny(TinySpec::default());
    let prefix = prefix(&mut model, &prompt(3));
    let full = composition("full", &KNOBS);
    let mut logits = Vec::new();
    let run = LiveRun::fork(&mut model, &prefix, LiveCell::new(&full, 0), seq(0)).unwrap();
    let limits = Limits { max_new_tokens: NEW, stops: &[] };
    let tokens = generate(run, &prefix, limits, |row| logits.push(row)).unwrap().tokens;
    let stack = composition("random", &KNOBS);
    let run = LiveRun::fork(&mut model, &prefix, LiveCell::new(&stack, 1), seq(0)).unwrap();
    let forced = force(run, &tokens, &logits).unwrap();
    assert_eq!(forced.divergences.len(), NEW as usize - 1, "after each token but the last");
    let (before, after) = forced.divergences.split_at(8);
    assert!(
        before.iter().all(|kl| *kl < 1e-300),
        "the token of the 8th step attends before the eviction: {before:?}"
    );
    assert!(after.iter().all(|kl| *kl > 0.0), "{after:?}");
    assert!(forced.agreements >= 8 && forced.agreements < u64::from(NEW) - 1, "{}", forced.agreements);
}

#[test]
fn positions_after_evictions_are_original_ones() {
    let mut model = tiny(TinySpec::default());
    let prefix = prefix(&mut model, &prompt(1));
    let stack = composition("vase-attnv", &KNOBS);
    let mut run = LiveRun::fork(&mut model, &prefix, LiveCell::new(&stack, 2), seq(0)).unwrap();
    // Evictions in steps 8 and 16; three tokens more.
    for token in 0..19 {
        run.step(token).unwrap();
    }
    assert_eq!(run.decoder().next_position(), 43);
    for layer in run.decoder().cache().layers() {
        for head in 0..2 {
            let resident: Vec<u32> = layer.resident(head).collect();
            assert_eq!(resident.len(), 24 + 3);
            assert!(resident.is_sorted() && resident.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!(resident[..2], [0, 1], "sinks");
            assert_eq!(resident[16..], (32..43).collect::<Vec<u32>>(), "recent tokens and those after");
        }
    }
    assert_eq!(run.finish().eviction_count(), 2);
}

#[test]
fn what_is_not_at_hand_reads_as_nan_and_is_remembered() {
    let mut model = tiny(TinySpec::default());
    let config = model.config().clone();
    let mut decoder = model.decoder().unwrap();
    let mut ring = QueryRing::new(&config, 3);
    let taps = Taps { queries: true, ..Taps::NONE };
    ring.take(&decoder.forward(&[5, 6], taps).unwrap());
    let pass = decoder.forward(&[7, 8], taps).unwrap();
    ring.take(&pass);
    decoder.retain(1, &[vec![0, 3], vec![2]]).unwrap();
    let head = LiveHead::new(&decoder.cache().layers()[1], &ring, 1, 1).unwrap();
    assert_eq!(head.missed(), None);
    let is_there = |row: &[f32]| row.len() == 8 && row.iter().all(|x| x.is_finite());
    let resident: Vec<bool> = (0..5).map(|pos| is_there(head.key(Pos::new(pos)))).collect();
    assert_eq!(resident, [false, false, true, false, false]);
    assert!(head.value(Pos::new(3)).iter().all(|x| x.is_nan()));
    let queries: Vec<bool> = (0..5).map(|pos| is_there(head.query(1, Pos::new(pos)))).collect();
    assert_eq!(queries, [false, true, true, true, false], "the last three of four");
    // Query head 3 is the second of KV head 1; position 3 is the second row of the last pass.
    let expected = pass.queries.unwrap().slice(ndarray::s![1, 3, 1, ..]).to_vec();
    assert_eq!(head.query(1, Pos::new(3)), expected);
    assert_eq!(head.missed(), Some((Quantity::Query, Pos::new(4))));
}

#[test]
fn a_policy_that_looks_further_back_than_the_ring_is_stopped() {
    let mut model = tiny(TinySpec::default());
    let tokens = prompt(0);
    let prefix = Prefix::new(&mut model, &tokens, chunk(16), KNOBS.window - 1).unwrap();
    let stack = composition("snapkv", &KNOBS);
    let run = LiveRun::fork(&mut model, &prefix, LiveCell::new(&stack, 0), seq(0)).unwrap();
    // The first eviction is after 32 tokens; queries from position 24 on are looked at, and from 25 on they are there.
    let error = force(run, &tokens, &[]).unwrap_err().to_string();
    let expected = "`snapkv`: a query at position 24 in layer 0, KV head 0 is not at hand";
    assert!(error.contains(expected), "{error}");
}

/// Says that about half of all texts are right, by their bytes.
fn by_bytes(text: &str, _expected: &str) -> Graded {
    let sum: u32 = text.bytes().map(u32::from).sum();
    Graded { answer: Some(sum.to_string()), correct: sum.is_multiple_of(2) }
}

/// Six prompts for a small random model with a tokenizer; the last has no expected answer.
fn items() -> ItemSet {
    let texts =
        ["The lighthouse", "Anna has 3 boxes", "how many pencils?", "at Cape Merrin", "in 1871", "by"];
    let items = texts
        .into_iter()
        .map(|text| RecordItem {
            item: text.to_owned(),
            prompt: PromptForm::Text(text.repeat(4)),
            stops: Vec::new(),
            expected_answer: (text != "by").then(|| "any".to_owned()),
        })
        .collect();
    ItemSet { name: "texts".to_owned(), items, grader: by_bytes, usual_new_tokens: 24 }
}

const SCENARIO: &str = "
id: loop
why: Does a policy in the loop give rows?
seeds: [3, 4]
eviction:
  budgets: [12, 16]
  recent: 4
  sinks: 1
  policies: [{use: full}, {use: random}, {use: snapkv}, {use: vase-attnv}]
";

fn executed(mode: Mode, scenario: &str) -> Result<Results, ExecutorError> {
    executed_up_to(24, mode, scenario)
}

fn executed_up_to(max_new_tokens: u32, mode: Mode, scenario: &str) -> Result<Results, ExecutorError> {
    let mut model = Model::load(&golden_folder().join("export/qwen3"), &load_options(), &Quiet).unwrap();
    let scenario = Scenario::parse(scenario, "test").unwrap();
    let plan = ExecPlan {
        scenario: &scenario,
        mode,
        max_new_tokens,
        chunk: NonZeroUsize::new(64).unwrap(),
        command: "kvlab exec".to_owned(),
    };
    exec(&mut model, &items(), &plan, &Quiet)
}

/// An answer that could run past the positions the model was made for is refused with the numbers, before anything runs.
#[test]
fn an_answer_longer_than_the_context_is_refused() {
    let error = executed_up_to(u32::MAX, Mode::Free, SCENARIO).unwrap_err().to_string();
    assert!(error.contains("4294967295 new ones do not fit into a context of"), "{error}");
}

fn number(results: &Results, column: &str, row: usize) -> f64 {
    match results.cells.value(column, row) {
        Value::Real(number) => number,
        Value::Int(number) => f64::from(i32::try_from(number).unwrap()),
        other => panic!("{column} of row {row} is {other:?}"),
    }
}

fn count(results: &Results, column: &str, row: usize) -> i64 {
    match results.cells.value(column, row) {
        Value::Int(number) => number,
        other => panic!("{column} of row {row} is {other:?}"),
    }
}

#[test]
fn free_rows_have_rates_with_counts_and_paired_intervals() {
    let results = executed(Mode::Free, SCENARIO).unwrap();
    let cells = &results.cells;
    // full, random at two budgets and two seeds, snapkv at two budgets, vase-attnv as random.
    assert_eq!(cells.rows(), 1 + 4 + 2 + 4);
    for row in 0..cells.rows() {
        let of = |column: &str| number(&results, column, row);
        assert_eq!(cells.value("status", row), Value::Text("ok".to_owned()));
        assert_eq!(cells.value("arm", row), Value::Text("real".to_owned()));
        let counts =
            ["sequences", "accuracy_den", "accuracy_vs_full_n", "truncated_rate_den", "generated_tokens_n"];
        assert_eq!(counts.map(|column| count(&results, column, row)), [6, 5, 5, 6, 6]);
        let right = of("accuracy_num");
        assert!((of("accuracy") - right / 5.0).abs() < 1e-12);
        assert!(of("accuracy_lo") <= of("accuracy") && of("accuracy") <= of("accuracy_hi"));
        let gain = (right - number(&results, "accuracy_num", 0)) / 5.0;
        assert!((of("accuracy_vs_full") - gain).abs() < 1e-12);
        assert!(of("accuracy_vs_full_lo") <= gain + 1e-12 && gain <= of("accuracy_vs_full_hi") + 1e-12);
        assert!(of("generated_tokens") <= 24.0);
        let evicts = row > 0;
        assert_eq!(of("evictions") > 0.0, evicts);
        assert_eq!(of("mean_keep_ratio") < 1.0, evicts);
        assert!(of("peak_kv_bytes") <= number(&results, "peak_kv_bytes", 0));
    }
    assert_eq!(
        (number(&results, "accuracy_vs_full_lo", 0), number(&results, "accuracy_vs_full_hi", 0)),
        (0.0, 0.0)
    );
    assert!(cells.column("next_token_kl").is_none(), "nothing was forced");
}

#[test]
fn forced_rows_measure_the_distance_to_the_full_cache() {
    let results = executed(Mode::Forced, SCENARIO).unwrap();
    assert!(results.cells.column("accuracy").is_none(), "nothing was answered");
    for row in 0..results.cells.rows() {
        let of = |column: &str| number(&results, column, row);
        assert_eq!(count(&results, "next_token_kl_n", row), 6);
        assert!(
            of("next_token_kl_lo") <= of("next_token_kl") && of("next_token_kl") <= of("next_token_kl_hi")
        );
        assert!(of("top1_agreement_num") <= of("top1_agreement_den"));
        if row == 0 {
            assert_eq!((of("next_token_kl"), of("top1_agreement")), (0.0, 1.0), "the full cache is itself");
        } else {
            assert!(of("next_token_kl") > 0.0);
        }
    }
}

#[test]
fn runs_repeat_and_seeds_matter_to_random_policies_only() {
    let first = executed(Mode::Free, SCENARIO).unwrap();
    assert_eq!(first, executed(Mode::Free, SCENARIO).unwrap());
    let digest = |row| first.cells.value("log_digest", row);
    assert_ne!(digest(1), digest(2), "random at 12: seeds 3 and 4");
    // A cell does not depend on what else is in the scenario.
    let alone =
        SCENARIO.replace("[{use: full}, {use: random}, {use: snapkv}, {use: vase-attnv}]", "[{use: random}]");
    let alone = executed(Mode::Free, &alone).unwrap();
    for row in 0..4 {
        assert_eq!(alone.cells.value("log_digest", row), digest(row + 1));
        assert_eq!(alone.cells.value("cell", row), first.cells.value("cell", row + 1));
        assert_eq!(
            alone.cells.value("accuracy_vs_full", row),
            first.cells.value("accuracy_vs_full", row + 1),
            "the full cache is run whether it is listed or not"
        );
    }
}

#[test]
fn what_cannot_be_executed_says_why() {
    let error = executed(Mode::Free, "id: e\nwhy: w\nexit: {theta: 1, epsilon: 1}\n").unwrap_err();
    assert!(matches!(error, ExecutorError::ClosedLoop(ClosedLoopError::NoEviction { .. })), "{error}");
    assert!(error.to_string().contains("`e`") && error.to_string().contains("eviction"), "{error}");
    let small = SCENARIO.replace("budgets: [12, 16]", "budgets: [4, 12]");
    let results = executed(Mode::Free, &small).unwrap();
    let skipped = (0..results.cells.rows())
        .filter(|row| results.cells.value("status", *row) == Value::Text("skipped".to_owned()));
    assert_eq!(skipped.count(), 3, "random, snapkv and vase-attnv at a budget of 4");
}

/// Cells that come first are whole when the time is up; the others say how far they came, and nothing of them is counted.
#[test]
fn a_limit_of_time_leaves_whole_cells_and_skipped_ones() {
    use kvlab_executor::{Journal, closed_loop::exec_within};
    let mut model = Model::load(&golden_folder().join("export/qwen3"), &load_options(), &Quiet).unwrap();
    let scenario = Scenario::parse(SCENARIO, "test").unwrap();
    let plan = ExecPlan {
        scenario: &scenario,
        mode: Mode::Free,
        max_new_tokens: 24,
        chunk: NonZeroUsize::new(64).unwrap(),
        command: "kvlab exec".to_owned(),
    };
    let waves = [vec![5, 6], vec![0, 1, 2, 3, 4, 7, 8, 9, 10]];
    // Asked once an item and once a run: the first wave takes 18, the second is cut off within its third item.
    let asked = std::cell::Cell::new(0);
    let is_over = || {
        asked.set(asked.get() + 1);
        asked.get() > 18 + 2 * 10 + 3
    };
    let cut =
        exec_within(&mut model, &items(), &plan, &waves, &is_over, &mut Journal::default(), &Quiet).unwrap();
    let whole = executed(Mode::Free, SCENARIO).unwrap();
    for row in 0..whole.cells.rows() {
        // The first wave ran the full cache on every problem, too.
        if [0, 5, 6].contains(&row) {
            for name in ["cell", "status", "accuracy", "log_digest", "accuracy_vs_full"] {
                assert_eq!(cut.cells.value(name, row), whole.cells.value(name, row), "{name} of row {row}");
            }
        } else {
            assert_eq!(cut.cells.value("status", row), Value::Text("skipped".to_owned()), "row {row}");
            assert_eq!(cut.cells.value("accuracy", row), Value::Absent);
            let Value::Text(why) = cut.cells.value("error", row) else { panic!("a reason") };
            assert!(why.starts_with("the time was up after ") && why.ends_with(" of 6 problems"), "{why}");
        }
    }
}
