//! The language of scenarios as a JSON Schema, for editors: keys and types from the structs that are parsed, ids and parameters from the
//! registries, meanings from the comments of `scenarios/reference.yaml`.
//!
//! A scenario that it refuses is refused by [`super::Scenario::parse`] too, but for texts without quotes that YAML reads as numbers (`label: 16`). The other way
//! round it cannot know everything: whether a budget holds what a policy must keep, say.

use super::raw::RawScenario;
use crate::cost::COSTS;
use crate::metrics::{METRICS, Scope};
use crate::policy::registry::{self, Listed};
use crate::policy::{Family, ParamDoc};
use crate::pool::synth::STREAMS;
use crate::results::cell_columns;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// The schema of scenarios (draft 7, which editors know best), with what the comments of `reference`, the text of `scenarios/reference.yaml`, say about keys.
#[must_use]
pub fn schema(reference: &str) -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<RawScenario>().to_value();
    schema["title"] = "kvlab scenario".into();
    // What many keys without a meaning of their own have in common.
    let one_or_more = |kind: &str| {
        let one = json!({"type": [kind, "null"]});
        json!({"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]})
    };
    schema["definitions"] = json!({
        "grid": grid(),
        "text": one_or_more("string"),
        "number": one_or_more("number"),
        "truth": one_or_more("boolean"),
    });
    for (path, meaning) in meanings(reference) {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        if let Some(place) = at(&mut schema, &path).and_then(Value::as_object_mut) {
            place.insert("description".to_owned(), meaning.into());
        }
    }
    schema
}

/// A policy of a family with its parameters: `{kind, params}`.
fn part(family: Family) -> Schema {
    let listed = of_family(family);
    let ids: Vec<&str> = listed.iter().map(|listed| listed.spec.id).collect();
    let mut schema = json!({
        "type": ["object", "null"],
        "properties": {
            "kind": {"type": "string", "enum": ids},
            "params": {"type": ["object", "null"]},
        },
        "required": ["kind"],
        "additionalProperties": false,
    });
    schema["allOf"] = by_id(&listed, "kind", "params");
    to_schema(schema)
}

fn of_family(family: Family) -> Vec<Listed> {
    registry::all().into_iter().filter(|listed| listed.spec.family == family).collect()
}

/// What stands under `params` where `id` is that of a policy.
fn by_id(listed: &[Listed], id: &str, params: &str) -> Value {
    let one = |listed: &Listed| {
        json!({
            "if": {"properties": {id: {"const": listed.spec.id}}, "required": [id]},
            "then": {"properties": {
                id: {"description": listed.spec.summary},
                params: parameters(&listed.defaults, listed.docs),
            }},
        })
    };
    listed.iter().map(one).collect()
}

/// Parameters by their defaults, whose types are theirs. A parameter may be null where that stands for something, which a default does not tell.
fn parameters(defaults: &Value, docs: &[ParamDoc]) -> Value {
    let one = |(name, default): (&String, &Value)| {
        let mut schema = Map::new();
        let kind = match default {
            Value::Null => None,
            Value::Bool(_) => Some("boolean"),
            Value::Number(number) if number.is_f64() => Some("number"),
            Value::Number(_) => Some("integer"),
            Value::String(_) => Some("string"),
            Value::Array(_) => Some("array"),
            Value::Object(_) => Some("object"),
        };
        if let Some(kind) = kind {
            schema.insert("type".to_owned(), json!([kind, "null"]));
        }
        if let Some(doc) = docs.iter().find(|doc| doc.name == name) {
            schema.insert("description".to_owned(), doc.meaning.into());
        }
        schema.insert("default".to_owned(), default.clone());
        (name.clone(), Value::Object(schema))
    };
    let properties: Map<String, Value> = defaults.as_object().into_iter().flatten().map(one).collect();
    json!({"type": ["object", "null"], "properties": properties, "additionalProperties": false})
}

fn to_schema(value: Value) -> Schema {
    Schema::try_from(value).unwrap_or_default()
}

macro_rules! parts {
    ($($name:ident: $family:ident),* $(,)?) => {
        $(pub(super) fn $name(_: &mut SchemaGenerator) -> Schema {
            part(Family::$family)
        })*
    };
}
parts! {
    attend: Attend, budget: Budget, exit: Exit, reserve: Reserve, schedule: Schedule, score: Score, select: Select, share: Share, store: Store,
    verify: Verify, winner: Winner,
}

/// A composition with its parameters, or a stack: what a policy of an eviction study is.
pub(super) fn composition(schema: &mut Schema) {
    with_policy(schema, Family::Composition);
    schema.insert("oneOf".to_owned(), json!([{"required": ["use"]}, {"required": ["stack", "label"]}]));
}

/// A policy of a cache of blocks with its parameters.
pub(super) fn pool_policy(schema: &mut Schema) {
    with_policy(schema, Family::Pool);
}

fn with_policy(schema: &mut Schema, family: Family) {
    let listed = of_family(family);
    let ids: Vec<&str> = listed.iter().map(|listed| listed.spec.id).collect();
    if let Some(place) = schema.ensure_object().get_mut("properties").and_then(Value::as_object_mut) {
        place.insert("use".to_owned(), json!({"type": "string", "enum": ids}));
    }
    schema.insert("allOf".to_owned(), by_id(&listed, "use", "with"));
}

/// Keys of an eviction study with their second names.
pub(super) const SECOND_NAMES: &[(&str, &str)] = &[
    ("budgets", "kv_budget"),
    ("recent", "recent_buffer"),
    ("sinks", "sink_tokens"),
    ("period", "evict_every"),
    ("window", "window_size"),
];

/// The second names of keys of an eviction study.
pub(super) fn eviction(schema: &mut Schema) {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for (ours, theirs) in SECOND_NAMES {
            let mut same = properties.get(*ours).cloned().unwrap_or_else(|| json!({}));
            same["description"] = format!("the same as `{ours}`").into();
            properties.insert((*theirs).to_owned(), same);
        }
    }
    // One of two names is needed, which a schema that may be null as a whole says only at the price of a layer around it: the parser says it.
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|key| key != "budgets");
    }
}

/// Where requests come from.
pub(super) fn stream(_: &mut SchemaGenerator) -> Schema {
    let ids: Vec<&str> = ["trace"].into_iter().chain(STREAMS.iter().map(|stream| stream.id)).collect();
    let one = |stream: &crate::pool::synth::Generated| {
        json!({
            "if": {"properties": {"kind": {"const": stream.id}}, "required": ["kind"]},
            "then": {"properties": {
                "kind": {"description": stream.summary},
                "params": parameters(&stream.defaults(), &[]),
            }},
        })
    };
    to_schema(json!({
        "type": ["object", "null"],
        "properties": {"kind": {"type": "string", "enum": ids}, "params": {"type": ["object", "null"]}},
        "required": ["kind"],
        "additionalProperties": false,
        "allOf": STREAMS.iter().map(one).collect::<Vec<_>>(),
    }))
}

/// A cost model. Its parameters are its own.
pub(super) fn cost(_: &mut SchemaGenerator) -> Schema {
    let ids: Vec<&str> = COSTS.iter().map(|cost| cost.id).collect();
    to_schema(json!({
        "type": "object",
        "properties": {"kind": {"type": "string", "enum": ids}, "params": {"type": ["object", "null"]}},
        "required": ["kind"],
        "additionalProperties": false,
    }))
}

/// `recorded`, or sizes.
pub(super) fn served_problems(generator: &mut SchemaGenerator) -> Schema {
    let sizes = super::serve::ProblemSizes::json_schema(generator);
    json_schema!({"anyOf": [{"type": "string", "enum": ["recorded"]}, sizes]})
}

/// One capacity or a list of them: blocks, bytes or a share.
pub(super) fn capacities(_: &mut SchemaGenerator) -> Schema {
    let one = json!({"type": ["number", "string"]});
    json_schema!({"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]})
}

/// Any parameter of a part of a stack over branch trees that may be a number.
pub(super) fn sweep(_: &mut SchemaGenerator) -> Schema {
    let mut properties = Map::new();
    for listed in registry::all() {
        let family = listed.spec.family;
        if !matches!(family, Family::Share | Family::Verify | Family::Exit | Family::Winner) {
            continue;
        }
        for (name, default) in listed.defaults.as_object().into_iter().flatten() {
            if default.is_number() || default.is_null() {
                properties.insert(format!("{}.{name}", family.word()), json!({"$ref": "#/definitions/grid"}));
            }
        }
    }
    to_schema(json!({"type": "object", "properties": properties, "additionalProperties": false}))
}

/// A metric of `cells`.
pub(super) fn metric(_: &mut SchemaGenerator) -> Schema {
    let in_cells = |metric: &&crate::metrics::Metric| !matches!(metric.scope, Scope::Series { .. });
    let ids: Vec<&str> = METRICS.iter().filter(in_cells).map(|metric| metric.id).collect();
    json_schema!({"type": "string", "enum": ids})
}

/// A metric of `cells`, or what stands beside one.
pub(super) fn metric_column(_: &mut SchemaGenerator) -> Schema {
    let columns = cell_columns();
    let ids: Vec<&str> =
        columns.iter().filter(|column| column.is_metric).map(|column| column.name.as_str()).collect();
    json_schema!({"type": "string", "enum": ids})
}

/// Values of columns of `cells`.
pub(super) fn rows(_: &mut SchemaGenerator) -> Schema {
    let one = |column: crate::results::CellColumn| {
        let kind = match column.kind {
            "text" => "text",
            "bool" => "truth",
            _ => "number",
        };
        (column.name, json!({"$ref": format!("#/definitions/{kind}")}))
    };
    let properties: Map<String, Value> = cell_columns().into_iter().map(one).collect();
    to_schema(json!({"type": "object", "properties": properties, "additionalProperties": false}))
}

impl JsonSchema for super::Grid {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Grid".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        to_schema(grid())
    }
}

/// A number, a list of numbers, or a range.
fn grid() -> Value {
    json!({"anyOf": [
        {"type": "number"},
        {"type": "array", "items": {"type": "number"}, "minItems": 1},
        {
            "type": "object",
            "properties": {
                "from": {"type": "number"},
                "to": {"type": "number"},
                "steps": {"type": "integer", "minimum": 1, "maximum": 100_000},
                "scale": {"type": "string", "enum": ["linear", "log"]},
            },
            "required": ["from", "to", "steps"],
            "additionalProperties": false,
        },
    ]})
}

/// The place of the key at `path`; `[]` is any element of a list.
fn at<'v>(schema: &'v mut Value, path: &[&str]) -> Option<&'v mut Value> {
    let Some((first, rest)) = path.split_first() else { return Some(schema) };
    let is_there = |schema: &Value| match *first {
        "[]" => schema.get("items").is_some_and(Value::is_object),
        key => schema.get("properties").is_some_and(|properties| properties.get(key).is_some()),
    };
    // Something that may be left out is one of several.
    let place = if is_there(schema) {
        schema
    } else {
        schema.get_mut("anyOf")?.as_array_mut()?.iter_mut().find(|one| is_there(one))?
    };
    match *first {
        "[]" => at(&mut place["items"], rest),
        key => at(&mut place["properties"][key], rest),
    }
}

/// What the comments of a scenario say about its keys, by their paths: behind the key, or above it at the left margin.
fn meanings(text: &str) -> Vec<(Vec<String>, String)> {
    let mut found: Vec<(Vec<String>, String)> = Vec::new();
    let mut open: Vec<(usize, String)> = Vec::new();
    let mut above: Vec<&str> = Vec::new();
    // Column of the last comment behind a key: one below it goes on.
    let mut behind: Option<usize> = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        let column = line.len() - trimmed.len();
        if let Some(comment) = trimmed.strip_prefix('#') {
            match (behind, found.last_mut()) {
                (Some(known), Some((_, meaning))) if known == column => {
                    *meaning = format!("{meaning} {}", comment.trim());
                }
                _ if column == 0 => above.push(comment.trim()),
                _ => {}
            }
            continue;
        }
        behind = None;
        if trimmed.is_empty() {
            above.clear();
            continue;
        }
        let (content, comment) = match trimmed.split_once(" # ") {
            Some((content, comment)) => (content, Some(comment.trim())),
            None => (trimmed, None),
        };
        let (mut content, mut column) = (content, column);
        open.retain(|(known, _)| *known < column);
        if let Some(item) = content.strip_prefix("- ") {
            open.push((column, "[]".to_owned()));
            content = item.trim_start();
            column += 2;
        }
        let Some((key, _)) = content.split_once(':').filter(|(key, _)| !key.contains(['{', '[', ' '])) else {
            continue;
        };
        open.push((column, key.to_owned()));
        let path = || open.iter().map(|(_, key)| key.clone()).collect::<Vec<_>>();
        let known = |path: &Vec<String>| found.iter().any(|(known, _)| known == path);
        if column == 0 && !above.is_empty() {
            found.push((path(), above.join(" ")));
        } else if let Some(comment) = comment
            && !known(&path())
        {
            found.push((path(), comment.to_owned()));
            behind = line.find(" # ").map(|at| at + 1);
        }
        above.clear();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_behind_keys_and_above_sections_are_found_and_go_on() {
        let text = "# About the file.\n\nid: x   # an id\n        # of the file\n\n# A section\n# in two lines.\npart:\n  - use: a  # which\n    with: {}  # how\n  - use: b  # another\n";
        let found: Vec<(String, String)> =
            meanings(text).into_iter().map(|(path, meaning)| (path.join("."), meaning)).collect();
        let expected = [
            ("id", "an id of the file"),
            ("part", "A section in two lines."),
            ("part.[].use", "which"),
            ("part.[].with", "how"),
        ];
        assert_eq!(found, expected.map(|(path, meaning)| (path.to_owned(), meaning.to_owned())));
    }
}
