//! What is to be said about thresholds before cells run: vacuous, unreachable, never decisive, repeated.

use crate::exit::CliError;
use crate::output::news;
use kvlab_sim::run::{Finding, Study};

/// So many different findings are told before a run.
const TOLD: usize = 20;

/// A finding and the cells that it is about.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Told {
    study: &'static str,
    finding: String,
    cells: Vec<String>,
}

impl Told {
    /// One line: the finding, and of its cells the first and how many there are.
    pub(crate) fn line(&self) -> String {
        let (first, all) = (self.cells.first().map_or("-", String::as_str), self.cells.len());
        let cells = if all == 1 { first.to_owned() } else { format!("{all} cells, the first {first}") };
        format!("{} ({}: {cells})", self.finding, self.study)
    }
}

/// The findings about `study`, equal ones together, in the order of their first cells.
pub(crate) fn told(study: &Study<'_>, threads: usize) -> Result<Vec<Told>, CliError> {
    let mut told: Vec<Told> = Vec::new();
    let mut places = std::collections::BTreeMap::new();
    for Finding { section, cell, finding } in study.lint(threads)? {
        let place = *places.entry((section.word(), finding.clone())).or_insert(told.len());
        match told.get_mut(place) {
            Some(known) => known.cells.push(cell),
            None => told.push(Told { study: section.word(), finding, cells: vec![cell] }),
        }
    }
    Ok(told)
}

/// Tells them before a run.
pub(crate) fn tell(study: &Study<'_>, threads: usize) -> Result<(), CliError> {
    let told = told(study, threads)?;
    told.iter().take(TOLD).for_each(|told| news(&format!("lint: {}", told.line())));
    if told.len() > TOLD {
        let more = told.len() - TOLD;
        news(&format!("lint: {more} more; `kvlab validate SCENARIO --trace TRACE` tells all"));
    }
    Ok(())
}
