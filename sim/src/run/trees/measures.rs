//! What decisions about problems come to, as metrics of a row: for replays and for runs alike.

use crate::results::{Bootstrap, CellRow, SeriesRow, sha256_hex};
use crate::trees::{BranchDecision, Choice, ProblemDecision, TreeStack};

/// Turns decisions about problems into metrics, with intervals over problems.
#[derive(Clone, Debug)]
pub struct TreeMeasures {
    layers: u16,
    bootstrap: Bootstrap,
}

impl TreeMeasures {
    /// For a model of so many decoder layers, and the ids of the problems, `[problem]`.
    #[must_use]
    pub fn new<'a>(layers: u16, items: impl IntoIterator<Item = &'a str>) -> Self {
        Self { layers, bootstrap: Bootstrap::by_item(items) }
    }

    /// Sets the metrics of `decided`, each with what the full pipeline chooses, `[problem]`. What a run cannot know is left out: flipped
    /// verdicts where verifications stopped early, and what verification would have chosen where it was skipped.
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    pub fn fill(&self, row: &mut CellRow, decided: &[(ProblemDecision, Choice)]) {
        let layers = u64::from(self.layers);
        let (mut rates, mut columns) = (Vec::new(), Vec::new());
        let mut rate = |metric: &'static str, of: &dyn Fn(&ProblemDecision, &Choice) -> (u64, u64)| {
            let terms: Vec<(u64, u64)> = decided.iter().map(|(decision, full)| of(decision, full)).collect();
            let (num, den) = terms.iter().fold((0, 0), |(n, d), term| (n + term.0, d + term.1));
            rates.push((metric, num, den));
            columns.push(terms.iter().map(|&(n, d)| (n as f64, d as f64)).collect());
        };
        let right = |choice: &Choice| u64::from(choice.correct == Some(true));
        let known = |full: &Choice| u64::from(full.correct.is_some());
        let branches = |d: &ProblemDecision| d.branches.len() as u64;
        let verified = |d: &ProblemDecision| if d.skipped { 0 } else { d.branches.len() as u64 };
        rate("tree_accuracy", &|d, full| (right(&d.choice), known(full)));
        rate("full_pipeline_accuracy", &|_, full| (right(full), known(full)));
        rate("full_pipeline_agreement", &|d, full| (u64::from(d.choice.answer == full.answer), 1));
        rate("harm_rate", &|d, full| (right(full) * (1 - right(&d.choice)), known(full)));
        rate("help_rate", &|d, full| (right(&d.choice) * (1 - right(full)), known(full)));
        rate("share_rate", &|d, _| (shared(d), branches(d)));
        rate("reused_token_rate", &|d, _| (d.work.prompt_tokens.1, d.work.prompt_tokens.0));
        rate("prefill_work_rate", &|d, _| (d.work.prefill, d.work.prefill_unshared));
        rate("break_even_share_rate", &|d, _| (d.work.overhead, d.work.shareable));
        rate("verify_skip_rate", &|d, _| (u64::from(d.skipped), 1));
        rate("skipped_accuracy", &|d, full| {
            (u64::from(d.skipped) * right(&d.choice), u64::from(d.skipped) * known(full))
        });
        rate("verify_exit_rate", &|d, _| (exited(d, self.layers), verified(d)));
        rate("verify_layer_skip_rate", &|d, _| (verified(d) * layers - run(d), verified(d) * layers));
        rate("verify_batch_skip_rate", &|d, _| {
            let most = d.branches.iter().filter_map(|branch| branch.layers_run).max();
            most.map_or((0, 0), |most| (layers - u64::from(most), layers))
        });
        rate("verify_work_rate", &|d, _| (d.work.verify, d.work.verify_full));
        let verifications =
            || decided.iter().flat_map(|(d, _)| &d.branches).filter(|b| b.layers_run.is_some());
        if verifications().all(|branch| branch.is_flipped.is_some()) {
            rate("verdict_flip_rate", &|d, _| {
                (
                    d.branches.iter().filter(|branch| branch.is_flipped == Some(true)).count() as u64,
                    verified(d),
                )
            });
        }
        rate("decode_exit_rate", &|d, _| (u64::from(d.stopped_after.is_some()), 1));
        rate("generated_token_rate", &|d, _| d.work.generated);
        rate("undetermined_rate", &|d, _| (u64::from(!d.is_determined), 1));
        let differences: Vec<Option<f64>> = decided
            .iter()
            .map(|(d, full)| full.correct.map(|_| right(&d.choice) as f64 - right(full) as f64))
            .collect();
        let mut means = vec![("tree_accuracy_vs_full", differences)];
        means.extend(random_control(decided).map(|expected| ("random_skip_accuracy", expected)));
        columns.extend(means.iter().map(|(_, values)| Bootstrap::terms_of(values)));
        // Thousands of cells have thousands of intervals: all of a cell's are made in one walk through the resamples.
        let mut estimates = self.bootstrap.ratios(&columns).into_iter();
        for (metric, num, den) in rates {
            row.rate(metric, estimates.next().flatten(), num, den);
        }
        for (metric, values) in means {
            row.mean(metric, estimates.next().flatten(), values.iter().flatten().count());
        }
    }

    /// How many verifications ran so many layers, as a series of the cell `id`; nothing where none ran.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    pub fn histogram(&self, id: &str, decided: &[(ProblemDecision, Choice)]) -> Vec<SeriesRow> {
        let layers = self.layers;
        let mut counts = vec![0_u64; usize::from(layers) + 1];
        for run in decided.iter().flat_map(|(d, _)| &d.branches).filter_map(|branch| branch.layers_run) {
            counts[usize::from(run)] += 1;
        }
        let total = counts.iter().sum();
        if total == 0 {
            return Vec::new();
        }
        (1..=layers)
            .map(|run| SeriesRow {
                cell: id.into(),
                metric: "verify_exit_layer_count",
                stat: "count",
                layer: None,
                x: f64::from(run),
                x_hi: None,
                value: counts[usize::from(run)] as f64,
                n: total,
            })
            .collect()
    }
}

/// Whether answers are right when as many problems are skipped, drawn evenly: the expectation of each, without a draw. Nothing where it is not known what
/// verification would have answered.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn random_control(decided: &[(ProblemDecision, Choice)]) -> Option<Vec<Option<f64>>> {
    let right = |choice: &Choice| if choice.correct == Some(true) { 1.0 } else { 0.0 };
    let skips = decided.iter().filter(|(d, _)| d.skipped).count() as f64 / decided.len().max(1) as f64;
    let expected = |(decision, full): &(ProblemDecision, Choice)| {
        let verified = decision.if_verified.as_ref()?;
        let both = skips * right(&decision.if_skipped) + (1.0 - skips) * right(verified);
        Some(full.correct.map(|_| both))
    };
    decided.iter().map(expected).collect()
}

/// Branches behind the root's prefix.
pub(super) fn shared(decision: &ProblemDecision) -> u64 {
    let is_shared = |branch: &&BranchDecision| branch.sharing.prefix == crate::trace::Prefix::Root;
    decision.branches.iter().filter(is_shared).count() as u64
}

/// Verified branches that stop before the last layer.
pub(super) fn exited(decision: &ProblemDecision, layers: u16) -> u64 {
    decision.branches.iter().filter(|branch| branch.layers_run.is_some_and(|run| run < layers)).count() as u64
}

/// Layers run over all verified branches.
pub(super) fn run(decision: &ProblemDecision) -> u64 {
    decision.branches.iter().filter_map(|branch| branch.layers_run).map(u64::from).sum()
}

/// Sets the columns that say what the stack is.
pub fn keys(row: &mut CellRow, stack: &TreeStack) {
    row.text("share", stack.share.spec().id);
    row.text("verify", stack.verify.spec().id);
    row.text("exit", stack.exit.spec().id);
    row.text("winner", stack.winner.spec().id);
    if let Some(asks) = stack.share.as_asks() {
        row.real("tau", asks.tau);
    }
    if let Some(rule) = stack.verify.as_cgee() {
        row.real("tau_conf", rule.tau_conf);
        row.real("margin", rule.margin);
    }
    if stack.exit.spec().id != "never" {
        row.text("lens", stack.exit.lens().word());
    }
    if let Some(exit) = stack.exit.as_entropy() {
        row.real("theta", exit.theta);
        row.real("epsilon", exit.epsilon);
        row.text("theta_unit", exit.unit.word());
    }
}

/// SHA-256 over all decisions, first 16 hex digits.
#[must_use]
pub fn log_digest(decided: &[(ProblemDecision, Choice)]) -> String {
    let mut bytes = Vec::new();
    for (decision, _) in decided {
        bytes.push(u8::from(decision.skipped));
        bytes.extend(decision.choice.winner.map_or(u32::MAX, crate::num::count).to_le_bytes());
        bytes.extend(decision.stopped_after.unwrap_or(0).to_le_bytes());
        for branch in &decision.branches {
            bytes.push(u8::from(branch.sharing.prefix == crate::trace::Prefix::Root));
            bytes.extend(branch.sharing.reused_tokens.to_le_bytes());
            bytes.extend(branch.layers_run.unwrap_or(0).to_le_bytes());
        }
    }
    sha256_hex(&bytes)[..16].to_owned()
}
