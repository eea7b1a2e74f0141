//! Tables that break plotting code: empty, one row, all equal, huge, crowded, hostile names, wrong kinds.

use super::fixture;
use super::more;
use super::rows::{Rows, int, real, text};
use super::{drawings, xml};
use kvlab_plots::{FIGURES, Outcome, draw, render_report};
use kvlab_sim::results::{RECORDING, Results};
use kvlab_sim::table::{Column, Table};
use proptest::prelude::*;

#[test]
fn empty_tables_give_a_reason_for_every_figure() {
    let bare = Results {
        manifest: fixture::manifest(),
        cells: Table::new(),
        series: Table::new(),
        more: Vec::new(),
    };
    let headed = fixture::results(&Rows::cells(), &Rows::series());
    for results in [bare, headed] {
        for figure in FIGURES {
            let Outcome::Nothing(reason) = draw(*figure, &results).unwrap() else {
                panic!("{} drew something from nothing", figure.id())
            };
            assert!(reason.contains("no "), "{}: {reason}", figure.id());
        }
        assert!(render_report(&results).contains("Figures that these tables do not allow"));
    }
}

#[test]
fn one_row_is_a_figure() {
    let (mut cells, series) = (Rows::cells(), Rows::series());
    cells.push(fixture::eviction_row("c", "snapkv", 64, 0.9, 0.02, None));
    let ids: Vec<&str> = drawings(&fixture::results(&cells, &series)).iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, ["output-error-vs-budget", "recall-vs-budget"]);
}

#[test]
fn equal_values_everywhere_are_a_figure() {
    for value in [0.0, 1.0, 0.5, 1e-300, -1.0] {
        let drawn: Vec<&str> = drawings(&uniform(value, value)).iter().map(|(id, _)| *id).collect();
        let missing: Vec<&str> =
            FIGURES.iter().map(|figure| figure.id()).filter(|id| !drawn.contains(id)).collect();
        // A map needs two values of each threshold.
        assert_eq!(missing, ["exit-map", "tau-theta-map", "theta-epsilon-map"], "{value}");
    }
}

#[test]
fn the_widest_range_of_reals_is_a_figure() {
    drawings(&uniform(f64::MIN, f64::MAX));
    drawings(&uniform(f64::MIN_POSITIVE, f64::MAX));
    assert!(render_report(&uniform(f64::MIN, f64::MAX)).ends_with("</html>\n"));
}

/// A small study in which every number is `low` or `high` in turn.
fn uniform(low: f64, high: f64) -> Results {
    let (mut cells, mut series) = (Rows::cells(), Rows::series());
    for (at, value) in [low, high].into_iter().enumerate() {
        let cell = format!("e{at}");
        let mut row = fixture::eviction_row(&cell, "snapkv", 64, value, 0.0, i64::try_from(at).ok());
        row.retain(|(name, _)| name != "attn_output_error");
        row.push(real("attn_output_error", value));
        row.push(real("accuracy", value));
        row.push(int("peak_stored_kv_bytes", 1_000));
        cells.push(row);
        for study in ["trees", "pool", "serve"] {
            let id = format!("{study}{at}");
            let mut row =
                vec![text("cell", &id), text("study", study), text("policy", study), text("status", "ok")];
            row.extend(
                ["tau", "theta", "epsilon", "tree_accuracy", "verify_work_rate", "pool_hit_rate"]
                    .map(|name| real(name, value)),
            );
            row.extend([
                int("pool_capacity_blocks", 64),
                real("serve_latency_ms", value),
                real("serve_speedup", value),
            ]);
            cells.push(row);
        }
        let exit = format!("x{at}");
        let mut row = vec![
            text("cell", &exit),
            text("study", "exit"),
            text("policy", "entropy-exit"),
            text("status", "ok"),
        ];
        row.extend([
            real("theta", value),
            real("epsilon", value),
            real("skip_rate", value),
            real("exit_agreement", value),
        ]);
        cells.push(row);
        for (cell, metric, stat) in [
            (cell.as_str(), "live_kv_tokens", "mean"),
            (cell.as_str(), "step_mass_recall", "mean"),
            (cell.as_str(), "survival", "mean"),
            (cell.as_str(), "range_error_correlation", "mean"),
            (cell.as_str(), "head_mass_recall", "mean"),
            (RECORDING, "token_entropy_nats", "mean"),
            (exit.as_str(), "exit_layer_count", "count"),
            (RECORDING, "lens_entropy_nats", "p50"),
            (RECORDING, "value_range_count", "count"),
        ] {
            // A histogram needs something in it; all else may be any number.
            let height = if stat == "count" { value.abs().max(1.0) } else { value };
            series.push(
                [
                    text("cell", cell),
                    text("metric", metric),
                    text("stat", stat),
                    int("layer", 0),
                    real("x", value),
                    real("value", height),
                ]
                .into_iter()
                .filter(|(name, _)| name != "layer" || cell == RECORDING || metric == "head_mass_recall"),
            );
        }
    }
    let mut results = fixture::results(&cells, &series);
    results.more =
        vec![("steps".to_owned(), more::steps(&["rksc"])), ("joint".to_owned(), more::joint("rksc", 1))];
    results.more.extend(more::drawn("e0", &["serve0", "serve1"], "rksc", low));
    results
}

#[test]
fn absent_values_leave_the_other_figures_alone() {
    let (mut cells, series) = (Rows::cells(), Rows::series());
    let mut row = fixture::eviction_row("c", "snapkv", 64, 0.9, 0.02, None);
    row.retain(|(name, _)| !name.starts_with("attn_mass_recall"));
    cells.push(row);
    let ids: Vec<&str> = drawings(&fixture::results(&cells, &series)).iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, ["output-error-vs-budget"]);
}

#[test]
fn columns_of_another_kind_are_as_good_as_absent() {
    let mut cells = Table::new();
    cells.push("policy", Column::Int(vec![Some(1)])).unwrap();
    cells.push("theta", Column::Text(vec![Some("1".into())])).unwrap();
    cells.push("skip_rate", Column::Bool(vec![Some(true)])).unwrap();
    cells.push("attn_mass_recall", Column::Text(vec![Some("0.5".into())])).unwrap();
    let mut series = Table::new();
    series.push("metric", Column::Text(vec![Some("live_kv_tokens".into())])).unwrap();
    series.push("x", Column::Text(vec![None])).unwrap();
    let results = Results { manifest: fixture::manifest(), cells, series, more: Vec::new() };
    assert!(drawings(&results).is_empty());
    assert!(render_report(&results).ends_with("</html>\n"));
}

#[test]
fn two_hundred_policies_stay_readable_and_small() {
    let (mut cells, mut series) = (Rows::cells(), Rows::series());
    for policy in 0..200 {
        for budget in fixture::BUDGETS {
            let name = format!("policy-{policy:03}");
            let cell = format!("c{policy:03}{budget}");
            cells.push(fixture::eviction_row(
                &cell,
                &name,
                budget,
                0.4 + f64::from(policy) / 500.0,
                0.01,
                None,
            ));
            for x in 0..60 {
                let value = f64::from((x * (policy + 3)) % 97);
                series.push([
                    text("cell", &cell),
                    text("metric", "live_kv_tokens"),
                    text("stat", "mean"),
                    real("x", f64::from(x)),
                    real("value", value),
                ]);
            }
        }
    }
    let mut more: Vec<(String, Table)> = Vec::new();
    for policy in 0..200 {
        let (cell, arm, name) =
            (format!("c{policy:03}128"), format!("arm-{policy:03}"), format!("policy-{policy:03}"));
        let value = 0.3 + f64::from(policy) / 500.0;
        for (at, (table, rows)) in more::drawn(&cell, &[&arm], &name, value).into_iter().enumerate() {
            match more.get_mut(at) {
                Some((_, all)) => all.append(&rows).unwrap(),
                None => more.push((table, rows)),
            }
        }
        cells.push([
            text("cell", &arm),
            text("study", "serve"),
            text("policy", &arm),
            text("status", "ok"),
            real("serve_latency_ms", value),
        ]);
        for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            series.push([
                text("cell", &cell),
                text("metric", "head_mass_recall"),
                text("stat", "mean"),
                int("layer", layer),
                real("x", f64::from(head)),
                real("value", value),
            ]);
        }
    }
    let results = Results { more, ..fixture::results(&cells, &series) };
    let drawn = drawings(&results);
    for id in ["retained-map", "head-coverage", "serve-phases", "wording-similarity", "published-claims"] {
        assert!(drawn.iter().any(|(found, _)| *found == id), "{id} is not drawn");
    }
    for (id, drawing) in drawn {
        let svg = drawing.svg().unwrap();
        assert!(svg.len() < 600_000, "{id}: {} bytes", svg.len());
        assert!(svg.contains(" more"), "{id} does not say how many are left out");
    }
    assert!(render_report(&results).len() < 5_000_000);
}

const HOSTILE: [&str; 7] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "a & b < c > d",
    "'; --",
    "\u{0}\u{1b}[31m\u{202e}evil\u{ffff}",
    "line\nbreak\ttab",
    "",
];

#[test]
fn names_with_markup_are_text() {
    let (mut cells, mut series) = (Rows::cells(), Rows::series());
    let long = "x".repeat(10_000);
    for (at, name) in HOSTILE.into_iter().chain([long.as_str()]).enumerate() {
        let mut row = fixture::eviction_row(
            &format!("{name}{at}"),
            name,
            64,
            0.5 + f64::from(u32::try_from(at).unwrap()) / 20.0,
            0.01,
            None,
        );
        row.push(text("lint", name));
        cells.push(row);
        let mut failed = fixture::eviction_row(&format!("f{at}"), name, 64, 0.5, 0.01, None);
        failed.retain(|(column, _)| column != "status");
        failed.extend([text("status", "failed"), text("error", name)]);
        cells.push(failed);
        let mut exit = vec![
            text("cell", name),
            text("study", "exit"),
            text("policy", name),
            text("lens", name),
            text("status", "ok"),
        ];
        exit.extend([
            real("theta", 1.0),
            real("epsilon", 0.5),
            real("skip_rate", 0.5),
            real("exit_agreement", 0.9),
        ]);
        cells.push(exit);
        series.push([
            text("cell", name),
            text("metric", "exit_layer_count"),
            text("stat", "count"),
            real("x", 3.0),
            real("value", 7.0),
        ]);
    }
    let mut results = fixture::results(&cells, &series);
    results.more =
        vec![("steps".to_owned(), more::steps(&HOSTILE)), ("joint".to_owned(), more::joint(HOSTILE[0], 2))];
    results.more.extend(more::drawn(&format!("{}0", HOSTILE[0]), &[], HOSTILE[0], 0.5));
    results.manifest.scenario = HOSTILE[0].to_owned();
    results.manifest.why = HOSTILE[1].to_owned();
    results.manifest.command = HOSTILE[0].to_owned();
    results.manifest.scenario_text = "</code></pre><script>alert(1)</script>".to_owned();
    results.manifest.sources[0].model = HOSTILE[0].to_owned();
    for (id, drawing) in drawings(&results) {
        assert!(!drawing.svg().unwrap().contains("<script"), "{id}");
    }
    let page = render_report(&results);
    assert_eq!(page.matches("<script>").count(), 1, "only the page's own script");
    assert!(!page.contains("<img"));
}

fn any_finite() -> impl Strategy<Value = f64> {
    prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_finite_numbers_are_drawn_or_explained(values in prop::collection::vec((any_finite(), any::<i64>()), 1..6)) {
        let results = scattered(&values);
        for figure in FIGURES {
            if let Outcome::Drawn(drawing) = draw(*figure, &results).unwrap() {
                prop_assert_eq!(xml::fault(&drawing.svg().unwrap()), None);
            }
        }
        prop_assert!(render_report(&results).ends_with("</html>\n"));
    }
}

/// Cells and series in which `values` stand wherever a number may stand.
fn scattered(values: &[(f64, i64)]) -> Results {
    let (mut cells, mut series) = (Rows::cells(), Rows::series());
    for (at, (value, budget)) in values.iter().enumerate() {
        let next = values[(at + 1) % values.len()].0;
        let cell = format!("c{at}");
        let mut row = vec![
            text("cell", &cell),
            text("study", "eviction"),
            text("policy", "p"),
            int("budget_tokens", *budget),
        ];
        row.extend([
            real("attn_mass_recall", *value),
            real("attn_mass_recall_lo", next),
            real("attn_mass_recall_hi", *value),
        ]);
        cells.push(row);
        let exit = [
            text("cell", "x"),
            text("study", "exit"),
            text("policy", "e"),
            real("theta", *value),
            real("skip_rate", next),
        ];
        cells.push(exit);
        for metric in [
            "live_kv_tokens",
            "step_mass_recall",
            "lens_entropy_nats",
            "value_range_count",
            "exit_layer_count",
        ] {
            for (cell, stat) in
                [(cell.as_str(), "mean"), (RECORDING, "p50"), ("x", "count"), (RECORDING, "count")]
            {
                let keys = [text("cell", cell), text("metric", metric), text("stat", stat), int("layer", 1)];
                series.push(keys.into_iter().chain([real("x", next), real("value", *value)]));
            }
        }
    }
    fixture::results(&cells, &series)
}
