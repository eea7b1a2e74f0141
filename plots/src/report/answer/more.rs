//! What studies of branch trees, of block caches and of simulated serving answer.

use super::super::html::short;
use super::{fraction, with_ends};
use crate::number::{percent, plain, significant};
use crate::select::{Reader, distinct, runs};
use kvlab_sim::results::Results;

/// The stack that spares the verifier most without a wrong answer more, or else the one that harms least.
pub(super) fn trees(results: &Results) -> Option<String> {
    let column = |name: &str| Reader::new(&results.cells, name);
    let (work, harm, right) = (column("verify_work_rate"), column("harm_rate"), column("tree_accuracy"));
    let mut found: Vec<(runs::Run, f64, f64)> = runs::study_runs(results, "trees", "harm_rate")
        .into_iter()
        .filter_map(|run| Some((work.number(run.row)?, harm.number(run.row)?, run)))
        .map(|(work, harm, run)| (run, work, harm))
        .collect();
    // Least harm, then least work, then the order of the table.
    found.sort_by(|a, b| a.2.total_cmp(&b.2).then(a.1.total_cmp(&b.1)).then(a.0.row.cmp(&b.0.row)));
    let (run, work, harm) = found.first()?;
    let right = right.number(run.row)?;
    let settings = ["tau", "tau_conf", "margin", "theta", "epsilon"]
        .iter()
        .filter_map(|name| {
            Some(format!("{} = {}", name.replace('_', " "), plain(column(name).number(run.row)?, 4)))
        })
        .collect::<Vec<_>>();
    let at = if settings.is_empty() { String::new() } else { format!(" at {}", settings.join(", ")) };
    let harmless = if *harm > 0.0 {
        "No stack is without harm; the least has"
    } else {
        "Of the stacks that harm no answer, the least work of the verifier has"
    };
    Some(format!(
        "Verifying branches: {harmless} <strong>{}</strong>{at}: <strong>{}</strong> of the full work{}, with {} of problems right{} and {} harmed{} \
         ({}). It was picked on these problems; others may be harmed.",
        short(&run.label, 60),
        percent(*work),
        fraction(results, "verify_work_rate", run.row),
        percent(right),
        fraction(results, "tree_accuracy", run.row),
        percent(*harm),
        fraction(results, "harm_rate", run.row),
        if column("arm").text(run.row) == Some("real") { "executed" } else { "decision" },
    ))
}

/// The best pool policy at the middle capacity, beside what is possible.
pub(super) fn pool(results: &Results) -> Option<String> {
    let (rate, capacity) =
        (Reader::new(&results.cells, "pool_hit_rate"), Reader::new(&results.cells, "pool_capacity_blocks"));
    let all = runs::study_runs(results, "pool", "pool_hit_rate");
    let capacities = distinct(all.iter().filter_map(|run| capacity.number(run.row)));
    let middle = *capacities.get(capacities.len().checked_sub(1)? / 2)?;
    let at =
        |run: &&runs::Run| capacity.number(run.row).is_some_and(|value| value.total_cmp(&middle).is_eq());
    let mut here: Vec<(&runs::Run, f64)> =
        all.iter().filter(at).filter_map(|run| Some((run, rate.number(run.row)?))).collect();
    here.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.label.cmp(&b.0.label)));
    let bound = here.iter().find(|(run, _)| run.policy == "belady").map(|(_, rate)| *rate);
    let (best, most) = here.iter().find(|(run, _)| run.policy != "belady")?;
    let possible =
        bound.map_or(String::new(), |bound| format!("; {} is possible with foresight", percent(bound)));
    Some(format!(
        "Caching prompts: in a cache of {} blocks, <strong>{}</strong> finds most, {} of prompt tokens{} (decision){possible}.",
        plain(middle, 4),
        short(&best.label, 60),
        percent(*most),
        fraction(results, "pool_hit_rate", best.row)
    ))
}

/// The fastest arm of simulated serving.
pub(super) fn serve(results: &Results) -> Option<String> {
    let column = |name: &str| Reader::new(&results.cells, name);
    let (speedup, lo, hi) = (column("serve_speedup"), column("serve_speedup_lo"), column("serve_speedup_hi"));
    let mut found: Vec<(runs::Run, f64)> = runs::study_runs(results, "serve", "serve_speedup")
        .into_iter()
        .filter_map(|run| Some((speedup.number(run.row)?, run)))
        .map(|(value, run)| (run, value))
        .collect();
    // The arm that all are compared with is exactly as fast as itself, with certainty.
    let is_one = |value: Option<f64>| value.is_some_and(|value| value.total_cmp(&1.0).is_eq());
    let is_baseline = |(run, value): &&(runs::Run, f64)| {
        is_one(Some(*value)) && is_one(lo.number(run.row)) && is_one(hi.number(run.row))
    };
    let baseline = found.iter().find(is_baseline).or(found.first()).map(|(run, _)| run.label.clone())?;
    found.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.row.cmp(&b.0.row)));
    let (run, value) = found.first()?;
    let ends = with_ends(&significant(*value, 3), lo.number(run.row).zip(hi.number(run.row)));
    Some(format!(
        "Serving in simulated time: <strong>{}</strong> is fastest, {ends} times as fast as {} (proxy: the cost model says so, nothing was timed).",
        short(&run.label, 60),
        short(&baseline, 60)
    ))
}
