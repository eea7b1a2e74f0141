//! Several studies shown together.

use super::rows::{Rows, int, real, text};
use super::{drawing_of, fixture, more};
use kvlab_plots::{overlaid, render_report};
use kvlab_sim::results::{RECOMMENDED_COLUMNS, Results};
use kvlab_sim::table::Column;

/// One policy at two budgets, in a study called `scenario`; `gain` is added to its accuracy.
fn study(scenario: &str, prefix: &str, gain: f64) -> Results {
    let mut cells = Rows::cells();
    for (budget, accuracy) in [(64, 0.2), (128, 0.4)] {
        let mut row = fixture::eviction_row(&format!("{prefix}{budget}"), "snapkv", budget, 0.9, 0.02, None);
        row.retain(|(name, _)| name != "scenario");
        row.extend([text("scenario", scenario), real("accuracy", accuracy + gain)]);
        row.push(int("peak_stored_kv_bytes", budget * 1000));
        cells.push(row);
    }
    let mut results = fixture::results(&cells, &Rows::series());
    results.manifest.scenario = scenario.to_owned();
    results.more = vec![("steps".to_owned(), more::steps(&["rksc"]))];
    results
}

/// By hand: (64, 0.2), (128, 0.4) of one study and (64, 0.5), (128, 0.7) of the other. No cell of the first is on the common front.
#[test]
fn the_front_of_two_studies_is_that_of_all_their_cells() {
    let both = overlaid(vec![study("low", "a", 0.0), study("high", "b", 0.3)]).unwrap();
    let data = drawing_of(&both, "pareto-bytes").data;
    let labels = data.text("policy").unwrap();
    let best = data.text("beaten_by_none").unwrap();
    let front: Vec<&str> = (0..data.rows())
        .filter(|&row| best[row].as_deref() == Some("yes"))
        .filter_map(|row| labels[row].as_deref())
        .collect();
    assert_eq!(front, ["snapkv, study high", "snapkv, study high"]);
    assert_eq!(both.manifest.scenario, "low + high");
    let page = render_report(&both);
    assert!(page.contains("low + high") && page.contains("snapkv, study low"));
}

#[test]
fn a_cell_that_both_hold_is_there_once_and_step_functions_stay_apart() {
    let both = overlaid(vec![study("low", "a", 0.0), study("other", "a", 0.5)]).unwrap();
    assert_eq!(both.cells.rows(), 2, "the same cells");
    let labels = drawing_of(&both, "steps-tau").data.text("stack").unwrap().to_vec();
    let distinct: std::collections::BTreeSet<_> = labels.into_iter().flatten().collect();
    let expected = ["rksc, study low", "rksc, study other"].map(str::to_owned);
    assert_eq!(distinct.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn one_study_is_left_as_it_is_and_none_is_refused() {
    let one = study("low", "a", 0.0);
    assert_eq!(overlaid(vec![one.clone()]).unwrap(), one);
    assert!(overlaid(Vec::new()).unwrap_err().to_string().contains("at least one results folder"));
}

#[test]
fn a_recommended_threshold_is_drawn_with_its_guarantee() {
    let mut results = fixture::study();
    let mut rows = Rows::of(RECOMMENDED_COLUMNS);
    rows.push([
        text("stack", "rksc"),
        text("source", "trees"),
        text("axis", "tau"),
        real("value", 0.75),
        text("guarantee", "harm_rate at most 0.02 with probability 0.9."),
    ]);
    results.more.push(("recommended".to_owned(), rows.table()));
    let drawing = drawing_of(&results, "steps-tau");
    assert!(drawing.caption().iter().any(|line| line.contains("0.75") && line.contains("at most 0.02")));
    assert!(drawing.svg().unwrap().contains("recommended: 0.75"));
    let mut of_another = results.clone();
    let table = &mut of_another.more.last_mut().unwrap().1;
    let mut changed = kvlab_sim::table::Table::new();
    for (name, column) in table.names().iter().zip(table.columns()) {
        let params = Column::Text(vec![Some("{\"share\":{\"kind\":\"always\"}}".into())]);
        changed.push(name, if name == "params" { params } else { column.clone() }).unwrap();
    }
    *table = changed;
    let drawing = drawing_of(&of_another, "steps-tau");
    assert!(!drawing.svg().unwrap().contains("recommended"), "of a stack with other parameters");
    assert!(drawing.caption().iter().any(|line| line.contains("is not drawn")), "and it is told");
    let other = drawing_of(&results, "steps-theta");
    assert!(!other.svg().unwrap().contains("recommended"), "of another threshold");
}
