//! Several studies as one, so that figures show them beside each other: every label says which study it is from.

use crate::error::PlotsError;
use kvlab_sim::results::{MORE_TABLES, RECORDING, Results, ResultsManifest, SourceInfo};
use kvlab_sim::table::{Column, Table, Value};
use std::collections::BTreeSet;

/// The rows of all `studies`, in their order. A cell that several of them hold is taken from the first; what is about a recording itself, and
/// what has one table a study, is the first study's.
///
/// # Errors
/// When a column holds different kinds of values in two of them, or there is no study.
pub fn overlaid(studies: Vec<Results>) -> Result<Results, PlotsError> {
    let mut rest = studies.into_iter();
    let Some(first) = rest.next() else { return Err(PlotsError::NoStudy) };
    let (mut names, mut all) = (vec![first.manifest.scenario.clone()], first);
    let mut known = texts(&all.cells, "cell");
    for (at, study) in (2..).zip(rest) {
        let name = named_apart(&study.manifest.scenario, &names, at);
        if names.len() == 1 {
            // One study alone needs no names on its stacks.
            tell_stacks(&mut all.more, &names[0], 1)?;
        }
        add(&mut all, study, &mut known, (&name, at))?;
        names.push(name);
    }
    Ok(all)
}

/// Two studies of one name are told apart by their places.
fn named_apart(name: &str, others: &[String], at: usize) -> String {
    if others.iter().any(|other| other == name) { format!("{name} ({at})") } else { name.to_owned() }
}

fn add(
    all: &mut Results,
    study: Results,
    known: &mut BTreeSet<String>,
    (name, at): (&str, usize),
) -> Result<(), PlotsError> {
    let fresh: BTreeSet<String> = texts(&study.cells, "cell").difference(known).cloned().collect();
    let of_fresh = |table: &Table| -> Table {
        let rows: Vec<usize> = (0..table.rows())
            .filter(|&row| match table.value("cell", row) {
                Value::Text(cell) => fresh.contains(&cell) && cell != RECORDING,
                _ => true,
            })
            .collect();
        table.take(&rows)
    };
    let cells = renamed(&of_fresh(&study.cells), "scenario", |_| name.to_owned());
    append("cells", &mut all.cells, &cells?)?;
    append("series", &mut all.series, &of_fresh(&study.series))?;
    let mut more: Vec<(String, Table)> =
        study.more.iter().map(|(table, rows)| (table.clone(), of_fresh(rows))).collect();
    tell_stacks(&mut more, name, at)?;
    for (table, rows) in more {
        match all.more.iter_mut().find(|(known, _)| *known == table) {
            Some(_) if ["fidelity", "calibration", "claims"].contains(&table.as_str()) => {}
            Some((_, here)) => append(&table, here, &rows)?,
            None => all.more.push((table, rows)),
        }
    }
    let place = |table: &str| MORE_TABLES.iter().position(|(known, _)| *known == table);
    all.more.sort_by_key(|(table, _)| place(table));
    known.extend(fresh);
    join(&mut all.manifest, study.manifest, name);
    Ok(())
}

/// Names the study in the tables of stacks, whose groups say nothing of the trace.
fn tell_stacks(more: &mut [(String, Table)], name: &str, at: usize) -> Result<(), PlotsError> {
    for (_, table) in more.iter_mut().filter(|(_, table)| table.column("stack").is_some()) {
        *table = renamed(table, "stack", |stack| format!("{stack}, study {name}"))?;
        if table.column("group").is_some() {
            *table = renamed(table, "group", |group| format!("{group}/{at}"))?;
        }
    }
    Ok(())
}

/// The table with the texts of one column changed; as it is when it has no such column of texts.
fn renamed(table: &Table, column: &str, say: impl Fn(&str) -> String) -> Result<Table, PlotsError> {
    let mut out = Table::new();
    for (name, values) in table.names().iter().zip(table.columns()) {
        let values = match values {
            Column::Text(texts) if name == column => {
                Column::Text(texts.iter().map(|text| text.as_deref().map(&say).map(Into::into)).collect())
            }
            other => other.clone(),
        };
        out.push(name, values).map_err(|source| PlotsError::Overlay { table: column.to_owned(), source })?;
    }
    Ok(out)
}

fn append(name: &str, table: &mut Table, more: &Table) -> Result<(), PlotsError> {
    if table.names().is_empty() {
        *table = more.clone();
        return Ok(());
    }
    table.append(more).map_err(|source| PlotsError::Overlay { table: name.to_owned(), source })
}

fn texts(table: &Table, column: &str) -> BTreeSet<String> {
    match table.column(column) {
        Some(Column::Text(values)) => values.iter().flatten().map(ToString::to_string).collect(),
        _ => BTreeSet::new(),
    }
}

fn join(all: &mut ResultsManifest, other: ResultsManifest, name: &str) {
    for (here, there, between) in [
        (&mut all.scenario, name.to_owned(), " + "),
        (&mut all.why, other.why, " "),
        (&mut all.scenario_digest, other.scenario_digest, ", "),
        (&mut all.scenario_text, other.scenario_text, "\n---\n"),
        (&mut all.command, other.command, " && "),
    ] {
        here.push_str(between);
        here.push_str(&there);
    }
    let is_new = |source: &SourceInfo| !all.sources.iter().any(|known| known.digest == source.digest);
    let fresh: Vec<SourceInfo> = other.sources.into_iter().filter(is_new).collect();
    all.sources.extend(fresh);
}
