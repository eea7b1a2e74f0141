//! The exact step function of one threshold: what the figures of τ, τ_conf, margin, θ and ε share.

use super::behind::Behind;
use super::gate_map::without_thresholds;
use crate::error::PlotsError;
use crate::figure::{Figure, Need, Outcome, Place};
use crate::number::{plain, significant};
use crate::scene::{Axis, Extent, Key, Mark, Panel, Sample, Scene, TickRule, clipped};
use crate::select::{Reader, caption};
use crate::theme::{CONTEXT, Dash, Look, Palette, Stroke, TEXT, VERMILION};
use kvlab_sim::results::Results;
use kvlab_sim::table::Table;
use std::collections::BTreeMap;

/// Stacks drawn in their own look; more are drawn in grey.
const MOST_LOOKS: usize = 8;

/// A figure of the step functions of one threshold.
#[derive(Debug)]
pub(crate) struct StepCurve {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) question: &'static str,
    pub(super) place: Place,
    /// The word in the column `axis`.
    pub(super) axis: &'static str,
    /// The column with the stack's own value.
    pub(super) own: &'static str,
    /// Name of the axis with its unit.
    pub(super) label: &'static str,
}

/// A rate of the step table: numerator over denominator.
struct Rate {
    metric: &'static str,
    num: &'static str,
    den: &'static str,
}

const RATES: [Rate; 5] = [
    Rate { metric: "share_rate", num: "shared_branches", den: "branches" },
    Rate { metric: "verify_skip_rate", num: "skipped_problems", den: "problems" },
    Rate { metric: "verify_exit_rate", num: "exited_branches", den: "verified_branches" },
    Rate { metric: "tree_accuracy", num: "correct_problems", den: "gradable_problems" },
    Rate { metric: "harm_rate", num: "harmed_problems", den: "gradable_problems" },
];

/// Shown even where nothing moves them; the others only where the threshold does.
const ALWAYS: [&str; 2] = ["tree_accuracy", "harm_rate"];

/// One stretch of the threshold.
struct Step {
    above: Option<f64>,
    upto: Option<f64>,
    /// Numerators and denominators, by [`RATES`].
    counts: [(i64, i64); RATES.len()],
    full_correct: i64,
}

/// The step function of one stack.
struct Curve {
    label: String,
    /// Its parameters, JSON.
    params: String,
    /// The stack's own threshold.
    own: Option<f64>,
    steps: Vec<Step>,
}

impl Figure for StepCurve {
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
        &[Need::Rows("steps")]
    }

    fn metrics(&self) -> Vec<&'static str> {
        RATES.map(|rate| rate.metric).to_vec()
    }

    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError> {
        let curves = results.more("steps").map(|steps| self.curves(steps)).unwrap_or_default();
        let advice = self.advice(results, &curves);
        let edges = || curves.iter().flat_map(|curve| &curve.steps).filter_map(|step| step.upto);
        let own = curves.iter().filter_map(|curve| curve.own);
        let advised = advice.iter().map(|advice| advice.value);
        let Some(extent) = Extent::of(edges().chain(own).chain(advised)) else {
            return Ok(Outcome::nothing(format!(
                "no stack of the table `steps` has steps of `{}`",
                self.axis
            )));
        };
        let along = extent.at_least(0.02).padded(0.1, 0.1);
        let palette = Palette::new(curves.iter().map(|curve| (curve.label.as_str(), curve.label.as_str())));
        let inside = Extent::of(edges());
        let panels = RATES
            .iter()
            .enumerate()
            .filter(|(at, rate)| {
                ALWAYS.contains(&rate.metric) || curves.iter().any(|curve| curve.varies(*at))
            })
            .map(|(at, rate)| {
                let mut panel = self.panel((at, rate), &curves, (along, inside), &palette);
                let lines = advice.iter().map(|advice| Mark::Upright { x: advice.value, stroke: ADVICE });
                panel.marks.extend(lines);
                panel
            })
            .collect();
        let scene = Scene {
            title: self.title.to_owned(),
            panels,
            columns: 2,
            share_x: false,
            legend: legend(&curves, &palette, inside.is_some(), &advice),
            caption: captions(results, &curves, &advice),
            synthetic: caption::is_synthetic(results),
        };
        self.behind(&curves).finish(self, scene, self.alt(&curves, &advice))
    }
}

impl StepCurve {
    /// The stacks that have this threshold, in table order.
    fn curves(&self, steps: &Table) -> Vec<Curve> {
        let column = |name: &str| Reader::new(steps, name);
        let (axis, stack, group, params) =
            (column("axis"), column("stack"), column("group"), column("params"));
        let (own, above, upto) = (column(self.own), column("above"), column("upto"));
        let counts = RATES.map(|rate| (column(rate.num), column(rate.den)));
        let (harmed, helped, correct) =
            (column("harmed_problems"), column("helped_problems"), column("correct_problems"));
        let mut place: BTreeMap<&str, usize> = BTreeMap::new();
        let mut curves: Vec<Curve> = Vec::new();
        for row in (0..steps.rows()).filter(|&row| axis.text(row) == Some(self.axis)) {
            let at = *place.entry(group.text(row).unwrap_or_default()).or_insert(curves.len());
            if at == curves.len() {
                let label = stack.text(row).unwrap_or("?").to_owned();
                let params = params.text(row).unwrap_or_default().to_owned();
                curves.push(Curve { label, params, own: own.number(row), steps: Vec::new() });
            }
            let int = |reader: Reader<'_>| reader.int(row).unwrap_or(0);
            curves[at].steps.push(Step {
                above: above.number(row),
                upto: upto.number(row),
                counts: counts.map(|(num, den)| (int(num), int(den))),
                full_correct: int(correct).saturating_sub(int(helped)).saturating_add(int(harmed)),
            });
        }
        number_twins(&mut curves);
        curves
    }

    /// What `kvlab tune` recommends for this threshold of the stacks shown.
    fn advice(&self, results: &Results, curves: &[Curve]) -> Vec<Advice> {
        let Some(table) = results.more("recommended") else { return Vec::new() };
        let column = |name: &str| Reader::new(table, name);
        (0..table.rows())
            .filter(|&row| column("axis").text(row) == Some(self.axis))
            .filter_map(|row| {
                // The guarantee is of a stack with these parameters, whatever its name.
                let params = without_thresholds(column("params").text(row).unwrap_or_default());
                let curve = curves.iter().find(|curve| without_thresholds(&curve.params) == params)?;
                Some(Advice {
                    stack: curve.label.clone(),
                    source: column("source").text(row).unwrap_or("?").to_owned(),
                    value: column("value").number(row).filter(|value| value.is_finite())?,
                    guarantee: column("guarantee").text(row).unwrap_or("none").to_owned(),
                })
            })
            .take(MOST_LOOKS)
            .collect()
    }

    fn panel(
        &self,
        (at, rate): (usize, &Rate),
        curves: &[Curve],
        (along, inside): (Extent, Option<Extent>),
        palette: &Palette,
    ) -> Panel {
        let values = curves.iter().flat_map(|curve| &curve.steps).filter_map(|step| step.value(at));
        let mut heights = Extent::of(values).unwrap_or(Extent { lo: 0.0, hi: 1.0 });
        let mut marks = Vec::new();
        if let Some(inside) = inside {
            marks.push(Mark::Hatched { from: along.lo, to: inside.lo });
            marks.push(Mark::Hatched { from: inside.hi, to: along.hi });
        }
        if rate.metric == "tree_accuracy" {
            for y in full_pipeline(curves, at) {
                heights = heights.include(y);
                marks.push(Mark::Across { y, stroke: FULL });
            }
        }
        for (rank, curve) in curves.iter().enumerate().rev() {
            let line = curve.line(at, along);
            let look = look(curve, rank, palette);
            marks.push(Mark::Line { points: line, stroke: look.stroke });
            let own = curve.own.and_then(|own| Some((own, curve.value(own, at)?)));
            if let Some(point) = own.filter(|_| rank < MOST_LOOKS) {
                marks.push(Mark::Symbols { points: vec![point], marker: look.marker, ink: look.stroke.ink });
            }
        }
        Panel {
            title: String::new(),
            x: Axis::linear(self.label, along, TickRule::Round),
            y: Axis::linear(
                caption::label(rate.metric),
                heights.at_least(0.05).padded(0.06, 0.06),
                TickRule::Round,
            )
            .naturally(0.0, 1.0),
            marks,
        }
    }

    fn alt(&self, curves: &[Curve], advice: &[Advice]) -> String {
        let one = |curve: &Curve| {
            let ends = |at: usize| {
                let values = curve.steps.iter().filter_map(|step| step.value(at));
                Extent::of(values).map(|ends| {
                    format!(
                        "{} {} to {}",
                        caption::label(RATES[at].metric),
                        significant(ends.lo, 3),
                        significant(ends.hi, 3)
                    )
                })
            };
            let said: Vec<String> = (0..RATES.len()).filter_map(ends).collect();
            format!("{}, {} steps: {}.", curve.label, curve.steps.len(), said.join(", "))
        };
        let mut said: Vec<String> = curves.iter().take(MOST_LOOKS).map(one).collect();
        said.extend(advice.iter().map(Advice::said));
        clipped(&format!("{}. {}", self.title, said.join(" ")), 1200)
    }

    fn behind(&self, curves: &[Curve]) -> Behind {
        let mut table = Behind::new(&[
            "stack",
            "axis",
            "above",
            "upto",
            "shared_branches",
            "branches",
            "skipped_problems",
            "problems",
            "exited_branches",
            "verified_branches",
            "correct_problems",
            "harmed_problems",
            "gradable_problems",
            "full_correct_problems",
        ]);
        for curve in curves {
            for step in &curve.steps {
                let [share, skip, exit, right, harm] = step.counts.map(|(num, den)| (Some(num), Some(den)));
                table.row([
                    curve.label.as_str().into(),
                    self.axis.into(),
                    step.above.into(),
                    step.upto.into(),
                    share.0.into(),
                    share.1.into(),
                    skip.0.into(),
                    skip.1.into(),
                    exit.0.into(),
                    exit.1.into(),
                    right.0.into(),
                    harm.0.into(),
                    right.1.into(),
                    Some(step.full_correct).into(),
                ]);
            }
        }
        table
    }
}

/// A recommended value of the threshold.
struct Advice {
    stack: String,
    source: String,
    value: f64,
    guarantee: String,
}

impl Advice {
    fn said(&self) -> String {
        format!(
            "Recommended by kvlab tune on {} for {}: {}, together with its values of the other thresholds. Of all of them: {}.",
            clipped(&self.source, 40),
            clipped(&self.stack, 40),
            plain(self.value, 4),
            clipped(self.guarantee.trim_end_matches('.'), 400)
        )
    }
}

const ADVICE: Stroke = Stroke { ink: VERMILION, width: 1.8, dash: Dash::Long };
const FULL: Stroke = Stroke { ink: TEXT, width: 1.4, dash: Dash::Dashed };

/// Several stacks of one label differ in other parameters than thresholds; the table `steps` has them.
fn number_twins(curves: &mut [Curve]) {
    let labels: Vec<String> = curves.iter().map(|curve| curve.label.clone()).collect();
    for (at, curve) in curves.iter_mut().enumerate() {
        if labels.iter().filter(|label| **label == labels[at]).count() > 1 {
            let nth = labels[..=at].iter().filter(|label| **label == labels[at]).count();
            curve.label = format!("{} ({nth})", curve.label);
        }
    }
}

impl Step {
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    fn value(&self, rate: usize) -> Option<f64> {
        let (num, den) = self.counts[rate];
        (den > 0).then(|| num as f64 / den as f64)
    }
}

impl Curve {
    /// Corners of the staircase over the whole axis.
    fn line(&self, rate: usize, along: Extent) -> Vec<(f64, f64)> {
        let ends = |step: &Step| -> Option<[(f64, f64); 2]> {
            let value = step.value(rate)?;
            Some([(step.above.unwrap_or(along.lo), value), (step.upto.unwrap_or(along.hi), value)])
        };
        self.steps.iter().filter_map(ends).flatten().collect()
    }

    /// Whether the threshold moves a rate.
    fn varies(&self, rate: usize) -> bool {
        let mut values = self.steps.iter().filter_map(|step| step.value(rate));
        values.next().is_some_and(|first| values.any(|value| value.total_cmp(&first).is_ne()))
    }

    /// What the threshold `at` gives.
    fn value(&self, at: f64, rate: usize) -> Option<f64> {
        self.steps
            .iter()
            .find(|step| step.upto.is_none_or(|upto| at <= upto))
            .and_then(|step| step.value(rate))
    }
}

fn look(curve: &Curve, rank: usize, palette: &Palette) -> Look {
    let look = palette.look(&curve.label);
    if rank < MOST_LOOKS {
        return look;
    }
    Look { stroke: Stroke { ink: CONTEXT, width: 0.7, dash: Dash::Solid }, ..look }
}

/// Accuracy of the full pipeline: one value for each winner policy.
fn full_pipeline(curves: &[Curve], rate: usize) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    let share = |step: &Step| step.full_correct as f64 / step.counts[rate].1.max(1) as f64;
    crate::select::distinct(curves.iter().filter_map(|curve| curve.steps.first()).map(share))
        .into_iter()
        .take(4)
        .collect()
}

fn legend(curves: &[Curve], palette: &Palette, hatched: bool, advice: &[Advice]) -> Vec<Key> {
    let mut keys: Vec<Key> = curves
        .iter()
        .enumerate()
        .take(MOST_LOOKS)
        .map(|(rank, curve)| {
            let look = look(curve, rank, palette);
            let label = match curve.own {
                Some(own) => format!("{} (own: {})", clipped(&curve.label, 48), plain(own, 4)),
                None => clipped(&curve.label, 60),
            };
            Key { label, sample: Sample::Line { stroke: look.stroke, marker: Some(look.marker) } }
        })
        .collect();
    if curves.len() > MOST_LOOKS {
        let stroke = Stroke { ink: CONTEXT, width: 0.7, dash: Dash::Solid };
        let label = format!("{} more stacks", curves.len() - MOST_LOOKS);
        keys.push(Key { label, sample: Sample::Line { stroke, marker: None } });
    }
    keys.push(Key { label: "full pipeline".to_owned(), sample: Sample::Line { stroke: FULL, marker: None } });
    if let Some(first) = advice.first() {
        let label = match advice {
            [_] => format!("recommended: {}", plain(first.value, 4)),
            _ => "recommended".to_owned(),
        };
        keys.push(Key { label, sample: Sample::Line { stroke: ADVICE, marker: None } });
    }
    if hatched {
        keys.push(Key { label: "vacuous: one setting".to_owned(), sample: Sample::Hatched });
    }
    keys
}

fn captions(results: &Results, curves: &[Curve], advice: &[Advice]) -> Vec<String> {
    let problems = curves.first().and_then(|curve| curve.steps.first()).map(|step| step.counts[1].1);
    let problems = problems.map(|count| format!("{} problems", crate::number::count(count)));
    let mut lines = vec![
        caption::opening(results, &RATES.map(|rate| rate.metric), problems),
        "Exact: a line is flat wherever no recorded value lies. The other thresholds stand at each stack\u{2019}s own values; a symbol marks its own \
         value of this one. The step table has numerators and denominators."
            .to_owned(),
    ];
    lines.extend(advice.iter().map(Advice::said));
    if advice.is_empty() && results.more("recommended").is_some_and(|table| table.rows() > 0) {
        lines.push(
            "What kvlab tune recommends is of a stack with other parameters or without this threshold, and is not drawn."
                .to_owned(),
        );
    }
    lines
}
