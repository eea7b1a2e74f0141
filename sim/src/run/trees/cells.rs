//! One cell over branch trees: decisions about every problem, as a row of metrics.

use super::super::context::Context;
use super::super::eviction::unfinished;
use super::measures::{self, TreeMeasures};
use super::tables;
use crate::results::{CellRow, Outcome, cell_id};
use crate::scenario::{TreePlan, TreeStudy};
use crate::table::Value;
use crate::trees::{Choice, ProblemDecision, TreeFacts, TreeModel, TreeStack, replay_all};

/// What all cells share.
pub(super) struct Shared<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) study: &'a TreeStudy,
    pub(super) trees: &'a [TreeFacts],
    pub(super) model: TreeModel,
    pub(super) measures: TreeMeasures,
}

/// Content hash of a cell.
pub(super) fn id_of(context: &Context<'_>, study: &TreeStudy, plan: &TreePlan) -> String {
    // A stack that cannot be built has no parameters but those that were asked for.
    let swept = plan.stack.is_err().then_some(&plan.swept);
    cell_id(&serde_json::json!({
        "source": context.digest,
        "problems": context.problems_key(),
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
        self.context.tell_drawn(&mut row);
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
        measures::keys(&mut row, stack);
        match replay_all(stack, self.trees, self.model, plan.seed.unwrap_or(0)) {
            Err(error) => unfinished(row, "skipped", error.to_string()),
            Ok(decided) => self.finished(row, decided),
        }
    }

    fn finished(&self, mut row: CellRow, decided: Vec<(ProblemDecision, Choice)>) -> Outcome {
        row.text("status", "ok");
        row.text("log_digest", measures::log_digest(&decided));
        self.measures.fill(&mut row, &decided);
        let layers = self.model.layers;
        let Value::Text(id) = row.get("cell") else { return Outcome::default() };
        let series = self.measures.histogram(&id, &decided);
        let problems = if self.study.per_problem {
            let rows = decided.iter().zip(self.trees);
            rows.map(|((decision, full), facts)| {
                tables::problem(&id, (facts.index, &facts.problem.item), decision, full, layers)
            })
            .collect()
        } else {
            Vec::new()
        };
        Outcome { cell: Some(row), series, more: vec![("problems", problems)], ..Outcome::default() }
    }
}
