//! Sweeps as processes: killed, resumed, cut into shards, merged, asked how far they are.

use super::files;
use crate::support::synth;
use kvlab_sim::trace::{Dtype, Leftover};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const STUDY: &str = "
id: process
why: Does an interrupted sweep end as an undisturbed one?
seeds: [0, 1]
eviction:
  budgets: [16, 24]
  recent: 4
  sinks: 2
  policies: [{use: full}, {use: random}, {use: vase-attnv}]
exit: {theta: {from: 0.1, to: 3.9, steps: 12}, epsilon: [0.2, 1], min_layer: 0}
";

/// No variable of a batch engine that runs these tests reaches the program.
pub(super) fn kvlab(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvlab"));
    command.current_dir(folder).args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let engines = ["SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX", "KVLAB_SHARD", "KVLAB_SHARDS"];
    engines.iter().for_each(|name| {
        command.env_remove(name);
    });
    command
}

pub(super) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(super) fn run(folder: &Path, args: &[&str], code: i32) -> Output {
    let output = kvlab(folder, args).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
    output
}

const SWEEP: &[&str] = &["sweep", "s.yaml", "--trace", "trace", "--format", "csv"];

fn sweep(folder: &Path, more: &[&str], code: i32) -> Output {
    run(folder, &[SWEEP, more].concat(), code)
}

fn with_trace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    synth::fixed().write(&folder.path().join("trace"), Dtype::F32, 4, 32, Leftover::Refuse).unwrap();
    std::fs::write(folder.path().join("s.yaml"), STUDY).unwrap();
    folder
}

fn parts(out: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(out.join("parts")) else { return 0 };
    entries.flatten().filter(|entry| entry.path().extension().is_some_and(|e| e == "json")).count()
}

#[test]
fn a_killed_sweep_goes_on_where_it_was_to_the_same_bytes() {
    let folder = with_trace();
    let at = |name: &str| folder.path().join(name);
    let undisturbed = sweep(folder.path(), &["--out", "whole", "--csv"], 0);
    let expected = files(&at("whole"));
    for kept in [1, 5, 12] {
        let args = [SWEEP, &["--out", "killed", "--csv", "--batch", "2"]].concat();
        let mut child = kvlab(folder.path(), &args).spawn().unwrap();
        while parts(&at("killed")) < kept && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        // SIGKILL: no handler runs. A child that ended meanwhile is no error here.
        drop(child.kill());
        child.wait().unwrap();
        let there = parts(&at("killed"));
        assert!(there >= kept);
        let again = sweep(folder.path(), &["--out", "killed", "--csv", "--batch", "7"], 0);
        assert!(said(&again).contains("cells are there already"), "{}", said(&again));
        assert!(files(&at("killed")) == expected, "killed after {there} parts");
        assert_eq!(again.stdout, undisturbed.stdout);
        std::fs::remove_dir_all(at("killed")).unwrap();
    }
}

#[test]
fn a_changed_scenario_runs_its_new_cells_only() {
    let folder = with_trace();
    sweep(folder.path(), &["--out", "study"], 0);
    let before = parts(&folder.path().join("study"));
    let changed =
        STUDY.replace("{use: vase-attnv}", "{use: snapkv}, {use: vase-attnv}").replace("[0.2, 1]", "[1]");
    std::fs::write(folder.path().join("s.yaml"), changed).unwrap();
    let again = sweep(folder.path(), &["--out", "study"], 0);
    let news = said(&again);
    assert!(news.contains("21 of 23 cells are there already"), "{news}");
    assert!(news.contains("12 cells in study are of other studies: they stay there"), "{news}");
    assert_eq!(parts(&folder.path().join("study")), before + 1);
    sweep(folder.path(), &["--out", "whole"], 0);
    assert!(files(&folder.path().join("study")) == files(&folder.path().join("whole")));
    // Nothing is left to do, and a damaged part is told and run again.
    let part = std::fs::read_dir(folder.path().join("study/parts")).unwrap().next().unwrap().unwrap().path();
    let length = std::fs::metadata(&part).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&part).unwrap().set_len(length - 1).unwrap();
    let news = said(&sweep(folder.path(), &["--out", "study"], 0));
    assert!(news.contains("is damaged") && news.contains("run again"), "{news}");
    assert!(files(&folder.path().join("study")) == files(&folder.path().join("whole")));
    let news = said(&sweep(folder.path(), &["--out", "study", "--fresh"], 0));
    assert!(!news.contains("there already"), "{news}");
    assert!(files(&folder.path().join("study")) == files(&folder.path().join("whole")));
}

#[test]
fn shards_merge_to_the_bytes_of_one_and_a_missing_shard_is_named() {
    let folder = with_trace();
    let at = |name: &str| folder.path().join(name);
    sweep(folder.path(), &["--out", "whole", "--csv"], 0);
    let whole: Vec<_> =
        files(&at("whole")).into_iter().filter(|(name, _)| name != Path::new("plan.json")).collect();
    for count in [1, 7, 16] {
        for index in (1..=count).rev().filter(|index| *index != 3) {
            let shard = format!("{index}/{count}");
            sweep(folder.path(), &["--out", "shards", "--shard", &shard, "--threads", "1"], 0);
        }
        if count > 1 {
            assert!(!at("shards/results.json").exists());
            let news = said(&run(folder.path(), &["merge", "shards", "--out", "merged"], 4));
            assert!(
                news.contains(&format!("of shard 3/{count}")) && news.contains("nothing was written"),
                "{news}"
            );
            assert!(!at("merged").exists());
            run(folder.path(), &["merge", "shards", "--out", "partly", "--partial"], 4);
            assert!(at("partly/results.json").exists());
            // The lost task again, as a Slurm array would number it, into a folder of its own.
            let mut task = kvlab(folder.path(), &[SWEEP, &["--out", "elsewhere"]].concat());
            task.env("SLURM_ARRAY_TASK_ID", "12").env("SLURM_ARRAY_TASK_MIN", "10");
            let output = task.env("SLURM_ARRAY_TASK_COUNT", count.to_string()).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", said(&output));
            assert!(said(&output).contains(&format!("shard 3/{count}, from SLURM_ARRAY_TASK_ID")));
        }
        let folders: &[&str] = if count > 1 { &["shards", "elsewhere"] } else { &["shards"] };
        run(folder.path(), &[&["merge"], folders, &["--out", "merged", "--csv"]].concat(), 0);
        assert!(files(&at("merged")) == whole, "{count} shards");
        for name in ["shards", "elsewhere", "merged", "partly"] {
            drop(std::fs::remove_dir_all(at(name)));
        }
    }
}

#[test]
fn status_lists_what_is_done_failed_and_missing() {
    let folder = with_trace();
    let with_skipped = STUDY.replace("budgets: [16, 24]", "budgets: [4, 16]");
    std::fs::write(folder.path().join("s.yaml"), with_skipped).unwrap();
    let news = said(&run(folder.path(), &["status", "study"], 2));
    assert!(news.contains("there is no plan.json"), "{news}");
    sweep(folder.path(), &["--out", "study", "--shard", "2/3"], 4);
    let asked = run(folder.path(), &["status", "study", "--json"], 4);
    let status: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap();
    let missing = status["missing"].as_array().unwrap();
    let cells = missing.iter().filter(|unit| unit["kind"] == "cell").count() as u64;
    assert_eq!(status["cells"].as_u64().unwrap() - status["done"].as_u64().unwrap(), cells);
    assert!(missing.iter().all(|unit| unit["shard"] == "1/3" || unit["shard"] == "3/3"), "{missing:?}");
    sweep(folder.path(), &["--out", "study"], 4);
    let asked = run(folder.path(), &["status", "study"], 4);
    let text = String::from_utf8_lossy(&asked.stdout).into_owned();
    assert!(
        text.contains("31 of 31 cells are done") && text.contains("skipped: eviction  vase-attnv  budget 4"),
        "{text}"
    );
    std::fs::write(folder.path().join("s.yaml"), STUDY).unwrap();
    sweep(folder.path(), &["--out", "good"], 0);
    run(folder.path(), &["status", "good"], 0);
    // Two studies are not put together.
    let news = said(&run(folder.path(), &["merge", "good", "study", "--out", "merged"], 2));
    assert!(news.contains("another study"), "{news}");
}

#[test]
fn job_files_have_sizes_and_run_to_the_same_tables() {
    let folder = with_trace();
    let at = |name: &str| folder.path().join(name);
    sweep(folder.path(), &["--out", "whole"], 0);
    let plan = |engine: &str| {
        let args = [
            "sweep", "plan", "s.yaml", "--trace", "trace", "--out", "my study", "--shards", "3", "--emit",
            engine,
        ];
        String::from_utf8(run(folder.path(), &args, 0).stdout).unwrap()
    };
    for engine in ["commands", "slurm", "k8s", "parallel"] {
        let text = plan(engine);
        assert!(text.contains("# 33 cells of `process` in 3 shards of 9 to 13"), "{engine}: {text}");
        assert!(text.contains("kvlab merge 'my study' --out 'my study'"), "{engine}: {text}");
    }
    // Skipped cells are no failure of a job, whatever starts it.
    for engine in ["commands", "slurm", "k8s", "parallel"] {
        assert!(plan(engine).contains("|| test $? -eq 4"), "{engine}");
    }
    let job: serde_yaml::Value = serde_yaml::from_str(&plan("k8s")).unwrap();
    assert_eq!(job["metadata"]["name"].as_str(), Some("kvlab-process"));
    assert_eq!((job["kind"].as_str(), job["spec"]["completions"].as_u64()), (Some("Job"), Some(3)));
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["env"][0]["value"].as_str(), Some("3"));
    // The commands as they are printed, by a shell that finds this kvlab.
    let bin = Path::new(env!("CARGO_BIN_EXE_kvlab")).parent().unwrap().display().to_string();
    let mut shell = Command::new("sh");
    shell.current_dir(folder.path()).env("PATH", format!("{bin}:{}", std::env::var("PATH").unwrap()));
    let output = shell.args(["-e", "-c", &plan("commands")]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let tables = |name: &str| {
        let mut files = files(&at(name));
        files.retain(|(name, _)| name != Path::new("plan.json"));
        files
    };
    assert!(tables("my study") == tables("whole"));
}
