//! Every registered figure and the report, from result tables of all kinds: whole, empty, degenerate, hostile.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod degenerate;
mod fixture;
mod fuzz;
mod gallery;
mod more;
mod overlay;
mod report;
mod rows;
mod xml;

use kvlab_plots::{Drawing, FIGURES, Outcome, Pictures, PlotsError, Status, draw, render_all, render_one};
use kvlab_sim::results::Results;
use kvlab_sim::table::Table;
use rows::Rows;

/// All figures that `results` allows; every picture is checked for form on the way.
fn drawings(results: &Results) -> Vec<(&'static str, Drawing)> {
    let mut drawn = Vec::new();
    for figure in FIGURES {
        match draw(*figure, results).unwrap() {
            Outcome::Drawn(drawing) => {
                let svg = drawing.svg().unwrap();
                assert_eq!(xml::fault(&svg), None, "{}", figure.id());
                drawn.push((figure.id(), *drawing));
            }
            Outcome::Nothing(reason) => assert!(!reason.is_empty(), "{} says nothing", figure.id()),
        }
    }
    drawn
}

fn drawing_of(results: &Results, wanted: &str) -> Drawing {
    drawings(results).into_iter().find(|(id, _)| *id == wanted).expect("it has data").1
}

#[test]
fn every_figure_is_drawn_from_a_whole_study() {
    let drawn = drawings(&fixture::study());
    let ids: Vec<&str> = drawn.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, FIGURES.iter().map(|figure| figure.id()).collect::<Vec<_>>());
}

/// Figures of branch trees and of requests, which have no sequences.
const WITHOUT_SEQUENCES: [&str; 4] = ["pareto-work", "pool-hit-rate", "tau-theta-map", "theta-epsilon-map"];

#[test]
fn a_picture_has_a_title_an_alternative_a_caption_and_a_table_behind_it() {
    for (id, drawing) in drawings(&fixture::study()) {
        let svg = drawing.svg().unwrap();
        assert!(svg.contains("role=\"img\"") && svg.contains("<title>"), "{id}");
        assert!(drawing.alt.len() > 40, "{id}: {}", drawing.alt);
        let sequences = drawing.caption()[0].contains("12 sequences");
        let is_of_requests = drawing.caption()[0].contains("problems") || WITHOUT_SEQUENCES.contains(&id);
        assert!(sequences != is_of_requests, "{id}: {:?}", drawing.caption());
        assert!(drawing.data.rows() > 0, "{id}");
    }
}

#[test]
fn the_first_word_of_a_caption_is_the_evidence() {
    let expected = [
        ("accuracy-vs-budget", "Executed"),
        ("entropy-by-layer", "Recorded"),
        ("entropy-map", "Recorded"),
        ("exit-layer-histogram", "Decision"),
        ("exit-map", "Decision"),
        ("exit-threshold", "Decision"),
        ("fidelity-calibration", "Proxy and executed"),
        ("head-coverage", "Proxy"),
        ("occupancy", "Decision"),
        ("output-error-vs-budget", "Proxy"),
        ("pareto-bytes", "Executed and decision"),
        ("pareto-recall", "Proxy and decision"),
        ("pareto-work", "Decision"),
        ("pool-hit-rate", "Decision"),
        ("proxy-vs-executed", "Proxy and executed"),
        ("published-claims", "Proxy"),
        ("range-error", "Decision"),
        ("recall-by-step", "Proxy"),
        ("recall-vs-budget", "Proxy"),
        ("retained-map", "Decision"),
        ("saved-work", "Decision"),
        ("seed-spread", "Executed"),
        ("serve-latency", "Proxy"),
        ("serve-phases", "Proxy"),
        ("serve-speedup", "Proxy"),
        ("steps-epsilon", "Decision"),
        ("steps-margin", "Decision"),
        ("steps-tau", "Decision"),
        ("steps-tau-conf", "Decision"),
        ("steps-theta", "Decision"),
        ("survival", "Decision"),
        ("tau-theta-map", "Decision"),
        ("theta-epsilon-map", "Decision"),
        ("value-range", "Recorded"),
        ("wording-similarity", "Decision"),
    ];
    for ((id, drawing), (wanted, word)) in drawings(&fixture::study()).into_iter().zip(expected) {
        assert_eq!(id, wanted);
        assert!(drawing.caption()[0].starts_with(word), "{id}: {:?}", drawing.caption());
    }
}

#[test]
fn two_renders_of_one_study_are_equal_byte_for_byte() {
    let results = fixture::study();
    let once: Vec<String> = drawings(&results).iter().map(|(_, drawing)| drawing.svg().unwrap()).collect();
    let twice: Vec<String> = drawings(&results).iter().map(|(_, drawing)| drawing.svg().unwrap()).collect();
    assert!(once == twice);
}

#[test]
fn a_figure_stands_beside_its_table_and_its_command() {
    let folder = tempfile::tempdir().unwrap();
    let rendered = render_all(&fixture::study(), folder.path(), Pictures::Svg).unwrap();
    assert_eq!(rendered.len(), FIGURES.len());
    for figure in rendered {
        assert_eq!(figure.status, Status::Drawn, "{}", figure.id);
        let read = |ending: &str| {
            std::fs::read_to_string(folder.path().join(format!("{}.{ending}", figure.id))).unwrap()
        };
        assert!(read("svg").starts_with("<svg"));
        assert!(read("csv").lines().count() > 1);
        let note = read("txt");
        assert!(note.contains("kvlab demo --out out --seed 0"), "{note}");
        assert!(note.contains(&format!("--figure {}", figure.id)), "{note}");
    }
}

#[test]
fn a_figure_without_data_leaves_no_stale_picture() {
    let folder = tempfile::tempdir().unwrap();
    render_one(&fixture::study(), "occupancy", folder.path(), Pictures::Svg).unwrap();
    let empty = Results {
        manifest: fixture::manifest(),
        cells: Table::new(),
        series: Table::new(),
        more: Vec::new(),
    };
    let rendered = render_one(&empty, "occupancy", folder.path(), Pictures::Svg).unwrap();
    assert!(matches!(rendered.status, Status::NothingToDraw { .. }));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn an_unknown_figure_is_refused_with_the_known_ones() {
    let folder = tempfile::tempdir().unwrap();
    let error = render_one(&fixture::study(), "ocupancy", folder.path(), Pictures::Svg).unwrap_err();
    assert!(matches!(error, PlotsError::UnknownFigure { .. }), "{error}");
    assert!(error.to_string().contains("occupancy"));
}

#[test]
fn numbers_behind_the_recall_figure_are_those_of_the_cells() {
    let results = fixture::study();
    let drawing = drawing_of(&results, "recall-vs-budget");
    let policies = drawing.data.text("policy").unwrap();
    let budgets = drawing.data.real("budget_tokens").unwrap();
    let at = (0..drawing.data.rows())
        .find(|&row| policies[row].as_deref() == Some("snapkv") && budgets[row] == Some(128.0))
        .unwrap();
    let cells = &results.cells;
    let row = (0..cells.rows())
        .find(|&row| {
            cells.text("policy").unwrap()[row].as_deref() == Some("snapkv")
                && cells.int("budget_tokens").unwrap()[row] == Some(128)
        })
        .unwrap();
    assert_eq!(
        drawing.data.real("attn_mass_recall").unwrap()[at],
        cells.real("attn_mass_recall").unwrap()[row]
    );
    assert_eq!(
        drawing.data.real("interval_lo").unwrap()[at],
        cells.real("attn_mass_recall_lo").unwrap()[row]
    );
}

#[test]
fn seeds_are_joined_as_their_mean_and_their_spread_is_kept() {
    let (mut cells, series) = (Rows::cells(), Rows::series());
    for (seed, recall) in [(0, 0.5), (1, 0.7)] {
        cells.push(fixture::eviction_row(&format!("c{seed}"), "random", 64, recall, 0.05, Some(seed)));
    }
    let drawing = drawing_of(&fixture::results(&cells, &series), "recall-vs-budget");
    assert_eq!(drawing.data.real("attn_mass_recall").unwrap(), [Some(0.6)]);
    assert_eq!(drawing.data.real("seed_min").unwrap(), [Some(0.5)]);
    assert_eq!(drawing.data.real("seed_max").unwrap(), [Some(0.7)]);
}

#[test]
fn cells_that_differ_in_a_setting_are_not_mixed() {
    let (mut cells, series) = (Rows::cells(), Rows::series());
    for (reserve, recall) in [(8, 0.5), (16, 0.7)] {
        let mut row = fixture::eviction_row(&format!("c{reserve}"), "vase-attnv", 64, recall, 0.05, Some(0));
        row.push(rows::int("value_tokens", reserve));
        cells.push(row);
    }
    let drawing = drawing_of(&fixture::results(&cells, &series), "recall-vs-budget");
    let labels: Vec<&str> =
        drawing.data.text("policy").unwrap().iter().flatten().map(|policy| policy.as_str()).collect();
    assert_eq!(labels, ["vase-attnv, N_v = 16", "vase-attnv, N_v = 8"]);
}

#[test]
fn a_png_is_the_picture_at_twice_its_size_and_goes_when_it_is_not_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let results = fixture::study();
    let file = folder.path().join("occupancy.png");
    render_one(&results, "occupancy", folder.path(), Pictures::SvgAndPng).unwrap();
    let png = std::fs::read(&file).unwrap();
    let svg = std::fs::read_to_string(folder.path().join("occupancy.svg")).unwrap();
    let side = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    for (name, at) in [("width", 16), ("height", 20)] {
        assert!(svg.contains(&format!("{name}=\"{}\"", side(at) / 2)), "{name} {}", side(at));
    }
    render_one(&results, "occupancy", folder.path(), Pictures::SvgAndPng).unwrap();
    assert!(png == std::fs::read(&file).unwrap(), "equal tables give equal bytes");
    render_one(&results, "occupancy", folder.path(), Pictures::Svg).unwrap();
    assert!(!file.exists());
}
