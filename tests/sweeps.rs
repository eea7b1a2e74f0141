//! Sweeps in parts: shards, batches, interruptions and merges give the bytes of a run in one piece.

mod compare;
mod diff;
mod draw;
mod expect;
mod holes;
mod lint;
mod pareto;
mod process;
mod repeat;

use crate::support::synth;
use kvlab_sim::results::{Formats, Part, Parts, Results, Standing, save_part, write};
use kvlab_sim::run::{RunOptions, Shard, Study, assemble, batches, source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Value;
use kvlab_sim::trace::synth::{BranchParams, Synthetic, SyntheticBranches};
use kvlab_sim::trace::{LayerTensors, LensRow, Problem, SequenceMeta, TraceError, TraceSource};
use kvlab_sim::types::{LayerIdx, ModelShape, SeqIdx};
use std::path::{Path, PathBuf};

const STUDY: &str = "
id: sweeps
why: Does it matter how a study is cut?
seeds: [0, 1]
eviction:
  budgets: [6, 16, 24]
  recent: 4
  sinks: 2
  output_error_every: 3
  policies: [{use: full}, {use: random}, {use: snapkv}, {use: vase-attnv}]
exit:
  lens: [final-norm, raw]
  theta: {from: 0.1, to: 3.9, steps: 4}
  epsilon: [0.2, 1]
  min_layer: 0
pool:
  stream: {kind: zipf, params: {requests: 200}}
  capacities: [0.25, 64]
  policies: [{use: lru}, {use: fifo}]
serve:
  cost: {kind: unit}
  problems: {count: 3, root_tokens: [20, 30], suffix_tokens: 5, branches: 2, generated_tokens: 4, verify_tokens: 10}
  baseline: plain
  arms: [{label: plain}, {label: shared, reuse: 1}, {label: none, serve: {scheduler: {capacity_blocks: 0}}}]
trees:
  stacks:
    - label: full
    - label: gated
      share: {kind: asks}
      verify: {kind: cgee}
      exit: {kind: entropy, params: {min_layer: 1}}
      sweep: {share.tau: [0.7, 0.9, 2, 3], exit.theta: [1, 2], exit.epsilon: 1}
    - label: chance
      verify: {kind: random, params: {rate: 0.4}}
compare: {baseline: full}
";

/// Sequences and branch trees in one trace.
struct Both {
    sequences: Synthetic,
    trees: SyntheticBranches,
}

impl Both {
    fn small() -> Self {
        let sequences = synth::fixed();
        let params = BranchParams {
            problems: 8,
            branches: 4,
            generated: 5,
            sigma_noise: 0.05,
            ..BranchParams::default()
        };
        let trees = SyntheticBranches::build(*sequences.shape(), 3, params).unwrap();
        Self { sequences, trees }
    }
}

impl TraceSource for Both {
    fn name(&self) -> &str {
        "both"
    }
    fn digest(&self) -> String {
        format!("{}{}", self.sequences.digest(), self.trees.digest())
    }
    fn is_synthetic(&self) -> bool {
        true
    }
    fn shape(&self) -> &ModelShape {
        self.sequences.shape()
    }
    fn sequences(&self) -> &[SequenceMeta] {
        self.sequences.sequences()
    }
    fn layer(&self, seq: SeqIdx, layer: LayerIdx) -> Result<LayerTensors, TraceError> {
        self.sequences.layer(seq, layer)
    }
    fn lens(&self, seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
        self.sequences.lens(seq)
    }
    fn problems(&self) -> u32 {
        self.trees.problems()
    }
    fn problem(&self, index: u32) -> Result<Problem, TraceError> {
        self.trees.problem(index)
    }
}

fn options(threads: usize) -> RunOptions<'static> {
    RunOptions { threads, command: "test".to_owned(), progress: &|_, _| {} }
}

/// Name and content of all files in `folder`, folders left out.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
    files.sort();
    let name = |path: &PathBuf| PathBuf::from(path.file_name().unwrap());
    files.iter().map(|path| (name(path), std::fs::read(path).unwrap())).collect()
}

fn bytes(results: &Results) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), results, Formats::WITH_CSV).unwrap();
    files(folder.path())
}

/// Runs the shards of `count` one after the other into `folder`, in batches of `most` units.
fn in_shards(study: &Study<'_>, folder: &Path, count: u32, threads: usize, most: usize) {
    // The last first: the order of arrival is nobody's.
    for index in (0..count).rev() {
        let share = Shard { index, count }.share(study.units());
        let work = batches(study.units(), &share, most);
        study.run(&work, &options(threads), &mut |part| save_part(folder, &part)).unwrap();
    }
}

#[test]
fn shards_batches_and_threads_change_no_byte() {
    let (source, scenario) = (Both::small(), Scenario::parse(STUDY, "test").unwrap());
    let info = source_info(&source, "none", "");
    let whole = bytes(&study(&scenario, &source, info.clone(), &options(1)).unwrap());
    assert_eq!(whole.len(), 17, "a manifest and eight tables in two formats");
    assert_eq!(whole, bytes(&study(&scenario, &source, info.clone(), &options(4)).unwrap()));
    let cut = Study::of(&scenario, &source, info).unwrap();
    for (count, threads, most) in [(1, 1, usize::MAX), (1, 2, 1), (7, 4, 3), (16, 1, 64), (200, 2, 2)] {
        let folder = tempfile::tempdir().unwrap();
        in_shards(&cut, folder.path(), count, threads, most);
        let parts = Parts::read(folder.path()).unwrap();
        assert!(parts.damaged.is_empty() && parts.others == 0);
        let found = assemble(&cut.plan("test", count), &parts.whole).unwrap();
        assert!(bytes(&found) == whole, "{count} shards, {threads} threads, batches of {most}");
    }
}

#[test]
fn a_shard_is_a_share_of_every_section_and_shares_are_all_of_it() {
    let (source, scenario) = (Both::small(), Scenario::parse(STUDY, "test").unwrap());
    let cut = Study::of(&scenario, &source, source_info(&source, "none", "")).unwrap();
    let units = cut.units();
    let mut ids: Vec<&str> = units.iter().map(|unit| unit.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), units.len(), "every unit has an id of its own");
    for count in [1, 2, 7, units.len() as u32, 1000] {
        let mut all = Vec::new();
        for index in 0..count {
            let share = Shard { index, count }.share(units);
            for &place in &share {
                assert_eq!(Shard::of(units, place, count), Shard { index, count });
            }
            all.extend(share);
        }
        all.sort_unstable();
        assert_eq!(all, (0..units.len()).collect::<Vec<_>>(), "{count}");
    }
    // Units are known before they run, and rows say the same id.
    let results = study(&scenario, &source, source_info(&source, "none", ""), &options(2)).unwrap();
    let cells: Vec<Value> = (0..results.cells.rows()).map(|row| results.cells.value("cell", row)).collect();
    let planned = units.iter().filter(|unit| unit.kind == kvlab_sim::results::UnitKind::Cell);
    assert_eq!(cells, planned.map(|unit| Value::Text(unit.id.clone())).collect::<Vec<_>>());
}

#[test]
fn parts_that_are_gone_or_damaged_are_missing_and_run_again_to_the_same_bytes() {
    let (source, scenario) = (Both::small(), Scenario::parse(STUDY, "test").unwrap());
    let info = source_info(&source, "none", "");
    let whole = bytes(&study(&scenario, &source, info.clone(), &options(1)).unwrap());
    let cut = Study::of(&scenario, &source, info).unwrap();
    let plan = cut.plan("test", 1);
    let folder = tempfile::tempdir().unwrap();
    in_shards(&cut, folder.path(), 1, 2, 4);
    let stored = files(&folder.path().join("parts"));
    assert!(stored.len() > 10, "{}", stored.len());
    let at = |place: usize| folder.path().join("parts").join(&stored[place].0);
    // Gone, cut short, one bit turned, another part's content under its name.
    std::fs::remove_file(at(0)).unwrap();
    std::fs::write(at(2), &stored[2].1[..stored[2].1.len() / 2]).unwrap();
    let mut turned = stored[4].1.clone();
    let middle = turned.len() / 2;
    turned[middle] ^= 1;
    std::fs::write(at(4), turned).unwrap();
    std::fs::write(at(6), &stored[7].1).unwrap();
    // What a killed writer leaves.
    std::fs::write(folder.path().join("parts/.writing-x.tmp"), "half").unwrap();
    let parts = Parts::read(folder.path()).unwrap();
    let mut damaged: Vec<_> = parts.damaged.iter().map(|(path, _)| path.clone()).collect();
    damaged.sort();
    assert_eq!(damaged, [at(2), at(4), at(6)]);
    let standing = Standing::of(&plan, &parts.whole);
    let lost = |place: usize| serde_json::from_slice::<Part>(&stored[place].1).unwrap().units().count();
    assert_eq!(standing.missing.len(), [0, 2, 4, 6].map(lost).iter().sum::<usize>());
    assert!(!standing.is_complete());
    parts.set_aside().unwrap();
    let mut all = parts.whole;
    let mut ran = 0;
    cut.run(&batches(cut.units(), &standing.missing, 5), &options(2), &mut |part| {
        ran += part.units().count();
        all.push(part);
        Ok(())
    })
    .unwrap();
    assert_eq!(ran, standing.missing.len(), "finished units are not run again");
    assert!(bytes(&assemble(&plan, &all).unwrap()) == whole);
    assert!(Parts::read(folder.path()).unwrap().damaged.is_empty(), "told once");
}

#[test]
fn a_later_threshold_repeats_an_earlier_one_whatever_part_it_comes_from() {
    let source = Both::small();
    let lint = |text: &str, most: usize| {
        let scenario = Scenario::parse(text, "test").unwrap();
        let cut = Study::of(&scenario, &source, source_info(&source, "none", "")).unwrap();
        let mut parts = Vec::new();
        let all: Vec<usize> = (0..cut.units().len()).collect();
        cut.run(&batches(cut.units(), &all, most), &options(1), &mut |part| {
            parts.push(part);
            Ok(())
        })
        .unwrap();
        parts.reverse();
        let cells = assemble(&cut.plan("test", 1), &parts).unwrap().cells;
        let repeats = |row: &usize| matches!(cells.value("lint", *row), Value::Text(lint) if lint.contains("tau 3 repeats 2: no observed value"));
        (0..cells.rows()).filter(repeats).count()
    };
    assert_eq!(lint(STUDY, 1), 2, "one for each theta");
    assert_eq!(lint(STUDY, usize::MAX), 2);
    assert_eq!(
        lint(&STUDY.replace("0.9, 2, 3", "0.9, 3"), 1),
        0,
        "the note is about the study, not the cell"
    );
}

/// A part is of cells, not of a scenario or a folder: both are named anew.
#[test]
fn parts_of_a_renamed_study_are_used_under_the_new_name() {
    struct Renamed(Both);
    impl TraceSource for Renamed {
        fn name(&self) -> &str {
            "renamed"
        }
        fn digest(&self) -> String {
            self.0.digest()
        }
        fn is_synthetic(&self) -> bool {
            true
        }
        fn shape(&self) -> &ModelShape {
            self.0.shape()
        }
        fn sequences(&self) -> &[SequenceMeta] {
            self.0.sequences()
        }
        fn layer(&self, seq: SeqIdx, layer: LayerIdx) -> Result<LayerTensors, TraceError> {
            self.0.layer(seq, layer)
        }
        fn lens(&self, seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
            self.0.lens(seq)
        }
        fn problems(&self) -> u32 {
            self.0.problems()
        }
        fn problem(&self, index: u32) -> Result<Problem, TraceError> {
            self.0.problem(index)
        }
    }
    let (first, second) = (Both::small(), Renamed(Both::small()));
    let (old, new) =
        (STUDY.to_owned(), STUDY.replace("id: sweeps", "id: later").replace("{use: snapkv}, ", ""));
    let (old, new) = (Scenario::parse(&old, "test").unwrap(), Scenario::parse(&new, "test").unwrap());
    let mut parts = Vec::new();
    let before = Study::of(&old, &first, source_info(&first, "none", "")).unwrap();
    let all: Vec<usize> = (0..before.units().len()).collect();
    let mut keep = |part| {
        parts.push(part);
        Ok(())
    };
    before.run(&batches(before.units(), &all, 3), &options(2), &mut keep).unwrap();
    let after = Study::of(&new, &second, source_info(&second, "none", "")).unwrap();
    let plan = after.plan("test", 1);
    let standing = Standing::of(&plan, &parts);
    assert!(standing.missing.is_empty());
    assert_eq!(standing.foreign, 3, "three budgets of the policy that is gone");
    let found = assemble(&plan, &parts).unwrap();
    assert!(
        bytes(&found) == bytes(&study(&new, &second, source_info(&second, "none", ""), &options(1)).unwrap())
    );
}
