//! What is said about thresholds before a study runs: the same as its rows, and true of what they give.

use super::{Both, STUDY, options};
use kvlab_sim::results::Results;
use kvlab_sim::run::{Finding, Study, source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Value;
use kvlab_sim::trace::synth::{SynthLength, SynthSpec, Synthetic};
use kvlab_sim::types::ModelShape;
use std::collections::{BTreeMap, BTreeSet};

fn both(text: &str) -> (Vec<Finding>, Results) {
    let source = Both::small();
    let scenario = Scenario::parse(text, "test").unwrap();
    let before = Study::of(&scenario, &source, source_info(&source, "none", "")).unwrap().lint(2).unwrap();
    (before, study(&scenario, &source, source_info(&source, "none", ""), &options(2)).unwrap())
}

fn text(results: &Results, column: &str, row: usize) -> String {
    match results.cells.value(column, row) {
        Value::Text(value) => value,
        _ => String::new(),
    }
}

const SERVED: &str = "
id: lint
why: What is said of arms?
serve:
  cost: {kind: unit}
  problems: recorded
  baseline: full
  arms:
    - {label: full}
    - {label: shut, stack: {share: {kind: asks, params: {tau: 2}}}}
    - {label: shut too, stack: {share: {kind: asks, params: {tau: 3}}}}
    - {label: open, stack: {exit: {kind: entropy, params: {theta: 100, epsilon: 100, min_layer: 0}}}}
exit: {lens: [final-norm, raw], theta: [0.5, 0.50000001, 1, 3.9, 100], epsilon: [0.2, 1, 100], min_layer: 0}
";

/// Six layers, so that passes can stop early.
pub(super) fn deep() -> Synthetic {
    let shape = ModelShape { layers: 6, q_heads: 2, kv_heads: 2, head_dim: 8, hidden: 16, vocab: 50 };
    let lengths = vec![SynthLength { prompt_len: 6, len: 40 }, SynthLength { prompt_len: 3, len: 25 }];
    Synthetic::build("sinks-and-hitters", SynthSpec { shape, lengths, seed: 5 }).unwrap()
}

const EXITS: &str = "{id: exits, why: Are findings true?, exit: {lens: [final-norm, raw], theta: [0.5, 0.50000001, 1, 2, 3, 100], epsilon: [0.2, 1, 100], min_layer: 0}}";

/// Every finding that a row holds was told before, and the other way round; rows may say more about other things (items too few to tell).
#[test]
fn what_is_told_before_a_study_is_what_its_rows_say() {
    let without_comparison = STUDY.replace("compare: {baseline: full}\n", "");
    for study in [without_comparison.as_str(), SERVED] {
        let (before, results) = both(study);
        let mut told: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for finding in &before {
            told.entry(finding.section.word().to_owned()).or_default().insert(&finding.finding);
        }
        let mut found = 0;
        for row in 0..results.cells.rows() {
            let (section, lint) = (text(&results, "study", row), text(&results, "lint", row));
            if !["exit", "trees", "serve"].contains(&section.as_str()) {
                continue;
            }
            for finding in lint.split("; ").filter(|finding| !finding.is_empty()) {
                let is_of_threshold = ["vacuous", "unreachable", "never decisive", "repeats"]
                    .iter()
                    .any(|word| finding.contains(word));
                if is_of_threshold {
                    assert!(told[&section].contains(finding), "{section}: {finding}");
                    found += 1;
                }
            }
        }
        assert!(found > 0 && found == before.len(), "{found} in rows, {} before", before.len());
    }
}

/// A finding is a claim about outcomes: a threshold that is vacuous or never decisive gives, pass by pass, what an endless one gives, and one that
/// repeats another gives what that one gives. And where an endless one gives the same, something is said.
#[test]
fn findings_about_exits_are_true_of_what_the_cells_decide() {
    let source = deep();
    let scenario = Scenario::parse(EXITS, "test").unwrap();
    let results = study(&scenario, &source, source_info(&source, "none", ""), &options(2)).unwrap();
    let real = |column: &str, row: usize| match results.cells.value(column, row) {
        Value::Real(value) => value,
        other => panic!("{column}: {other:?}"),
    };
    let exits: Vec<usize> =
        (0..results.cells.rows()).filter(|&row| text(&results, "study", row) == "exit").collect();
    assert_eq!(exits.len(), 36);
    let digest = |lens: &str, theta: f64, epsilon: f64| {
        let is_it = |row: &&usize| {
            text(&results, "lens", **row) == lens
                && real("theta", **row).total_cmp(&theta).is_eq()
                && real("epsilon", **row).total_cmp(&epsilon).is_eq()
        };
        text(&results, "log_digest", *exits.iter().find(is_it).unwrap())
    };
    let mut seen = BTreeSet::new();
    for &row in &exits {
        let (lens, lint) = (text(&results, "lens", row), text(&results, "lint", row));
        let (theta, epsilon) = (real("theta", row), real("epsilon", row));
        let here = digest(&lens, theta, epsilon);
        for (axis, endless) in
            [("theta", digest(&lens, 100.0, epsilon)), ("epsilon", digest(&lens, theta, 100.0))]
        {
            let says = |what: &str| lint.contains(&format!("{axis} is {what}"));
            let is_idle = says("vacuous") || says("never decisive");
            if is_idle {
                assert_eq!(here, endless, "{lens} {theta} {epsilon}: {lint}");
            }
            if here == endless {
                assert!(is_idle || says("unreachable"), "{lens} {axis} {theta} {epsilon}: {lint}");
            }
            seen.extend(["vacuous", "never decisive", "unreachable"].into_iter().filter(|what| says(what)));
        }
        if theta > 0.5 && theta < 0.6 {
            assert!(lint.contains("theta 0.50000001 repeats 0.5: no observed value"), "{lint}");
            assert_eq!(here, digest(&lens, 0.5, epsilon));
        }
    }
    assert!(seen.contains("vacuous") && seen.contains("never decisive"), "{seen:?}");
}
