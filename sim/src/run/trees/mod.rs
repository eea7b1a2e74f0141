//! The branch-tree half of a study: every stack at every point of its sweep, and the step functions of its thresholds.

mod cells;
mod joint;
mod lint;
mod measures;
mod tables;
mod wordings;

pub use measures::{TreeMeasures, keys as tree_keys, log_digest as tree_log_digest};
pub use tables::problem as tree_problem;

use super::RunError;
use super::context::Context;
use super::lint::Found;
use super::study::{Finished, unit};
use crate::results::{Outcome, Section, Unit, UnitKind, cell_id};
use crate::scenario::{TreePlan, TreeStudy};
use crate::steps::StepTable;
use crate::trees::{TreeFacts, TreeModel, TreeStack};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Rows of `problems` that a table may have.
const MOST_ROWS: usize = 2_000_000;

/// Cells that differ in thresholds only share a step table: the place of the first of them, by what they have in common.
fn groups(plans: &[TreePlan]) -> BTreeMap<String, usize> {
    let mut groups: BTreeMap<String, usize> = BTreeMap::new();
    for (at, plan) in plans.iter().enumerate() {
        if let Ok(stack) = &plan.stack {
            groups.entry(tables::group_key(&plan.label, stack)).or_insert(at);
        }
    }
    groups
}

/// The same in the order of the first cells.
fn ordered(groups: &BTreeMap<String, usize>) -> Vec<(&str, usize)> {
    let mut order: Vec<(&str, usize)> = groups.iter().map(|(key, &at)| (key.as_str(), at)).collect();
    order.sort_unstable_by_key(|&(_, at)| at);
    order
}

/// One unit a cell, then one for the step functions of each group of cells.
pub(super) fn units(
    context: &Context<'_>,
    study: &TreeStudy,
    plans: &[TreePlan],
) -> Result<Vec<Unit>, RunError> {
    let problems = context.problems.len();
    if problems == 0 {
        return Err(RunError::NoProblems { source_name: context.source.name().to_owned() });
    }
    if study.per_problem && plans.len().saturating_mul(problems) > MOST_ROWS {
        return Err(RunError::TooManyRows { cells: plans.len(), problems, most: MOST_ROWS });
    }
    let cell = |plan: &TreePlan| {
        let swept: Vec<String> = plan.swept.iter().map(|(key, value)| format!("  {key} {value}")).collect();
        let seed = plan.seed.map_or_else(String::new, |seed| format!("  seed {seed}"));
        let label = format!("{}{}{seed}", plan.label, swept.concat());
        let refused = plan.stack.as_ref().err().map(ToString::to_string);
        Unit { refused, ..unit(cells::id_of(context, study, plan), Section::Trees, UnitKind::Cell, label) }
    };
    let mut units: Vec<Unit> = plans.iter().map(cell).collect();
    let groups = groups(plans);
    let mut before: Vec<&str> = Vec::new();
    for (key, at) in ordered(&groups) {
        let Ok(stack) = &plans[at].stack else { continue };
        let id = cell_id(&serde_json::json!({
            "source": context.digest,
            "problems": context.problems_key(),
            "study": "steps",
            "group": key,
            "around": stack.params(),
            "axes": study.steps,
            // They have had their share of what `joint` may cost.
            "before": before,
        }));
        before.push(key);
        units.push(unit(id, Section::Trees, UnitKind::Steps, format!("{}  step functions", plans[at].label)));
    }
    Ok(units)
}

/// The problems that a study reads, in their order.
pub(super) fn read(context: &Context<'_>) -> Result<Vec<TreeFacts>, RunError> {
    let read = |&index: &u32| {
        let facts = TreeFacts::new(index, context.source.problem(index)?);
        context.advance();
        Ok(facts)
    };
    context.problems.par_iter().map(read).collect()
}

pub(super) fn model(context: &Context<'_>) -> TreeModel {
    TreeModel { layers: context.shape.layers, vocab: context.shape.vocab }
}

/// A table of each group of `plans` that `build` makes one for, by what its cells have in common.
fn tables_of<'a>(
    order: &[(&'a str, usize)],
    plans: &'a [TreePlan],
    build: impl Fn(&'a TreeStack) -> Option<StepTable<'a>> + Sync,
) -> BTreeMap<&'a str, StepTable<'a>> {
    let table = |&(key, at): &(&'a str, usize)| Some((key, build(plans[at].stack.as_ref().ok()?)?));
    order.par_iter().filter_map(table).collect()
}

/// Step functions. A stack without them, or a trace without what they need, has none; its cells say why.
fn step_tables<'a>(
    order: &[(&'a str, usize)],
    plans: &'a [TreePlan],
    trees: &[TreeFacts],
    model: TreeModel,
) -> BTreeMap<&'a str, StepTable<'a>> {
    tables_of(order, plans, |stack| StepTable::build(trees, stack, model).ok())
}

/// What the thresholds of stacks without step functions are compared with: of those that stop decoding or draw.
fn fact_tables<'a>(
    order: &[(&'a str, usize)],
    plans: &'a [TreePlan],
    trees: &[TreeFacts],
    model: TreeModel,
) -> BTreeMap<&'a str, StepTable<'a>> {
    tables_of(order, plans, |stack| {
        let is_asked = stack.decode_exit.is_some() || stack.is_random();
        is_asked.then(|| StepTable::of_whole_texts(trees, stack, model).ok())?
    })
}

/// What is to be said about the thresholds of `plans` before anything runs, `[plan]`.
pub(super) fn found(plans: &[TreePlan], trees: &[TreeFacts], model: TreeModel) -> Vec<Found> {
    let groups = groups(plans);
    let order = ordered(&groups);
    let tables = step_tables(&order, plans, trees, model);
    let facts = fact_tables(&order, plans, trees, model);
    let lint = lint::Lint::of(&tables, &facts, model);
    plans.par_iter().map(|plan| lint.found(plan)).collect()
}

/// Runs the units in `batches`; problems are read once for all of them.
pub(super) fn run(
    context: &Context<'_>,
    study: &TreeStudy,
    plans: &[TreePlan],
    batches: &[Vec<usize>],
    keep: Finished<'_>,
) -> Result<(), RunError> {
    let trees = read(context)?;
    let model = model(context);
    let measures = TreeMeasures::new(model.layers, trees.iter().map(|facts| facts.problem.item.as_str()));
    let shared = cells::Shared { context, study, trees: &trees, model, measures };
    let groups = groups(plans);
    let order = ordered(&groups);
    let tables_of = step_tables(&order, plans, &trees, model);
    let joint = joint::included(study, plans, &order, &tables_of);
    let facts_of = fact_tables(&order, plans, &trees, model);
    let lint = lint::Lint::of(&tables_of, &facts_of, model);
    let units = units(context, study, plans)?;
    for batch in batches {
        let outcome = |&at: &usize| {
            let mut outcome = match plans.get(at) {
                Some(plan) => {
                    let mut outcome = shared.cell(plan);
                    if let Some(row) = &mut outcome.cell {
                        lint.found(plan).note(row);
                    }
                    outcome
                }
                None => {
                    let (key, first) = order[at - plans.len()];
                    let mut more = vec![("wordings", wordings::rows(&plans[first], key, &trees))];
                    if let Some(table) = tables_of.get(key) {
                        more.push(("steps", tables::steps(study, &plans[first], key, table, model)));
                        if joint.contains(key) {
                            more.push(("joint", joint::facts(&plans[first], key, table, &trees, model)));
                        }
                    }
                    Outcome { more, ..Outcome::default() }
                }
            };
            outcome.id.clone_from(&units[at].id);
            context.advance();
            outcome
        };
        keep(batch.par_iter().map(outcome).collect())?;
    }
    Ok(())
}
