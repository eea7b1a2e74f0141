//! The answer in a few sentences, with numbers from the tables. It speaks of accuracy only where rows were executed.

mod more;

use super::html::short;
use crate::figures::{ExitCell, exit_cells};
use crate::number::{count, percent, plain, significant};
use crate::select::{Curve, Point, Reader, curves, distinct, runs};
use kvlab_sim::results::Results;

/// A next token that stays the same at that share of positions counts as safe enough to be quoted.
const AGREEMENT: f64 = 0.95;

/// HTML sentences; at least one.
pub(super) fn sentences(results: &Results) -> Vec<String> {
    let found: Vec<String> = [
        executed(results),
        eviction(results),
        more::trees(results),
        exit(results),
        more::pool(results),
        more::serve(results),
    ]
    .into_iter()
    .flatten()
    .collect();
    if found.is_empty() {
        return vec!["No cell of this study has a number to answer with; see the findings below.".to_owned()];
    }
    found.into_iter().chain([reach(results)]).collect()
}

/// Who solves most with a policy in the loop, at the smallest and the largest budget. Nothing without executed rows.
fn executed(results: &Results) -> Option<String> {
    let values = Reader::new(&results.cells, "accuracy");
    let all = runs::eviction_runs_with(results, "accuracy");
    all.iter().find(|run| values.number(run.row).is_some())?;
    let found = curves(&results.cells, &all, "accuracy", "budget_tokens");
    let at = |x: Option<f64>| {
        let mut here: Vec<(&Curve, &Point)> = found
            .iter()
            .flat_map(|curve| curve.points.iter().map(move |point| (curve, point)))
            .filter(|(_, point)| point.x.map(f64::to_bits) == x.map(f64::to_bits))
            .collect();
        here.sort_by(|a, b| b.1.value.total_cmp(&a.1.value).then(a.0.label.cmp(&b.0.label)));
        here
    };
    let mut text = "With the policies in the loop of the model (executed)".to_owned();
    if let Some((curve, point)) = at(None).first() {
        text.push_str(&format!(
            ", {} solves a share of {} of the problems",
            short(&curve.label, 60),
            with_interval(point)
        ));
    }
    let budgets = distinct(all.iter().filter_map(|run| run.budget));
    let mut ends: Vec<f64> = budgets.first().into_iter().chain(budgets.last()).copied().collect();
    ends.dedup_by(|a, b| a.total_cmp(b).is_eq());
    for budget in ends {
        let here = at(Some(budget));
        let (Some((best, first)), Some((last, least))) = (here.first(), here.last()) else { continue };
        let at = format!("; at C = {}", plain(budget, 4));
        if here.len() > 1 && overlap(first, least) {
            let (low, high) = (significant(least.value, 3), significant(first.value, 3));
            text.push_str(&format!("{at} the policies cannot be told apart, {low} to {high}"));
            continue;
        }
        text.push_str(&format!(
            "{at} the most is solved with <strong>{}</strong>, {}",
            short(&best.label, 60),
            with_interval(first)
        ));
        if here.len() > 1 {
            text.push_str(&format!(", the least with {}, {}", short(&last.label, 60), with_interval(least)));
        }
    }
    text.push('.');
    Some(text)
}

/// Who keeps most attention mass at the smallest budget.
fn eviction(results: &Results) -> Option<String> {
    let all = runs::eviction_runs_with(results, "attn_mass_recall");
    let found = curves(&results.cells, &all, "attn_mass_recall", "budget_tokens");
    let points = || found.iter().flat_map(|curve| curve.points.iter().map(move |point| (curve, point)));
    let active = |point: &Point| point.untriggered < point.cells;
    let smallest =
        points().filter(|(_, point)| active(point)).filter_map(|(_, point)| point.x).min_by(f64::total_cmp);
    let Some(smallest) = smallest else {
        return (!found.is_empty()).then(|| {
            "No policy evicted anything at any budget: every sequence fits, so all policies equal the full cache here.".to_owned()
        });
    };
    let mut here: Vec<(&Curve, &Point)> = points()
        .filter(|(_, point)| point.x.is_some_and(|x| x.total_cmp(&smallest).is_eq()) && active(point))
        .collect();
    here.sort_by(|a, b| b.1.value.total_cmp(&a.1.value).then(a.0.label.cmp(&b.0.label)));
    let (best, first) = here.first()?;
    let mut text = format!(
        "At the smallest budget, C = {} tokens per layer and KV head, <strong>{}</strong> keeps the most of the full cache\u{2019}s \
         attention mass: {} (proxy",
        plain(smallest, 4),
        short(&best.label, 60),
        with_interval(first)
    );
    if first.seeds > 1 {
        text.push_str(&format!(", mean of {} seeds", first.seeds));
    }
    text.push(')');
    match here.get(1) {
        None => text.push_str("; it is the only policy that evicted at this budget."),
        Some((next, second)) => {
            text.push_str(&format!(
                ", against {} for {}, the next best. ",
                with_interval(second),
                short(&next.label, 60)
            ));
            text.push_str(comparison(first, second));
        }
    }
    if let Some((last, point)) = here.last().filter(|_| here.len() > 2) {
        text.push_str(&format!(
            " The least is kept by {}: {}.",
            short(&last.label, 60),
            with_interval(point)
        ));
    }
    Some(text)
}

fn with_interval(point: &Point) -> String {
    with_ends(&significant(point.value, 3), point.interval)
}

fn with_ends(value: &str, interval: Option<(f64, f64)>) -> String {
    match interval {
        Some((lo, hi)) => format!("{value} [{}, {}]", significant(lo, 3), significant(hi, 3)),
        None => value.to_owned(),
    }
}

/// Whether the intervals of the better and the worse one overlap, where both have one.
fn overlap(better: &Point, worse: &Point) -> bool {
    matches!((better.interval, worse.interval), (Some((lo, _)), Some((_, hi))) if lo <= hi)
}

fn comparison(first: &Point, second: &Point) -> &'static str {
    match (first.interval, second.interval) {
        _ if first.value.total_cmp(&second.value).is_eq() => "The two are equal.",
        _ if overlap(first, second) => {
            "Their intervals overlap; since both saw the same problems, only a paired comparison could still tell them apart."
        }
        (Some(_), Some(_)) => "Their intervals do not overlap.",
        _ => "There are no intervals to tell whether the difference is more than chance.",
    }
}

/// How many layers can be skipped while the next token mostly stays.
fn exit(results: &Results) -> Option<String> {
    let column = |name: &str| Reader::new(&results.cells, name);
    let (skip, agreement) = (column("skip_rate"), column("exit_agreement"));
    let all = exit_cells(results);
    let mut sound: Vec<(&ExitCell, f64, f64)> = all
        .iter()
        .filter(|cell| cell.is_sound())
        .filter_map(|cell| Some((cell, skip.number(cell.row)?, agreement.number(cell.row)?)))
        .collect();
    if sound.is_empty() {
        return (!all.is_empty())
            .then(|| "Every exit threshold of this study is vacuous; see the findings.".to_owned());
    }
    let reached = sound.iter().any(|(_, _, agreement)| *agreement >= AGREEMENT);
    if reached {
        sound.retain(|(_, _, agreement)| *agreement >= AGREEMENT);
        sound.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.2.total_cmp(&a.2)));
    } else {
        sound.sort_by(|a, b| b.2.total_cmp(&a.2).then(b.1.total_cmp(&a.1)));
    }
    let (cell, skip, agreement) = sound.first()?;
    let numbers = format!(
        "<strong>{}</strong> of layers are skipped{} and the token predicted at the exit layer is the last layer\u{2019}s at \
         <strong>{}</strong> of positions{} (decision)",
        percent(*skip),
        fraction(results, "skip_rate", cell.row),
        percent(*agreement),
        fraction(results, "exit_agreement", cell.row)
    );
    let at = format!(
        "{}, {} ({}), {}",
        cell.theta_text(),
        cell.epsilon_text(),
        if cell.unit == "nats" { "nats" } else { "shares of ln V" },
        short(&cell.facet, 80)
    );
    Some(if reached {
        format!(
            "Leaving layers early: at {at}, {numbers}. No sound threshold skips more at an agreement of at least {}.",
            percent(AGREEMENT)
        )
    } else {
        format!(
            "Leaving layers early: no sound threshold reaches an agreement of {}. The highest is at {at}: {numbers}.",
            percent(AGREEMENT)
        )
    })
}

/// ` (312 of 8,200)` when both counts are there.
fn fraction(results: &Results, rate: &str, row: usize) -> String {
    let part = |suffix: &str| Reader::new(&results.cells, &format!("{rate}{suffix}")).int(row);
    match (part("_num"), part("_den")) {
        (Some(num), Some(den)) => format!(" ({} of {})", count(num), count(den)),
        _ => String::new(),
    }
}

/// What the numbers rest on, and what they do not say.
fn reach(results: &Results) -> String {
    let sources = &results.manifest.sources;
    let sequences: i64 = sources.iter().map(|source| i64::from(source.sequences)).sum();
    let tokens: u64 = sources.iter().map(|source| source.tokens).sum();
    let models: std::collections::BTreeSet<&str> =
        sources.iter().map(|source| source.model.as_str()).collect();
    let models: Vec<String> = models.into_iter().map(|model| short(model, 60)).collect();
    let word = if sequences == 1 { "sequence" } else { "sequences" };
    let problems = Reader::new(&results.cells, "problems");
    let source = Reader::new(&results.cells, "source");
    let mut by_source: std::collections::BTreeMap<Option<&str>, i64> = std::collections::BTreeMap::new();
    for (row, problems) in (0..results.cells.rows()).filter_map(|row| Some((row, problems.int(row)?))) {
        let most = by_source.entry(source.text(row)).or_default();
        *most = problems.max(*most);
    }
    let problems = (!by_source.is_empty()).then(|| by_source.values().sum::<i64>());
    let behind = match (sequences, problems) {
        (0, Some(problems)) => format!("{} problems with recorded branches", count(problems)),
        (0, None) => "a generated or imported stream of requests".to_owned(),
        _ => {
            format!(
                "{} recorded {word} ({} tokens)",
                count(sequences),
                count(i64::try_from(tokens).unwrap_or(i64::MAX))
            )
        }
    };
    format!(
        "All of this rests on {behind} of {}. {}",
        if models.is_empty() { "an unnamed model".to_owned() } else { models.join(", ") },
        if Reader::new(&results.cells, "accuracy").has_any() {
            "Decisions and proxies say what policies keep and skip; only the executed rows say whether answers stay right."
        } else if Reader::new(&results.cells, "tree_accuracy").has_any() {
            "Every outcome that a stack can choose was recorded, so answers over branch trees are exact for these problems, and for no others."
        } else {
            "It says what policies keep and skip; it does not say whether answers stay right."
        }
    )
}
