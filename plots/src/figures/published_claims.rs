//! `published-claims`: published figures beside what the simulator gives, with and without the protocol's defects.

use super::behind::Behind;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place, Section};
use crate::number::plain;
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{Reader, caption};
use crate::theme::{BLUE, Ink, Marker, TEXT, VERMILION};
use kvlab_sim::results::Results;

/// Units in the order of the panels, with their axes.
const UNITS: [(&str, &str); 4] = [
    ("times", "Speed-up (times)"),
    ("ms", "Latency of a problem (ms)"),
    ("GiB", "Peak memory (GiB)"),
    ("share", "Share"),
];
/// Claims of a panel; more are in the table only.
const MOST: usize = 30;
/// Where the three figures of a claim stand beside its name, top down, with their looks.
const KINDS: [(&str, f64, Marker, Ink); 3] = [
    ("published", 0.24, Marker::Diamond, TEXT),
    ("as published, here", 0.0, Marker::Circle, BLUE),
    ("without the defects", -0.24, Marker::Square, VERMILION),
];

/// The figure.
#[derive(Debug)]
pub(crate) struct PublishedClaims;

/// A figure and its interval.
type Value = (Option<f64>, Option<(f64, f64)>);

struct Claim {
    scenario: String,
    what: String,
    unit: String,
    published_text: String,
    /// By [`KINDS`].
    values: [Value; KINDS.len()],
}

impl Figure for PublishedClaims {
    fn id(&self) -> &'static str {
        "published-claims"
    }

    fn title(&self) -> &'static str {
        "Published figures, and what their protocols give"
    }

    fn question(&self) -> &'static str {
        "Which published figures follow from the work that was left out, and what is left without the protocol’s defects?"
    }

    fn place(&self) -> Place {
        Place { section: Section::Serving, rank: 5 }
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Rows("claims")]
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["serve_speedup"]
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let claims = claims(results);
        let mut panels = Vec::new();
        let mut left = 0;
        for (unit, label) in UNITS {
            let of_unit: Vec<&Claim> =
                claims.iter().filter(|claim| claim.unit == unit && claim.has_ours()).collect();
            left += of_unit.len().saturating_sub(MOST);
            panels.extend(panel(&of_unit[..of_unit.len().min(MOST)], label));
        }
        if panels.is_empty() {
            return Ok(Outcome::nothing("no claim of the table has a number of ours"));
        }
        let mut legend: Vec<Key> = KINDS
            .iter()
            .map(|(name, _, marker, ink)| Key {
                label: (*name).to_owned(),
                sample: Sample::Symbol { marker: *marker, ink: *ink },
            })
            .collect();
        if left > 0 {
            legend.push(Key { label: format!("{left} more in the table only"), sample: Sample::Blank });
        }
        let without = claims.iter().filter(|claim| !claim.has_ours()).count();
        let scene = Scene {
            title: self.title().to_owned(),
            panels,
            columns: 1,
            share_x: false,
            legend,
            caption: vec![
                caption::opening(
                    results,
                    &["serve_speedup"],
                    Some(format!("{} claims over problems of published sizes", claims.len())),
                ),
                format!(
                    "Simulated time from data sheets: whether a ratio follows from the work done and left out, not what a device would measure. Bars: 95 % \
                     intervals over resampled problems. {without} claims have no figure of ours; the first number of a published text is drawn, the table \
                     has the text."
                ),
            ],
            synthetic: caption::is_synthetic(results),
        };
        let said: Vec<String> = claims.iter().filter(|claim| claim.has_ours()).map(Claim::said).collect();
        let alt = clipped(&format!("{}. {}", self.title(), said.join(" ")), 1200);
        behind(&claims).finish(self, scene, alt)
    }
}

impl Claim {
    fn has_ours(&self) -> bool {
        self.values[1..].iter().any(|(value, _)| value.is_some())
    }

    fn said(&self) -> String {
        let one = |(kind, (value, _)): (&(&str, f64, Marker, Ink), &Value)| {
            Some(format!("{} {}", kind.0, plain((*value)?, 3)))
        };
        let parts: Vec<String> = KINDS.iter().zip(&self.values).filter_map(one).collect();
        format!("{} ({}): {}.", self.what, self.unit, parts.join(", "))
    }
}

fn claims(results: &Results) -> Vec<Claim> {
    let Some(table) = results.more("claims") else { return Vec::new() };
    let column = |name: &str| Reader::new(table, name);
    let text = |name: &str, row: usize| column(name).text(row).unwrap_or_default().to_owned();
    (0..table.rows())
        .map(|row| {
            let number = |name: &str| column(name).number(row).filter(|value| value.is_finite());
            let with_interval = |name: &str| {
                let ends = number(&format!("{name}_lo")).zip(number(&format!("{name}_hi")));
                (number(name), ends.filter(|(lo, hi)| lo <= hi))
            };
            Claim {
                scenario: text("scenario", row),
                what: text("claim", row),
                unit: text("unit", row),
                published_text: text("published_text", row),
                values: [
                    (number("published"), None),
                    with_interval("as_published"),
                    with_interval("corrected"),
                ],
            }
        })
        .collect()
}

fn panel(claims: &[&Claim], label: &str) -> Option<Panel> {
    let ends = claims.iter().flat_map(|claim| &claim.values).flat_map(|(value, interval)| {
        [*value, interval.map(|ends| ends.0), interval.map(|ends| ends.1)].into_iter().flatten()
    });
    let along = Extent::of(ends)?;
    let place = |at: usize| -(f64::from(u32::try_from(at).unwrap_or(u32::MAX)));
    let mut marks = Vec::new();
    for (kind, (_, offset, marker, ink)) in KINDS.iter().enumerate() {
        let y = |at: usize| place(at) + offset;
        let values = || claims.iter().enumerate().map(|(at, claim)| (at, claim.values[kind]));
        let spans = values().filter_map(|(at, (_, interval))| interval.map(|(lo, hi)| (y(at), lo, hi)));
        marks.push(Mark::Spans { points: spans.collect(), ink: *ink });
        let points = values().filter_map(|(at, (value, _))| Some((value?, y(at)))).collect();
        marks.push(Mark::Symbols { points, marker: *marker, ink: *ink });
    }
    let names = claims.iter().enumerate().map(|(at, claim)| (place(at), claim.what.clone())).rev().collect();
    let last = place(claims.len().saturating_sub(1));
    let wide = along.lo > 0.0 && along.hi / along.lo > 50.0;
    let x = if wide {
        Axis::log(label, Extent { lo: along.lo / 1.2, hi: along.hi * 1.2 }, TickRule::Decades)
    } else {
        Axis::linear(label, along.at_least(1e-6).padded(0.06, 0.06), TickRule::Round).naturally(0.0, f64::MAX)
    };
    Some(Panel {
        title: String::new(),
        x,
        y: Axis::linear("", Extent { lo: last - 0.6, hi: 0.6 }, TickRule::Named(names)),
        marks,
    })
}

fn behind(claims: &[Claim]) -> Behind {
    let mut table = Behind::new(&[
        "scenario",
        "claim",
        "unit",
        "published_text",
        "published",
        "as_published",
        "as_published_lo",
        "as_published_hi",
        "corrected",
        "corrected_lo",
        "corrected_hi",
    ]);
    for claim in claims {
        let [published, ours, corrected] = claim.values;
        let ends = |value: Value| value.1.unzip();
        table.row([
            claim.scenario.as_str().into(),
            claim.what.as_str().into(),
            claim.unit.as_str().into(),
            claim.published_text.as_str().into(),
            published.0.into(),
            ours.0.into(),
            ends(ours).0.into(),
            ends(ours).1.into(),
            corrected.0.into(),
            ends(corrected).0.into(),
            ends(corrected).1.into(),
        ]);
    }
    table
}
