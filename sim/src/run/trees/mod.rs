//! The branch-tree half of a study: every stack at every point of its sweep, and the step functions of its thresholds.

mod cells;
mod joint;
mod lint;
mod tables;

use super::RunError;
use super::study::Context;
use crate::results::{Bootstrap, CellRow, SeriesRow};
use crate::scenario::{TreePlan, TreeStudy};
use crate::steps::StepTable;
use crate::table::Table;
use crate::trace::TraceSource;
use crate::trees::{TreeFacts, TreeModel};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// What a study of branch trees gives.
pub(super) struct TreeResults {
    pub(super) cells: Vec<CellRow>,
    pub(super) series: Vec<SeriesRow>,
    pub(super) tables: Vec<(String, Table)>,
}

/// Rows of `problems` that a table may have.
const MOST_ROWS: usize = 2_000_000;

/// Problems that are read.
fn count(source: &dyn TraceSource, limit: Option<u32>) -> u32 {
    source.problems().min(limit.unwrap_or(u32::MAX))
}

/// Units of work: problems read, then cells.
pub(super) fn units(plans: &[TreePlan], source: &dyn TraceSource, limit: Option<u32>) -> u64 {
    if plans.is_empty() { 0 } else { u64::from(count(source, limit)) + plans.len() as u64 }
}

/// Rows, series and tables of the cells over branch trees.
pub(super) fn run(
    context: &Context<'_>,
    study: &TreeStudy,
    plans: Vec<TreePlan>,
    limit: Option<u32>,
) -> Result<TreeResults, RunError> {
    let problems = count(context.source, limit);
    if problems == 0 {
        return Err(RunError::NoProblems { source_name: context.source.name().to_owned() });
    }
    if study.per_problem && plans.len().saturating_mul(problems as usize) > MOST_ROWS {
        return Err(RunError::TooManyRows {
            cells: plans.len(),
            problems: problems as usize,
            most: MOST_ROWS,
        });
    }
    let trees: Vec<TreeFacts> = (0..problems)
        .into_par_iter()
        .map(|index| {
            let facts = TreeFacts::new(index, context.source.problem(index)?);
            context.advance();
            Ok(facts)
        })
        .collect::<Result<_, RunError>>()?;
    let model = TreeModel { layers: context.shape.layers, vocab: context.shape.vocab };
    let bootstrap = Bootstrap::by_item(trees.iter().map(|facts| facts.problem.item.as_str()));
    let shared = cells::Shared { context, trees: &trees, model, bootstrap };

    // Cells that differ in thresholds only share a step table.
    let mut groups: BTreeMap<String, usize> = BTreeMap::new();
    for (at, plan) in plans.iter().enumerate() {
        if let Ok(stack) = &plan.stack {
            groups.entry(tables::group_key(&plan.label, stack)).or_insert(at);
        }
    }
    let tables_of: BTreeMap<&str, StepTable<'_>> = groups
        .iter()
        .filter_map(|(key, &at)| {
            let stack = plans[at].stack.as_ref().ok()?;
            // A stack without step functions, or a trace without what they need, has none; its cells say why.
            StepTable::build(&trees, stack, model).ok().map(|table| (key.as_str(), table))
        })
        .collect();
    let made: Vec<cells::Made> = plans
        .par_iter()
        .map(|plan| {
            let made = shared.cell(plan, study.per_problem);
            context.advance();
            made
        })
        .collect();
    let mut results = TreeResults { cells: Vec::new(), series: Vec::new(), tables: Vec::new() };
    let mut per_problem = Vec::new();
    for cell in made {
        results.cells.push(cell.row);
        results.series.extend(cell.series);
        per_problem.extend(cell.problems);
    }
    lint::note(&plans, &tables_of, model, &mut results.cells);
    if study.per_problem {
        results.tables.push(("problems".to_owned(), tables::problems(&per_problem)?));
    }
    let steps = tables::steps(study, &plans, &groups, &tables_of, model)?;
    if steps.rows() > 0 {
        results.tables.push(("steps".to_owned(), steps));
    }
    let joint = joint::joint(study, &plans, &groups, &tables_of, (&trees, model))?;
    if joint.rows() > 0 {
        results.tables.push(("joint".to_owned(), joint));
    }
    Ok(results)
}
