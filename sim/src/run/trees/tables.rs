//! The tables `problems` and `steps`.

use super::cells::{ProblemRow, exited, run, shared};
use crate::results::table_of as table;
use crate::results::{PROBLEM_COLUMNS, STEP_COLUMNS, cell_id};
use crate::scenario::{TreePlan, TreeStudy};
use crate::steps::{Setting, Step, StepTable};
use crate::table::{Table, TableError, Value};
use crate::trees::{TreeModel, TreeStack};
use std::collections::BTreeMap;

/// Everything about a stack but its thresholds, as text.
pub(super) fn group_key(label: &str, stack: &TreeStack) -> String {
    let mut params = stack.params();
    for (family, names) in
        [("share", &["tau"][..]), ("verify", &["tau_conf", "margin"]), ("exit", &["theta", "epsilon"])]
    {
        let has_steps = match family {
            "share" => stack.share.as_asks().is_some(),
            "verify" => stack.verify.as_cgee().is_some(),
            _ => stack.exit.as_entropy().is_some(),
        };
        if let Some(map) = params[family]["params"].as_object_mut().filter(|_| has_steps) {
            names.iter().for_each(|name| {
                map.remove(*name);
            });
        }
    }
    format!("{label}\n{params}")
}

pub(super) fn int(value: u64) -> Value {
    i64::try_from(value).map_or(Value::Absent, Value::Int)
}

pub(super) fn real(value: Option<f64>) -> Value {
    value.map_or(Value::Absent, Value::Real)
}

pub(super) fn text(value: Option<&str>) -> Value {
    value.map_or(Value::Absent, |value| Value::Text(value.to_owned()))
}

fn bool(value: Option<bool>) -> Value {
    value.map_or(Value::Absent, Value::Bool)
}

/// One row a cell and problem.
pub(super) fn problems(rows: &[ProblemRow]) -> Result<Table, TableError> {
    let row = |row: &ProblemRow| {
        let decision = &row.decision;
        vec![
            text(Some(&row.cell)),
            int(u64::from(row.problem)),
            text(Some(&row.item)),
            int(decision.branches.len() as u64),
            int(shared(decision)),
            int(decision.work.prompt_tokens.1),
            bool(Some(decision.skipped)),
            int(exited(decision, row.layers)),
            int(run(decision)),
            int(decision.work.generated.0),
            decision.choice.winner.map_or(Value::Absent, |winner| int(winner as u64)),
            text(decision.choice.answer.as_deref()),
            bool(decision.choice.correct),
            text(row.full.answer.as_deref()),
            bool(row.full.correct),
        ]
    };
    table(PROBLEM_COLUMNS, &rows.iter().map(row).collect::<Vec<_>>())
}

/// The step functions of every group of cells, around the thresholds of its first cell.
pub(super) fn steps(
    study: &TreeStudy,
    plans: &[TreePlan],
    groups: &BTreeMap<String, usize>,
    tables: &BTreeMap<&str, StepTable<'_>>,
    model: TreeModel,
) -> Result<Table, TableError> {
    let mut order: Vec<(&str, usize)> = groups.iter().map(|(key, &at)| (key.as_str(), at)).collect();
    order.sort_unstable_by_key(|&(_, at)| at);
    let mut rows = Vec::new();
    for (key, at) in order {
        let (Some(steps), Ok(stack)) = (tables.get(key), &plans[at].stack) else { continue };
        let base = Setting::of(stack, model.vocab);
        let group = cell_id(&serde_json::json!(key));
        let params = stack.params().to_string();
        for &axis in study.steps.iter().filter(|axis| axis.applies_to(stack)) {
            for step in steps.along(axis, &base) {
                let mut row = vec![
                    text(Some(&plans[at].label)),
                    text(Some(&group)),
                    text(Some(&params)),
                    text(Some(axis.word())),
                ];
                row.extend(
                    [base.tau, base.tau_conf, base.margin, base.theta, base.epsilon].map(|x| real(Some(x))),
                );
                row.extend(step_values(steps, &step));
                rows.push(row);
            }
        }
    }
    table(STEP_COLUMNS, &rows)
}

fn step_values(table: &StepTable<'_>, step: &Step) -> Vec<Value> {
    let counts = &step.counts;
    let mut values = vec![real(step.above), real(step.upto)];
    values.extend(
        [
            counts.shared,
            counts.skipped,
            counts.verified,
            counts.exited,
            counts.layers_run,
            counts.correct,
            counts.agreeing,
            counts.harmed,
            counts.helped,
            table.branches(),
            table.problems(),
            table.gradable(),
            u64::from(table.layers()),
        ]
        .map(int),
    );
    values
}
