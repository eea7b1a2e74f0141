//! The table `joint`: facts of every problem, from which any setting of a stack's thresholds follows without the trace.

use super::tables::{int, real, text};
use crate::results::{JOINT_COLUMNS, cell_id, table_of};
use crate::scenario::{TreePlan, TreeStudy};
use crate::steps::{BranchStops, JointFact, StepTable};
use crate::table::{Table, TableError, Value};
use crate::trees::{TreeFacts, TreeModel, TreeStack};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Choices that are evaluated for the table at most: stacks beyond are left out, and a report says so.
const MOST_CHOICES: u64 = 8_000_000;

/// The facts of every stack with step functions, stacks in their order.
pub(super) fn joint(
    study: &TreeStudy,
    plans: &[TreePlan],
    groups: &BTreeMap<String, usize>,
    tables: &BTreeMap<&str, StepTable<'_>>,
    (trees, model): (&[TreeFacts], TreeModel),
) -> Result<Table, TableError> {
    let mut order: Vec<(&str, usize)> = groups.iter().map(|(key, &at)| (key.as_str(), at)).collect();
    order.sort_unstable_by_key(|&(_, at)| at);
    let (mut rows, mut room) = (Vec::new(), MOST_CHOICES);
    for (key, at) in order {
        let (Some(steps), Ok(stack)) = (tables.get(key), &plans[at].stack) else { continue };
        let cost = steps.export_cost();
        if cost > room || !study.steps.iter().any(|axis| axis.applies_to(stack)) {
            continue;
        }
        room -= cost;
        let keys = keys(key, &plans[at].label, stack, model);
        for fact in steps.export() {
            let mut row = keys.clone();
            row.extend(values(&fact, &trees[fact.problem]));
            rows.push(row);
        }
    }
    table_of(JOINT_COLUMNS, &rows)
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
