//! Rows of the table `joint`: facts of every problem, from which any setting of a stack's thresholds follows without the trace.

use super::tables::{int, real, text};
use crate::results::cell_id;
use crate::scenario::{TreePlan, TreeStudy};
use crate::steps::{BranchStops, JointFact, StepTable};
use crate::table::Value;
use crate::trees::{TreeFacts, TreeModel, TreeStack};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Choices that are evaluated for the table at most: stacks beyond are left out, and a report says so.
const MOST_CHOICES: u64 = 8_000_000;

/// The groups of cells whose facts are written: those with step functions, in the order of `groups`, as long as there is room.
pub(super) fn included<'a>(
    study: &TreeStudy,
    plans: &[TreePlan],
    groups: &[(&'a str, usize)],
    tables: &BTreeMap<&str, StepTable<'_>>,
) -> BTreeSet<&'a str> {
    let (mut included, mut room) = (BTreeSet::new(), MOST_CHOICES);
    for &(key, at) in groups {
        let (Some(steps), Ok(stack)) = (tables.get(key), &plans[at].stack) else { continue };
        let cost = steps.export_cost();
        if cost > room || !study.steps.iter().any(|axis| axis.applies_to(stack)) {
            continue;
        }
        room -= cost;
        included.insert(key);
    }
    included
}

/// The rows of a group of cells, whose first one is `plan`.
pub(super) fn facts(
    plan: &TreePlan,
    key: &str,
    steps: &StepTable<'_>,
    trees: &[TreeFacts],
    model: TreeModel,
) -> Vec<Vec<Value>> {
    let Ok(stack) = &plan.stack else { return Vec::new() };
    let keys = keys(key, &plan.label, stack, model);
    let row = |fact: JointFact| {
        let mut row = keys.clone();
        row.extend(values(&fact, &trees[fact.problem]));
        row
    };
    steps.export().into_iter().map(row).collect()
}

fn keys(key: &str, label: &str, stack: &TreeStack, model: TreeModel) -> Vec<Value> {
    let nats = stack.exit.as_entropy().map(|exit| exit.unit.nats(model.vocab));
    vec![
        text(Some(label)),
        text(Some(&cell_id(&serde_json::json!(key)))),
        text(Some(&stack.params().to_string())),
        real(nats),
        int(u64::from(model.layers)),
    ]
}

fn values(fact: &JointFact, facts: &TreeFacts) -> Vec<Value> {
    vec![
        int(u64::from(facts.index)),
        text(Some(&facts.problem.item)),
        real(fact.above),
        real(fact.upto),
        int(fact.branches),
        int(fact.shared),
        int(fact.prompts.prompt_tokens.0),
        int(fact.prompts.prompt_tokens.1),
        int(fact.prompts.prefill_unshared),
        int(fact.prompts.prefill),
        real(fact.lead.map(|lead| lead.top)),
        real(fact.lead.map(|lead| lead.gap)),
        real(fact.lead.map(|lead| lead.relative_gap)),
        fact.skips.map_or(Value::Absent, Value::Bool),
        text(Some(&stops(&fact.stops))),
        int(u64::from(fact.if_skipped)),
        text(Some(&verified(&fact.verified))),
        Value::Bool(fact.is_gradable),
        Value::Bool(fact.is_full_correct),
    ]
}

/// `tokens,last;layers,entropy,change;…` of each branch, branches apart by `|`. Numbers read back to the same bits.
fn stops(branches: &[BranchStops]) -> String {
    let one = |branch: &BranchStops| {
        let mut out = format!("{},{}", branch.tokens, branch.last);
        for (layers, entropy, change) in &branch.early {
            write!(out, ";{layers},{entropy},{change}").expect("writing to a String cannot fail");
        }
        out
    };
    branches.iter().map(one).collect::<Vec<_>>().join("|")
}

/// Rows of ranks of θ apart by `|`, each `rank:` with `rank=choice` of ε apart by `,`. Only where something changes: a row holds
/// until the next, a choice until the next of its row.
fn verified(rows: &[Vec<u8>]) -> String {
    let mut out = String::new();
    for (rank, row) in rows.iter().enumerate() {
        if rank > 0 && rows[rank - 1] == *row {
            continue;
        }
        let separator = if rank > 0 { "|" } else { "" };
        write!(out, "{separator}{rank}:").expect("writing to a String cannot fail");
        for (at, choice) in row.iter().enumerate().filter(|&(at, choice)| at == 0 || row[at - 1] != *choice) {
            let separator = if at > 0 { "," } else { "" };
            write!(out, "{separator}{at}={choice}").expect("writing to a String cannot fail");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_written() {
        let rows = [vec![3, 3, 5], vec![3, 3, 5], vec![1, 1, 1]];
        assert_eq!(verified(&rows), "0:0=3,2=5|2:0=1");
    }

    #[test]
    fn stops_read_back_to_the_same_bits() {
        let value = 0.1_f64 + 0.2;
        let branch = BranchStops { tokens: 40, early: vec![(3, value, f64::MIN_POSITIVE)], last: 12 };
        let text = stops(&[branch.clone(), branch]);
        let (first, second) = text.split_once('|').unwrap();
        assert_eq!(first, second);
        let numbers: Vec<f64> = first.split([',', ';']).map(|number| number.parse().unwrap()).collect();
        assert_eq!(
            numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            [40.0, 12.0, 3.0, value, f64::MIN_POSITIVE].map(f64::to_bits)
        );
    }
}
