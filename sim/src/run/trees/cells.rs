//! One cell over branch trees: decisions about every problem, as a row of metrics.

use super::super::context::Context;
use super::super::eviction::unfinished;
use super::tables;
use crate::results::{Bootstrap, CellRow, Outcome, SeriesRow, cell_id, sha256_hex};
use crate::scenario::{TreePlan, TreeStudy};
use crate::table::Value;
use crate::trees::{
    Choice, ProblemDecision, TreeError, TreeFacts, TreeModel, TreeStack, full_pipeline, replay_problem,
};

/// What all cells share.
pub(super) struct Shared<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) study: &'a TreeStudy,
    pub(super) trees: &'a [TreeFacts],
    pub(super) model: TreeModel,
    pub(super) bootstrap: Bootstrap,
}

/// Content hash of a cell.
pub(super) fn id_of(context: &Context<'_>, study: &TreeStudy, plan: &TreePlan) -> String {
    // A stack that cannot be built has no parameters but those that were asked for.
    let swept = plan.stack.is_err().then_some(&plan.swept);
    cell_id(&serde_json::json!({
        "source": context.digest,
        "problems": context.problems,
        "study": "trees",
        "stack": plan.label,
        "params": plan.stack.as_ref().ok().map(TreeStack::params),
        "swept": swept,
        "seed": plan.seed,
        "per_problem": study.per_problem,
    }))
}

impl Shared<'_> {
    pub(super) fn cell(&self, plan: &TreePlan) -> Outcome {
        let mut row = self.context.keys("trees");
        row.text("cell", id_of(self.context, self.study, plan));
        row.text("policy", plan.label.clone());
        row.int("sequences", 0);
        row.int("problems", i64::try_from(self.trees.len()).unwrap_or(i64::MAX));
        row.set(
            "seed",
            plan.seed.and_then(|seed| i64::try_from(seed).ok()).map_or(Value::Absent, Value::Int),
        );
        let stack = match &plan.stack {
            Ok(stack) => stack,
            Err(error) => {
                let swept: Vec<String> =
                    plan.swept.iter().map(|(key, value)| format!("{key} {value}: ")).collect();
                return unfinished(row, "skipped", format!("{}{error}", swept.concat()));
            }
        };
        row.text("params", stack.params().to_string());
        keys(&mut row, stack);
        match self.decide(stack, plan.seed.unwrap_or(0)) {
            Err(error) => unfinished(row, "skipped", error.to_string()),
            Ok(decided) => self.finished(row, decided),
        }
    }

    /// In the order of problems, since some policies remember.
    fn decide(&self, stack: &TreeStack, seed: u64) -> Result<Vec<(ProblemDecision, Choice)>, TreeError> {
        let (mut decided, mut history) = (Vec::with_capacity(self.trees.len()), Vec::new());
        for facts in self.trees {
            let decision = replay_problem(stack, facts, self.model, seed, &history)?;
            if stack.is_stateful() {
                let runs = decision.branches.iter().filter_map(|branch| branch.layers_run);
                history.extend(runs.map(|layers| layers.saturating_sub(1)));
            }
            let full = full_pipeline(stack.winner.as_ref(), facts)?;
            decided.push((decision, full));
        }
        Ok(decided)
    }

    fn finished(&self, mut row: CellRow, decided: Vec<(ProblemDecision, Choice)>) -> Outcome {
        row.text("status", "ok");
        row.text("log_digest", &sha256_hex(&log(&decided))[..16]);
        self.metrics(&mut row, &decided);
        let layers = self.model.layers;
        let Value::Text(id) = row.get("cell") else { return Outcome::default() };
        let series = histogram(&id, layers, &decided);
        let problems = if self.study.per_problem {
            let rows = decided.iter().zip(self.trees);
            rows.map(|((decision, full), facts)| tables::problem(&id, facts, decision, full, layers))
                .collect()
        } else {
            Vec::new()
        };
        Outcome { cell: Some(row), series, more: vec![("problems", problems)], ..Outcome::default() }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    fn metrics(&self, row: &mut CellRow, decided: &[(ProblemDecision, Choice)]) {
        let layers = u64::from(self.model.layers);
        let mut rate = |metric: &str, of: &dyn Fn(&ProblemDecision, &Choice) -> (u64, u64)| {
            let terms: Vec<(u64, u64)> = decided.iter().map(|(decision, full)| of(decision, full)).collect();
            let floats: Vec<(f64, f64)> = terms.iter().map(|&(n, d)| (n as f64, d as f64)).collect();
            let (num, den) = terms.iter().fold((0, 0), |(n, d), term| (n + term.0, d + term.1));
            row.rate(metric, self.bootstrap.ratio(&floats), num, den);
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
        rate("verify_exit_rate", &|d, _| (exited(d, self.model.layers), verified(d)));
        rate("verify_layer_skip_rate", &|d, _| (verified(d) * layers - run(d), verified(d) * layers));
        rate("verify_batch_skip_rate", &|d, _| {
            let most = d.branches.iter().filter_map(|branch| branch.layers_run).max();
            most.map_or((0, 0), |most| (layers - u64::from(most), layers))
        });
        rate("verify_work_rate", &|d, _| (d.work.verify, d.work.verify_full));
        rate("verdict_flip_rate", &|d, _| {
            (d.branches.iter().filter(|branch| branch.is_flipped).count() as u64, verified(d))
        });
        rate("decode_exit_rate", &|d, _| (u64::from(d.stopped_after.is_some()), 1));
        rate("generated_token_rate", &|d, _| d.work.generated);
        rate("undetermined_rate", &|d, _| (u64::from(!d.is_determined), 1));
        let differences: Vec<Option<f64>> = decided
            .iter()
            .map(|(d, full)| full.correct.map(|_| right(&d.choice) as f64 - right(full) as f64))
            .collect();
        let n = differences.iter().flatten().count();
        row.mean("tree_accuracy_vs_full", self.bootstrap.mean(&differences), n);
        self.random_control(row, decided);
    }

    /// Skipping as many problems, drawn evenly: the expectation, without a draw.
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    fn random_control(&self, row: &mut CellRow, decided: &[(ProblemDecision, Choice)]) {
        let right = |choice: &Choice| if choice.correct == Some(true) { 1.0 } else { 0.0 };
        let skips = decided.iter().filter(|(d, _)| d.skipped).count() as f64 / decided.len().max(1) as f64;
        let mut expected = Vec::with_capacity(decided.len());
        for (decision, full) in decided {
            let Some(verified) = &decision.if_verified else { return };
            let both = skips * right(&decision.if_skipped) + (1.0 - skips) * right(verified);
            expected.push(full.correct.map(|_| both));
        }
        let n = expected.iter().flatten().count();
        row.mean("random_skip_accuracy", self.bootstrap.mean(&expected), n);
    }
}

/// Branches behind the root's prefix.
pub(super) fn shared(decision: &ProblemDecision) -> u64 {
    let is_shared =
        |branch: &&crate::trees::BranchDecision| branch.sharing.prefix == crate::trace::Prefix::Root;
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

/// The columns that say what the stack is.
fn keys(row: &mut CellRow, stack: &TreeStack) {
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

/// All decisions as bytes.
fn log(decided: &[(ProblemDecision, Choice)]) -> Vec<u8> {
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
    bytes
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn histogram(id: &str, layers: u16, decided: &[(ProblemDecision, Choice)]) -> Vec<SeriesRow> {
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
            cell: id.to_owned(),
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
