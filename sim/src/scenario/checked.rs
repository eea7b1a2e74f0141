//! The scenario after every check: what the rest of the crate trusts.

use super::compare::{self, Compare};
use super::draw::{self, Draw};
use super::expect::{self, Expectation};
use super::grid::Grid;
use super::pool::{self, PoolStudy};
use super::raw::{self, RawEviction, RawExit, RawPolicy, RawScenario};
use super::serve::{self, ServeStudy};
use super::{ScenarioError, ScenarioErrorKind, TreeStudy, TuneSpec};
use crate::policy::compose::{Granularity, Knobs, Part, Stack, StackSpec};
use crate::policy::exit::HolePolicy;
use crate::policy::exit::entropy::Lens;
use crate::policy::{PolicyError, RawParams, registry};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A checked study.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Kebab-case id; it never changes.
    pub id: String,
    /// The question that the study answers.
    pub why: String,
    /// At most so many sequences of the trace are read, and so many problems with branches; where they are drawn, so many problems.
    pub limit: Option<u32>,
    /// How problems are drawn, if they are; otherwise the first ones are read.
    pub draw: Option<Draw>,
    /// Seeds of stochastic stacks.
    pub seeds: Vec<u64>,
    /// Eviction study, if there is one.
    pub eviction: Option<EvictionStudy>,
    /// Exit study, if there is one.
    pub exit: Option<ExitStudy>,
    /// Block-cache study, if there is one.
    pub pool: Option<PoolStudy>,
    /// Serving study, if there is one.
    pub serve: Option<ServeStudy>,
    /// Study of branch trees, if there is one.
    pub trees: Option<TreeStudy>,
    /// Which setting `kvlab tune` looks for; the defaults when the file does not say.
    pub tune: TuneSpec,
    /// What cells are compared with, if they are.
    pub compare: Option<Compare>,
    /// What results are expected to be.
    pub expect: Vec<Expectation>,
    /// The text that was parsed.
    pub text: String,
}

/// Stacks × budgets × seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionStudy {
    /// C: tokens resident per layer and KV head right after an eviction.
    pub budgets: Vec<u32>,
    /// B (= R): most recent tokens, always kept.
    pub recent: u32,
    /// First tokens, always kept.
    pub sinks: u32,
    /// Eviction period in tokens.
    pub period: u32,
    /// W: recent queries that attention scorers look at.
    pub window: u32,
    /// The output error is computed at every so-many-th decode step; 0 for never.
    pub output_error_every: u32,
    /// The effect on the next token is computed at every so-many-th decode step; 0 for never, absent for where the trace
    /// holds what it takes.
    pub next_token_every: Option<u32>,
    /// The KV head whose tokens are written down after each eviction, with the reasons they are kept for; absent for none.
    pub retained: Option<RetainedPlace>,
    /// Tokens a physical block.
    pub block_tokens: u32,
    /// Bytes of one stored key or value channel.
    pub bytes_per_scalar: u32,
    /// The stacks.
    pub policies: Vec<PolicyChoice>,
}

/// One KV head of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetainedPlace {
    /// Index of the sequence in the trace.
    pub sequence: u32,
    /// Zero-based layer.
    pub layer: u16,
    /// Zero-based KV head.
    pub kv_head: u16,
}

/// One stack of a study, not yet given a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyChoice {
    /// Name in tables and plots.
    pub label: String,
    /// Where in the scenario it stands, for errors.
    pub path: String,
    kind: ChoiceKind,
    /// What a composition is told beside its own parameters.
    attend: Option<Part>,
    store: Option<Part>,
    granularity: Option<Granularity>,
}

/// Where a full cache stands that no scenario names.
const FULL_CACHE: &str = "(full cache)";

#[derive(Clone, Debug, PartialEq)]
enum ChoiceKind {
    Composition { id: String, params: RawParams },
    Custom(Box<StackSpec>),
}

impl PolicyChoice {
    /// The full cache, for a study that does not name it.
    #[must_use]
    pub fn full_cache() -> Self {
        Self {
            label: "full cache".to_owned(),
            path: FULL_CACHE.to_owned(),
            kind: ChoiceKind::Composition { id: "full".to_owned(), params: RawParams::default() },
            attend: None,
            store: None,
            granularity: None,
        }
    }

    /// How it stands in the scenario whose text this is.
    #[must_use]
    pub fn source(&self, text: &str) -> serde_json::Value {
        if self.path == FULL_CACHE {
            return serde_json::json!({ "use": "full", "label": self.label });
        }
        raw::at(text, &self.path)
    }

    /// The stack under these amounts.
    ///
    /// # Errors
    /// When parameters or amounts do not fit.
    pub fn stack(&self, knobs: &Knobs) -> Result<Stack, PolicyError> {
        let spec = match &self.kind {
            ChoiceKind::Composition { id, params } => (registry::composition(id)?.build)(knobs, params)?,
            ChoiceKind::Custom(spec) => {
                let sinks = spec.knobs.sinks;
                StackSpec { knobs: Knobs { sinks, ..*knobs }, ..(**spec).clone() }
            }
        };
        let attend = self.attend.clone().unwrap_or_else(|| spec.attend.clone());
        let store = self.store.clone().unwrap_or_else(|| spec.store.clone());
        let granularity = self.granularity.unwrap_or(spec.granularity);
        Stack::checked(StackSpec { label: self.label.clone(), attend, store, granularity, ..spec })
    }
}

/// The unit of θ and ε.
pub use crate::policy::exit::Unit as ThetaUnit;

/// Lenses × θ × ε.
#[derive(Clone, Debug, PartialEq)]
pub struct ExitStudy {
    /// Which states entropies are read from.
    pub lenses: Vec<Lens>,
    /// The unit of θ and ε.
    pub unit: ThetaUnit,
    /// θ values, in `unit`.
    pub theta: Vec<f64>,
    /// ε values, in `unit`.
    pub epsilon: Vec<f64>,
    /// First zero-based layer whose entropy is looked at.
    pub min_layer: u16,
    /// Consecutive changes that must be below ε.
    pub patience: u16,
    /// What is done about keys and values that exits leave out.
    pub hole_policy: HolePolicy,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the file cannot be read or [`Scenario::parse`] refuses it.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| ScenarioError {
            file: file.clone(),
            kind: Box::new(ScenarioErrorKind::Io(error)),
        })?;
        let mut scenario = Self::parse(&text, &file)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        scenario.read_times(folder).map_err(|kind| ScenarioError { file, kind: Box::new(kind) })?;
        Ok(scenario)
    }

    /// Parses and checks `text`; `file` is named in errors.
    ///
    /// # Errors
    /// When a key is unknown or given twice, a value has the wrong type or is out of range, a policy is unknown, or
    /// no budget can hold what a policy must keep.
    pub fn parse(text: &str, file: &str) -> Result<Self, ScenarioError> {
        let raw = raw::parse(text, file)?;
        checked(raw, text).map_err(|kind| ScenarioError { file: file.to_owned(), kind: Box::new(kind) })
    }
}

fn checked(raw: RawScenario, text: &str) -> Result<Scenario, ScenarioErrorKind> {
    let is_id = |id: &str| {
        !id.is_empty() && id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    if !is_id(&raw.id) {
        return Err(value("id", &format!("`{}`", raw.id), "lower-case letters, digits and `-`"));
    }
    if raw.why.trim().is_empty() {
        return Err(value("why", "empty", "the question that the study answers"));
    }
    let (limit, draw) = draw::checked(&raw.source.flags(), |key| format!("source.{key}"))?;
    if raw.eviction.is_none()
        && raw.exit.is_none()
        && raw.trees.is_none()
        && raw.pool.is_none()
        && raw.serve.is_none()
    {
        return Err(ScenarioErrorKind::Empty);
    }
    let scenario = Scenario {
        id: raw.id,
        why: raw.why.trim().to_owned(),
        limit,
        draw,
        seeds: whole_numbers(&raw.seeds, "seeds", 0, 9_007_199_254_740_992)?,
        eviction: raw.eviction.map(eviction).transpose()?,
        exit: raw.exit.map(exit).transpose()?,
        pool: raw.pool.map(pool::checked).transpose()?,
        serve: raw.serve.map(serve::checked).transpose()?,
        trees: raw.trees.map(super::trees::checked).transpose()?,
        tune: super::tune::checked(raw.tune.unwrap_or_default())?,
        compare: None,
        expect: expect::checked(raw.expect)?,
        text: text.to_owned(),
    };
    let compare = raw.compare.map(|raw| compare::checked(raw, &scenario)).transpose()?;
    let scenario = Scenario { compare, ..scenario };
    let cells = scenario.cells_at_most();
    if cells > MOST_CELLS {
        return Err(value("the study", &format!("{cells} cells"), &format!("at most {MOST_CELLS} cells")));
    }
    Ok(scenario)
}

/// Cells that a study may have: beyond, tables and figures stop being readable long before memory ends.
const MOST_CELLS: u64 = 200_000;

impl Scenario {
    /// An upper bound on the number of cells, without making them.
    fn cells_at_most(&self) -> u64 {
        let product = |parts: &[usize]| parts.iter().fold(1u64, |n, &part| n.saturating_mul(part as u64));
        let eviction = self
            .eviction
            .as_ref()
            .map_or(0, |study| product(&[study.policies.len(), study.budgets.len(), self.seeds.len()]));
        let exit = self
            .exit
            .as_ref()
            .map_or(0, |study| product(&[study.lenses.len(), study.theta.len(), study.epsilon.len()]));
        let pool = self
            .pool
            .as_ref()
            .map_or(0, |study| product(&[study.policies.len(), study.capacities.len(), self.seeds.len()]));
        let trees = self.trees.as_ref().map_or(0, |study| study.cells_at_most(self.seeds.len()));
        eviction.saturating_add(exit).saturating_add(trees).saturating_add(pool)
    }
}

pub(super) fn value(path: &str, found: &str, accepted: &str) -> ScenarioErrorKind {
    ScenarioErrorKind::Value { path: path.to_owned(), found: found.to_owned(), accepted: accepted.to_owned() }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "checked"
)]
fn whole_numbers(grid: &Grid, path: &str, low: u64, high: u64) -> Result<Vec<u64>, ScenarioErrorKind> {
    let mut numbers = Vec::with_capacity(grid.values().len());
    for &x in grid.values() {
        if !(x >= low as f64 && x <= high as f64 && x.fract().abs() < f64::EPSILON) {
            return Err(value(path, &x.to_string(), &format!("whole numbers from {low} to {high}")));
        }
        if numbers.contains(&(x as u64)) {
            return Err(value(path, &format!("{x} twice"), "each value once"));
        }
        numbers.push(x as u64);
    }
    Ok(numbers)
}

fn eviction(raw: RawEviction) -> Result<EvictionStudy, ScenarioErrorKind> {
    const MOST: u64 = 1 << 24;
    let budgets = whole_numbers(&raw.budgets, "eviction.budgets", 1, MOST)?;
    let budgets = budgets.into_iter().filter_map(|b| u32::try_from(b).ok()).collect();
    for (path, amount, low) in [
        ("eviction.recent", raw.recent, 0),
        ("eviction.sinks", raw.sinks, 0),
        ("eviction.period", raw.period.unwrap_or(1), 1),
        ("eviction.window", raw.window.unwrap_or(1), 1),
        ("eviction.block_tokens", raw.block_tokens, 1),
        ("eviction.bytes_per_scalar", raw.bytes_per_scalar, 1),
    ] {
        if u64::from(amount) > MOST || amount < low {
            return Err(value(path, &amount.to_string(), &format!("{low} to {MOST}")));
        }
    }
    if let Some(every) = raw.next_token_every.filter(|every| *every > 0)
        && (raw.output_error_every == 0 || !every.is_multiple_of(raw.output_error_every))
    {
        let accepted = format!("a multiple of output_error_every ({}), or 0", raw.output_error_every);
        return Err(value("eviction.next_token_every", &every.to_string(), &accepted));
    }
    if raw.policies.is_empty() {
        return Err(value("eviction.policies", "an empty list", "at least one policy"));
    }
    let natural = raw.recent.max(1);
    let mut study = EvictionStudy {
        budgets,
        recent: raw.recent,
        sinks: raw.sinks,
        period: raw.period.unwrap_or(natural),
        window: raw.window.unwrap_or(natural),
        output_error_every: raw.output_error_every,
        next_token_every: raw.next_token_every,
        retained: raw.retained,
        block_tokens: raw.block_tokens,
        bytes_per_scalar: raw.bytes_per_scalar,
        policies: Vec::new(),
    };
    for (at, raw) in raw.policies.into_iter().enumerate() {
        let choice = policy(raw, &format!("eviction.policies[{at}]"), &study)?;
        if study.policies.iter().any(|known| known.label == choice.label) {
            return Err(ScenarioErrorKind::DuplicateLabel { list: "eviction.policies", label: choice.label });
        }
        study.policies.push(choice);
    }
    Ok(study)
}

fn policy(raw: RawPolicy, path: &str, study: &EvictionStudy) -> Result<PolicyChoice, ScenarioErrorKind> {
    let (label, kind) = match (raw.composition, raw.stack) {
        (Some(id), None) => {
            let label = raw.label.unwrap_or_else(|| id.clone());
            (label, ChoiceKind::Composition { id, params: raw.params })
        }
        (None, Some(stack)) => {
            let Some(label) = raw.label else {
                return Err(value(&format!("{path}.label"), "missing", "a name for the custom stack"));
            };
            let knobs = study.knobs(study.budgets[0]);
            let knobs = Knobs { sinks: stack.sinks.unwrap_or(knobs.sinks), ..knobs };
            let wrap = |source| ScenarioErrorKind::Policy { path: path.to_owned(), source };
            let others = [
                ("attend", raw.attend.is_some()),
                ("store", raw.store.is_some()),
                ("granularity", raw.granularity.is_some()),
            ];
            if let Some((other, _)) = others.into_iter().find(|(_, is_given)| *is_given) {
                let found = format!("`{other}` beside `stack`");
                return Err(value(path, &found, &format!("`{other}` inside `stack`")));
            }
            let says_nothing = stack.score.is_none() && stack.attend.is_none() && stack.store.is_none();
            let evicts = [&stack.reserve, &stack.select, &stack.budget, &stack.schedule];
            if says_nothing || (stack.score.is_none() && evicts.iter().any(|part| part.is_some())) {
                let accepted =
                    "a score, or nothing about evictions but `attend` or `store`: then nothing is evicted";
                return Err(value(&format!("{path}.stack.score"), "missing", accepted));
            }
            let base = match stack.score {
                Some(score) => StackSpec::periodic(&label, knobs, score.into()).map_err(wrap)?,
                None => StackSpec::keeping_all(&label, knobs).map_err(wrap)?,
            };
            let or = |given: Option<super::raw::RawPart>, default: Part| given.map_or(default, Part::from);
            let spec = StackSpec {
                reserve: or(stack.reserve, base.reserve.clone()),
                select: or(stack.select, base.select.clone()),
                budget: or(stack.budget, base.budget.clone()),
                schedule: or(stack.schedule, base.schedule.clone()),
                order: stack.order,
                attend: or(stack.attend, base.attend.clone()),
                store: or(stack.store, base.store.clone()),
                places: stack.places,
                granularity: stack.granularity,
                ..base
            };
            (label, ChoiceKind::Custom(Box::new(spec)))
        }
        _ => {
            return Err(value(path, "neither or both of `use` and `stack`", "exactly one of them"));
        }
    };
    if label.trim().is_empty() || label.chars().any(char::is_control) {
        return Err(value(&format!("{path}.label"), &format!("{label:?}"), "printable text"));
    }
    let (attend, store) = (raw.attend.map(Part::from), raw.store.map(Part::from));
    let choice =
        PolicyChoice { label, path: path.to_owned(), kind, attend, store, granularity: raw.granularity };
    // A policy that fits no budget at all is a mistake; one that fits some gives skipped cells for the others.
    let mut first = None;
    for &budget in &study.budgets {
        match choice.stack(&study.knobs(budget)) {
            Ok(_) => return Ok(choice),
            Err(error) => first = first.or(Some(error)),
        }
    }
    match first {
        Some(source) => {
            let path = format!("{path} (`{}`)", choice.label);
            Err(ScenarioErrorKind::Policy { path, source })
        }
        None => Ok(choice),
    }
}

impl EvictionStudy {
    /// The amounts at a budget of `capacity` tokens.
    #[must_use]
    pub fn knobs(&self, capacity: u32) -> Knobs {
        Knobs { capacity, recent: self.recent, sinks: self.sinks, period: self.period, window: self.window }
    }
}

fn exit(raw: RawExit) -> Result<ExitStudy, ScenarioErrorKind> {
    for (path, grid) in [("exit.theta", &raw.theta), ("exit.epsilon", &raw.epsilon)] {
        if let Some(x) = grid.values().iter().find(|x| !(x.is_finite() && **x >= 0.0)) {
            return Err(value(path, &x.to_string(), "finite numbers, 0 or more"));
        }
    }
    for (path, values) in [("exit.theta", raw.theta.values()), ("exit.epsilon", raw.epsilon.values())] {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].total_cmp(&pair[1]).is_eq()) {
            return Err(value(path, &format!("{} twice", pair[0]), "each value once"));
        }
    }
    if raw.lens.len() > 2 || (raw.lens.len() == 2 && raw.lens[0] == raw.lens[1]) {
        return Err(value("exit.lens", "a lens twice", "`final-norm`, `raw` or both"));
    }
    if raw.lens.is_empty() {
        return Err(value("exit.lens", "an empty list", "`final-norm`, `raw` or both"));
    }
    if raw.patience == 0 {
        return Err(value("exit.patience", "0", "1 or more"));
    }
    Ok(ExitStudy {
        lenses: raw.lens,
        unit: raw.unit,
        theta: raw.theta.values().to_vec(),
        epsilon: raw.epsilon.values().to_vec(),
        min_layer: raw.min_layer,
        patience: raw.patience,
        hole_policy: raw.hole_policy,
    })
}
