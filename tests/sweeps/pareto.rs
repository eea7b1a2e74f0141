//! `kvlab pareto`: the front over whole tables, means over seeds, regret, and what is refused.

use super::process::{kvlab, run, said};
use crate::support::synth;
use kvlab_sim::results::{ParetoAxis, pareto, read};
use kvlab_sim::table::{Table, Value};
use kvlab_sim::trace::{Dtype, Leftover};
use std::collections::BTreeMap;

const STUDY: &str = "
id: fronts
why: Which settings does no other beat?
seeds: [0, 1, 2]
eviction:
  budgets: [16, 24, 32]
  recent: 4
  sinks: 2
  policies: [{use: full}, {use: random}, {use: snapkv}, {use: streaming-llm}, {use: vase-attnv}, {use: oracle}]
pool:
  stream: {kind: zipf, params: {requests: 300}}
  capacities: [0.1, 0.25, 0.5]
  policies: [{use: lru}, {use: fifo}, {use: belady}]
";

fn swept() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    synth::fixed().write(&folder.path().join("trace"), Dtype::F32, 4, 32, Leftover::Refuse).unwrap();
    std::fs::write(folder.path().join("s.yaml"), STUDY).unwrap();
    run(folder.path(), &["sweep", "s.yaml", "--trace", "trace", "--out", "study", "--format", "csv"], 0);
    folder
}

fn real(table: &Table, column: &str, row: usize) -> f64 {
    match table.value(column, row) {
        Value::Real(value) => value,
        other => panic!("{column}: {other:?}"),
    }
}

fn text(table: &Table, column: &str, row: usize) -> String {
    if let Value::Text(text) = table.value(column, row) { text } else { String::new() }
}

/// Settings and their means by hand: cells that differ in the seed only.
fn by_hand(cells: &Table, x: &str, y: &str) -> Vec<(String, f64, f64)> {
    let mut sums: BTreeMap<String, (f64, f64, f64)> = BTreeMap::new();
    for row in 0..cells.rows() {
        let number = |column: &str| match cells.value(column, row) {
            Value::Real(value) => Some(value),
            Value::Int(value) => Some(value as f64),
            _ => None,
        };
        let (Some(x), Some(y)) = (number(x), number(y)) else { continue };
        let place = format!("{:?}{:?}", number("budget_tokens"), number("pool_capacity_blocks"));
        let sum = sums.entry(text(cells, "policy", row) + &place).or_default();
        *sum = (sum.0 + x, sum.1 + y, sum.2 + 1.0);
    }
    sums.into_iter().map(|(name, (x, y, n))| (name, x / n, y / n)).collect()
}

#[test]
fn the_front_is_of_means_over_seeds_and_no_setting_beats_it() {
    let folder = swept();
    let cells = read(&folder.path().join("study")).unwrap().cells;
    let tables = [("study", &cells)];
    let axis = |given: &str| ParetoAxis::of(given, "--x", &tables).unwrap();
    let axes = [axis("peak_kv_bytes"), axis("attn_mass_recall")];
    let found = pareto(&tables, &axes, None).unwrap();
    let hand = by_hand(&cells, "peak_kv_bytes", "attn_mass_recall");
    // What looks ahead beats whatever can be shipped, and is left out.
    let contenders: Vec<_> = hand.iter().filter(|(name, ..)| !name.starts_with("oracle")).collect();
    assert_eq!(contenders.len(), 13);
    // Six policies at three budgets, but `full` at none.
    assert_eq!((found.rows(), hand.len()), (16, 16));
    let mut on_front = 0;
    for row in 0..found.rows() {
        let here = (real(&found, "peak_kv_bytes", row), real(&found, "attn_mass_recall", row));
        let known = hand.iter().find(|(_, x, y)| (x - here.0).abs() < 1e-9 && (y - here.1).abs() < 1e-12);
        let known = known.unwrap_or_else(|| panic!("{here:?} in {hand:?}"));
        let is_beaten = contenders
            .iter()
            .any(|(_, x, y)| *x <= known.1 && *y >= known.2 && (*x < known.1 || *y > known.2));
        let is_best = !is_beaten && text(&found, "policy", row) != "oracle";
        assert_eq!(found.value("front", row), Value::Bool(is_best), "{known:?}");
        on_front += usize::from(is_best);
        let seeds =
            if matches!(text(&found, "policy", row).as_str(), "random" | "vase-attnv") { 3 } else { 1 };
        assert_eq!(found.value("seeds", row), Value::Int(seeds));
    }
    assert!((2..16).contains(&on_front));
    // Cheap first, and the full cache last.
    assert!(
        (1..found.rows())
            .all(|row| real(&found, "peak_kv_bytes", row - 1) >= real(&found, "peak_kv_bytes", row))
    );
    // Regret is from the oracle at the same budget, and no policy keeps more attention than it; the full cache has no budget to compare at.
    for row in 0..found.rows() {
        let policy = text(&found, "policy", row);
        if policy == "full" {
            assert_eq!(found.value("regret_attn_mass_recall", row), Value::Absent);
            continue;
        }
        let regret = real(&found, "regret_attn_mass_recall", row);
        let bound = (0..found.rows()).find(|&other| {
            text(&found, "policy", other) == "oracle"
                && found.value("budget_tokens", other) == found.value("budget_tokens", row)
        });
        let expected =
            real(&found, "attn_mass_recall", bound.unwrap()) - real(&found, "attn_mass_recall", row);
        assert_eq!(regret.to_bits(), expected.to_bits());
        assert!(policy != "oracle" || regret.abs() < 1e-15);
    }
}

#[test]
fn three_columns_several_folders_and_a_bound_by_name() {
    let folder = swept();
    run(
        folder.path(),
        &["sweep", "s.yaml", "--trace", "trace", "--limit", "2", "--out", "two", "--format", "csv"],
        0,
    );
    let args = [
        "pareto",
        "study",
        "two",
        "--x",
        "min:pool_capacity_blocks",
        "--y",
        "pool_hit_rate",
        "--z",
        "pool_evicted_blocks",
        "--all",
        "--json",
    ];
    let shown: serde_json::Value = serde_json::from_slice(&run(folder.path(), &args, 0).stdout).unwrap();
    assert_eq!(shown["axes"][0]["better"], "lower");
    assert_eq!(shown["axes"][1]["evidence"], "decision");
    let rows = shown["rows"].as_array().unwrap();
    // Three policies at three capacities, in each of two folders, from three streams each.
    assert_eq!((rows.len(), &shown["settings"]), (18, &serde_json::json!(18)));
    assert!(rows.iter().all(|row| row["seeds"] == 3));
    // The same cells in both folders: equal ones do not beat each other.
    for row in rows {
        let twin =
            rows.iter().find(|other| other["results"] != row["results"] && other["cell"] == row["cell"]);
        assert_eq!(twin.unwrap()["front"], row["front"]);
        let regret = row["regret_pool_hit_rate"].as_f64().unwrap();
        assert!(regret >= 0.0, "nothing finds more than what looks ahead: {row}");
        assert!(row["policy"] != "belady" || regret < 1e-15, "{row}");
    }
    // A folder that is named twice is one folder.
    let twice: Vec<&str> = args.iter().map(|arg| if *arg == "two" { "study" } else { *arg }).collect();
    let again: serde_json::Value = serde_json::from_slice(&run(folder.path(), &twice, 0).stdout).unwrap();
    assert_eq!(again["settings"], 9);
    assert!(again["rows"].as_array().unwrap().iter().all(|row| row["seeds"] == 3));
    let args = [
        "pareto",
        "study",
        "--x",
        "peak_kv_bytes",
        "--y",
        "attn_mass_recall",
        "--bound",
        "snapkv",
        "--format",
        "csv",
    ];
    let output = run(folder.path(), &args, 0);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.lines().next().unwrap().contains("regret_attn_mass_recall") && !text.contains("false,false"),
        "{text}"
    );
    let news = said(&output);
    assert!(
        news.contains("of 16 settings are beaten by none in peak_kv_bytes (decision, lower is better)"),
        "{news}"
    );
    assert!(news.contains("synthetic"), "{news}");
}

#[test]
fn columns_that_cannot_be_compared_are_refused() {
    let folder = swept();
    for (x, y, more, parts) in [
        (
            "peak_kv_byte",
            "attn_mass_recall",
            &[][..],
            ["--x is `peak_kv_byte`", "did you mean `peak_kv_bytes`?"],
        ),
        ("peak_kv_bytes", "policy", &[], ["--y is `policy`", "a column of numbers"]),
        (
            "budget_tokens",
            "attn_mass_recall",
            &[],
            ["--x is `budget_tokens`", "max:budget_tokens or min:budget_tokens"],
        ),
        ("peak_kv_bytes", "min:peak_kv_bytes", &[], ["--y is `peak_kv_bytes` again", "another column"]),
        (
            "peak_kv_bytes",
            "pool_hit_rate",
            &[],
            ["no finished row has `peak_kv_bytes` and `pool_hit_rate`", "study"],
        ),
        (
            "peak_kv_bytes",
            "attn_mass_recall",
            &["--bound", "best"],
            ["--bound", "no finished row has the policy `best`"],
        ),
    ] {
        let args = [&["pareto", "study", "--x", x, "--y", y], more].concat();
        let output = kvlab(folder.path(), &args).output().unwrap();
        let news = said(&output);
        assert!(
            output.status.code() == Some(2) && parts.iter().all(|part| news.contains(part)),
            "{args:?}: {news}"
        );
    }
}
