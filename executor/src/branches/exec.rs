//! A scenario's stacks over branch trees, run live: rows of `arm = real`.
//!
//! Each problem is solved once by the full pipeline, which every stack is compared with, and once under every stack.

use kvlab_sim::{
    results::{
        CellRow, PROBLEM_COLUMNS, Results, SeriesRow, SourceInfo, cell_id, cells_table, series_table,
        sha256_hex, table_of,
    },
    run::{TreeMeasures, tree_keys, tree_log_digest, tree_problem},
    scenario::{Scenario, TreePlan, TreeStudy},
    table::Value,
    trees::{Choice, ProblemDecision, TreeFacts, TreeModel, TreeParts, TreeStack},
};

use super::{BranchPlan, LiveProblem, TreeItem, TreeSet, live::layers_and_vocab, solve_live};
use crate::{
    closed_loop::{ClosedLoopError, manifest_of, run_keys, study::is_of_the_cell},
    error::ExecutorError,
    model::Model,
    progress::Progress,
    record,
};

/// How trees are run.
#[derive(Debug, Clone)]
pub struct TreeExec<'a> {
    /// The scenario; its `trees` section is run.
    pub scenario: &'a Scenario,
    /// Chunks, lengths and the grader.
    pub plan: BranchPlan,
    /// The command line that results are attributed to.
    pub command: String,
}

impl<'a> TreeExec<'a> {
    /// What is executed; for a look before the model is loaded.
    ///
    /// # Errors
    /// A scenario without a `trees` section.
    pub fn study(&self) -> Result<&'a TreeStudy, ClosedLoopError> {
        let no_trees = || ClosedLoopError::NoTrees { scenario: self.scenario.id.clone() };
        self.scenario.trees.as_ref().ok_or_else(no_trees)
    }
}

/// One cell as far as it was run, `[problem]`.
pub(crate) struct TreeRun<'p> {
    pub(crate) plan: &'p TreePlan,
    /// What was decided, and what the full pipeline chose.
    pub(crate) decided: Vec<(ProblemDecision, Choice)>,
    /// Zero-based exit layers of earlier verifications.
    pub(crate) history: Vec<u16>,
    /// Why it stopped.
    pub(crate) failure: Option<String>,
}

impl<'p> TreeRun<'p> {
    pub(crate) fn of(plan: &'p TreePlan) -> Self {
        Self { plan, decided: Vec::new(), history: Vec::new(), failure: None }
    }

    /// Keeps what was decided about the next problem.
    pub(crate) fn push(&mut self, decision: ProblemDecision, full: Choice) {
        if self.plan.stack.as_ref().is_ok_and(TreeStack::is_stateful) {
            let runs = decision.branches.iter().filter_map(|branch| branch.layers_run);
            self.history.extend(runs.map(|layers| layers.saturating_sub(1)));
        }
        self.decided.push((decision, full));
    }
}

/// The items of the set that the scenario wants.
///
/// # Errors
/// There are none.
pub(crate) fn wanted<'a>(set: &'a TreeSet, scenario: &Scenario) -> Result<&'a [TreeItem], ExecutorError> {
    let limit = scenario.limit.map_or(usize::MAX, |limit| limit as usize);
    let items = &set.items[..set.items.len().min(limit)];
    if items.is_empty() {
        return Err(ClosedLoopError::NoItems.into());
    }
    Ok(items)
}

/// Runs every stack over branch trees on every problem of `set`. A stack that cannot be built is a skipped row, one that cannot decide a
/// failed one.
///
/// # Errors
/// No problem, a scenario without trees, a prompt that does not fit, or the runtime.
pub fn exec_trees(
    model: &mut Model,
    set: &TreeSet,
    exec: &TreeExec<'_>,
    progress: &dyn Progress,
) -> Result<Results, ExecutorError> {
    exec.study()?;
    let items = wanted(set, exec.scenario)?;
    let of_model = layers_and_vocab(model);
    let plans = exec.scenario.plan(of_model.vocab).trees;
    let mut runs: Vec<TreeRun<'_>> = plans.iter().map(TreeRun::of).collect();
    let runnable = plans.iter().filter(|plan| plan.stack.is_ok()).count() as u64;
    progress.start(&format!("executing {}", exec.scenario.id), Some(items.len() as u64 * (runnable + 1)));
    for (index, item) in (0..).zip(items) {
        let full = FullPipeline::run(model, item, &exec.plan, index)?;
        progress.advance(1);
        for run in &mut runs {
            let Ok(stack) = &run.plan.stack else { continue };
            progress.advance(1);
            if run.failure.is_some() {
                continue;
            }
            let keys = (index, run.plan.seed.unwrap_or(0));
            let solved = solve_live(model, item, &exec.plan, stack, keys, &run.history);
            match solved.and_then(|live| Ok((live.decision, full.choice(stack, of_model)?))) {
                Ok((decision, choice)) => run.push(decision, choice),
                Err(error) if is_of_the_cell(&error) => {
                    run.failure = Some(format!("{}: {error}", item.item));
                }
                Err(error) => return Err(error),
            }
        }
    }
    progress.finish();
    let source = source(model, set, items, &exec.plan)?;
    let rows = Rows::of(&source, exec, items, of_model);
    let mut cells = Vec::new();
    let (mut series, mut problems) = (Vec::new(), Vec::new());
    for run in &runs {
        let row = rows.real(run);
        if let (Value::Text(id), None) = (row.get("cell"), &run.failure) {
            series.extend(rows.measures.histogram(&id, &run.decided));
            problems.extend(rows.problems(&id, run));
        }
        cells.push(row);
    }
    results(exec, source, &cells, &series, &problems)
}

/// Tables from rows.
pub(crate) fn results(
    exec: &TreeExec<'_>,
    source: SourceInfo,
    cells: &[CellRow],
    series: &[SeriesRow],
    problems: &[Vec<Value>],
) -> Result<Results, ExecutorError> {
    let mut more = Vec::new();
    if !problems.is_empty() {
        more.push(("problems".to_owned(), table_of(PROBLEM_COLUMNS, problems)?));
    }
    Ok(Results {
        manifest: manifest_of(exec.scenario, &exec.command, source),
        cells: cells_table(cells)?,
        series: series_table(series)?,
        more,
    })
}

/// What the full pipeline did with a problem: nothing shared, every branch verified by all layers.
pub(crate) struct FullPipeline {
    live: LiveProblem,
    facts: TreeFacts,
}

impl FullPipeline {
    pub(crate) fn run(
        model: &mut Model,
        item: &TreeItem,
        plan: &BranchPlan,
        index: u32,
    ) -> Result<Self, ExecutorError> {
        let stack = TreeStack::build(&TreeParts::default())?;
        let live = solve_live(model, item, plan, &stack, (index, 0), &[])?;
        let facts = TreeFacts::new(index, live.problem.clone());
        Ok(Self { live, facts })
    }

    /// What it would choose by the winner policy of `stack`: choosing is the last thing that happens.
    pub(crate) fn choice(&self, stack: &TreeStack, model: TreeModel) -> Result<Choice, ExecutorError> {
        Ok(self.live.lived.decided(stack, &self.facts, model)?.choice)
    }
}

/// What all rows share.
pub(crate) struct Rows<'a> {
    source: &'a SourceInfo,
    exec: &'a TreeExec<'a>,
    items: &'a [TreeItem],
    model: TreeModel,
    pub(crate) measures: TreeMeasures,
}

impl<'a> Rows<'a> {
    pub(crate) fn of(
        source: &'a SourceInfo,
        exec: &'a TreeExec<'a>,
        items: &'a [TreeItem],
        model: TreeModel,
    ) -> Self {
        let measures = TreeMeasures::new(model.layers, items.iter().map(|item| item.item.as_str()));
        Self { source, exec, items, model, measures }
    }

    /// The row of a cell that was run. Its answers were executed: `accuracy` says so, and its difference to the full pipeline on the same
    /// problems.
    pub(crate) fn real(&self, run: &TreeRun<'_>) -> CellRow {
        let mut row = self.row("real", run.plan, run.failure.as_deref());
        if row.get("status") == Value::Text("ok".to_owned()) {
            self.fill(&mut row, &run.decided);
            for (executed, decided) in
                [("accuracy", "tree_accuracy"), ("accuracy_vs_full", "tree_accuracy_vs_full")]
            {
                for suffix in ["", "_lo", "_hi", "_se", "_num", "_den", "_n"] {
                    match row.get(&format!("{decided}{suffix}")) {
                        Value::Absent => {}
                        value => row.set(&format!("{executed}{suffix}"), value),
                    }
                }
            }
        }
        row
    }

    /// The metrics of decisions, `[problem]`.
    pub(crate) fn fill(&self, row: &mut CellRow, decided: &[(ProblemDecision, Choice)]) {
        row.text("log_digest", tree_log_digest(decided));
        self.measures.fill(row, decided);
    }

    /// The keys of a cell's row in `arm`, and how it ended.
    pub(crate) fn row(&self, arm: &str, plan: &TreePlan, failure: Option<&str>) -> CellRow {
        let mut row = run_keys(self.exec.scenario, self.source, arm, "trees");
        let params = plan.stack.as_ref().ok().map(TreeStack::params);
        let id = cell_id(&serde_json::json!({
            "source": self.source.digest,
            "arm": arm,
            "study": "trees",
            "stack": plan.label,
            "params": params,
            "swept": plan.stack.is_err().then_some(&plan.swept),
            "seed": plan.seed,
            "max_new_tokens": self.exec.plan.max_new_tokens,
        }));
        row.text("cell", id);
        row.text("policy", plan.label.clone());
        row.int("problems", i64::try_from(self.items.len()).unwrap_or(i64::MAX));
        row.set(
            "seed",
            plan.seed.and_then(|seed| i64::try_from(seed).ok()).map_or(Value::Absent, Value::Int),
        );
        match &plan.stack {
            Err(error) => {
                row.text("status", "skipped");
                row.text("error", error.to_string());
            }
            Ok(stack) => {
                row.text("params", stack.params().to_string());
                tree_keys(&mut row, stack);
                row.text("status", if failure.is_some() { "failed" } else { "ok" });
                if let Some(failure) = failure {
                    row.text("error", failure);
                }
            }
        }
        row
    }

    /// Rows of `problems`.
    fn problems(&self, id: &str, run: &TreeRun<'_>) -> Vec<Vec<Value>> {
        let each = (0_u32..).zip(self.items).zip(&run.decided);
        each.map(|((index, item), (decision, full))| {
            tree_problem(id, (index, &item.item), decision, full, self.model.layers)
        })
        .collect()
    }
}

/// What results say about the model and the trees; the digest covers weights, graphs, tokenizer, prompts, answers and lengths.
pub(crate) fn source(
    model: &Model,
    set: &TreeSet,
    items: &[TreeItem],
    plan: &BranchPlan,
) -> Result<SourceInfo, ExecutorError> {
    let shape = model.shape()?;
    let words = |words: &super::BranchWords| serde_json::json!([words.prefix, words.suffix, words.wording]);
    let of_items: Vec<serde_json::Value> = items
        .iter()
        .map(|item| {
            let branches: Vec<serde_json::Value> = item.branches.iter().map(words).collect();
            serde_json::json!([item.item, words(&item.root), branches, item.stops, item.expected_answer])
        })
        .collect();
    let digest = serde_json::json!({
        "model": model.identity()?,
        "items": of_items,
        "verdict_words": [plan.verdict_words.0, plan.verdict_words.1],
    });
    Ok(SourceInfo {
        name: set.name.clone(),
        digest: sha256_hex(digest.to_string().as_bytes()),
        synthetic: false,
        model: model.name().to_owned(),
        provider: record::runtime_info(model.runtime()).provider,
        sequences: 0,
        tokens: 0,
        layers: shape.layers,
        q_heads: shape.q_heads,
        kv_heads: shape.kv_heads,
        vocab: shape.vocab,
    })
}
