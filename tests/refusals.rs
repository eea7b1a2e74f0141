//! What is refused at the command line before anything is run: places of other results.

use crate::cli::{kvlab, text, with_trace};
use std::fs;
use std::path::Path;

/// Runs kvlab; gives the exit code and all that was said.
fn run(folder: &Path, args: &[&str]) -> (Option<i32>, String) {
    let done = kvlab(folder, args);
    (done.status.code(), text(&done.stderr) + &text(&done.stdout))
}

const STUDY: &str =
    "id: s\nwhy: w\neviction: {budgets: 16, recent: 4, policies: [{use: full}, {use: snapkv}]}\n";

/// Executed results take hours; no verb writes its own over those of another one.
#[test]
fn no_verb_replaces_the_results_of_another_one() {
    let folder = with_trace();
    let path = folder.path();
    fs::write(path.join("s.yaml"), STUDY).unwrap();
    let replay = ["replay", "trace", "--theta", "1", "--out", "r"];
    let sweep = ["sweep", "s.yaml", "--trace", "trace", "--out", "r"];
    let merge = ["merge", "r", "--out", "r"];
    let exec = ["exec", "s.yaml", "--out", "r"];
    let fidelity = ["fidelity", "s.yaml", "--out", "r"];
    let tune = ["tune", "s.yaml", "--trace", "trace", "--out", "r"];
    let refused = |args: &[&str], old: &str| {
        let before = fs::read(path.join("r/results.json")).unwrap();
        let (code, said) = run(path, args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        let (new, place) = (args[0], "r: this folder holds results of");
        assert!(
            said.contains(&format!("{place} `kvlab {old}`, which `kvlab {new}` does not replace")),
            "{said}"
        );
        assert_eq!(fs::read(path.join("r/results.json")).unwrap(), before, "{args:?}");
    };
    assert_eq!(run(path, &replay).0, Some(0));
    assert_eq!(run(path, &replay).0, Some(0), "its own are replaced");
    for other in [&sweep[..], &exec, &fidelity, &tune] {
        refused(other, "replay");
    }
    fs::remove_dir_all(path.join("r")).unwrap();
    assert_eq!(run(path, &sweep).0, Some(0));
    assert_eq!(run(path, &merge).0, Some(0), "a merge makes the tables of a sweep");
    assert_eq!(run(path, &sweep).0, Some(0));
    for other in [&replay[..], &exec, &fidelity, &tune] {
        refused(other, "sweep");
    }
    // As `kvlab exec` leaves them: nothing else tells them apart.
    fs::remove_file(path.join("r/plan.json")).unwrap();
    let manifest = fs::read_to_string(path.join("r/results.json")).unwrap();
    let executed = manifest.replace("kvlab sweep", "kvlab exec").replace("kvlab merge", "kvlab exec");
    fs::write(path.join("r/results.json"), executed).unwrap();
    for other in [&replay[..], &sweep, &fidelity, &tune] {
        refused(other, "exec");
    }
}
