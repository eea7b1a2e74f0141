//! `proxy-vs-executed`: what replay estimates of a policy against what the model did with it.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{Reader, caption, mean, runs};
use crate::theme::Palette;
use kvlab_sim::results::Results;
use std::collections::{BTreeMap, BTreeSet};

const PROXY: &str = "attn_mass_recall";
const EXECUTED: &str = "accuracy";
const MOST_LOOKS: usize = 14;

/// The figure.
#[derive(Debug)]
pub(crate) struct ProxyVsExecuted;

/// A policy at one budget, seeds joined.
struct Pair {
    policy: String,
    budget: Option<f64>,
    proxy: f64,
    executed: f64,
    cells: (usize, usize),
}

impl Figure for ProxyVsExecuted {
    fn id(&self) -> &'static str {
        "proxy-vs-executed"
    }

    fn title(&self) -> &'static str {
        "Attention mass kept in replay against accuracy in the loop"
    }

    fn question(&self) -> &'static str {
        "Does the proxy say which policies keep answers right?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Eviction, rank: 10 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::CellColumn(PROXY), Need::CellColumn(EXECUTED)]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let pairs = pairs(results);
        let extent = |of: fn(&Pair) -> f64| Extent::of(pairs.iter().map(of));
        let (Some(x), Some(y)) = (extent(|pair| pair.proxy), extent(|pair| pair.executed)) else {
            return Ok(Outcome::nothing(
                "no policy has both a replayed and an executed cell at the same budget",
            ));
        };
        let palette = Palette::new(pairs.iter().map(|pair| (pair.policy.as_str(), pair.policy.as_str())));
        let mut policies: Vec<&str> =
            pairs.iter().map(|pair| pair.policy.as_str()).collect::<BTreeSet<_>>().into_iter().collect();
        policies.sort_by_key(|policy| (palette.rank(policy), *policy));
        let marks = pairs
            .iter()
            .map(|pair| {
                let look = palette.look(&pair.policy);
                Mark::Symbols {
                    points: vec![(pair.proxy, pair.executed)],
                    marker: look.marker,
                    ink: look.stroke.ink,
                }
            })
            .collect();
        let axis = |metric: &str, extent: Extent| {
            Axis::linear(caption::label(metric), extent.at_least(0.02).padded(0.07, 0.07), TickRule::Round)
                .naturally(0.0, 1.0)
        };
        let panel = Panel { title: String::new(), x: axis(PROXY, x), y: axis(EXECUTED, y), marks };
        let mut legend: Vec<Key> = policies
            .iter()
            .take(MOST_LOOKS)
            .map(|policy| {
                let look = palette.look(policy);
                Key {
                    label: clipped(policy, 60),
                    sample: Sample::Symbol { marker: look.marker, ink: look.stroke.ink },
                }
            })
            .collect();
        if policies.len() > MOST_LOOKS {
            let label = format!("{} more policies", policies.len() - MOST_LOOKS);
            legend.push(Key { label, sample: Sample::Blank });
        }
        let rows = runs::study_runs(results, "eviction", EXECUTED).into_iter().map(|run| run.row);
        let sequences = caption::sequences_of(results, rows);
        let order = agreement(&pairs);
        let scene = Scene {
            title: self.title().to_owned(),
            panels: vec![panel],
            columns: 1,
            share_x: false,
            legend,
            caption: vec![caption::opening(results, &[PROXY, EXECUTED], sequences), said(pairs.len(), order)],
            synthetic: caption::is_synthetic(results),
        };
        let alt =
            clipped(&format!("{}: {} points. {}", self.title(), pairs.len(), said(pairs.len(), order)), 1200);
        behind(&pairs).finish(self, scene, alt)
    }
}

/// Policies and budgets with both kinds of cells.
fn pairs(results: &Results) -> Vec<Pair> {
    let of = |metric: &str| {
        let values = Reader::new(&results.cells, metric);
        let mut found: BTreeMap<(String, Option<u64>), Vec<f64>> = BTreeMap::new();
        for run in runs::study_runs(results, "eviction", metric) {
            if let Some(value) = values.number(run.row).filter(|value| value.is_finite()) {
                found.entry((run.policy, run.budget.map(f64::to_bits))).or_default().push(value);
            }
        }
        found
    };
    let executed = of(EXECUTED);
    of(PROXY)
        .into_iter()
        .filter_map(|(key, proxies)| {
            let accuracies = executed.get(&key)?;
            Some(Pair {
                proxy: mean(&proxies)?,
                executed: mean(accuracies)?,
                cells: (proxies.len(), accuracies.len()),
                policy: key.0,
                budget: key.1.map(f64::from_bits),
            })
        })
        .collect()
}

/// Pairs of points in the same order in both, in opposite order, and all of them; ties are neither.
fn agreement(pairs: &[Pair]) -> (usize, usize, usize) {
    let (mut same, mut opposite, mut all) = (0, 0, 0);
    for (at, one) in pairs.iter().enumerate() {
        for other in &pairs[..at] {
            let (x, y) = (one.proxy.total_cmp(&other.proxy), one.executed.total_cmp(&other.executed));
            all += 1;
            same += usize::from(x.is_ne() && x == y);
            opposite += usize::from(x.is_ne() && x == y.reverse());
        }
    }
    (same, opposite, all)
}

fn said(points: usize, (same, opposite, all): (usize, usize, usize)) -> String {
    format!(
        "{points} pairs of policy and budget, seeds joined. Of {all} comparisons of two points, {same} go the same way in proxy and accuracy and {opposite} \
         opposite ways; the rest are ties."
    )
}

fn behind(pairs: &[Pair]) -> Behind {
    let mut table =
        Behind::new(&["policy", "budget_tokens", PROXY, EXECUTED, "replayed_cells", "executed_cells"]);
    for pair in pairs {
        table.row([
            pair.policy.as_str().into(),
            pair.budget.into(),
            pair.proxy.into(),
            pair.executed.into(),
            pair.cells.0.into(),
            pair.cells.1.into(),
        ]);
    }
    table
}
