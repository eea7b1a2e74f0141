//! Thresholds of one stack over branch trees: every joint setting is exact, so all of a grid of observed values are looked at.

use super::measured::{Kind, Measured, Term};
use super::report::{Searched, SearchedAxis, Setting as Named};
use super::study::{Elsewhere, Study, metrics_of};
use super::values::{self, Values};
use super::{Split, TuneError, yaml};
use crate::run::read_problems;
use crate::scenario::{Bound, Constraint, Direction, Objective, Scenario, TreeChoice, TreeStudy, TuneSpec};
use crate::steps::{Axis, ProblemCounts, Setting, StepTable};
use crate::trace::TraceSource;
use crate::trees::{TreeFacts, TreeModel, TreeStack};
use rayon::prelude::*;
use serde_json::Value;

/// The candidate that is the full pipeline itself.
const ANCHOR: usize = 0;

/// What is reported beside objective and constraints.
const CONTEXT: &[&str] = &[
    "tree_accuracy",
    "tree_accuracy_vs_full",
    "harm_rate",
    "help_rate",
    "full_pipeline_agreement",
    "verify_skip_rate",
    "verify_work_rate",
    "share_rate",
    "prefill_work_rate",
];

/// Metrics measured problem by problem.
const MEASURED: &[&str] = &[
    "full_pipeline_agreement",
    "harm_rate",
    "help_rate",
    "prefill_work_rate",
    "share_rate",
    "skipped_accuracy",
    "tree_accuracy",
    "tree_accuracy_vs_full",
    "verdict_flip_rate",
    "verify_exit_rate",
    "verify_layer_skip_rate",
    "verify_skip_rate",
    "verify_work_rate",
];

/// The default objective and constraint.
pub(super) fn goal(spec: &TuneSpec) -> (Objective, Vec<Constraint>) {
    let default = Objective { metric: "verify_work_rate", direction: Direction::Minimise };
    let constraints = if spec.constraints.is_empty() {
        vec![Constraint { metric: "harm_rate", bound: Bound::AtMost(0.01) }]
    } else {
        spec.constraints.clone()
    };
    (spec.objective.clone().unwrap_or(default), constraints)
}

/// Recorded problems by their ids.
pub(super) struct Problems {
    pub(super) trees: Vec<TreeFacts>,
    /// Distinct ids, in order of appearance.
    pub(super) items: Vec<String>,
    /// Problems of each item, `[item]`, as indices into `trees`.
    of: Vec<Vec<usize>>,
    model: TreeModel,
}

impl Problems {
    /// # Errors
    /// When the trace has none, or one cannot be read.
    pub(super) fn read(source: &dyn TraceSource, places: &[u32]) -> Result<Self, TuneError> {
        if places.is_empty() {
            return Err(crate::run::RunError::NoProblems { source_name: source.name().to_owned() }.into());
        }
        let trees: Vec<TreeFacts> = places
            .par_iter()
            .map(|&index| Ok(TreeFacts::new(index, source.problem(index)?)))
            .collect::<Result<_, TuneError>>()?;
        let mut places: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
        let (mut items, mut of): (Vec<String>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
        for (at, facts) in trees.iter().enumerate() {
            let item = *places.entry(facts.problem.item.as_str()).or_insert_with(|| {
                items.push(facts.problem.item.clone());
                of.push(Vec::new());
                items.len() - 1
            });
            of[item].push(at);
        }
        drop(places);
        let shape = source.shape();
        Ok(Self { trees, items, of, model: TreeModel { layers: shape.layers, vocab: shape.vocab } })
    }

    /// Most branches and most recordings of an item: bounds that no outcome moves.
    fn most(&self) -> (usize, usize) {
        let branches = self.trees.iter().map(|facts| facts.leaves.len()).max().unwrap_or(0);
        (branches, self.of.iter().map(Vec::len).max().unwrap_or(0))
    }
}

/// The stack that is tuned, and what its scenario says about its thresholds.
pub(super) struct Tuned {
    label: String,
    stack: TreeStack,
    base: Setting,
    /// Values of a sweep, in nats where they are entropies.
    given: Vec<(Axis, Vec<f64>)>,
    moving: Vec<Axis>,
}

impl Tuned {
    /// # Errors
    /// When no stack has a threshold, or one sweeps something else.
    pub(super) fn of(study: &TreeStudy, spec: &TuneSpec, vocab: u32) -> Result<Self, TuneError> {
        let stack_error = |path: &str, found: String, accepted: &str| TuneError::Stack {
            path: path.to_owned(),
            found,
            accepted: accepted.to_owned(),
        };
        let build = |choice: &TreeChoice| -> Result<(TreeStack, Vec<Axis>), TuneError> {
            let first: Vec<(String, f64)> =
                choice.moving().map(|(key, values)| (key.clone(), values[0])).collect();
            let stack = TreeStack::build(&choice.parts_at(&first))?;
            let moving = spec.thresholds.iter().copied().filter(|axis| axis.applies_to(&stack)).collect();
            Ok((stack, moving))
        };
        let mut labels = study.stacks.iter().map(|choice| choice.label.as_str());
        let choice = match &spec.stack {
            Some(label) => {
                let accepted = labels.clone().collect::<Vec<_>>().join(", ");
                study.stacks.iter().find(|choice| choice.label == *label).ok_or_else(|| {
                    stack_error(
                        "tune.stack",
                        format!("`{label}`"),
                        &format!("a label of trees.stacks ({accepted})"),
                    )
                })?
            }
            None => {
                let has_threshold =
                    |choice: &&TreeChoice| build(choice).is_ok_and(|(_, moving)| !moving.is_empty());
                study.stacks.iter().find(has_threshold).ok_or_else(|| {
                    let found = labels.by_ref().collect::<Vec<_>>().join(", ");
                    stack_error(
                        "trees.stacks",
                        found,
                        "a stack with one of the thresholds of tune.thresholds",
                    )
                })?
            }
        };
        let (stack, moving) = build(choice)?;
        let path = format!("trees.stacks (`{}`)", choice.label);
        if moving.is_empty() {
            return Err(stack_error(
                &path,
                "no threshold that moves".to_owned(),
                "share asks, verify cgee or exit entropy",
            ));
        }
        if let Some((key, values)) = choice.zip.iter().find(|(_, values)| values.len() > 1) {
            let found = format!("zip.{key} with {} values", values.len());
            return Err(stack_error(
                &path,
                found,
                "thresholds under `sweep`: the search moves each by itself",
            ));
        }
        let mut given = Vec::new();
        for (key, values) in choice.moving() {
            let axis = Axis::ALL.into_iter().find(|axis| parameter(*axis).0 == key.as_str());
            match axis.filter(|axis| moving.contains(axis)) {
                Some(axis) => {
                    let nats = match axis {
                        Axis::Theta | Axis::Epsilon => {
                            stack.exit.as_entropy().map_or(1.0, |exit| exit.unit.nats(vocab))
                        }
                        _ => 1.0,
                    };
                    given.push((axis, values.iter().map(|value| value * nats).collect()));
                }
                None if values.len() > 1 => {
                    let found = format!("sweep.{key} with {} values", values.len());
                    return Err(stack_error(
                        &path,
                        found,
                        "one value for whatever is no moving threshold: tune moves the thresholds of one stack",
                    ));
                }
                None => {}
            }
        }
        let base = Setting::of(&stack, vocab);
        Ok(Self { label: choice.label.clone(), stack, base, given, moving })
    }
}

/// The parameter behind a threshold: its key in a sweep, its part and its name.
fn parameter(axis: Axis) -> (&'static str, &'static str, &'static str) {
    match axis {
        Axis::Tau => ("share.tau", "share", "tau"),
        Axis::TauConf => ("verify.tau_conf", "verify", "tau_conf"),
        Axis::Margin => ("verify.margin", "verify", "margin"),
        Axis::Theta => ("exit.theta", "exit", "theta"),
        Axis::Epsilon => ("exit.epsilon", "exit", "epsilon"),
    }
}

/// Which end of a threshold changes least.
fn careful_is_high(axis: Axis) -> bool {
    matches!(axis, Axis::Tau | Axis::TauConf | Axis::Margin)
}

/// The measured settings: the full pipeline, then every combination of values.
pub(super) struct Trees<'a> {
    tuned: &'a Tuned,
    problems: &'a Problems,
    table: StepTable<'a>,
    axes: Vec<(Axis, Values)>,
    metrics: Vec<&'static str>,
    kinds: Vec<Kind>,
}

impl<'a> Trees<'a> {
    /// # Errors
    /// When the stack has no step functions, or a metric is not measured.
    pub(super) fn new(
        tuned: &'a Tuned,
        problems: &'a Problems,
        split: &Split,
        spec: &TuneSpec,
        (objective, constraints): (&Objective, &[Constraint]),
    ) -> Result<Self, TuneError> {
        let metrics = metrics_of(objective, constraints, CONTEXT);
        let most = problems.most();
        let kinds: Vec<Kind> = metrics
            .iter()
            .enumerate()
            .map(|(at, &metric)| {
                let kind = kind(metric, most, problems.model.layers);
                let is_constraint = at > 0 && at <= constraints.len();
                kind.filter(|kind| !is_constraint || *kind != Kind::Unbounded)
                    .ok_or_else(|| refused(metric, is_constraint))
            })
            .collect::<Result<_, _>>()?;
        let table = StepTable::build(&problems.trees, &tuned.stack, problems.model)?;
        // Values come from search problems alone: nothing about a calibration problem, not even its confidences, shapes what is tested on it.
        let searched: Vec<TreeFacts> = split
            .search
            .iter()
            .flat_map(|&item| problems.of[item].iter().map(|&at| problems.trees[at].clone()))
            .collect();
        let search = StepTable::build(&searched, &tuned.stack, problems.model)?;
        let sources: Vec<values::Source> = tuned
            .moving
            .iter()
            .map(|&axis| match tuned.given.iter().find(|(given, _)| *given == axis) {
                Some((_, values)) => values::Source::Given(values.clone()),
                None => values::Source::Observed {
                    edges: search.observed(axis),
                    // An entropy or its change is never below 0.
                    floor: if careful_is_high(axis) { None } else { Some(0.0) },
                },
            })
            .collect();
        let axes = values::thinned(sources, spec.candidates)
            .into_iter()
            .zip(&tuned.moving)
            .map(|(mut values, &axis)| {
                if careful_is_high(axis) {
                    values.values.reverse();
                }
                (axis, values)
            })
            .collect();
        Ok(Self { tuned, problems, table, axes, metrics, kinds })
    }

    /// Place of a candidate on each axis; nothing for the anchor.
    fn places(&self, candidate: usize) -> Option<Vec<usize>> {
        let mut rest = candidate.checked_sub(ANCHOR + 1)?;
        let mut places = vec![0; self.axes.len()];
        for (place, (_, values)) in places.iter_mut().zip(&self.axes).rev() {
            *place = rest % values.values.len();
            rest /= values.values.len();
        }
        Some(places)
    }

    fn candidate(&self, places: &[usize]) -> usize {
        let index = places
            .iter()
            .zip(&self.axes)
            .fold(0, |index, (place, (_, values))| index * values.values.len() + place);
        index + ANCHOR + 1
    }

    /// The thresholds of a candidate; nothing for the anchor.
    fn thresholds(&self, candidate: usize) -> Option<Setting> {
        let places = self.places(candidate)?;
        let mut setting = self.tuned.base;
        for (place, (axis, values)) in places.iter().zip(&self.axes) {
            setting = setting.with(*axis, values.values[*place]);
        }
        Some(setting)
    }

    fn parts(&self, candidate: usize) -> Value {
        let mut parts = self.tuned.stack.params();
        let Some(setting) = self.thresholds(candidate) else { return parts };
        for axis in Axis::ALL.into_iter().filter(|axis| axis.applies_to(&self.tuned.stack)) {
            let (_, part, name) = parameter(axis);
            parts[part]["params"][name] = setting.get(axis).into();
            if part == "exit" {
                parts[part]["params"]["unit"] = "nats".into();
            }
        }
        parts
    }
}

fn refused(metric: &'static str, is_constraint: bool) -> TuneError {
    let role = if is_constraint { "a constraint" } else { "the objective" };
    let accepted = MEASURED
        .iter()
        .copied()
        .filter(|id| !is_constraint || kind(id, (1, 1), 1) != Some(Kind::Unbounded))
        .collect::<Vec<_>>()
        .join(", ");
    TuneError::Metric { metric, role, study: "branch trees", accepted }
}

#[expect(clippy::cast_precision_loss, reason = "numbers of branches and layers")]
fn kind(metric: &str, (branches, recordings): (usize, usize), layers: u16) -> Option<Kind> {
    let branches = (branches * recordings) as f64;
    Some(match metric {
        "full_pipeline_agreement"
        | "harm_rate"
        | "help_rate"
        | "skipped_accuracy"
        | "tree_accuracy"
        | "verify_skip_rate" => Kind::Share,
        "tree_accuracy_vs_full" => Kind::Difference,
        "share_rate" | "verdict_flip_rate" | "verify_exit_rate" => Kind::Ratio { most: branches },
        "verify_layer_skip_rate" => Kind::Ratio { most: branches * f64::from(layers) },
        "prefill_work_rate" | "verify_work_rate" => Kind::Unbounded,
        _ => return None,
    })
}

/// What a problem gives to a metric.
#[expect(clippy::cast_precision_loss, reason = "counts of one problem")]
fn term(metric: &str, found: &ProblemCounts, layers: u16) -> Term {
    let counts = &found.counts;
    let known = u64::from(found.is_gradable);
    let all = counts.verified * u64::from(layers);
    let (num, den) = match metric {
        "full_pipeline_agreement" => (counts.agreeing, 1),
        "harm_rate" => (counts.harmed, known),
        "help_rate" => (counts.helped, known),
        "skipped_accuracy" => (counts.skipped * counts.correct, counts.skipped * known),
        "tree_accuracy" => (counts.correct, known),
        "verify_skip_rate" => (counts.skipped, 1),
        "share_rate" => (counts.shared, found.branches),
        "verdict_flip_rate" => (found.flipped, counts.verified),
        "verify_exit_rate" => (counts.exited, counts.verified),
        "verify_layer_skip_rate" => (all - counts.layers_run, all),
        "verify_work_rate" => (found.verify_work, found.verify_full),
        "prefill_work_rate" => (found.prefill, found.prefill_unshared),
        "tree_accuracy_vs_full" => {
            return Term::new(counts.helped as f64 - counts.harmed as f64, known as f64);
        }
        _ => (0, 0),
    };
    Term::new(num as f64, den as f64)
}

/// What the full pipeline gives on a problem of which any setting is known.
fn unchanged(found: &ProblemCounts, layers: u16) -> ProblemCounts {
    let mut full = ProblemCounts {
        flipped: 0,
        verify_work: found.verify_full,
        prefill: found.prefill_unshared,
        ..*found
    };
    full.counts = crate::steps::Counts {
        verified: found.branches,
        layers_run: found.branches * u64::from(layers),
        correct: found.counts.correct + found.counts.harmed - found.counts.helped,
        agreeing: 1,
        ..crate::steps::Counts::default()
    };
    full
}

fn add(into: &mut [Term], metrics: &[&str], found: &ProblemCounts, layers: u16) {
    for (sum, metric) in into.iter_mut().zip(metrics) {
        let term = term(metric, found, layers);
        sum.num += term.num;
        sum.den += term.den;
    }
}

impl Measured for Trees<'_> {
    fn candidates(&self) -> usize {
        self.axes.iter().map(|(_, values)| values.values.len()).product::<usize>() + ANCHOR + 1
    }

    fn items(&self) -> usize {
        self.problems.items.len()
    }

    fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    fn measure(&self, candidate: usize, item: usize, into: &mut [Term]) {
        let layers = self.problems.model.layers;
        let setting = self.thresholds(candidate);
        for &at in &self.problems.of[item] {
            let Some(found) = self.table.problem(at, &setting.unwrap_or(self.tuned.base)) else { continue };
            let found = if setting.is_some() { found } else { unchanged(&found, layers) };
            add(into, &self.metrics, &found, layers);
        }
    }

    fn anchor(&self) -> usize {
        ANCHOR
    }

    #[expect(clippy::cast_precision_loss, reason = "few values an axis")]
    fn boldness(&self, candidate: usize) -> f64 {
        let places = self.places(candidate).unwrap_or_default();
        let share = |(place, (_, values)): (&usize, &(Axis, Values))| {
            *place as f64 / values.values.len().saturating_sub(1).max(1) as f64
        };
        places.iter().zip(&self.axes).map(share).sum()
    }

    fn hint(&self) -> Option<usize> {
        self.metrics.iter().position(|id| *id == "full_pipeline_agreement")
    }
}

impl Study for Trees<'_> {
    fn name(&self) -> &'static str {
        "trees"
    }

    fn tuned(&self) -> String {
        self.tuned.label.clone()
    }

    fn item_ids(&self) -> &[String] {
        &self.problems.items
    }

    fn metrics(&self) -> &[&'static str] {
        &self.metrics
    }

    fn setting(&self, candidate: usize) -> Named {
        let mut named = Named::new();
        let Some(setting) = self.thresholds(candidate) else {
            named.insert("stack".to_owned(), "full pipeline".into());
            return named;
        };
        for axis in Axis::ALL.into_iter().filter(|axis| axis.applies_to(&self.tuned.stack)) {
            named.insert(axis.word().to_owned(), setting.get(axis).into());
        }
        named
    }

    fn neighbours(&self, candidate: usize) -> Vec<(String, usize)> {
        let Some(places) = self.places(candidate) else { return Vec::new() };
        let mut found = Vec::new();
        for (at, (axis, values)) in self.axes.iter().enumerate() {
            let here = places[at];
            for there in [here.checked_sub(1), Some(here + 1)].into_iter().flatten() {
                let Some(value) = values.values.get(there) else { continue };
                let mut places = places.clone();
                places[at] = there;
                let word = axis.word();
                found.push((format!("{word} {} → {value}", values.values[here]), self.candidate(&places)));
            }
        }
        found
    }

    fn yaml(&self, candidate: usize, id: &str, why: &str) -> String {
        let parts = self.parts(candidate);
        let mut text =
            format!("id: {id}\nwhy: {}\ntrees:\n  stacks:\n    - label: tuned\n", yaml::plain_or_quoted(why));
        for part in ["share", "verify", "exit", "winner"] {
            text += &format!("      {part}: {}\n", yaml::flow(&parts[part]));
        }
        text
    }

    fn searched(&self) -> Searched {
        let axis = |(axis, values): &(Axis, Values)| SearchedAxis {
            name: axis.word().to_owned(),
            values: values.values.clone(),
            distinct: values.distinct,
        };
        Searched {
            settings: self.candidates(),
            axes: self.axes.iter().map(axis).collect(),
            ..Searched::default()
        }
    }

    fn notes(&self, chosen: Option<usize>) -> Vec<String> {
        let repeated = self.problems.trees.len() - self.problems.items.len();
        let mut notes = Vec::new();
        if repeated > 0 {
            notes.push(format!(
                "{repeated} recordings repeat a problem: each problem counts once, with the mean of its recordings, and rates are means over problems"
            ));
        }
        let tau = chosen.and_then(|candidate| self.thresholds(candidate)).map(|setting| setting.tau);
        if let Some(tau) = tau.filter(|tau| *tau > 1.0 && self.tuned.stack.share.as_asks().is_some()) {
            notes.push(format!(
                "tau {tau} shares nothing, since no similarity is above 1, and its gate is still paid for in prefill_work_rate: `share: {{kind: off}}` decides the same without"
            ));
        }
        notes
    }

    fn elsewhere(&self, candidate: usize, other: &dyn TraceSource) -> Result<Elsewhere, TuneError> {
        let places: Vec<u32> = (0..other.problems()).collect();
        let problems = Problems::read(other, &places)?;
        let table = StepTable::build(&problems.trees, &self.tuned.stack, problems.model)?;
        let setting = self.thresholds(candidate).unwrap_or(self.tuned.base);
        let layers = problems.model.layers;
        let of = |is_anchor: bool| -> Vec<Vec<Term>> {
            let terms = |recordings: &Vec<usize>| {
                let mut terms = vec![Term::default(); self.metrics.len()];
                for found in recordings.iter().filter_map(|&at| table.problem(at, &setting)) {
                    let found = if is_anchor { unchanged(&found, layers) } else { found };
                    add(&mut terms, &self.metrics, &found, layers);
                }
                terms
            };
            problems.of.iter().map(terms).collect()
        };
        let (candidate, anchor) = (of(false), of(true));
        drop(table);
        Ok(Elsewhere { items: problems.items, candidate, anchor, unrun: Vec::new() })
    }
}

/// Chooses thresholds of one stack of `study`.
pub(super) fn tune(
    study: &TreeStudy,
    scenario: &Scenario,
    spec: &TuneSpec,
    source: &dyn TraceSource,
    transfer: Option<&dyn TraceSource>,
) -> Result<super::TuneReport, TuneError> {
    let (objective, constraints) = goal(spec);
    let tuned = Tuned::of(study, spec, source.shape().vocab)?;
    let problems = Problems::read(source, &read_problems(scenario, source)?)?;
    let split = super::study::split(&problems.items, spec)?;
    let trees = Trees::new(&tuned, &problems, &split, spec, (&objective, &constraints))?;
    super::study::report(&trees, scenario, spec, (objective, constraints), &split, source, transfer)
}
