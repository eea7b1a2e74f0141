//! `exit-threshold`: what early exit skips and risks at each entropy threshold θ.

use super::behind::Behind;
use super::exit_cells::{ExitCell, exit_cells};
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::{plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{Reader, caption, distinct, findings, mean, spread};
use crate::theme::{Look, ordinal};
use kvlab_sim::results::Results;
use std::collections::{BTreeMap, BTreeSet};

const METRICS: [&str; 3] = ["skip_rate", "exit_agreement", "mean_layers_run"];
const MOST_FACETS: usize = 3;
const MOST_LINES: usize = 6;

/// The figure.
#[derive(Debug)]
pub(crate) struct ExitThreshold;

impl Figure for ExitThreshold {
    fn id(&self) -> &'static str {
        "exit-threshold"
    }

    fn title(&self) -> &'static str {
        "Layers skipped and tokens changed, by exit threshold"
    }

    fn question(&self) -> &'static str {
        "How many layers does an entropy threshold skip, and how often does the next token stay the same?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Exit, rank: 0 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::CellColumn("theta"), Need::CellColumn("skip_rate")]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let cells = exit_cells(results);
        let metrics: Vec<&str> =
            METRICS.into_iter().filter(|metric| has_values(results, &cells, metric)).collect();
        if metrics.is_empty() {
            return Ok(Outcome::nothing("no finished exit cell has a threshold and a skip rate"));
        }
        let all_facets: BTreeSet<&str> = cells.iter().map(|cell| cell.facet.as_str()).collect();
        let facets: Vec<&str> = all_facets.iter().copied().take(MOST_FACETS).collect();
        let epsilons = limits(&cells);
        let drawn = spread(&epsilons, MOST_LINES);
        let looks: Vec<(Option<f64>, Look)> =
            drawn.iter().enumerate().map(|(at, epsilon)| (*epsilon, ordinal(at, drawn.len()))).collect();
        let of_facets: Vec<Facet<'_>> = facets.iter().map(|name| Facet::of(&cells, name)).collect();
        let mut panels = Vec::new();
        for metric in &metrics {
            let y = height_axis(results, &cells, metric);
            panels.extend(of_facets.iter().map(|facet| panel(results, facet, metric, y.clone(), &looks)));
        }
        let mut legend: Vec<Key> = looks
            .iter()
            .filter_map(|(epsilon, look)| {
                let label = cells.iter().find(|cell| same(cell.epsilon, *epsilon))?.epsilon_text();
                Some(Key { label, sample: Sample::Line { stroke: look.stroke, marker: Some(look.marker) } })
            })
            .collect();
        let hatched =
            panels.iter().any(|panel| panel.marks.iter().any(|mark| matches!(mark, Mark::Hatched { .. })));
        if hatched {
            legend
                .push(Key { label: "\u{3b8} is vacuous or unreachable".to_owned(), sample: Sample::Hatched });
        }
        let scene = Scene {
            title: self.title().to_owned(),
            panels,
            columns: facets.len(),
            share_x: true,
            legend,
            caption: captions(results, &cells, all_facets.len() - facets.len(), epsilons.len() - drawn.len()),
            synthetic: caption::is_synthetic(results),
        };
        let alt = format!("{}. {}", self.title(), clipped(&described(results, &cells, &facets), 900));
        behind(results, &cells).finish(self, scene, alt)
    }
}

/// The cells of one panel, with what is asked of them again and again: a study may have tens of thousands.
struct Facet<'a> {
    cells: Vec<&'a ExitCell>,
    thetas: Vec<f64>,
    /// Bits of the θ that decide nothing in any cell.
    vacuous: BTreeSet<u64>,
    /// Rows by bits of θ and of ε.
    rows: BTreeMap<(u64, Option<u64>), Vec<usize>>,
}

impl<'a> Facet<'a> {
    fn of(all: &'a [ExitCell], name: &str) -> Self {
        let cells: Vec<&ExitCell> = all.iter().filter(|cell| cell.facet == name).collect();
        let (mut rows, mut sound) = (BTreeMap::new(), BTreeSet::new());
        for cell in &cells {
            let theta = cell.theta.to_bits();
            rows.entry((theta, cell.epsilon.map(f64::to_bits))).or_insert_with(Vec::new).push(cell.row);
            if !sound.contains(&theta) && cell.is_sound() {
                sound.insert(theta);
            }
        }
        let thetas = distinct(cells.iter().map(|cell| cell.theta));
        let vacuous =
            thetas.iter().map(|theta| theta.to_bits()).filter(|bits| !sound.contains(bits)).collect();
        Self { cells, thetas, vacuous, rows }
    }

    fn is_vacuous(&self, theta: f64) -> bool {
        self.vacuous.contains(&theta.to_bits())
    }

    fn rows(&self, theta: f64, epsilon: Option<f64>) -> &[usize] {
        self.rows.get(&(theta.to_bits(), epsilon.map(f64::to_bits))).map_or(&[], Vec::as_slice)
    }
}

fn has_values(results: &Results, cells: &[ExitCell], metric: &str) -> bool {
    let column = Reader::new(&results.cells, metric);
    cells.iter().any(|cell| column.number(cell.row).is_some())
}

/// Distinct ε, no limit last.
fn limits(cells: &[ExitCell]) -> Vec<Option<f64>> {
    let mut limits: Vec<Option<f64>> =
        distinct(cells.iter().filter_map(|cell| cell.epsilon)).into_iter().map(Some).collect();
    if cells.iter().any(|cell| cell.epsilon.is_none()) {
        limits.push(None);
    }
    limits
}

fn same(a: Option<f64>, b: Option<f64>) -> bool {
    a.map(f64::to_bits) == b.map(f64::to_bits)
}

fn height_axis(results: &Results, cells: &[ExitCell], metric: &str) -> Axis {
    let values = |suffix: &str| {
        let column = Reader::new(&results.cells, &format!("{metric}{suffix}"));
        cells.iter().filter_map(|cell| column.number(cell.row)).collect::<Vec<f64>>()
    };
    let heights =
        Extent::of(["", "_lo", "_hi"].into_iter().flat_map(values)).unwrap_or(Extent { lo: 0.0, hi: 1.0 });
    let largest = if metric == "mean_layers_run" { f64::MAX } else { 1.0 };
    Axis::linear(caption::label(metric), heights.at_least(0.05).padded(0.06, 0.06), TickRule::Round)
        .naturally(0.0, largest)
}

fn panel(
    results: &Results,
    facet: &Facet<'_>,
    metric: &str,
    y: Axis,
    looks: &[(Option<f64>, Look)],
) -> Panel {
    let Facet { cells, thetas, .. } = facet;
    let unit = cells.first().map_or("nats", |cell| cell.unit);
    let label = format!("Exit threshold \u{3b8} ({})", if unit == "nats" { "nats" } else { "share of ln V" });
    let shown = shown_range(facet);
    let x = if is_geometric(thetas) {
        Axis::log(label, shown, TickRule::Decades)
    } else {
        Axis::linear(label, shown.at_least(shown.hi.abs() * 0.1), TickRule::Round)
    };
    let mut marks = hatching(facet);
    let column = |suffix: &str| Reader::new(&results.cells, &format!("{metric}{suffix}"));
    let (value, lo, hi) = (column(""), column("_lo"), column("_hi"));
    let (mut bands, mut lines) = (Vec::new(), Vec::new());
    for (epsilon, look) in looks {
        let (mut line, mut band) = (Vec::new(), Vec::new());
        for theta in thetas {
            let here = facet.rows(*theta, *epsilon);
            let average = |reader: Reader<'_>| {
                mean(&here.iter().filter_map(|&row| reader.number(row)).collect::<Vec<_>>())
            };
            let Some(height) = average(value) else { continue };
            line.push((*theta, height));
            if let (Some(lo), Some(hi)) = (average(lo), average(hi)) {
                band.push((*theta, lo, hi));
            }
        }
        let ink = look.stroke.ink;
        bands.push(if band.len() == 1 {
            Mark::Whiskers { points: band, ink }
        } else {
            Mark::Band { points: band, ink }
        });
        lines.push(Mark::Line { points: line.clone(), stroke: look.stroke });
        lines.push(Mark::Symbols { points: line, marker: look.marker, ink });
    }
    marks.extend(bands);
    marks.extend(lines);
    let title = cells.first().map_or(String::new(), |cell| cell.facet.clone());
    Panel { title, x, y, marks }
}

/// Whether θ grows by factors rather than by steps, so that a linear axis would squeeze most of it into a corner.
fn is_geometric(thetas: &[f64]) -> bool {
    match (thetas.first(), thetas.get(thetas.len() / 2), thetas.last()) {
        (Some(first), Some(middle), Some(last)) => *first > 0.0 && middle - first < 0.25 * (last - first),
        _ => false,
    }
}

/// From the smallest to the largest θ that can decide something, and a margin: far vacuous θ would squeeze the rest.
fn shown_range(facet: &Facet<'_>) -> Extent {
    let thetas = &facet.thetas;
    let geometric = is_geometric(thetas);
    let along = |theta: f64| if geometric { theta.ln() } else { theta };
    let back = |at: f64| if geometric { at.exp() } else { at };
    let all = Extent::of(thetas.iter().copied().map(along)).unwrap_or(Extent { lo: 0.0, hi: 1.0 });
    let sound = Extent::of(thetas.iter().copied().filter(|theta| !facet.is_vacuous(*theta)).map(along));
    let wide = all.padded(0.04, 0.04);
    let shown = match sound.filter(|sound| sound.width() > 0.0) {
        Some(sound) => {
            let margin = sound.padded(0.12, 0.12);
            Extent { lo: wide.lo.max(margin.lo), hi: wide.hi.min(margin.hi) }
        }
        None => wide,
    };
    Extent { lo: back(shown.lo), hi: back(shown.hi) }
}

/// Strips around the θ that decide nothing, up to half-way to the next θ.
fn hatching(facet: &Facet<'_>) -> Vec<Mark> {
    let thetas = &facet.thetas;
    let mut strips: Vec<(f64, f64)> = Vec::new();
    for (at, theta) in thetas.iter().enumerate().filter(|(_, theta)| facet.is_vacuous(**theta)) {
        let from = at.checked_sub(1).map_or(f64::MIN, |before| f64::midpoint(thetas[before], *theta));
        let to = thetas.get(at + 1).map_or(f64::MAX, |after| f64::midpoint(*after, *theta));
        match strips.last_mut() {
            Some(last) if last.1.total_cmp(&from).is_eq() => last.1 = to,
            _ => strips.push((from, to)),
        }
    }
    strips.into_iter().map(|(from, to)| Mark::Hatched { from, to }).collect()
}

fn captions(results: &Results, cells: &[ExitCell], facets_left: usize, limits_left: usize) -> Vec<String> {
    let sequences = caption::sequences_of(results, cells.iter().map(|cell| cell.row));
    let mut lines = vec![caption::opening(results, &METRICS, sequences)];
    let mut second = String::new();
    if Reader::new(&results.cells, "skip_rate_lo").has_any() {
        second.push_str(caption::BAND);
        second.push(' ');
    }
    second.push_str("\u{201c}Same next token\u{201d} compares with the last layer at each position of the recorded text; it is not the accuracy of answers.");
    if facets_left > 0 {
        second.push_str(&format!(" {facets_left} more lenses or sources are in the table only."));
    }
    if limits_left > 0 {
        second.push_str(&format!(" {limits_left} more values of \u{3b5} are in the table only."));
    }
    lines.push(second);
    let off_axis = off_axis(cells);
    if !off_axis.is_empty() {
        let what = clipped(&off_axis.join("; "), 300);
        lines.push(format!("Off the axis, because vacuous or unreachable: {what}."));
    }
    let kinds = kinds(cells);
    if !kinds.is_empty() {
        lines.push(format!("Findings: {}.", clipped(&kinds.join("; "), 240)));
    }
    lines
}

/// The kinds of findings, with how many cells have them.
fn kinds(cells: &[ExitCell]) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in cells.iter().filter_map(|cell| cell.lint.as_deref()).flat_map(findings) {
        *counts.entry(finding.kind).or_default() += 1;
    }
    counts.into_iter().map(|(kind, cells)| format!("{} in {cells} cells", clipped(kind, 60))).collect()
}

/// The θ that the panel of their lens does not show.
fn off_axis(cells: &[ExitCell]) -> Vec<String> {
    let facets: BTreeSet<&str> = cells.iter().map(|cell| cell.facet.as_str()).collect();
    let of_facet = |facet: &&str| {
        let of_facet = Facet::of(cells, facet);
        let (shown, thetas) = (shown_range(&of_facet), &of_facet.thetas);
        let below: Vec<f64> = thetas.iter().copied().filter(|theta| *theta < shown.lo).collect();
        let above: Vec<f64> = thetas.iter().copied().filter(|theta| *theta > shown.hi).collect();
        let parts: Vec<String> = [below, above].iter().filter_map(|thetas| summary(thetas)).collect();
        (!parts.is_empty()).then(|| format!("{} ({})", parts.join(" and "), clipped(facet, 60)))
    };
    facets.iter().filter_map(of_facet).collect()
}

/// Few values or many, in a few words.
fn summary(thetas: &[f64]) -> Option<String> {
    let (first, last) = (thetas.first()?, thetas.last()?);
    Some(match thetas.len() {
        1 => format!("\u{3b8} = {}", plain(*first, 3)),
        count => format!("{count} values of \u{3b8} from {} to {}", plain(*first, 3), plain(*last, 3)),
    })
}

fn described(results: &Results, cells: &[ExitCell], facets: &[&str]) -> String {
    let column = |name: &str| Reader::new(&results.cells, name);
    let (skip, agreement) = (column("skip_rate"), column("exit_agreement"));
    let one = |facet: &&str| {
        let of_facet = || cells.iter().filter(|cell| cell.facet == **facet);
        let skips = Extent::of(of_facet().filter_map(|cell| skip.number(cell.row)))?;
        let mut text = format!(
            "{facet}: layers skipped from {} to {}",
            significant(skips.lo, 3),
            significant(skips.hi, 3)
        );
        if let Some(agreements) = Extent::of(of_facet().filter_map(|cell| agreement.number(cell.row))) {
            text.push_str(&format!(
                ", same next token from {} to {}",
                significant(agreements.lo, 3),
                significant(agreements.hi, 3)
            ));
        }
        Some(text + ".")
    };
    facets.iter().filter_map(one).collect::<Vec<_>>().join(" ")
}

fn behind(results: &Results, cells: &[ExitCell]) -> Behind {
    let column = |name: &str| Reader::new(&results.cells, name);
    let (skip, skip_lo, skip_hi) = (column("skip_rate"), column("skip_rate_lo"), column("skip_rate_hi"));
    let (same, same_lo, same_hi) =
        (column("exit_agreement"), column("exit_agreement_lo"), column("exit_agreement_hi"));
    let layers = column("mean_layers_run");
    let names = [
        "lens",
        "theta",
        "epsilon",
        "unit",
        "skip_rate",
        "skip_rate_lo",
        "skip_rate_hi",
        "exit_agreement",
        "exit_agreement_lo",
        "exit_agreement_hi",
        "mean_layers_run",
        "lint",
        "cell",
    ];
    let mut table = Behind::new(&names);
    for cell in cells {
        let number = |reader: Reader<'_>| reader.number(cell.row).into();
        table.row([
            cell.facet.as_str().into(),
            cell.theta.into(),
            cell.epsilon.into(),
            cell.unit.into(),
            number(skip),
            number(skip_lo),
            number(skip_hi),
            number(same),
            number(same_lo),
            number(same_hi),
            number(layers),
            cell.lint.as_deref().unwrap_or_default().into(),
            cell.cell.as_str().into(),
        ]);
    }
    table
}
