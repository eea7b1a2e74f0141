//! Two metrics of every cell against each other, with the cells that no other beats: what the Pareto figures share.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place};
use crate::number::{plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{Reader, caption, runs, spread};
use crate::theme::{Dash, GREY, Palette, Stroke, TEXT};
use kvlab_sim::results::{Results, front, knee};
use std::collections::{BTreeMap, BTreeSet};

/// Policies drawn in their own look; more are drawn in grey.
const MOST_LOOKS: usize = 14;
/// Beaten cells that are drawn; of more, so many evenly over the table. Those that no other beats are always drawn.
const MOST_BEATEN: usize = 1_200;

/// A figure of cells over two metrics.
#[derive(Debug)]
pub(crate) struct Pareto {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) question: &'static str,
    pub(super) place: Place,
    pub(super) study: &'static str,
    pub(super) needs: &'static [Need],
    /// What is paid.
    pub(super) cost: &'static str,
    /// What is gained; higher is better.
    pub(super) gain: &'static str,
}

/// A cell.
struct Point {
    label: String,
    policy: String,
    cell: String,
    row: usize,
    /// What tells it from other cells of its policy: budget or thresholds.
    setting: String,
    cost: f64,
    gain: f64,
    interval: Option<(f64, f64)>,
    /// No other cell gains as much for less, or more for as much.
    is_best: bool,
}

impl Figure for Pareto {
    fn id(&self) -> &'static str {
        self.id
    }

    fn title(&self) -> &'static str {
        self.title
    }

    fn question(&self) -> &'static str {
        self.question
    }

    fn place(&self) -> Place {
        self.place
    }

    fn needs(&self) -> &'static [Need] {
        self.needs
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let (points, knee) = self.points(results);
        let knee = knee.map(|at| &points[at]);
        let (Some(costs), Some(gains)) = (
            Extent::of(points.iter().map(|point| point.cost)),
            Extent::of(points.iter().flat_map(|p| {
                [p.gain, p.interval.map_or(p.gain, |i| i.0), p.interval.map_or(p.gain, |i| i.1)]
            })),
        ) else {
            return Ok(Outcome::nothing(format!(
                "no finished {} cell has both `{}` and `{}`",
                self.study, self.cost, self.gain
            )));
        };
        let front: Vec<&Point> = sorted_front(&points);
        let palette = Palette::new(points.iter().map(|point| (point.policy.as_str(), point.label.as_str())));
        let shown = foremost(&points, &palette);
        let x = if costs.lo > 0.0 && costs.hi / costs.lo > 20.0 {
            let wide = Extent { lo: costs.lo / 1.2, hi: costs.hi * 1.2 };
            Axis::log(caption::label(self.cost), wide, TickRule::Decades)
        } else {
            Axis::linear(caption::label(self.cost), costs.at_least(1e-6).padded(0.06, 0.06), TickRule::Round)
        };
        let y =
            Axis::linear(caption::label(self.gain), gains.at_least(0.02).padded(0.07, 0.07), TickRule::Round)
                .naturally(0.0, 1.0);
        let panel =
            Panel { title: String::new(), x, y, marks: marks(&points, (&front, knee), &shown, &palette) };
        let scene = Scene {
            title: self.title.to_owned(),
            panels: vec![panel],
            columns: 1,
            share_x: false,
            legend: legend(&points, knee, &shown, &palette),
            caption: self.captions(results, &points, knee),
            synthetic: caption::is_synthetic(results),
        };
        let alt = self.alt(&front, knee);
        self.behind(&points, knee).finish(self, scene, alt)
    }
}

impl Pareto {
    /// The cells, and the place of the knee.
    fn points(&self, results: &Results) -> (Vec<Point>, Option<usize>) {
        let column = |name: &str| Reader::new(&results.cells, name);
        let (cost, gain) = (column(self.cost), column(self.gain));
        let (lo, hi) = (column(&format!("{}_lo", self.gain)), column(&format!("{}_hi", self.gain)));
        let settings = ["budget_tokens", "tau", "tau_conf", "margin", "theta", "epsilon", "seed"]
            .map(|name| (name, column(name)));
        let mut points: Vec<Point> = runs::study_runs(results, self.study, self.gain)
            .into_iter()
            .filter_map(|run| {
                let said = settings.iter().filter_map(|(name, reader)| {
                    Some(format!(
                        "{} {}",
                        name.trim_end_matches("_tokens").replace('_', " "),
                        plain(reader.number(run.row)?, 4)
                    ))
                });
                Some(Point {
                    setting: said.collect::<Vec<_>>().join(", "),
                    cost: cost.number(run.row).filter(|value| value.is_finite())?,
                    gain: gain.number(run.row).filter(|value| value.is_finite())?,
                    interval: lo.number(run.row).zip(hi.number(run.row)).filter(|(lo, hi)| lo <= hi),
                    policy: run.policy,
                    label: run.label,
                    cell: run.cell,
                    row: run.row,
                    is_best: false,
                })
            })
            .collect();
        let knee = mark_best(&mut points);
        (points, knee)
    }

    fn captions(&self, results: &Results, points: &[Point], knee: Option<&Point>) -> Vec<String> {
        let mut said = format!(
            "{} of {} cells are beaten by no other (grey line).",
            points.iter().filter(|point| point.is_best).count(),
            points.len()
        );
        if let Some(knee) = knee {
            said.push_str(&format!(
                " The knee, farthest from the straight line between the ends of that line, is {}{}: a hint, no test.",
                clipped(&knee.label, 60),
                if knee.setting.is_empty() { String::new() } else { format!(" at {}", knee.setting) }
            ));
        }
        let drawn = drawn(points).len();
        if drawn < points.len() {
            said.push_str(&format!(
                " {drawn} symbols are drawn: one a place, and of many beaten cells some, evenly over the table."
            ));
        }
        if points.iter().any(|point| point.interval.is_some()) {
            said.push_str(
                " Vertical bars: 95 % bootstrap interval; points whose bars overlap are not told apart here.",
            );
        }
        let sequences = caption::sequences_of(results, points.iter().map(|point| point.row));
        vec![caption::opening(results, &[self.gain, self.cost], sequences), said]
    }

    fn alt(&self, front: &[&Point], knee: Option<&Point>) -> String {
        let one = |point: &&Point| {
            format!(
                "{} {}: {} for {}",
                point.label,
                point.setting,
                significant(point.gain, 3),
                significant(point.cost, 3)
            )
        };
        let said: Vec<String> = front.iter().take(12).map(one).collect();
        let knee = knee.map_or(String::new(), |knee| format!(" Knee: {} {}.", knee.label, knee.setting));
        clipped(&format!("{}. Beaten by no other: {}.{knee}", self.title, said.join("; ")), 1200)
    }

    fn behind(&self, points: &[Point], knee: Option<&Point>) -> Behind {
        let mut table = Behind::new(&[
            "policy",
            "setting",
            "cell",
            self.cost,
            self.gain,
            "interval_lo",
            "interval_hi",
            "beaten_by_none",
            "knee",
        ]);
        let word = |is: bool| if is { "yes" } else { "no" };
        for point in points {
            let (lo, hi) = point.interval.unzip();
            table.row([
                point.label.as_str().into(),
                point.setting.as_str().into(),
                point.cell.as_str().into(),
                point.cost.into(),
                point.gain.into(),
                lo.into(),
                hi.into(),
                word(point.is_best).into(),
                word(knee.is_some_and(|knee| std::ptr::eq(knee, point))).into(),
            ]);
        }
        table
    }
}

/// Marks the cells that no other beats; gives the place of the knee among all of them.
fn mark_best(points: &mut [Point]) -> Option<usize> {
    let of: Vec<[f64; 3]> = points.iter().map(|point| [0.0 - point.cost, point.gain + 0.0, 0.0]).collect();
    let is_best = front(&of);
    points.iter_mut().zip(&is_best).for_each(|(point, is_best)| point.is_best = *is_best);
    knee(&of, &is_best)
}

/// The best cells in order of cost.
fn sorted_front(points: &[Point]) -> Vec<&Point> {
    let mut front: Vec<&Point> = points.iter().filter(|point| point.is_best).collect();
    front.sort_by(|a, b| a.cost.total_cmp(&b.cost).then(a.gain.total_cmp(&b.gain)));
    front
}

/// Labels in their own look: those with most cells on the front, then in the palette's order.
fn foremost<'a>(points: &'a [Point], palette: &Palette) -> BTreeSet<&'a str> {
    let mut best: BTreeMap<&str, usize> = BTreeMap::new();
    for point in points {
        *best.entry(&point.label).or_default() += usize::from(point.is_best);
    }
    let mut order: Vec<(&str, usize)> = best.into_iter().collect();
    order.sort_by_key(|&(label, count)| (std::cmp::Reverse(count), palette.rank(label), label));
    order.into_iter().take(MOST_LOOKS).map(|(label, _)| label).collect()
}

const FRONT: Stroke = Stroke { ink: GREY, width: 1.4, dash: Dash::Solid };
const KNEE: Stroke = Stroke { ink: TEXT, width: 1.0, dash: Dash::Dotted };

fn marks(
    points: &[Point],
    (front, knee): (&[&Point], Option<&Point>),
    shown: &BTreeSet<&str>,
    palette: &Palette,
) -> Vec<Mark> {
    let mut stairs: Vec<(f64, f64)> = Vec::new();
    for point in front {
        if let Some(&(_, gain)) = stairs.last() {
            stairs.push((point.cost, gain));
        }
        stairs.push((point.cost, point.gain));
    }
    let mut marks = vec![Mark::Line { points: stairs, stroke: FRONT }];
    if let Some(knee) = knee {
        marks.push(Mark::Upright { x: knee.cost, stroke: KNEE });
    }
    let drawn = drawn(points);
    for is_shown in [false, true] {
        let of_kind = drawn.iter().filter(|point| shown.contains(point.label.as_str()) == is_shown);
        for point in of_kind {
            let look = palette.look(&point.label);
            let ink = if is_shown { look.stroke.ink } else { GREY };
            if let Some((lo, hi)) = point.interval.filter(|_| point.is_best) {
                marks.push(Mark::Whiskers { points: vec![(point.cost, lo, hi)], ink });
            }
            marks.push(Mark::Symbols { points: vec![(point.cost, point.gain)], marker: look.marker, ink });
        }
    }
    marks
}

/// The cells that have a symbol: of those in one place with one look, the first.
fn drawn(points: &[Point]) -> Vec<&Point> {
    let mut places = BTreeSet::new();
    let (mut drawn, beaten): (Vec<&Point>, Vec<&Point>) = points
        .iter()
        .filter(|point| places.insert((point.label.as_str(), point.cost.to_bits(), point.gain.to_bits())))
        .partition(|point| point.is_best);
    drawn.extend(spread(&beaten, MOST_BEATEN));
    drawn
}

fn legend(points: &[Point], knee: Option<&Point>, shown: &BTreeSet<&str>, palette: &Palette) -> Vec<Key> {
    let mut labels: Vec<&str> = shown.iter().copied().collect();
    labels.sort_by_key(|label| (palette.rank(label), *label));
    let mut keys: Vec<Key> = labels
        .into_iter()
        .map(|label| {
            let look = palette.look(label);
            Key {
                label: clipped(label, 60),
                sample: Sample::Symbol { marker: look.marker, ink: look.stroke.ink },
            }
        })
        .collect();
    let all: BTreeSet<&str> = points.iter().map(|point| point.label.as_str()).collect();
    if all.len() > shown.len() {
        keys.push(Key { label: format!("{} more in grey", all.len() - shown.len()), sample: Sample::Blank });
    }
    keys.push(Key {
        label: "beaten by no other".to_owned(),
        sample: Sample::Line { stroke: FRONT, marker: None },
    });
    if knee.is_some() {
        keys.push(Key { label: "knee".to_owned(), sample: Sample::Line { stroke: KNEE, marker: None } });
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(pairs: &[(f64, f64)]) -> (Vec<Point>, Option<usize>) {
        let point = |&(cost, gain): &(f64, f64)| Point {
            label: String::new(),
            policy: String::new(),
            cell: String::new(),
            row: 0,
            setting: String::new(),
            cost,
            gain,
            interval: None,
            is_best: false,
        };
        let mut points: Vec<Point> = pairs.iter().map(point).collect();
        let knee = mark_best(&mut points);
        (points, knee)
    }

    #[test]
    fn the_front_is_what_no_cell_beats_equals_included() {
        let (found, _) = marked(&[(1.0, 0.2), (2.0, 0.2), (2.0, 0.9), (2.0, 0.9), (3.0, 0.8), (4.0, 1.0)]);
        let best: Vec<bool> = found.iter().map(|point| point.is_best).collect();
        assert_eq!(best, [true, false, true, true, false, true]);
    }

    #[test]
    fn the_knee_is_the_farthest_above_the_line_between_the_ends() {
        let all = [(0.0, 0.0), (1.0, 0.8), (5.0, 0.9), (10.0, 1.0)];
        assert_eq!(marked(&all).1, Some(1));
        assert_eq!(marked(&all[..1]).1, None, "one point has no knee");
        assert_eq!(marked(&[all[0], all[3]]).1, None, "nor has a straight line");
    }
}
