//! The scenario as it stands in the file. This file and `policy/params.rs` are the only ones that name `serde_yaml`.

use super::expect::RawExpect;
use super::grid::Grid;
use super::nearest;
use super::serve::{Arm, Claim, ProblemSizes, ServedProblems};
use super::tune::RawTune;
use super::{ScenarioError, ScenarioErrorKind, SourceFlags, Strata, schema};
use crate::policy::RawParams;
use crate::policy::compose::{Granularity, KeepOrder, Part, Places};
use crate::policy::exit::entropy::Lens;
use crate::serve::Arrivals;
use crate::steps::Axis;
use crate::trees::{DecodeExit, TreeParts};
use schemars::JsonSchema;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawScenario {
    pub(super) id: String,
    pub(super) why: String,
    #[serde(default)]
    pub(super) source: RawSource,
    #[serde(default = "default_seeds")]
    pub(super) seeds: Grid,
    pub(super) eviction: Option<RawEviction>,
    pub(super) exit: Option<RawExit>,
    pub(super) pool: Option<RawPool>,
    pub(super) serve: Option<RawServe>,
    pub(super) trees: Option<RawTrees>,
    pub(super) tune: Option<RawTune>,
    pub(super) compare: Option<RawCompare>,
    #[serde(default)]
    pub(super) expect: Vec<RawExpect>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCompare {
    #[serde(default)]
    pub(super) baseline: Option<String>,
    #[serde(default)]
    pub(super) exit: Option<super::ExitPoint>,
    #[serde(default)]
    pub(super) by: super::Pairing,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawSource {
    pub(super) limit: Option<u32>,
    pub(super) fraction: Option<f64>,
    pub(super) stratify: Option<Strata>,
    pub(super) seed: Option<u64>,
}

impl RawSource {
    pub(super) fn flags(&self) -> SourceFlags {
        SourceFlags { limit: self.limit, fraction: self.fraction, stratify: self.stratify, seed: self.seed }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = schema::eviction)]
pub(super) struct RawEviction {
    // The other names are those of the flags of `kvlab replay`, which are the field's.
    #[serde(alias = "kv_budget")]
    pub(super) budgets: Grid,
    #[serde(default = "default_recent", alias = "recent_buffer")]
    pub(super) recent: u32,
    #[serde(default = "default_sinks", alias = "sink_tokens")]
    pub(super) sinks: u32,
    #[serde(default, alias = "evict_every")]
    pub(super) period: Option<u32>,
    #[serde(default, alias = "window_size")]
    pub(super) window: Option<u32>,
    #[serde(default = "default_error_every")]
    pub(super) output_error_every: u32,
    #[serde(default)]
    pub(super) next_token_every: Option<u32>,
    #[serde(default)]
    pub(super) retained: Option<super::RetainedPlace>,
    #[serde(default = "default_block")]
    pub(super) block_tokens: u32,
    #[serde(default = "default_scalar")]
    pub(super) bytes_per_scalar: u32,
    pub(super) policies: Vec<RawPolicy>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = schema::composition)]
pub(super) struct RawPolicy {
    #[serde(rename = "use")]
    pub(super) composition: Option<String>,
    pub(super) label: Option<String>,
    #[serde(default, rename = "with", deserialize_with = "params")]
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub(super) params: RawParams,
    pub(super) stack: Option<RawStack>,
    #[serde(default)]
    #[schemars(schema_with = "schema::attend")]
    pub(super) attend: Option<RawPart>,
    #[serde(default)]
    #[schemars(schema_with = "schema::store")]
    pub(super) store: Option<RawPart>,
    #[serde(default)]
    pub(super) granularity: Option<Granularity>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStack {
    #[serde(default)]
    #[schemars(schema_with = "schema::score")]
    pub(super) score: Option<RawPart>,
    #[serde(default)]
    #[schemars(schema_with = "schema::reserve")]
    pub(super) reserve: Option<RawPart>,
    #[serde(default)]
    #[schemars(schema_with = "schema::select")]
    pub(super) select: Option<RawPart>,
    #[serde(default)]
    #[schemars(schema_with = "schema::budget")]
    pub(super) budget: Option<RawPart>,
    #[serde(default)]
    #[schemars(schema_with = "schema::schedule")]
    pub(super) schedule: Option<RawPart>,
    #[serde(default)]
    pub(super) order: KeepOrder,
    #[serde(default)]
    pub(super) sinks: Option<u32>,
    #[serde(default)]
    #[schemars(schema_with = "schema::attend")]
    pub(super) attend: Option<RawPart>,
    #[serde(default)]
    #[schemars(schema_with = "schema::store")]
    pub(super) store: Option<RawPart>,
    #[serde(default)]
    pub(super) places: Places,
    #[serde(default)]
    pub(super) granularity: Granularity,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPart {
    pub(super) kind: String,
    #[serde(default, deserialize_with = "params")]
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub(super) params: RawParams,
}

impl From<RawPart> for Part {
    fn from(raw: RawPart) -> Self {
        Self { kind: raw.kind, params: raw.params }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawExit {
    #[serde(default = "default_lens")]
    pub(super) lens: Vec<Lens>,
    #[serde(default)]
    pub(super) unit: super::ThetaUnit,
    pub(super) theta: Grid,
    pub(super) epsilon: Grid,
    #[serde(default = "default_min_layer")]
    pub(super) min_layer: u16,
    #[serde(default = "default_patience")]
    pub(super) patience: u16,
    #[serde(default)]
    pub(super) hole_policy: super::HolePolicy,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPool {
    #[serde(default)]
    #[schemars(schema_with = "schema::stream")]
    pub(super) stream: Option<RawPart>,
    #[serde(deserialize_with = "texts")]
    #[schemars(schema_with = "schema::capacities")]
    pub(super) capacities: Vec<String>,
    #[serde(default)]
    pub(super) block_tokens: Option<u32>,
    #[serde(default = "default_in_flight")]
    pub(super) in_flight: u32,
    pub(super) policies: Vec<RawPoolPolicy>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTrees {
    pub(super) stacks: Vec<RawTreeStack>,
    #[serde(default = "all_axes")]
    pub(super) steps: Vec<Axis>,
    #[serde(default = "default_per_problem")]
    pub(super) per_problem: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = schema::pool_policy)]
pub(super) struct RawPoolPolicy {
    #[serde(rename = "use")]
    pub(super) id: String,
    pub(super) label: Option<String>,
    #[serde(default, rename = "with", deserialize_with = "params")]
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub(super) params: RawParams,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawServe {
    #[schemars(schema_with = "schema::cost")]
    pub(super) cost: RawPart,
    #[serde(deserialize_with = "served_problems")]
    #[schemars(schema_with = "schema::served_problems")]
    pub(super) problems: ServedProblems,
    #[serde(default)]
    pub(super) arrivals: Arrivals,
    pub(super) baseline: String,
    #[serde(default)]
    pub(super) against: Vec<String>,
    pub(super) arms: Vec<Arm>,
    #[serde(default)]
    pub(super) claims: Vec<Claim>,
}

fn default_in_flight() -> u32 {
    1
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTreeStack {
    pub(super) label: String,
    #[serde(default)]
    #[schemars(schema_with = "schema::share")]
    pub(super) share: Option<RawPart>,
    #[serde(default)]
    #[schemars(schema_with = "schema::verify")]
    pub(super) verify: Option<RawPart>,
    #[serde(default)]
    #[schemars(schema_with = "schema::exit")]
    pub(super) exit: Option<RawPart>,
    #[serde(default)]
    #[schemars(schema_with = "schema::winner")]
    pub(super) winner: Option<RawPart>,
    #[serde(default)]
    pub(super) decode_exit: Option<DecodeExit>,
    #[serde(default)]
    #[schemars(schema_with = "schema::sweep")]
    pub(super) sweep: RawSweep,
    #[serde(default)]
    #[schemars(schema_with = "schema::sweep")]
    pub(super) zip: RawSweep,
}

/// The stack of a serving arm: one of `trees`, at one point.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawArmStack {
    #[serde(default)]
    #[schemars(schema_with = "schema::share")]
    pub(super) share: Option<RawPart>,
    #[serde(default)]
    #[schemars(schema_with = "schema::verify")]
    pub(super) verify: Option<RawPart>,
    #[serde(default)]
    #[schemars(schema_with = "schema::exit")]
    pub(super) exit: Option<RawPart>,
    #[serde(default)]
    #[schemars(schema_with = "schema::winner")]
    pub(super) winner: Option<RawPart>,
    #[serde(default)]
    pub(super) decode_exit: Option<DecodeExit>,
}

/// Its parts.
pub(super) fn arm_stack<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TreeParts>, D::Error> {
    let raw = Option::<RawArmStack>::deserialize(deserializer)?;
    Ok(raw.map(|RawArmStack { share, verify, exit, winner, decode_exit }| {
        tree_parts([share, verify, exit, winner], decode_exit)
    }))
}

/// Share, verify, exit and winner, each the full pipeline's where none is given.
pub(super) fn tree_parts(given: [Option<RawPart>; 4], decode_exit: Option<DecodeExit>) -> TreeParts {
    let full = TreeParts::default();
    let part = |given: Option<RawPart>, default: Part| given.map_or(default, Part::from);
    let [share, verify, exit, winner] = given;
    TreeParts {
        share: part(share, full.share),
        verify: part(verify, full.verify),
        exit: part(exit, full.exit),
        winner: part(winner, full.winner),
        decode_exit,
    }
}

/// `recorded`, or the sizes of generated problems.
fn served_problems<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ServedProblems, D::Error> {
    deserializer.deserialize_any(ServedVisitor)
}

struct ServedVisitor;

impl<'de> Visitor<'de> for ServedVisitor {
    type Value = ServedProblems;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "`recorded`, or the sizes of generated problems: {count, root_tokens, suffix_tokens, ...}",
        )
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ServedProblems, E> {
        match text {
            "recorded" => Ok(ServedProblems::Recorded),
            other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ServedProblems, A::Error> {
        ProblemSizes::deserialize(de::value::MapAccessDeserializer::new(map)).map(ServedProblems::Sizes)
    }
}

/// Parameters to sweep, by `family.parameter`, in the order of the file.
#[derive(Debug, Default)]
pub(super) struct RawSweep(pub(super) Vec<(String, Grid)>);

impl<'de> Deserialize<'de> for RawSweep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SweepVisitor)
    }
}

struct SweepVisitor;

impl<'de> Visitor<'de> for SweepVisitor {
    type Value = RawSweep;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from `family.parameter` to the values to sweep, e.g. `share.tau: [0.8, 0.9]`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawSweep, A::Error> {
        let mut sweep: Vec<(String, Grid)> = Vec::new();
        while let Some((key, grid)) = map.next_entry::<String, Grid>()? {
            if sweep.iter().any(|(known, _)| *known == key) {
                return Err(de::Error::custom(format!("duplicate entry with key {key:?}")));
            }
            sweep.push((key, grid));
        }
        Ok(RawSweep(sweep))
    }
}

fn all_axes() -> Vec<Axis> {
    Axis::ALL.to_vec()
}
fn default_per_problem() -> bool {
    true
}
fn default_seeds() -> Grid {
    Grid::of(&[0.0])
}
fn default_recent() -> u32 {
    16
}
fn default_sinks() -> u32 {
    4
}
fn default_error_every() -> u32 {
    8
}
fn default_block() -> u32 {
    16
}
fn default_scalar() -> u32 {
    2
}
fn default_lens() -> Vec<Lens> {
    vec![Lens::FinalNorm]
}
fn default_min_layer() -> u16 {
    2
}
fn default_patience() -> u16 {
    1
}

/// Parameters stay opaque here: the policy that owns them reads them.
fn params<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RawParams, D::Error> {
    serde_yaml::Value::deserialize(deserializer).map(RawParams::from_yaml)
}

/// One value or a list of them, as texts; a share keeps its point.
fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let text = |value: serde_yaml::Value| match value {
        serde_yaml::Value::String(text) => Ok(text),
        serde_yaml::Value::Number(number) if number.is_f64() => {
            Ok(format!("{:?}", number.as_f64().unwrap_or(f64::NAN)))
        }
        serde_yaml::Value::Number(number) => Ok(number.to_string()),
        _ => Err(serde::de::Error::custom("expected a number or a text")),
    };
    match serde_yaml::Value::deserialize(deserializer)? {
        serde_yaml::Value::Sequence(values) => values.into_iter().map(text).collect(),
        value => Ok(vec![text(value)?]),
    }
}

/// Parses `text`, which came from `file`.
pub(super) fn parse(text: &str, file: &str) -> Result<RawScenario, ScenarioError> {
    if let Some(line) = too_deep(text) {
        let reason = format!("more than {DEEPEST} opening brackets; a scenario needs a handful");
        let kind = Box::new(ScenarioErrorKind::Syntax { line, column: 1, reason, hint: None });
        return Err(ScenarioError { file: file.to_owned(), kind });
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    serde_yaml::from_str(text).map_err(|error| {
        let (mut line, mut column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let reason = error.to_string();
        let mut reason = reason.split(" at line ").next().unwrap_or(&reason).to_owned();
        // The parser points at the map; a person looks for the two keys.
        if let Some(key) = duplicate_key(&reason)
            && let Some([(first, first_name), (again, again_name)]) = key_lines(text, &spellings(key), line)
        {
            reason += &match first_name == again_name {
                true => format!(" (first on line {})", first.0),
                false => format!(": `{again_name}` is the same as `{first_name}` on line {}", first.0),
            };
            (line, column) = again;
        }
        let hint = key_hint(&reason);
        // A file that is no scenario at all is not to be printed in full.
        if let Some((end, _)) = reason.char_indices().nth(400) {
            reason.truncate(end);
            reason.push_str(" ...");
        }
        let kind = Box::new(ScenarioErrorKind::Syntax { line, column, reason, hint });
        ScenarioError { file: file.to_owned(), kind }
    })
}

/// What stands at `path` (`a.b[2].c`) of a text that was parsed before; null where there is nothing.
pub(super) fn at(text: &str, path: &str) -> serde_json::Value {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let whole: serde_json::Value = serde_yaml::from_str(text).unwrap_or_default();
    let mut place = &whole;
    for part in path.split(['.', '[']) {
        place = match part.strip_suffix(']').map(str::parse::<usize>) {
            Some(Ok(index)) => &place[index],
            _ => &place[part],
        };
    }
    place.clone()
}

/// The parser's time grows with the square of the nesting.
const DEEPEST: usize = 200;

/// The line on which brackets are open more than [`DEEPEST`] deep, if there is one.
fn too_deep(text: &str) -> Option<usize> {
    let mut open = 0usize;
    for (at, line) in text.lines().enumerate() {
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
            if open > DEEPEST {
                return Some(at + 1);
            }
        }
    }
    None
}

/// The key of "duplicate field `x`" or "duplicate entry with key \"x\"".
fn duplicate_key(reason: &str) -> Option<&str> {
    let (_, rest) = reason.split_once("duplicate ")?;
    rest.split(['`', '"']).nth(1)
}

/// All names of a key.
fn spellings(key: &str) -> Vec<&str> {
    let of_key = schema::SECOND_NAMES.iter().find(|(ours, theirs)| [ours, theirs].contains(&&key));
    of_key.map_or_else(|| vec![key], |(ours, theirs)| vec![ours, theirs])
}

/// Line and column of a key, and its name.
type KeyPlace<'a> = ((usize, usize), &'a str);

/// The first two of `keys`, all names of one key, in one block map that starts at or after line `from`.
fn key_lines<'a>(text: &str, keys: &[&'a str], from: usize) -> Option<[KeyPlace<'a>; 2]> {
    let mut first: Option<KeyPlace<'a>> = None;
    for (at, line) in text.lines().enumerate().skip(from.saturating_sub(1)) {
        let content = line.trim_start_matches([' ', '-']);
        let indent = line.len() - content.len();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        if first.is_some_and(|((_, column), _)| indent + 1 < column) {
            first = None;
        }
        let is_here =
            |key: &&&str| content.strip_prefix(**key).is_some_and(|rest| rest.trim_start().starts_with(':'));
        if let Some(key) = keys.iter().find(is_here) {
            let here = ((at + 1, indent + 1), *key);
            match first {
                Some(before) if before.0.1 == indent + 1 => return Some([before, here]),
                Some(_) => {}
                None => first = Some(here),
            }
        }
    }
    None
}

/// For "unknown field `x`, expected one of `a`, `b`": the expected key nearest to `x`.
fn key_hint(reason: &str) -> Option<String> {
    let mut quoted = reason.split('`').skip(1).step_by(2);
    if !reason.contains("unknown field") && !reason.contains("unknown variant") {
        return None;
    }
    let given = quoted.next()?;
    nearest(given, quoted).map(str::to_owned)
}
