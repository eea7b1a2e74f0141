//! The first differing record of two results, and how many there are.

use super::{Both, STUDY, options};
use kvlab_sim::results::{Diff, DiffOptions, Formats, Match, Results, diff, write};
use kvlab_sim::run::{source_info, study};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::{Column, Table, Value};

fn run(text: &str) -> Results {
    let (source, scenario) = (Both::small(), Scenario::parse(text, "test").unwrap());
    study(&scenario, &source, source_info(&source, "none", ""), &options(2)).unwrap()
}

/// The same table with one number changed.
fn changed(table: &Table, column: &str, row: usize, by: f64) -> Table {
    let mut copy = Table::new();
    for (name, values) in table.names().iter().zip(table.columns()) {
        let mut values = values.clone();
        if let (true, Column::Real(values)) = (name == column, &mut values) {
            values[row] = values[row].map(|value| value + by);
        }
        copy.push(name, values).unwrap();
    }
    copy
}

fn found(left: &Results, right: &Results) -> Diff {
    diff(left, right, DiffOptions::default())
}

#[test]
fn equal_results_have_no_difference_and_one_number_is_found() {
    let left = run(STUDY);
    assert!(found(&left, &left.clone()).is_empty());
    let row = (0..left.series.rows())
        .find(|&row| left.series.value("metric", row) == Value::Text("survival".to_owned()));
    let right = Results { series: changed(&left.series, "value", row.unwrap(), 1e-9), ..left.clone() };
    let there = found(&left, &right);
    let first = there.first.clone().unwrap();
    assert_eq!((first.table.as_str(), first.column.as_deref()), ("series", Some("value")));
    assert!(
        first.key.contains(&("metric".to_owned(), Value::Text("survival".to_owned()))),
        "{:?}",
        first.key
    );
    let series = &there.tables.iter().find(|(name, _)| name == "series").unwrap().1;
    assert_eq!(series.columns.iter().collect::<Vec<_>>(), [(&"value".to_owned(), &1)]);
    assert_eq!(series.rows, left.series.rows());
    let tolerant = DiffOptions { tolerance: 1e-6, ..DiffOptions::default() };
    assert!(diff(&left, &right, tolerant).is_empty());
    assert!(!diff(&left, &right, DiffOptions { tolerance: 1e-12, ..tolerant }).is_empty());
}

#[test]
fn rows_on_one_side_and_another_order_are_told() {
    let left = run(STUDY);
    let fewer = run(&STUDY.replace("{use: snapkv}, ", ""));
    let there = found(&left, &fewer);
    let first = there.first.unwrap();
    assert_eq!((first.table.as_str(), first.column, first.right), ("cells", None, Value::Absent));
    assert!(first.key.contains(&("policy".to_owned(), Value::Text("snapkv".to_owned()))));
    assert_eq!(there.tables[0].1.only_left, 3);
    // The other way round the same rows are on the right, and nothing is before them.
    let back = found(&fewer, &left);
    assert_eq!(back.first.unwrap().left, Value::Absent);
    assert_eq!((back.tables[0].1.only_right, back.tables[0].1.only_left), (3, 0));
    let mut order: Vec<usize> = (0..left.cells.rows()).collect();
    order.swap(3, 9);
    let there = found(&left, &Results { cells: left.cells.take(&order), ..left.clone() });
    assert!(there.first.is_none() && !there.is_empty() && there.tables[0].1.is_reordered);
}

#[test]
fn cells_of_another_trace_are_compared_by_their_settings() {
    let left = run(STUDY);
    let scenario = Scenario::parse(&STUDY.replace("id: sweeps", "id: other"), "test").unwrap();
    let mut source = Both::small();
    source.trees = kvlab_sim::trace::synth::SyntheticBranches::build(
        *kvlab_sim::trace::TraceSource::shape(&source.sequences),
        4,
        kvlab_sim::trace::synth::BranchParams {
            problems: 8,
            branches: 4,
            generated: 5,
            ..Default::default()
        },
    )
    .unwrap();
    let right = study(&scenario, &source, source_info(&source, "none", ""), &options(2)).unwrap();
    let by_cell = found(&left, &right);
    assert_eq!(
        by_cell.tables[0].1.columns.get("scenario"),
        Some(&11),
        "generated streams and arms are the same cells"
    );
    let there = diff(&left, &right, DiffOptions { by: Match::Settings, tolerance: 0.0 });
    let cells = &there.tables[0].1;
    assert_eq!((cells.rows, cells.only_left, cells.only_right), (left.cells.rows(), 0, 0));
    assert!(
        !cells.columns.contains_key("scenario") && !cells.columns.contains_key("attn_mass_recall"),
        "{cells:?}"
    );
    assert!(cells.columns.contains_key("tree_accuracy") || cells.columns.contains_key("log_digest"));
}

#[test]
fn the_command_says_where_and_its_exit_code_is_five() {
    let folder = tempfile::tempdir().unwrap();
    let left = run(STUDY);
    let right = Results { cells: changed(&left.cells, "skip_rate", 20, 0.25), ..left.clone() };
    for (name, results) in [("a", &left), ("b", &right), ("c", &left)] {
        write(&folder.path().join(name), results, Formats::PARQUET).unwrap();
    }
    let ask = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kvlab"));
        let output = command.current_dir(folder.path()).arg("diff").args(args).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = ask(&["a", "b"]);
    assert_eq!(code, Some(5));
    assert!(said.contains("first difference: cells, cell ") && said.contains(", skip_rate"), "{said}");
    assert!(said.contains(&format!("cells.skip_rate: 1 of {} rows differ", left.cells.rows())), "{said}");
    let (code, said) = ask(&["a", "c"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no difference in"), "{said}");
    let (code, said) = ask(&["a", "b", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (code, json["equal"].as_bool(), json["first"]["column"].as_str()),
        (Some(5), Some(false), Some("skip_rate"))
    );
}
