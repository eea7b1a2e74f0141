//! The same study again: in one process, in another one, with other threads, over a folder that nobody may write to.

use super::process::{run, said};
use super::{Both, STUDY, bytes, files, options};
use crate::support::synth;
use kvlab_sim::run::{source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Value;
use kvlab_sim::trace::{Dtype, Leftover};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn small(threads: usize) -> kvlab_sim::results::Results {
    let (source, scenario) = (Both::small(), Scenario::parse(STUDY, "test").unwrap());
    study(&scenario, &source, source_info(&source, "none", ""), &options(threads)).unwrap()
}

/// H06 (pytorch#88718): the number of worker threads moves no bit of any table, whatever the study.
#[test]
fn h06_one_two_and_four_workers_write_the_same_bytes() {
    let whole = bytes(&small(1));
    for threads in [2, 4, 0] {
        assert!(bytes(&small(threads)) == whole, "{threads} threads");
    }
}

/// H23 (madsim#240): twice in one process, with an unrelated map filled in between, and twice as processes of their own. Each log has its digest in the
/// table, so that users can compare runs without their logs.
#[test]
#[expect(clippy::disallowed_types, reason = "the unrelated map of the case is one with random keys")]
fn h23_the_same_study_again_is_the_same_in_one_process_and_in_the_next() {
    let first = small(2);
    let unrelated: std::collections::HashMap<String, usize> =
        (0..10_000).map(|at| (format!("key {at}"), at)).collect();
    let again = small(2);
    assert_eq!(unrelated.len(), 10_000);
    assert!(bytes(&first) == bytes(&again));
    let cells = &first.cells;
    let mut logs: BTreeMap<String, usize> = BTreeMap::new();
    for row in (0..cells.rows()).filter(|&row| cells.value("status", row) == Value::Text("ok".to_owned())) {
        let Value::Text(digest) = cells.value("log_digest", row) else { panic!("row {row} has no digest") };
        assert!(digest.len() == 16 && digest.chars().all(|c| c.is_ascii_hexdigit()), "{digest}");
        *logs.entry(digest).or_default() += 1;
    }
    assert!(logs.len() > 10, "digests tell logs apart: {logs:?}");

    let folder = tempfile::tempdir().unwrap();
    synth::fixed().write(&folder.path().join("trace"), Dtype::F32, 4, 32, Leftover::Refuse).unwrap();
    let (start, _) = STUDY.split_once("trees:").unwrap();
    std::fs::write(folder.path().join("s.yaml"), format!("{start}compare: {{baseline: full}}\n")).unwrap();
    // A budget of six tokens is skipped, and an arm without blocks fails: they are rows too.
    for out in ["a", "b"] {
        run(folder.path(), &["sweep", "s.yaml", "--trace", "trace", "--out", out, "--csv"], 4);
    }
    assert!(files(&folder.path().join("a")) == files(&folder.path().join("b")));
}

/// Everything in `folder`, files and folders, deepest first.
fn tree(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tree(&path, found);
        }
        found.push(path);
    }
}

/// A trace on a read-only mount, as far as permissions can play one.
#[cfg(unix)]
#[test]
fn a_trace_that_nobody_may_write_to_is_swept_and_stays_as_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    synth::fixed().write(&trace, Dtype::F32, 4, 32, Leftover::Refuse).unwrap();
    let (start, _) = STUDY.split_once("trees:").unwrap();
    std::fs::write(folder.path().join("s.yaml"), start).unwrap();
    let mut paths = Vec::new();
    tree(&trace, &mut paths);
    paths.push(trace.clone());
    let set = |folders: u32, others: u32| {
        for path in &paths {
            let mode = if path.is_dir() { folders } else { others };
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    let state = || -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
        let of = |path: &PathBuf| {
            let content = if path.is_file() { std::fs::read(path).unwrap() } else { Vec::new() };
            (path.clone(), content, std::fs::metadata(path).unwrap().modified().unwrap())
        };
        paths.iter().map(of).collect()
    };
    set(0o555, 0o444);
    let may_write = std::fs::write(trace.join("probe"), "x").is_ok();
    if may_write {
        drop(std::fs::remove_file(trace.join("probe")));
    }
    let before = state();
    for (args, code) in [
        (vec!["sweep", "s.yaml", "--trace", "trace", "--out", "study", "--format", "csv"], 4),
        (vec!["sweep", "s.yaml", "--trace", "trace", "--out", "shards", "--shard", "1/2"], 4),
        (vec!["validate", "trace"], 0),
        (vec!["inspect", "trace"], 0),
        (vec!["replay", "trace", "--policy", "snapkv", "--budget", "32", "--out", "replayed"], 0),
    ] {
        run(folder.path(), &args, code);
    }
    let news = said(&run(folder.path(), &["sweep", "s.yaml", "--trace", "trace", "--out", "study"], 4));
    assert!(news.contains("cells are there already"), "{news}");
    let is_as_it_was = state() == before;
    set(0o755, 0o644);
    assert!(is_as_it_was);
    if may_write {
        // Its content was not written to, but whether a barrier would have been met this process cannot tell.
        crate::durability::skipped(
            "this process may write where permissions forbid it (root): no barrier was tried",
        );
    }
}
