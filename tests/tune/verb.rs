//! `kvlab tune`: files, exit codes, and the same bytes for any number of threads.

use super::trees::{STUDY, source};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::trace::Leftover;
use std::path::Path;
use std::process::{Command, Output};

fn kvlab(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvlab")).current_dir(folder).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_recommendation_is_written_whole_and_a_missing_one_ends_with_five() {
    let folder = tempfile::tempdir().unwrap();
    source(300, 5).write(&folder.path().join("trees"), Leftover::Refuse).unwrap();
    std::fs::write(folder.path().join("s.yaml"), STUDY).unwrap();
    let tune =
        |more: &[&str]| kvlab(folder.path(), &[&["tune", "s.yaml", "--trace", "trees"], more].concat());
    let read = |name: &str| std::fs::read(folder.path().join(name));

    let loose = ["--at-most", "harm_rate=0.15", "--delta", "0.1"];
    let done = tune(&[&loose[..], &["--out", "one", "--threads", "1"]].concat());
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{said}{}", text(&done.stderr));
    for part in [
        "Recommended: tau ",
        "guaranteed: harm_rate at most 0.15 (decision) with 90 % confidence",
        "synthetic",
        "trees:\n",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    tune(&[&loose[..], &["--out", "two", "--threads", "3"]].concat());
    for name in ["tune.json", "tune.txt", "tuned.yaml"] {
        assert_eq!(read(&format!("one/{name}")).unwrap(), read(&format!("two/{name}")).unwrap(), "{name}");
    }
    assert_eq!(read("one/tune.txt").unwrap(), done.stdout);
    Scenario::load(&folder.path().join("one/tuned.yaml")).unwrap();
    let swept = kvlab(folder.path(), &["sweep", "one/tuned.yaml", "--trace", "trees", "--out", "swept"]);
    assert_eq!(swept.status.code(), Some(0), "{}", text(&swept.stderr));

    // The same folder again, where nothing can be certified: the old recommendation goes.
    let done = tune(&["--at-most", "harm_rate=0.001", "--out", "one"]);
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(5), "{said}");
    // 1 − 0.05^(1/n) ≤ 0.001 from n = 2995 on.
    assert!(
        said.contains("No setting can be recommended") && said.contains("2995 calibration problems"),
        "{said}"
    );
    assert!(read("one/tuned.yaml").is_err() && read("one/tune.json").is_ok());

    let json = tune(&[&loose[..], &["--json"]].concat());
    let parsed: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(parsed["chosen"]["setting"]["tau"].is_number() && parsed["path"].is_array(), "{parsed}");

    let refused = tune(&["--at-most", "harm_rat=0.1"]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(text(&refused.stderr).contains("s.yaml: --at-most is `harm_rat`"), "{}", text(&refused.stderr));
    let refused = tune(&["--at-most", "harm_rate=0.15", "--out", "trees"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}
