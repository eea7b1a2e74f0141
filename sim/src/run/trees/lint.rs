//! Thresholds over branch trees that can never act, decide nothing, or repeat one another, with the number that shows it.

use super::super::lint::Found;
use super::super::repeats::Place;
use super::tables::group_key;
use crate::num;
use crate::policy::verify::cgee::Rule;
use crate::results::cell_id;
use crate::scenario::TreePlan;
use crate::steps::{Axis, Setting, StepTable};
use crate::trees::{TreeModel, TreeStack};
use std::collections::BTreeMap;

/// What the findings about one cell are taken from. Whether it repeats another is left to [`super::super::repeats`].
pub(super) struct Lint<'a> {
    tables: &'a BTreeMap<&'a str, StepTable<'a>>,
    model: TreeModel,
    /// (group, axis) → observed values, rising.
    observed: BTreeMap<(&'a str, Axis), Vec<f64>>,
}

impl<'a> Lint<'a> {
    /// `tables` are step functions, `facts` what thresholds of other stacks are compared with.
    pub(super) fn of(
        tables: &'a BTreeMap<&'a str, StepTable<'a>>,
        facts: &'a BTreeMap<&'a str, StepTable<'a>>,
        model: TreeModel,
    ) -> Self {
        let all = || tables.iter().chain(facts);
        let keys = all().flat_map(|(key, table)| Axis::ALL.map(|axis| (*key, axis, table)));
        let observed = keys.map(|(key, axis, table)| ((key, axis), table.observed(axis))).collect();
        Self { tables, model, observed }
    }

    /// What is to be said about `plan`. Where it has no step functions, what a threshold leads to is unknown: each is looked at by itself, and those that
    /// confidences are compared with not at all, since a text that stops early has others.
    pub(super) fn found(&self, plan: &TreePlan) -> Found {
        let Ok(stack) = &plan.stack else { return Found::default() };
        let key = group_key(&plan.label, stack);
        let table = self.tables.get(key.as_str());
        let setting = Setting::of(stack, self.model.vocab);
        let (mut findings, mut places) = (Vec::new(), Vec::new());
        let is_known = |axis: &Axis| table.is_some() || !matches!(axis, Axis::TauConf | Axis::Margin);
        for axis in Axis::ALL.into_iter().filter(|axis| axis.applies_to(stack) && is_known(axis)) {
            let Some(observed) = self.observed.get(&(key.as_str(), axis)) else { continue };
            let value = setting.get(axis);
            findings.extend(
                alone(axis, value, observed, self.model).or_else(|| undecisive(axis, table?, &setting)),
            );
            places.push(Place::of(&cell_id(&serde_json::json!(key)), axis.word(), value, observed));
        }
        if let Some(table) = table {
            findings.extend(rules(stack));
            findings.extend(relative_margin(stack, &table.relative_gaps()));
        }
        Found { findings, places }
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

/// The margin of rule B by itself: always met, or never. It has no step function.
fn relative_margin(stack: &TreeStack, observed: &[f64]) -> Option<String> {
    let rule = stack.verify.as_cgee().filter(|rule| rule.rule != Rule::A)?;
    let value = rule.relative_margin;
    let (Some(smallest), Some(largest)) = (observed.first(), observed.last()) else {
        return Some("relative margin is unreachable: nothing is compared with it".to_owned());
    };
    if value > *largest {
        return Some(format!(
            "relative margin is unreachable: {value} is above every observed lead (largest {largest:.4} of the confidence)"
        ));
    }
    (value <= *smallest).then(|| {
        format!(
            "relative margin is vacuous: {value} is not above the smallest observed lead ({smallest:.4} of the confidence), so it is always met"
        )
    })
}

/// Rule A under rule B: with both in use, rule A decides only above a confidence.
fn rules(stack: &TreeStack) -> Option<String> {
    let rule = stack.verify.as_cgee()?;
    if rule.rule != Rule::Either || rule.relative_margin <= 0.0 {
        return None;
    }
    let border = rule.margin / rule.relative_margin;
    (rule.floor_scale <= 1.0 && border >= 1.0).then(|| {
        format!(
            "margin is never decisive: rule B skips whatever rule A skips at every confidence up to margin / relative margin = {border:.3}, and confidences end at 1"
        )
    })
}
