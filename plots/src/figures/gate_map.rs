//! Rates over two thresholds at once: what `theta-epsilon-map`, `tau-theta-map` and `exit-map` share.
//!
//! The cells of a sweep are drawn as a table of tiles, at equal sizes whatever the thresholds: what was not swept is not made up.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place};
use crate::number::{plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, Side, Span, TickRule, clipped};
use crate::select::{Reader, caption, distinct, finished};
use crate::theme::{Ink, shade};
use kvlab_sim::results::Results;
use std::collections::{BTreeMap, BTreeSet};

/// Values of a threshold that are drawn.
const MOST_VALUES: usize = 40;
/// Tiles with words on them, a panel.
const MOST_WORDS: usize = 100;
/// Thresholds that may differ between cells; those that are not axes are held at their middle value.
const THRESHOLDS: [&str; 5] = ["tau", "tau_conf", "margin", "theta", "epsilon"];

/// A figure of rates over two thresholds.
#[derive(Debug)]
pub(crate) struct GateMap {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) question: &'static str,
    pub(super) place: Place,
    pub(super) study: &'static str,
    pub(super) needs: &'static [Need],
    /// Columns of the two thresholds, with their signs.
    pub(super) x: (&'static str, &'static str),
    pub(super) y: (&'static str, &'static str),
    pub(super) metrics: &'static [&'static str],
}

/// Cells that differ in the two thresholds only.
struct Map {
    label: String,
    xs: Vec<f64>,
    ys: Vec<f64>,
    /// Row in `cells` and whether it is vacuous, by places in `xs` and `ys`.
    tiles: BTreeMap<(usize, usize), (usize, bool)>,
    /// What is held, in words.
    held: String,
}

impl Figure for GateMap {
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

    fn metrics(&self) -> Vec<&'static str> {
        self.metrics.to_vec()
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let Some(map) = self.map(results) else {
            return Ok(Outcome::nothing(format!(
                "no stack was swept over several values of both `{}` and `{}`",
                self.x.0, self.y.0
            )));
        };
        let panels: Vec<(&str, Panel)> = self
            .metrics
            .iter()
            .filter_map(|metric| Some((*metric, self.panel(results, metric, &map)?)))
            .collect();
        if panels.is_empty() {
            return Ok(Outcome::nothing("none of its metrics has a value there"));
        }
        let shown: Vec<&str> = panels.iter().map(|(metric, _)| *metric).collect();
        let mut legend = vec![Key { label: "least of the panel".to_owned(), sample: tile(0.0) }];
        legend.push(Key { label: "most of the panel".to_owned(), sample: tile(1.0) });
        if map.tiles.values().any(|(_, is_vacuous)| *is_vacuous) {
            legend.push(Key { label: "vacuous or unreachable".to_owned(), sample: Sample::Hatched });
        }
        let rows = map.tiles.values().map(|(row, _)| *row);
        let sequences = caption::sequences_of(results, rows).filter(|text| !text.starts_with("0 "));
        let scene = Scene {
            title: format!("{}: {}", self.title, clipped(&map.label, 60)),
            panels: panels.into_iter().map(|(_, panel)| panel).collect(),
            columns: 2,
            share_x: false,
            legend,
            caption: vec![
                caption::opening(results, &shown, sequences),
                format!(
                    "Each tile is one cell of the sweep; tiles are equal in size, thresholds are not equally apart.{} Numbers are rounded; the table has \
                     numerators and denominators.",
                    map.held
                ),
            ],
            synthetic: caption::is_synthetic(results),
        };
        let alt = self.alt(results, &map, &shown);
        self.behind(results, &map, &shown).finish(self, scene, alt)
    }
}

fn tile(share: f64) -> Sample {
    Sample::Tile { ink: shade(share).0 }
}

impl GateMap {
    /// The group of cells with the most tiles, ties in table order.
    fn map(&self, results: &Results) -> Option<Map> {
        let cells = &results.cells;
        let column = |name: &str| Reader::new(cells, name);
        let (study, policy, params) = (column("study"), column("policy"), column("params"));
        let (x, y, lens, unit) = (column(self.x.0), column(self.y.0), column("lens"), column("theta_unit"));
        let scenario = column("scenario");
        let mut scenarios = (0..cells.rows()).filter_map(|row| scenario.text(row));
        let first = scenarios.next();
        let several = scenarios.any(|other| Some(other) != first);
        let mut groups: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
        let rows = (0..cells.rows()).filter(|&row| {
            finished(cells, row)
                && study.text(row).is_none_or(|study| study == self.study)
                && x.number(row).is_some_and(f64::is_finite)
                && y.number(row).is_some_and(f64::is_finite)
        });
        for row in rows {
            let rest = others(params.text(row).unwrap_or_default());
            let mut name: Vec<&str> =
                [policy, lens, unit].iter().filter_map(|reader| reader.text(row)).collect();
            if several {
                name.extend(scenario.text(row));
            }
            groups.entry((name.join(", "), rest)).or_default().push(row);
        }
        let mut best: Option<Map> = None;
        let mut order: Vec<((String, String), Vec<usize>)> = groups.into_iter().collect();
        order.sort_by_key(|(_, rows)| rows[0]);
        for ((label, _), rows) in order {
            let Some(map) = self.slice(results, label, rows) else { continue };
            if best.as_ref().is_none_or(|best| map.tiles.len() > best.tiles.len()) {
                best = Some(map);
            }
        }
        best
    }

    /// The cells of one group at the middle value of every other threshold.
    fn slice(&self, results: &Results, label: String, mut rows: Vec<usize>) -> Option<Map> {
        let column = |name: &str| Reader::new(&results.cells, name);
        let mut held = String::new();
        for name in THRESHOLDS.into_iter().filter(|name| ![self.x.0, self.y.0].contains(name)) {
            let reader = column(name);
            let values = distinct(rows.iter().filter_map(|&row| reader.number(row)));
            let Some(middle) = values.get(values.len() / 2).copied() else { continue };
            rows.retain(|&row| reader.number(row).is_none_or(|value| value.total_cmp(&middle).is_eq()));
            if values.len() > 1 {
                held.push_str(&format!(" Held at {} = {}.", name.replace('_', " "), plain(middle, 4)));
            }
        }
        let (x, y, lint) = (column(self.x.0), column(self.y.0), column("lint"));
        let axis = |reader: Reader<'_>| -> Vec<f64> {
            let values = distinct(rows.iter().filter_map(|&row| reader.number(row)));
            crate::select::spread(&values, MOST_VALUES)
        };
        let (xs, ys) = (axis(x), axis(y));
        let place = |values: &[f64], value: Option<f64>| {
            let value = value?;
            values.iter().position(|known| known.total_cmp(&value).is_eq())
        };
        let mut tiles = BTreeMap::new();
        for &row in &rows {
            if let (Some(at_x), Some(at_y)) = (place(&xs, x.number(row)), place(&ys, y.number(row))) {
                tiles
                    .entry((at_x, at_y))
                    .or_insert((row, self.is_vacuous(lint.text(row).unwrap_or_default())));
            }
        }
        (xs.len() > 1 && ys.len() > 1).then_some(Map { label, xs, ys, tiles, held })
    }

    /// Whether one of the two thresholds can decide nothing, by the words of the study's own findings.
    fn is_vacuous(&self, lint: &str) -> bool {
        let words = [self.x.0, self.y.0].map(|name| name.replace('_', "-"));
        let is_about = |part: &str, word: &str| {
            part.strip_prefix(word)
                .is_some_and(|rest| rest.starts_with(" is vacuous") || rest.starts_with(" is unreachable"))
        };
        lint.split("; ").any(|part| words.iter().any(|word| is_about(part, word)))
    }

    fn panel(&self, results: &Results, metric: &str, map: &Map) -> Option<Panel> {
        let values = Reader::new(&results.cells, metric);
        let found: Vec<((usize, usize), f64, bool)> = map
            .tiles
            .iter()
            .filter_map(|(at, (row, is_vacuous))| {
                Some((*at, values.number(*row).filter(|value| value.is_finite())?, *is_vacuous))
            })
            .collect();
        let ends = Extent::of(found.iter().map(|tile| tile.1))?;
        let share = |value: f64| if ends.width() > 0.0 { (value - ends.lo) / ends.width() } else { 0.5 };
        let (mut by_ink, mut words): (Vec<(Ink, Vec<Span>)>, Vec<Words>) = Default::default();
        for &((x, y), value, _) in &found {
            let (ink, of_words) = shade(share(value));
            push(&mut by_ink, ink, span(x, y));
            push(&mut words, of_words, (middle(x), middle(y), plain(value, 2)));
        }
        let mut marks: Vec<Mark> =
            by_ink.into_iter().map(|(ink, boxes)| Mark::Boxes { boxes, ink }).collect();
        let vacuous = found.iter().filter(|tile| tile.2).map(|((x, y), _, _)| span(*x, *y)).collect();
        marks.push(Mark::HatchedBoxes(vacuous));
        if map.xs.len() <= 8 && found.len() <= MOST_WORDS {
            marks.extend(words.into_iter().map(|(ink, words)| Mark::Words {
                words,
                ink,
                side: Side::Middle,
            }));
        }
        let axis = |values: &[f64], label: &str| {
            let names = values.iter().enumerate().map(|(at, value)| (middle(at), plain(*value, 3))).collect();
            let hi = middle(values.len()) - 0.5;
            Axis::linear(label, Extent { lo: 0.0, hi }, TickRule::Named(names))
        };
        let shades =
            format!("{} (shades: {} to {})", self.y.1, significant(ends.lo, 2), significant(ends.hi, 2));
        Some(Panel {
            title: caption::label(metric),
            x: axis(&map.xs, self.x.1),
            y: axis(&map.ys, &shades),
            marks,
        })
    }

    fn alt(&self, results: &Results, map: &Map, shown: &[&str]) -> String {
        let one = |metric: &&str| {
            let values = Reader::new(&results.cells, metric);
            let tile = |((x, y), (row, _)): (&(usize, usize), &(usize, bool))| {
                Some((values.number(*row)?, map.xs[*x], map.ys[*y]))
            };
            let found: Vec<(f64, f64, f64)> = map.tiles.iter().filter_map(tile).collect();
            let least = found.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
            let most = found.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
            let at = |(value, x, y): &(f64, f64, f64)| {
                format!(
                    "{} at {} {}, {} {}",
                    significant(*value, 3),
                    self.x.1,
                    plain(*x, 4),
                    self.y.1,
                    plain(*y, 4)
                )
            };
            Some(format!("{}: from {} to {}.", caption::label(metric), at(least), at(most)))
        };
        let said: Vec<String> = shown.iter().filter_map(one).collect();
        clipped(&format!("{}, {}. {}", self.title, map.label, said.join(" ")), 1200)
    }

    fn behind(&self, results: &Results, map: &Map, shown: &[&'static str]) -> Behind {
        let mut table = Behind::new(&[
            "stack",
            self.x.0,
            self.y.0,
            "metric",
            "value",
            "numerator",
            "denominator",
            "vacuous",
        ]);
        for metric in shown {
            let column = |suffix: &str| Reader::new(&results.cells, &format!("{metric}{suffix}"));
            let (value, num, den) = (column(""), column("_num"), column("_den"));
            for ((x, y), (row, is_vacuous)) in &map.tiles {
                table.row([
                    map.label.as_str().into(),
                    map.xs[*x].into(),
                    map.ys[*y].into(),
                    (*metric).into(),
                    value.number(*row).into(),
                    num.int(*row).into(),
                    den.int(*row).into(),
                    if *is_vacuous { "yes" } else { "no" }.into(),
                ]);
            }
        }
        table
    }
}

/// Words of one ink: where they stand, and what they say.
type Words = (Ink, Vec<(f64, f64, String)>);

/// Adds `item` to those of the same ink.
fn push<T>(groups: &mut Vec<(Ink, Vec<T>)>, ink: Ink, item: T) {
    match groups.iter_mut().find(|(known, _)| *known == ink) {
        Some((_, items)) => items.push(item),
        None => groups.push((ink, vec![item])),
    }
}

fn middle(at: usize) -> f64 {
    f64::from(u32::try_from(at).unwrap_or(u32::MAX)) + 0.5
}

fn span(x: usize, y: usize) -> Span {
    Span { x: (middle(x) - 0.5, middle(x) + 0.5), y: (middle(y) - 0.5, middle(y) + 0.5) }
}

/// The parameters without thresholds: cells that agree in them belong together.
fn others(params: &str) -> String {
    without_thresholds(params).map_or_else(|| params.to_owned(), |value| value.to_string())
}

/// The same as a value; nothing when it is none.
pub(super) fn without_thresholds(params: &str) -> Option<serde_json::Value> {
    let mut value = serde_json::from_str::<serde_json::Value>(params).ok()?;
    let known: BTreeSet<&str> = THRESHOLDS.into_iter().collect();
    without(&mut value, &known);
    Some(value)
}

fn without(value: &mut serde_json::Value, names: &BTreeSet<&str>) {
    if let Some(map) = value.as_object_mut() {
        map.retain(|key, _| !names.contains(key.as_str()));
        map.values_mut().for_each(|inner| without(inner, names));
    }
}
