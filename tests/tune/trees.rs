//! Thresholds over branch trees: what is measured is what a sweep of the pasted scenario gives, and nothing depends on threads.

use kvlab_sim::run::{RunOptions, source_info, study};
use kvlab_sim::scenario::{Scenario, TuneFlags};
use kvlab_sim::table::{Table, Value};
use kvlab_sim::trace::TraceSource;
use kvlab_sim::trace::synth::{BranchParams, SyntheticBranches};
use kvlab_sim::tune::{Measurement, TuneError, TuneReport, tune};
use kvlab_sim::types::ModelShape;

pub(super) const STUDY: &str = "
id: thresholds
why: Which thresholds?
trees:
  stacks:
    - label: full-pipeline
    - label: rksc
      share: {kind: asks}
      verify: {kind: cgee}
      exit: {kind: entropy, params: {min_layer: 1, unit: share-of-ln-vocab}}
";

pub(super) fn source(problems: u32, seed: u64) -> SyntheticBranches {
    let shape = ModelShape { layers: 7, q_heads: 1, kv_heads: 1, head_dim: 2, hidden: 2, vocab: 60 };
    let params = BranchParams {
        problems,
        branches: 4,
        generated: 5,
        sigma_noise: 0.05,
        prefix_tokens: 24,
        suffix_tokens: 4,
        harm: 0.1,
        ..BranchParams::default()
    };
    SyntheticBranches::build(shape, seed, params).unwrap()
}

fn chosen(text: &str, flags: &TuneFlags, problems: u32, threads: usize) -> Result<TuneReport, TuneError> {
    let scenario = Scenario::parse(text, "test").unwrap();
    let spec = scenario.tune.clone().with(flags).unwrap();
    let source = source(problems, 5);
    tune(&scenario, &spec, &source, Some(&source), threads)
}

fn loose() -> TuneFlags {
    TuneFlags {
        at_most: vec!["harm_rate=0.15".to_owned(), "verdict_flip_rate=0.3".to_owned()],
        at_least: vec!["tree_accuracy_vs_full=-0.2".to_owned()],
        ..TuneFlags::default()
    }
}

fn number(table: &Table, column: &str) -> f64 {
    match table.value(column, 0) {
        Value::Int(value) => value as f64,
        Value::Real(value) => value,
        other => panic!("{column}: {other:?}"),
    }
}

/// The pasted scenario is valid, and its only cell has the numerators and denominators that the choice saw: measured on the whole trace by
/// `transfer`, and part by part by the report.
#[test]
fn the_pasted_scenario_gives_what_was_measured() {
    let report = chosen(STUDY, &loose(), 400, 2).unwrap();
    let best = report.chosen.as_ref().unwrap();
    assert_eq!((report.tuned.as_str(), report.evidence, report.synthetic), ("rksc", "decision", true));
    let scenario = Scenario::parse(&best.yaml, "tuned.yaml").unwrap();
    assert_eq!(scenario.id, "thresholds-tuned");
    assert!(scenario.why.contains("(synthetic)"), "{}", scenario.why);
    assert!(
        scenario.why.contains("harm_rate at most 0.15 (decision) with 95 % confidence"),
        "{}",
        scenario.why
    );
    let source = source(400, 5);
    let options = RunOptions { threads: 1, command: "test".to_owned(), progress: &|_, _| {} };
    let cells = study(&scenario, &source, source_info(&source, "none", ""), &options).unwrap().cells;
    let measured = &report.transfer.as_ref().unwrap().measured;
    let of = |id: &str| -> &Measurement { measured.iter().find(|found| found.metric == id).unwrap() };
    for id in [
        "harm_rate",
        "help_rate",
        "tree_accuracy",
        "full_pipeline_agreement",
        "verify_skip_rate",
        "verify_work_rate",
        "share_rate",
        "prefill_work_rate",
        "verdict_flip_rate",
    ] {
        let expected = (number(&cells, &format!("{id}_num")), number(&cells, &format!("{id}_den")));
        assert_eq!((of(id).num, of(id).den), expected, "{id}");
    }
    let difference = of("tree_accuracy_vs_full");
    assert!((difference.value.unwrap() - number(&cells, "tree_accuracy_vs_full")).abs() < 1e-12);
    assert!(of("verify_work_rate").value.unwrap() < 0.9, "something is saved");
    assert_eq!((of("verify_work_rate").unchanged, of("prefill_work_rate").unchanged), (Some(1.0), Some(1.0)));
    // Every problem is in one part, and the same problems are on both sides of the transfer here.
    let parts = report.problems;
    assert_eq!(parts.search + parts.calibration + parts.test, 400);
    assert_eq!(report.transfer.as_ref().unwrap().shared_problems, 400);
    // Tested settings come careful first, and the recommendation is one of those certified.
    let saved: Vec<f64> = report.path.iter().filter_map(|row| row.objective).collect();
    assert!(saved.first() > saved.last(), "{saved:?}");
    assert!(report.path.iter().any(|row| row.certified && row.setting == best.setting));
    for row in &report.path {
        let largest = row.losses.iter().map(kvlab_sim::tune::Loss::p_value).fold(0.0, f64::max);
        assert!((row.p_value - largest).abs() < 1e-15, "the p-value is the largest of the constraints'");
    }
    // θ and ε are pasted in nats whatever the unit of the stack was.
    assert!(best.yaml.contains("unit: nats"), "{}", best.yaml);
}

#[test]
fn nothing_depends_on_threads_and_the_seed_moves_the_split() {
    let text = |flags: &TuneFlags, threads| {
        serde_json::to_string(&chosen(STUDY, flags, 200, threads).unwrap()).unwrap()
    };
    let one = text(&loose(), 1);
    assert_eq!(one, text(&loose(), 3));
    assert_ne!(one, text(&TuneFlags { seed: Some(1), ..loose() }, 1));
}

/// Where the data cannot support a constraint there is no recommendation, and how many problems are missing is exact: 1 % at 95 % needs 299
/// calibration problems without a loss.
#[test]
fn what_is_missing_is_said_with_numbers() {
    let flags = TuneFlags { at_most: vec!["harm_rate=0.01".to_owned()], ..TuneFlags::default() };
    let report = chosen(STUDY, &flags, 100, 1).unwrap();
    assert!(report.chosen.is_none() && report.transfer.is_none());
    let shortfall = report.shortfall.unwrap();
    assert_eq!(shortfall.needed_without_loss, Some(299));
    assert!(shortfall.p_value > 0.05 && (shortfall.level - 0.05).abs() < 1e-15);
    let all = (299 * 100u64).div_ceil(report.problems.calibration as u64);
    assert_eq!(shortfall.problems_in_all.0, Some(all));
    // Without a test something would have been recommended.
    assert!(report.unguarded.is_some());
}

#[test]
fn values_of_a_sweep_are_used_where_they_are_given() {
    let text = STUDY.replace(
        "unit: share-of-ln-vocab}}",
        "unit: share-of-ln-vocab}}\n      sweep: {exit.theta: [0.1, 0.5], share.tau: [0.9, 0.7, 0.8]}",
    );
    let report = chosen(&text, &loose(), 120, 1).unwrap();
    let axis =
        |name: &str| report.searched.axes.iter().find(|axis| axis.name == name).unwrap().values.clone();
    assert_eq!(axis("tau"), [0.9, 0.8, 0.7]);
    let most = 60f64.ln();
    assert!(axis("theta").iter().zip([0.1, 0.5]).all(|(found, share)| (found - share * most).abs() < 1e-12));
    assert!(axis("epsilon").len() > 2);
    let product: usize = report.searched.axes.iter().map(|axis| axis.values.len()).product();
    assert_eq!(report.searched.settings, product + 1);
}

#[test]
fn a_gate_that_can_share_nothing_is_told_of() {
    let with = |tau: f64| {
        let sweep = format!("unit: share-of-ln-vocab}}}}\n      sweep: {{share.tau: [{tau}]}}");
        let report = chosen(&STUDY.replace("unit: share-of-ln-vocab}}", &sweep), &loose(), 400, 1).unwrap();
        assert!(report.chosen.is_some());
        report.notes.iter().any(|note| note.contains("shares nothing"))
    };
    assert!(with(1.1));
    assert!(!with(0.9));
}

#[test]
fn mistakes_are_named() {
    let error = |text: &str, flags: &TuneFlags| {
        let scenario = Scenario::parse(text, "s.yaml").map_err(|error| error.to_string());
        let spec = scenario.and_then(|scenario| {
            let spec = scenario.tune.clone().with(flags).map_err(|error| error.to_string())?;
            tune(&scenario, &spec, &source(60, 1), None, 1).map_err(|error| error.to_string())
        });
        spec.unwrap_err()
    };
    let none = TuneFlags::default();
    let at_most = |text: &str| TuneFlags { at_most: vec![text.to_owned()], ..TuneFlags::default() };
    let objective = |text: &str| TuneFlags { objective: Some(text.to_owned()), ..TuneFlags::default() };
    for (found, parts) in [
        (error(STUDY, &at_most("harm_rat=0.01")), ["`harm_rat`", "did you mean `harm_rate`?"]),
        (error(STUDY, &at_most("harm_rate")), ["--at-most", "METRIC=NUMBER"]),
        (error(STUDY, &at_most("harm_rate=2")), ["the limit of `harm_rate` is 2", "0 or more, below 1"]),
        (error(STUDY, &at_most("harm_rate=-1")), ["the limit of `harm_rate` is -1", "0 or more, below 1"]),
        (
            error(
                STUDY,
                &TuneFlags { at_least: vec!["tree_accuracy_vs_full=-1".to_owned()], ..none.clone() },
            ),
            ["the limit of `tree_accuracy_vs_full` is -1", "above -1, at most 1"],
        ),
        (
            error(STUDY, &at_most("verify_work_rate=0.5")),
            ["a constraint of a study of branch trees", "harm_rate"],
        ),
        (
            error(STUDY, &at_most("attn_mass_recall=0.5")),
            ["attn_mass_recall", "accepted: full_pipeline_agreement"],
        ),
        (error(STUDY, &objective("verify_skip_rate")), ["--objective", "max:verify_skip_rate"]),
        (error(STUDY, &objective("peak_kv_bytes")), ["the objective", "verify_work_rate"]),
        (error(STUDY, &TuneFlags { delta: Some(1.0), ..none.clone() }), ["tune.delta is 1", "below 1"]),
        (
            error(STUDY, &TuneFlags { calibration: Some(0.8), ..none.clone() }),
            ["tune.calibration is 0.8 with a search share of 0.25", "leave some problems"],
        ),
        (error(&format!("{STUDY}tune: {{stack: rkcs}}\n"), &none), ["`rkcs`", "full-pipeline, rksc"]),
        (
            error(
                &STUDY.replace(
                    "unit: share-of-ln-vocab}}",
                    "unit: share-of-ln-vocab}}\n      zip: {share.tau: [0.8, 0.9]}",
                ),
                &none,
            ),
            ["zip.share.tau with 2 values", "thresholds under `sweep`"],
        ),
        (
            error(&format!("{STUDY}tune: {{stack: full-pipeline}}\n"), &none),
            ["full-pipeline", "no threshold that moves"],
        ),
        (
            error(&format!("{STUDY}tune: {{constraint: []}}\n"), &none),
            ["unknown field `constraint`", "did you mean"],
        ),
        (
            error(&format!("{STUDY}tune: {{constraints: [{{metric: harm_rate}}]}}\n"), &none),
            ["tune.constraints[0]", "exactly one"],
        ),
        (
            error(&STUDY.replace("vocab}}", "vocab}}\n      sweep: {share.alpha: [0, 1]}"), &none),
            ["sweep.share.alpha with 2 values", "one value"],
        ),
        (
            error("id: a\nwhy: b\nexit: {theta: 1, epsilon: 1}\n", &none),
            ["tune.study", "no study to choose for"],
        ),
    ] {
        assert!(parts.iter().all(|part| found.contains(part)), "{parts:?}: {found}");
    }
    // Too few problems for three parts.
    let scenario = Scenario::parse(STUDY, "s").unwrap();
    let error = tune(&scenario, &scenario.tune, &source(1, 1), None, 1).unwrap_err();
    assert!(error.to_string().contains("1 problems are too few to be split"), "{error}");
    assert_eq!(source(60, 1).problems(), 60);
}
