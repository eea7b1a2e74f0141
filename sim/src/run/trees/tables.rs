//! Rows of the tables `problems` and `steps`.

use super::measures::{exited, run, shared};
use crate::results::cell_id;
use crate::scenario::{TreePlan, TreeStudy};
use crate::steps::{Setting, Step, StepTable};
use crate::table::Value;
use crate::trees::{Choice, ProblemDecision, TreeModel, TreeStack};

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

/// A row of `problems` about the problem of this index and id.
#[must_use]
pub fn problem(
    cell: &str,
    (index, item): (u32, &str),
    decision: &ProblemDecision,
    full: &Choice,
    layers: u16,
) -> Vec<Value> {
    vec![
        text(Some(cell)),
        int(u64::from(index)),
        text(Some(item)),
        int(decision.branches.len() as u64),
        int(shared(decision)),
        int(decision.work.prompt_tokens.1),
        bool(Some(decision.skipped)),
        int(exited(decision, layers)),
        int(run(decision)),
        int(decision.work.generated.0),
        decision.choice.winner.map_or(Value::Absent, |winner| int(winner as u64)),
        text(decision.choice.answer.as_deref()),
        bool(decision.choice.correct),
        text(full.answer.as_deref()),
        bool(full.correct),
    ]
}

/// The rows of `steps` of a group of cells: step functions around the thresholds of its first cell, `plan`.
pub(super) fn steps(
    study: &TreeStudy,
    plan: &TreePlan,
    key: &str,
    table: &StepTable<'_>,
    model: TreeModel,
) -> Vec<Vec<Value>> {
    let Ok(stack) = &plan.stack else { return Vec::new() };
    let base = Setting::of(stack, model.vocab);
    let group = cell_id(&serde_json::json!(key));
    let params = stack.params().to_string();
    let mut rows = Vec::new();
    for &axis in study.steps.iter().filter(|axis| axis.applies_to(stack)) {
        for step in table.along(axis, &base) {
            let mut row = vec![
                text(Some(&plan.label)),
                text(Some(&group)),
                text(Some(&params)),
                text(Some(axis.word())),
            ];
            let thresholds = [base.tau, base.tau_conf, base.margin, base.theta, base.epsilon];
            row.extend(thresholds.map(|x| real(Some(x))));
            row.extend(step_values(table, &step));
            rows.push(row);
        }
    }
    rows
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
