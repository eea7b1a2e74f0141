//! Policies and budgets: what is measured is what a sweep gives, hopeless settings are given up with a reason, and the word is proxy.

use kvlab_sim::run::{RunOptions, source_info, study};
use kvlab_sim::scenario::{Scenario, TuneFlags};
use kvlab_sim::table::Value;
use kvlab_sim::trace::synth::{SynthLength, SynthSpec, Synthetic};
use kvlab_sim::trace::{LayerTensors, LensRow, SequenceMeta, TraceError, TraceSource};
use kvlab_sim::tune::{Part, PathRow, Shares, Test, TuneReport, tune};
use kvlab_sim::types::{LayerIdx, ModelShape, SeqIdx};

const STUDY: &str = "
id: budgets
why: How small may the cache be?
seeds: [0, 1]
eviction:
  budgets: [16, 24, 32, 48]
  recent: 8
  sinks: 2
  policies:
    - use: snapkv
    - {use: random, label: chance, with: {sinks: 2}}
    - use: streaming-llm
    - {use: vase-attnv, label: attnv, with: {value_tokens: 4}}
tune:
  constraints: [{metric: attn_mass_recall, at_least: 0.5}]
  survivors: 6
  delta: 0.2
";

fn source(sequences: usize) -> Synthetic {
    Synthetic::build(
        "sinks-and-hitters",
        SynthSpec {
            shape: ModelShape { layers: 1, q_heads: 2, kv_heads: 1, head_dim: 4, hidden: 8, vocab: 20 },
            lengths: vec![SynthLength { prompt_len: 20, len: 64 }; sequences],
            seed: 3,
        },
    )
    .unwrap()
}

fn chosen(text: &str, flags: &TuneFlags, sequences: usize, threads: usize) -> TuneReport {
    let scenario = Scenario::parse(text, "test").unwrap();
    let spec = scenario.tune.clone().with(flags).unwrap();
    let source = source(sequences);
    tune(&scenario, &spec, &source, Some(&source), threads).unwrap()
}

#[test]
fn a_policy_and_a_budget_are_chosen_and_measured_as_a_sweep_does() {
    let report = chosen(STUDY, &TuneFlags::default(), 48, 2);
    let best = report.chosen.as_ref().unwrap();
    assert_eq!((report.study, report.evidence, report.synthetic), ("eviction", "proxy", true));
    assert!(
        best.guarantee[0].contains("attn_mass_recall at least 0.5 (proxy) with 80 % confidence"),
        "{:?}",
        best.guarantee
    );
    assert!(report.notes.iter().any(|note| note.contains("nothing about accuracy")));
    // 4 policies × 4 budgets and the full cache, which no line of the study names; all but six of them were given up, each with numbers.
    assert_eq!((report.searched.settings, report.searched.dropped.len()), (17, 10));
    assert!(report.searched.dropped.iter().all(|dropped| dropped.reason.contains("problems")));
    let scenario = Scenario::parse(&best.yaml, "tuned.yaml").unwrap();
    let source = source(48);
    let options = RunOptions { threads: 1, command: "test".to_owned(), progress: &|_, _| {} };
    let cells = study(&scenario, &source, source_info(&source, "none", ""), &options).unwrap().cells;
    let measured = &report.transfer.as_ref().unwrap().measured;
    for id in ["attn_mass_recall", "mean_keep_ratio"] {
        // The mean over problems and seeds is that over seeds and problems.
        let rows: Vec<f64> = (0..cells.rows())
            .map(|row| if let Value::Real(value) = cells.value(id, row) { value } else { panic!("{id}") })
            .collect();
        let mean = rows.iter().sum::<f64>() / rows.len() as f64;
        let found = measured.iter().find(|found| found.metric == id).unwrap();
        assert!((found.value.unwrap() - mean).abs() < 1e-12, "{id} {found:?} {mean}");
        assert_eq!(found.n, 48);
    }
    let peak = measured.iter().find(|found| found.metric == "peak_kv_bytes").unwrap();
    assert!(peak.value < peak.unchanged && peak.difference.unwrap().0 < 0.0);
    // Nothing depends on threads.
    assert_eq!(report, chosen(STUDY, &TuneFlags::default(), 48, 1));
}

#[test]
fn what_cannot_run_is_dropped_with_its_reason_and_unbounded_constraints_are_refused() {
    let text = STUDY.replace("[16, 24, 32, 48]", "[8, 32]");
    let report = chosen(&text, &TuneFlags::default(), 40, 1);
    let reasons: Vec<&str> = report.searched.dropped.iter().map(|dropped| dropped.reason.as_str()).collect();
    assert!(reasons.iter().any(|reason| reason.contains("a budget of 8 tokens")), "{reasons:?}");
    let scenario = Scenario::parse(STUDY, "test").unwrap();
    let flags = TuneFlags { at_most: vec!["peak_kv_bytes=5".to_owned()], ..TuneFlags::default() };
    let spec = scenario.tune.clone().with(&flags).unwrap();
    let error = tune(&scenario, &spec, &source(40), None, 1).unwrap_err().to_string();
    assert!(error.contains("`peak_kv_bytes` cannot be a constraint of a study of evictions"), "{error}");
    assert!(error.contains("attn_mass_recall"), "{error}");
}

/// A trace on some of whose problems values are so large that their norms overflow: `cur` then scores infinity over infinity, and nothing else minds.
struct Overflowing<'a> {
    sequences: &'a Synthetic,
    part: Part,
}

impl Overflowing<'_> {
    fn is_hit(&self, meta: &SequenceMeta) -> bool {
        // The shares and the seed of a `tune` section that does not give them.
        Shares { search: 0.25, calibration: 0.5 }.part(&meta.item, 0) == self.part
    }
}

impl TraceSource for Overflowing<'_> {
    fn name(&self) -> &str {
        "overflowing"
    }
    fn digest(&self) -> String {
        self.sequences.digest()
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
        let mut tensors = self.sequences.layer(seq, layer)?;
        if self.is_hit(&self.sequences.sequences()[seq.idx()]) {
            tensors.v.fill(1e30);
        }
        Ok(tensors)
    }
    fn lens(&self, seq: SeqIdx) -> Result<Vec<LensRow>, TraceError> {
        self.sequences.lens(seq)
    }
}

/// A setting that fails on problems that it is tested on stays in the race with a whole loss for each. Taking it out would be a choice by
/// those problems.
#[test]
fn a_problem_on_which_a_setting_cannot_run_is_a_whole_loss() {
    let text = STUDY
        .replace("    - use: snapkv\n", "    - use: cur\n")
        .replace("  sinks: 2\n  policies", "  sinks: 2\n  output_error_every: 0\n  policies")
        .replace("  survivors: 6", "  survivors: 20");
    let scenario = Scenario::parse(&text, "test").unwrap();
    let sequences = source(64);
    let tuned = |source: &dyn TraceSource| tune(&scenario, &scenario.tune, source, Some(source), 2).unwrap();
    let of_cur = |report: &TuneReport| -> Vec<PathRow> {
        report.path.iter().filter(|row| row.setting["policy"] == "cur").cloned().collect()
    };
    let whole = tuned(&sequences);
    let before = of_cur(&whole);
    assert!(before.iter().any(|row| row.certified) && whole.searched.unrun.is_empty(), "{before:?}");
    let n = whole.problems;

    let broken = Overflowing { sequences: &sequences, part: Part::Calibration };
    let report = tuned(&broken);
    // The path is decided by search problems, which are as they were.
    let settings =
        |report: &TuneReport| -> Vec<_> { report.path.iter().map(|row| row.setting.clone()).collect() };
    assert_eq!(settings(&report), settings(&whole));
    assert_eq!(report.searched.dropped, whole.searched.dropped);
    for row in of_cur(&report) {
        let all = u64::try_from(n.calibration).unwrap();
        let Test::Bounded { sum, n } = row.losses[0].test else { panic!("{row:?}") };
        assert_eq!((sum.to_bits(), n), ((all as f64).to_bits(), all));
        assert!(row.p_value >= 1.0 && !row.certified, "{row:?}");
    }
    // Four budgets of it, and each says why.
    assert_eq!(report.searched.unrun.len(), 4);
    for unrun in &report.searched.unrun {
        assert_eq!((unrun.problems, unrun.of), (n.calibration, 64));
        assert_eq!(unrun.setting["policy"], "cur");
        assert!(unrun.reason.contains("NaN at sequence"), "{}", unrun.reason);
    }
    assert!(report.chosen.as_ref().is_none_or(|chosen| chosen.setting["policy"] != "cur"));

    // Failing on held-out problems only, a setting that was chosen for what it did on the others is told to lose them all, there and elsewhere.
    let only = text.replace("    - {use: random, label: chance, with: {sinks: 2}}\n", "").replace(
        "    - use: streaming-llm\n    - {use: vase-attnv, label: attnv, with: {value_tokens: 4}}\n",
        "",
    );
    let scenario = Scenario::parse(&only, "test").unwrap();
    let broken = Overflowing { sequences: &sequences, part: Part::Test };
    let report = tune(&scenario, &scenario.tune, &broken, Some(&broken), 1).unwrap();
    let chosen = report.chosen.as_ref().unwrap();
    assert_eq!(chosen.setting["policy"], "cur");
    let recall = chosen.test.iter().find(|found| found.metric == "attn_mass_recall").unwrap();
    assert_eq!((recall.num.to_bits(), recall.n), (0.0_f64.to_bits(), u64::try_from(n.test).unwrap()));
    let peak = chosen.test.iter().find(|found| found.metric == "peak_kv_bytes").unwrap();
    assert_eq!(peak.value, peak.unchanged, "no bytes are saved where the full cache has to do");
    let transfer = report.transfer.as_ref().unwrap();
    assert_eq!(transfer.unrun.len(), n.test);
    let recall = transfer.measured.iter().find(|found| found.metric == "attn_mass_recall").unwrap();
    assert_eq!(recall.n, 64);
}
