//! Thresholds over branch trees that can never act, decide nothing, or repeat one another, with the number that shows it.

use super::tables::group_key;
use crate::num;
use crate::results::CellRow;
use crate::scenario::TreePlan;
use crate::steps::{Axis, Setting, StepTable};
use crate::trees::{TreeModel, TreeStack};
use std::collections::BTreeMap;

/// Writes the findings into the rows of `plans`.
pub(super) fn note(
    plans: &[TreePlan],
    tables: &BTreeMap<&str, StepTable<'_>>,
    model: TreeModel,
    rows: &mut [CellRow],
) {
    // (group, axis) → observed values and the thresholds seen so far.
    let mut seen: BTreeMap<(String, Axis), (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for (plan, row) in plans.iter().zip(rows) {
        let Ok(stack) = &plan.stack else { continue };
        let key = group_key(&plan.label, stack);
        let Some(table) = tables.get(key.as_str()) else { continue };
        let setting = Setting::of(stack, model.vocab);
        let mut findings = Vec::new();
        for axis in Axis::ALL.into_iter().filter(|axis| axis.applies_to(stack)) {
            let (observed, known) =
                seen.entry((key.clone(), axis)).or_insert_with(|| (table.observed(axis), Vec::new()));
            let value = setting.get(axis);
            match alone(axis, value, observed, model) {
                Some(finding) => findings.push(finding),
                None => findings.extend(undecisive(axis, table, &setting)),
            }
            findings.extend(repeated(axis, value, observed, known));
            if !known.iter().any(|other| other.total_cmp(&value).is_eq()) {
                known.push(value);
            }
        }
        findings.extend(rules(stack));
        if !findings.is_empty() {
            row.text("lint", findings.join("; "));
        }
    }
}

/// What a threshold is by itself: always met, or never.
fn alone(axis: Axis, value: f64, observed: &[f64], model: TreeModel) -> Option<String> {
    let word = axis.word();
    let (Some(&smallest), Some(&largest)) = (observed.first(), observed.last()) else {
        return Some(format!("{word} is unreachable: nothing is compared with it"));
    };
    match axis {
        Axis::Theta | Axis::Epsilon => {
            let most = num::ln(f64::from(model.vocab));
            let what = if axis == Axis::Theta { "entropy" } else { "change" };
            if axis == Axis::Theta && value >= most {
                return Some(format!(
                    "{word} is vacuous: {value:.3} nats is not below the largest possible entropy, ln V = {most:.3}"
                ));
            }
            if value > largest {
                return Some(format!(
                    "{word} is vacuous: {value:.3} nats is above every observed {what} that could stop a pass (largest {largest:.3})"
                ));
            }
            (value <= smallest).then(|| {
                format!(
                    "{word} is unreachable: no observed {what} is below {value:.3} nats (smallest {smallest:.3})"
                )
            })
        }
        Axis::Tau | Axis::TauConf | Axis::Margin => {
            if value > largest {
                return Some(format!(
                    "{word} is unreachable: {value} is above every observed value (largest {largest:.4})"
                ));
            }
            (value <= smallest).then(|| {
                format!(
                    "{word} is vacuous: {value} is not above the smallest observed value ({smallest:.4}), so it is always met"
                )
            })
        }
    }
}

/// Whether leaving the threshold out changes nothing, all others as they are.
fn undecisive(axis: Axis, table: &StepTable<'_>, setting: &Setting) -> Option<String> {
    let always = match axis {
        Axis::Theta | Axis::Epsilon => f64::INFINITY,
        _ => f64::NEG_INFINITY,
    };
    table.is_same(setting, &setting.with(axis, always)).then(|| {
        format!(
            "{} is never decisive: without it every one of {} problems ends the same, the other thresholds as they are",
            axis.word(),
            table.problems()
        )
    })
}

/// Whether an earlier threshold lies between the same pair of observed values.
fn repeated(axis: Axis, value: f64, observed: &[f64], known: &[f64]) -> Option<String> {
    let rank = |x: f64| observed.partition_point(|&edge| edge < x);
    let other = known.iter().find(|other| other.total_cmp(&value).is_ne() && rank(**other) == rank(value))?;
    let at = rank(value);
    let edge = |at: Option<usize>| {
        at.and_then(|at| observed.get(at)).map_or("no bound".to_owned(), |edge| format!("{edge:.4}"))
    };
    Some(format!(
        "{} {value} repeats {other}: no observed value lies between them (neighbours {} and {})",
        axis.word(),
        edge(at.checked_sub(1)),
        edge(Some(at))
    ))
}

/// Rule A under rule B: with both in use, rule A decides only above a confidence.
fn rules(stack: &TreeStack) -> Option<String> {
    let rule = stack.verify.as_cgee()?;
    if rule.rule != crate::policy::verify::cgee::Rule::Either || rule.relative_margin <= 0.0 {
        return None;
    }
    let border = rule.margin / rule.relative_margin;
    (rule.floor_scale <= 1.0 && border >= 1.0).then(|| {
        format!(
            "margin is never decisive: rule B skips whatever rule A skips at every confidence up to margin / relative margin = {border:.3}, and confidences end at 1"
        )
    })
}
