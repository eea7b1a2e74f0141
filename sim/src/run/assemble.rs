//! From parts to the tables of a study: rows in plan order, and what is said about several cells at once.

use super::compare::compared;
use super::{RunError, repeats};
use crate::results::{
    MORE_TABLES, Named, Part, Results, ResultsManifest, SERIES_COLUMNS, StudyPlan, gather, ordered_cells,
    series_table, table_of,
};
use crate::scenario::Scenario;
use crate::table::Value;

/// The results of the study `plan` from its parts. Units that no part has are left out.
///
/// The tables are those of an undisturbed run, whatever the parts are.
///
/// # Errors
/// When the scenario of the plan does not parse, or parts hold columns of different kinds.
pub fn assemble(plan: &StudyPlan, parts: &[Part]) -> Result<Results, RunError> {
    of_scenario(plan, &Scenario::parse(&plan.scenario_text, "the scenario in plan.json")?, parts.to_vec())
}

/// As [`assemble`], for a scenario that need not be the one in a text.
pub(super) fn of_scenario(
    plan: &StudyPlan,
    scenario: &Scenario,
    parts: Vec<Part>,
) -> Result<Results, RunError> {
    let named = Named { scenario: &scenario.id, source: &plan.source.name };
    let ids: Vec<&str> = plan.units.iter().map(|unit| unit.id.as_str()).collect();
    let mut tables = gather(&ids, parts, &named)?;
    let cells = tables.remove("cells").unwrap_or_default();
    let mut cells = repeats::noted(&cells)?;
    if let Some(compare) = &scenario.compare {
        // A table without rows has no columns either.
        let filled = |name: &str| tables.get(name).filter(|table| table.rows() > 0);
        cells = compared(compare, &cells, filled("items"), filled("problems"))?;
    }
    let cells = ordered_cells(&cells)?;
    let series = match tables.remove("series") {
        Some(series) if series.rows() > 0 => series,
        _ => series_table(&[])?,
    };
    debug_assert!(SERIES_COLUMNS.iter().all(|(name, _, _)| series.column(name).is_some()));
    let mut more = Vec::new();
    for (name, columns) in MORE_TABLES {
        // A table that the study promises is there even when no row is.
        let is_promised =
            *name == "problems" && scenario.trees.as_ref().is_some_and(|study| study.per_problem);
        match tables.remove(name) {
            Some(table) if table.rows() > 0 => more.push(((*name).to_owned(), table)),
            _ if is_promised => more.push(((*name).to_owned(), table_of::<Vec<Value>>(columns, &[])?)),
            _ => {}
        }
    }
    Ok(Results {
        manifest: ResultsManifest {
            version: plan.version,
            tool: plan.tool.clone(),
            scenario: scenario.id.clone(),
            why: scenario.why.clone(),
            scenario_digest: plan.scenario_digest.clone(),
            scenario_text: plan.scenario_text.clone(),
            sources: vec![plan.source.clone()],
            command: plan.command.clone(),
        },
        cells,
        series,
        more,
    })
}
