//! The report: complete, small, honest about what is missing, and with numbers that come from the tables.

use super::fixture;
use super::more;
use super::rows::{Noise, Rows, int, real, text};
use kvlab_plots::{FIGURES, Page, render_markdown, render_report};
use kvlab_sim::results::Results;
use kvlab_sim::table::{Column, Value};

/// The answer section without tags.
fn answer(results: &Results) -> String {
    let page = render_report(results);
    let (_, rest) = page.split_once("<section id=\"answer\"").unwrap();
    let (section, _) = rest.split_once("</section>").unwrap();
    let mut text = String::new();
    let mut inside = false;
    for c in section.chars() {
        match c {
            '<' => inside = true,
            '>' => inside = false,
            c if !inside => text.push(c),
            _ => {}
        }
    }
    text
}

#[test]
fn the_report_holds_every_figure_and_needs_no_other_file() {
    let page = render_report(&fixture::study());
    for figure in FIGURES {
        assert!(page.contains(&format!("id=\"figure-{}\"", figure.id())), "{}", figure.id());
        assert!(page.contains(figure.question().replace('\'', "&#39;").as_str()), "{}", figure.id());
    }
    for outside in ["src=", "href=\"http", "url(", "@import", "fetch("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page, render_report(&fixture::study()), "equal tables give equal bytes");
}

#[test]
fn sliders_hold_numbers_to_the_last_bit() {
    let page = render_report(&fixture::study());
    assert!(page.contains("data-sliders") && page.contains("href=\"#thresholds\""));
    assert!(page.contains("0.30000000000000004"), "0.1 + 0.2 is written with all its digits");
    assert!(!page.contains("Not everything is here"));
    let mut without = fixture::study();
    without.more.clear();
    assert!(!render_report(&without).contains("data-sliders"));
}

#[test]
fn sliders_over_many_problems_say_how_many_the_page_holds() {
    let mut results = fixture::study();
    results.more = vec![("joint".to_owned(), more::joint("rksc", 20_000))];
    let page = render_report(&results);
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    let (_, note) = page.split_once("for want of room, rksc holds the first ").unwrap();
    assert!(note.contains(" of 20,000 problems"), "{}", &note[..80]);
}

/// A table for sliders that the script could not read is told in words, and the rest of the page stands.
#[test]
fn sliders_without_usable_rows_give_a_message() {
    let with = |joint: kvlab_sim::table::Table| {
        let mut results = fixture::study();
        results.more = vec![("joint".to_owned(), joint)];
        render_report(&results)
    };
    let no_rows = with(more::joint("rksc", 0));
    assert!(no_rows.contains("<code>joint</code> has no row") && no_rows.contains("There are no sliders"));
    assert!(!no_rows.contains("data-sliders>"), "no box for the script");
    let changed = |params: &str| {
        let table = more::joint("<b>rksc", 1);
        let mut out = kvlab_sim::table::Table::new();
        for (name, column) in table.names().iter().zip(table.columns()) {
            let texts = vec![Some(params.into()); table.rows()];
            let column = if name == "params" { Column::Text(texts) } else { column.clone() };
            out.push(name, column).unwrap();
        }
        with(out)
    };
    for (params, reason) in [
        ("", "name no <code>share</code> policy"),
        ("[1]", "name no <code>share</code> policy"),
        (r#"{"share": {"kind": "asks", "params": {"tau": "NaN"}}}"#, "has no number <code>tau</code>"),
        (r#"{"share": {"kind": "off"}, "verify": {"kind": "cgee"}}"#, "has no number <code>tau_conf</code>"),
    ] {
        let page = changed(params);
        assert!(page.contains(reason), "{params}");
        assert!(page.contains("&lt;b&gt;rksc is left out, because") && !page.contains("<b>rksc"), "{params}");
    }
    let one = with(more::joint("rksc", 1));
    assert!(one.contains("data-sliders>") && !one.contains("There are no sliders"));
}

#[test]
fn ten_thousand_cells_fit_into_five_megabytes() {
    let mut cells = Rows::cells();
    let mut noise = Noise::new(3);
    for at in 0..10_000_i64 {
        let recall = 0.5 + noise.unit() / 2.0;
        let policy = format!("policy-{:02}", at % 20);
        let mut row = fixture::eviction_row(
            &format!("{at:012x}"),
            &policy,
            32 + at / 20,
            recall,
            noise.unit() / 50.0,
            Some(at % 3),
        );
        row.extend([
            real("mean_keep_ratio", noise.unit()),
            int("evictions", at),
            int("kv_byte_steps", at * 46_080 * 977),
        ]);
        row.push(text("params", &format!("{{\"budget_tokens\":{at},\"pool\":5,\"period_tokens\":64}}")));
        cells.push(row);
    }
    let page = render_report(&fixture::results(&cells, &Rows::series()));
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    assert!(page.contains("\"rows\":10000"), "all rows are in the page");
}

#[test]
fn the_answer_names_the_best_policy_at_the_smallest_budget_with_its_interval() {
    let mut cells = Rows::cells();
    cells.push(fixture::eviction_row("a", "snapkv", 64, 0.9, 0.02, None));
    cells.push(fixture::eviction_row("b", "random", 64, 0.6, 0.02, None));
    cells.push(fixture::eviction_row("c", "random", 128, 0.99, 0.0, None));
    let text = answer(&fixture::results(&cells, &Rows::series()));
    assert!(text.contains("C = 64 tokens"), "{text}");
    assert!(text.contains("snapkv keeps the most"), "{text}");
    assert!(text.contains("0.900 [0.880, 0.920]") && text.contains("0.600 [0.580, 0.620]"), "{text}");
    assert!(text.contains("intervals do not overlap"), "{text}");
}

#[test]
fn the_answer_says_when_intervals_overlap() {
    let mut cells = Rows::cells();
    cells.push(fixture::eviction_row("a", "snapkv", 64, 0.90, 0.02, None));
    cells.push(fixture::eviction_row("b", "vase-attnv", 64, 0.89, 0.02, None));
    let text = answer(&fixture::results(&cells, &Rows::series()));
    assert!(text.contains("only a paired comparison"), "{text}");
}

#[test]
fn an_answer_never_rests_on_a_policy_that_did_not_trigger() {
    let mut cells = Rows::cells();
    let mut idle = fixture::eviction_row("a", "snapkv", 4096, 1.0, 0.0, None);
    idle.retain(|(name, _)| name != "evictions");
    idle.push(int("evictions", 0));
    cells.push(idle);
    let results = fixture::results(&cells, &Rows::series());
    let text = answer(&results);
    assert!(text.contains("No policy evicted anything"), "{text}");
    assert!(text.contains("never triggered"), "{text}");
    assert!(render_report(&results).contains("Policies that never triggered"));
}

/// A selection and a store act without an eviction: their rows are no full cache.
#[test]
fn a_selection_that_evicts_nothing_is_not_one_that_never_triggered() {
    for column in ["attend", "store"] {
        let mut cells = Rows::cells();
        let mut row = fixture::eviction_row("a", "quest", 64, 0.9, 0.0, None);
        row.retain(|(name, _)| name != "evictions");
        row.extend([int("evictions", 0), text(column, "quest")]);
        cells.push(row);
        let results = fixture::results(&cells, &Rows::series());
        assert!(answer(&results).contains("C = 64 tokens"), "{column}");
        assert!(!render_report(&results).contains("Policies that never triggered"), "{column}");
    }
}

#[test]
fn the_exit_answer_quotes_counts_and_leaves_out_vacuous_thresholds() {
    let mut cells = Rows::cells();
    for (cell, theta, skip, lint) in
        [("a", 1.0, 0.25, None), ("b", 11.0, 0.9, Some("theta is vacuous: 11 nats is above ln V"))]
    {
        let mut row = vec![
            text("cell", cell),
            text("study", "exit"),
            text("policy", "entropy-exit"),
            text("lens", "final-norm"),
            text("status", "ok"),
        ];
        row.extend([
            real("theta", theta),
            real("epsilon", 0.5),
            real("skip_rate", skip),
            real("exit_agreement", 0.97),
        ]);
        row.extend([
            int("skip_rate_num", 250),
            int("skip_rate_den", 1000),
            int("exit_agreement_num", 97),
            int("exit_agreement_den", 100),
        ]);
        row.extend(lint.map(|finding| text("lint", finding)));
        cells.push(row);
    }
    let results = fixture::results(&cells, &Rows::series());
    let text = answer(&results);
    assert!(text.contains("25.0 % of layers are skipped (250 of 1000)"), "{text}");
    assert!(text.contains("97.0 % of positions (97 of 100)"), "{text}");
    assert!(render_report(&results).contains("above ln V"));
}

#[test]
fn failed_and_skipped_cells_stand_in_the_findings_with_their_reasons() {
    let mut cells = Rows::cells();
    for (status, reason) in [("failed", "budget smaller than sinks"), ("skipped", "trace has no lens facts")]
    {
        let mut row = fixture::eviction_row(status, "snapkv", 64, 0.9, 0.02, None);
        row.retain(|(name, _)| name != "status");
        row.extend([text("status", status), text("error", reason)]);
        cells.push(row);
    }
    let results = fixture::results(&cells, &Rows::series());
    let page = render_report(&results);
    assert!(page.contains("budget smaller than sinks") && page.contains("trace has no lens facts"));
    assert!(answer(&results).contains("2 cells failed or skipped"));
}

#[test]
fn generated_data_are_marked_in_the_page_and_in_every_picture() {
    let mut results = fixture::study();
    results.manifest.sources[0].synthetic = true;
    assert!(render_report(&results).contains("class=\"banner\""));
    for (id, drawing) in super::drawings(&results) {
        assert!(drawing.caption()[0].contains("synthetic trace"), "{id}");
        assert!(drawing.svg().unwrap().contains("synthetic trace"), "{id}");
    }
    assert!(!render_report(&fixture::study()).contains("class=\"banner\""));
}

#[test]
fn a_report_names_what_made_it() {
    let page = render_report(&fixture::study());
    let manifest = fixture::manifest();
    for fact in [
        &manifest.command,
        &manifest.scenario_digest,
        &manifest.sources[0].digest,
        &manifest.sources[0].provider,
        &manifest.tool,
    ] {
        assert!(page.contains(fact.as_str()), "{fact}");
    }
}

#[test]
fn fixture_columns_are_those_of_the_contract() {
    let results = fixture::study();
    assert!(matches!(results.cells.value("attn_mass_recall", 1), Value::Real(_)));
    assert!(matches!(results.cells.value("budget_tokens", 1), Value::Int(_)));
}

#[test]
fn markdown_says_the_same_with_pictures_beside_it() {
    let mut results = fixture::study();
    results.manifest.scenario = "a <b>bold</b> *name*".to_owned();
    let Page { text: page, pictures } = render_markdown(&results, "report-figures").unwrap();
    assert_eq!(pictures.len(), FIGURES.len());
    for (name, _) in &pictures {
        assert!(page.contains(&format!("](<{name}>)")), "{name}");
    }
    assert!(page.starts_with("# a &lt;b&gt;bold&lt;/b&gt; \\*name\\*"), "{}", &page[..80]);
    assert!(page.contains("## Answer") && page.contains("kvlab demo --out out --seed 0"));
}
