//! Executions that stop in the middle and go on: the same results, and nothing of other settings is taken over.

use super::{SCENARIO, items};
use crate::executor::support::{golden_folder, load_options};
use kvlab_executor::closed_loop::{ExecPlan, Mode, exec, exec_within};
use kvlab_executor::fidelity::{Fidelity, FidelityPlan, fidelity, fidelity_kept};
use kvlab_executor::{
    ExecutorError, ItemSet, JOURNAL, Journal, JournalError, Model, Progress, Quiet, Reached,
};
use kvlab_sim::results::{Results, read};
use kvlab_sim::scenario::Scenario;
use std::cell::Cell;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

fn model() -> Model {
    Model::load(&golden_folder().join("export/qwen3"), &load_options(), &Quiet).unwrap()
}

fn plan(scenario: &Scenario, mode: Mode) -> ExecPlan<'_> {
    let chunk = NonZeroUsize::new(64).unwrap();
    ExecPlan { scenario, mode, max_new_tokens: 16, chunk, command: "kvlab exec".to_owned() }
}

/// Three of the problems.
fn few() -> ItemSet {
    let mut set = items();
    set.truncate(3);
    set
}

/// Runs in a folder with a journal until `runs` new ones were made; gives the results and how many were there before.
fn some(model: &mut Model, folder: &Path, plan: &ExecPlan<'_>, set: &ItemSet, runs: usize) -> (Results, u64) {
    let mut journal = Journal::open(folder).unwrap();
    let before = journal.len() as u64;
    let cells = plan.scenario.plan(model.shape().unwrap().vocab).eviction.len();
    let made = Cell::new(0);
    let is_over = || {
        made.set(made.get() + 1);
        made.get() > runs
    };
    let waves = [(0..cells / 2).collect(), (cells / 2..cells).collect::<Vec<usize>>()];
    let results = exec_within(model, set, plan, &waves, &is_over, &mut journal, &Quiet).unwrap();
    journal.close().unwrap();
    (results, before)
}

/// Wherever an execution stops, the next one makes what is missing and ends with the same tables; then nothing is left of the journal.
#[test]
fn an_execution_that_stopped_ends_as_one_that_did_not() {
    let (mut model, set) = (model(), few());
    let scenario = Scenario::parse(SCENARIO, "test").unwrap();
    for mode in [Mode::Free, Mode::Forced] {
        let plan = plan(&scenario, mode);
        let whole = exec(&mut model, &set, &plan, &Quiet).unwrap();
        for step in [1, 5, 10] {
            let folder = tempfile::tempdir().unwrap();
            let (mut starts, mut last) = (0, 0);
            let results = loop {
                let (results, before) = some(&mut model, folder.path(), &plan, &set, step * 3);
                assert!(starts == 0 || before > last, "{mode:?}, {step}: start {starts} has {before}");
                (starts, last) = (starts + 1, before);
                if !folder.path().join(JOURNAL).exists() {
                    break results;
                }
            };
            assert!(starts > 1, "{mode:?}, {step}: it did not stop");
            assert_eq!(results, whole, "{mode:?}, {step}: {starts} starts");
        }
    }
}

#[test]
fn a_shorter_execution_that_ends_leaves_the_runs_of_a_longer_one() {
    let (mut model, set) = (model(), few());
    let scenario = Scenario::parse(SCENARIO, "test").unwrap();
    let plan = plan(&scenario, Mode::Free);
    let folder = tempfile::tempdir().unwrap();
    some(&mut model, folder.path(), &plan, &set, 12);
    let kept = Journal::open(folder.path()).unwrap().len();
    let mut one = few();
    one.truncate(1);
    let (results, before) = some(&mut model, folder.path(), &plan, &one, usize::MAX);
    assert_eq!(results, exec(&mut model, &one, &plan, &Quiet).unwrap());
    let (results, after) = some(&mut model, folder.path(), &plan, &set, usize::MAX);
    assert!(before == kept as u64 && after >= before, "{kept} runs, then {before} and {after}");
    assert_eq!(results, exec(&mut model, &set, &plan, &Quiet).unwrap());
    assert!(!folder.path().join(JOURNAL).exists(), "all of it is done");
}

/// Listens to how far a piece is.
#[derive(Default)]
struct Listener(Mutex<Vec<Reached>>);

impl Progress for Listener {
    fn start(&self, _label: &str, _total: Option<u64>) {}
    fn advance(&self, _amount: u64) {}
    fn message(&self, _text: &str) {}
    fn reached(&self, reached: Reached) {
        self.0.lock().unwrap().push(reached);
    }
    fn finish(&self) {}
}

/// Lines of a journal as they are after each run, header first.
fn journal_of(folder: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(folder.join(JOURNAL)).unwrap();
    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Identities, failures and the curve, in words.
fn said(found: &Fidelity) -> String {
    format!("{:?} {:?}", found.cells, found.predictor)
}

fn fidelity_plan(scenario: &Scenario) -> FidelityPlan<'_> {
    FidelityPlan { exec: plan(scenario, Mode::Forced), with_answers: true }
}

const ALL_KINDS: &str = "
id: kinds
why: Does every kind of cell go on?
seeds: [3]
eviction:
  budgets: [12]
  recent: 4
  sinks: 1
  policies: [{use: full}, {use: random}, {use: snapkv}, {use: oracle}, {use: vase-attnv}]
";

/// What is found by recordings is kept, not the recordings: cut anywhere, the journal gives the same tables, ranks and curve.
#[test]
fn a_comparison_that_stopped_ends_as_one_that_did_not() {
    let (mut model, set) = (model(), few());
    let scenario = Scenario::parse(ALL_KINDS, "test").unwrap();
    let plan = fidelity_plan(&scenario);
    let whole = fidelity(&mut model, &set, &plan, &Quiet).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let heard = Listener::default();
    let mut journal = Journal::open(folder.path()).unwrap();
    let kept = fidelity_kept(&mut model, &set, &plan, &mut journal, &heard).unwrap();
    assert_eq!((&kept.results, said(&kept)), (&whole.results, said(&whole)));
    drop(journal);
    let lines = journal_of(folder.path());
    // A full cache, five estimates and four cells that can run, on three problems; the first line is the header.
    assert_eq!(lines.len(), 1 + 3 * (1 + 5 + 4));
    let heard = heard.0.into_inner().unwrap();
    assert!(heard.iter().map(|reached| reached.done).eq(1..=30) && heard.iter().all(|r| r.total == 30));
    for cut in [1, 2, 4, 8, 11, 12, 25, 30, 31] {
        let mut bytes = lines[..cut].concat();
        // A part of the next line, as a kill leaves it.
        bytes.extend(lines.get(cut).map_or(&[][..], |next| &next[..next.len() / 2]));
        fs::write(folder.path().join(JOURNAL), bytes).unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        assert_eq!((journal.len(), journal.was_cut()), (cut - 1, cut < lines.len()));
        let again = fidelity_kept(&mut model, &set, &plan, &mut journal, &Quiet).unwrap();
        assert_eq!((&again.results, said(&again)), (&whole.results, said(&whole)), "cut after {cut} lines");
        drop(journal);
        assert_eq!(journal_of(folder.path()).len(), lines.len(), "cut after {cut} lines");
    }
}

/// A cell's run is taken over by what decides it: another seed, budget or problem is run, and settings that all runs share are refused.
#[test]
fn nothing_of_other_settings_is_taken_over() {
    let (mut model, set) = (model(), few());
    let scenario = Scenario::parse(SCENARIO, "test").unwrap();
    let folder = tempfile::tempdir().unwrap();
    some(&mut model, folder.path(), &plan(&scenario, Mode::Free), &set, 30);
    let kept = fs::read(folder.path().join(JOURNAL)).unwrap();
    let refused = |model: &mut Model, set: &ItemSet, plan: &ExecPlan<'_>, expected: &str| {
        let mut journal = Journal::open(folder.path()).unwrap();
        let waves = [vec![0]];
        let error = exec_within(model, set, plan, &waves, &|| false, &mut journal, &Quiet).unwrap_err();
        assert!(matches!(error, ExecutorError::Journal(JournalError::Mismatch { .. })), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.remedy().unwrap().contains("--fresh"));
        assert_eq!(fs::read(folder.path().join(JOURNAL)).unwrap(), kept);
    };
    let free = plan(&scenario, Mode::Free);
    refused(&mut model, &set, &plan(&scenario, Mode::Forced), "begun with `mode` \"free\", now \"forced\"");
    let longer = ExecPlan { max_new_tokens: 17, ..free.clone() };
    refused(&mut model, &set, &longer, "begun with `max_new_tokens` 16, now 17");
    let other = Scenario::parse(&SCENARIO.replace("id: loop", "id: other"), "test").unwrap();
    refused(&mut model, &set, &plan(&other, Mode::Free), "begun with `scenario` \"loop\", now \"other\"");
    let named = ItemSet { name: "mine".to_owned(), ..set.clone() };
    refused(&mut model, &named, &free, "begun with `workload` \"texts\", now \"mine\"");
    let mut llama = Model::load(&golden_folder().join("export/llama3"), &load_options(), &Quiet).unwrap();
    refused(&mut llama, &set, &free, "begun with `model.name` \"qwen3\", now \"llama3\"");

    // Cells and problems may change: only what is new is run, and the results are those of a run from nothing.
    let changed =
        SCENARIO.replace("budgets: [12, 16]", "budgets: [12, 20]").replace("seeds: [3, 4]", "seeds: [4]");
    let changed = Scenario::parse(&changed, "test").unwrap();
    let mut other = few();
    other.items[1].prompt = kvlab_executor::PromptForm::Text("another text".repeat(3));
    other.items[2].expected_answer = None;
    let plan = plan(&changed, Mode::Free);
    let (results, before) = some(&mut model, folder.path(), &plan, &other, usize::MAX);
    assert!(before > 0);
    assert_eq!(results, exec(&mut model, &other, &plan, &Quiet).unwrap());
}

fn kvlab(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvlab"));
    command.current_dir(folder).args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(folder: &Path, args: &[&str], code: i32) -> String {
    let Output { status, stdout, stderr } = kvlab(folder, args).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&stderr), String::from_utf8_lossy(&stdout));
    assert_eq!(status.code(), Some(code), "{args:?}: {said}");
    said
}

/// All files of a folder of results.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let mut files: Vec<_> = entries.map(|path| (name(&path), fs::read(&path).unwrap())).collect();
    files.sort();
    files
}

const STUDY: &str = "
id: killed
why: Does a killed execution end as an undisturbed one?
seeds: [0]
eviction: {budgets: [32], recent: 8, sinks: 2, policies: [{use: full}, {use: random}, {use: snapkv}]}
";

/// The program itself, killed: `status` says how far it came, other verbs and scenarios leave it alone, and the same command ends it.
#[test]
fn a_killed_program_goes_on_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("s.yaml"), STUDY).unwrap();
    fs::write(path.join("other.yaml"), STUDY.replace("id: killed", "id: other")).unwrap();
    for verb in ["exec", "fidelity"] {
        let args = |scenario: &'static str, out: &'static str| {
            vec![
                verb,
                scenario,
                "--level",
                "easy",
                "--count",
                "2",
                "--ep",
                "cpu",
                "--threads",
                "1",
                "--out",
                out,
            ]
        };
        run(path, &args("s.yaml", "whole"), 0);
        let journal = path.join("killed").join(JOURNAL);
        let lines =
            || fs::read(&journal).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count());
        let mut child = kvlab(path, &args("s.yaml", "killed")).spawn().unwrap();
        while lines() < 4 && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(child.kill());
        child.wait().unwrap();
        assert!(lines() >= 4, "{verb}: it was killed in the middle");
        let standing = run(path, &["status", "killed"], 4);
        assert!(
            standing.contains(&format!("runs of `kvlab {verb}` of the scenario `killed` are kept")),
            "{standing}"
        );
        assert!(standing.contains("kept: chain-easy-0-0  full cache"), "{standing}");
        let other = run(path, &args("other.yaml", "killed"), 2);
        assert!(other.contains("of the scenario `killed`") && other.contains("--fresh"), "{other}");
        let another = if verb == "exec" { "fidelity" } else { "exec" };
        let refused = run(path, &[another, "s.yaml", "--count", "2", "--out", "killed"], 2);
        assert!(refused.contains(&format!("results of `kvlab {verb}`")), "{refused}");
        // A part of a line.
        let mut bytes = fs::read(&journal).unwrap();
        bytes.truncate(bytes.len() - 9);
        fs::write(&journal, bytes).unwrap();
        let again = run(path, &args("s.yaml", "killed"), 0);
        assert!(again.contains("runs.journal: its last line was cut off"), "{again}");
        assert!(again.contains("runs are there already"), "{again}");
        assert!(files(&path.join("killed")) == files(&path.join("whole")), "{verb}: other bytes");
        read(&path.join("killed")).unwrap();
        // What is finished is of its scenario too.
        let other = run(path, &args("other.yaml", "killed"), 2);
        assert!(other.contains("holds results of the scenario `killed`"), "{other}");
        run(path, &args("s.yaml", "killed"), 0);
        fs::remove_dir_all(path.join("killed")).unwrap();
        fs::remove_dir_all(path.join("whole")).unwrap();
    }
}

/// A journal that is damaged in the middle is named with the line, and `--fresh` begins anew.
#[test]
fn a_damaged_journal_is_named_and_can_be_thrown_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("s.yaml"), STUDY).unwrap();
    let args = ["exec", "s.yaml", "--level", "easy", "--count", "2", "--ep", "cpu", "--out", "r"];
    let limited = [&args[..], &["--budget-minutes", "0.0000001"]].concat();
    let said = run(path, &limited, 4);
    assert!(said.contains("the time was up after 0 of 2 problems"), "{said}");
    fs::create_dir_all(path.join("r")).unwrap();
    fs::write(path.join("r").join(JOURNAL), "0123 {}\nno line either\n").unwrap();
    let said = run(path, &args, 3);
    assert!(said.contains("runs.journal: line 1: ") && said.contains("--fresh"), "{said}");
    run(path, &[&args[..], &["--fresh"]].concat(), 0);
    assert!(!path.join("r").join(JOURNAL).exists());
}
