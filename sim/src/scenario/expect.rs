//! What a study's results are expected to be: asserted by `--check`.

use super::checked::value;
use super::{ScenarioErrorKind, nearest, schema};
use crate::results::{CellColumn, cell_columns};
use schemars::JsonSchema;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Slack where an expectation gives none, as a share of the bound (at least of 1): what another machine's last bits may do, and no more.
const USUAL_SLACK: f64 = 1e-9;

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawExpect {
    #[schemars(schema_with = "schema::metric_column")]
    metric: String,
    #[serde(default, rename = "where")]
    #[schemars(schema_with = "schema::rows")]
    rows: RawRows,
    #[serde(default)]
    arm: Option<ExpectedArm>,
    #[serde(default)]
    at_least: Option<f64>,
    #[serde(default)]
    at_most: Option<f64>,
    #[serde(default)]
    equals: Option<f64>,
    #[serde(default)]
    within: Option<f64>,
}

/// The results that an expectation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExpectedArm {
    /// Of a replay: `kvlab sweep` and `kvlab merge`.
    Replay,
    /// Of the model: `kvlab exec`.
    Real,
}

impl ExpectedArm {
    /// The word in the column `arm`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Real => "real",
        }
    }
}

/// One value that a column of `cells` may have.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// A text.
    Text(String),
    /// A number.
    Number(f64),
    /// Yes or no.
    Bool(bool),
    /// No value.
    Absent,
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
            Self::Bool(truth) => write!(f, "{truth}"),
            Self::Absent => f.write_str("null"),
        }
    }
}

/// What a column of every row that is meant is to be: one of these values.
#[derive(Clone, Debug, Default)]
struct RawRows(Vec<(String, Wanted)>);

/// One value or a list of them.
#[derive(Clone, Debug)]
struct Wanted(Vec<Scalar>);

impl<'de> Deserialize<'de> for RawRows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RowsVisitor)
    }
}

struct RowsVisitor;

impl<'de> Visitor<'de> for RowsVisitor {
    type Value = RawRows;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a map from columns of `cells` to values, e.g. {policy: snapkv, budget_tokens: [64, 128]}",
        )
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawRows, A::Error> {
        let mut rows: Vec<(String, Wanted)> = Vec::new();
        while let Some((key, wanted)) = map.next_entry::<String, Wanted>()? {
            if rows.iter().any(|(known, _)| *known == key) {
                return Err(de::Error::custom(format!("duplicate entry with key {key:?}")));
            }
            rows.push((key, wanted));
        }
        Ok(RawRows(rows))
    }
}

impl<'de> Deserialize<'de> for Wanted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WantedVisitor { may_be_list: true }).map(Self)
    }
}

struct One(Scalar);

impl<'de> Deserialize<'de> for One {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let one = deserializer.deserialize_any(WantedVisitor { may_be_list: false })?;
        Ok(Self(one.into_iter().next().unwrap_or(Scalar::Absent)))
    }
}

struct WantedVisitor {
    may_be_list: bool,
}

#[expect(clippy::cast_precision_loss, reason = "tokens, seeds and counts stay below 2^53")]
impl<'de> Visitor<'de> for WantedVisitor {
    type Value = Vec<Scalar>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, true, false, null, or a list of them")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<Scalar>, E> {
        Ok(vec![Scalar::Text(text.to_owned())])
    }

    fn visit_bool<E: de::Error>(self, truth: bool) -> Result<Vec<Scalar>, E> {
        Ok(vec![Scalar::Bool(truth)])
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Vec<Scalar>, E> {
        Ok(vec![Scalar::Number(number)])
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Vec<Scalar>, E> {
        self.visit_f64(number as f64)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Vec<Scalar>, E> {
        self.visit_f64(number as f64)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Vec<Scalar>, E> {
        Ok(vec![Scalar::Absent])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Scalar>, A::Error> {
        if !self.may_be_list {
            return Err(de::Error::custom(
                "a list in a list; expected a text, a number, true, false or null",
            ));
        }
        let mut values = Vec::new();
        while let Some(One(value)) = seq.next_element()? {
            values.push(value);
        }
        Ok(values)
    }
}

/// What a metric of some rows of `cells` is expected to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// A column of `cells` that holds numbers: a metric, or what stands beside one (`_lo`, `_num`, …).
    pub metric: String,
    /// Columns that rows are told apart by, each with the values that are meant; none for every row.
    pub rows: Vec<(String, Vec<Scalar>)>,
    /// The results that it is about; absent for any.
    pub arm: Option<ExpectedArm>,
    /// Least value.
    pub at_least: Option<f64>,
    /// Largest value.
    pub at_most: Option<f64>,
    /// The value.
    pub equals: Option<f64>,
    /// By how much a value may miss a bound; absent for what rounding does.
    pub within: Option<f64>,
}

impl Expectation {
    /// Whether `found` is as expected.
    #[must_use]
    pub fn holds(&self, found: f64) -> bool {
        let slack = |bound: f64| self.within.unwrap_or(USUAL_SLACK * bound.abs().max(1.0));
        self.at_least.is_none_or(|least| found >= least - slack(least))
            && self.at_most.is_none_or(|most| found <= most + slack(most))
            && self.equals.is_none_or(|value| (found - value).abs() <= slack(value))
    }
}

/// `pool_hit_rate at least 0.2 where policy is belady, seed is 0 or 1`.
impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.metric)?;
        let bounds = [("at least", self.at_least), ("at most", self.at_most), ("equal to", self.equals)];
        let words: Vec<String> =
            bounds.iter().filter_map(|(word, bound)| bound.map(|bound| format!(" {word} {bound}"))).collect();
        f.write_str(&words.join(" and"))?;
        if let Some(within) = self.within {
            write!(f, " within {within}")?;
        }
        for (at, (column, values)) in self.rows.iter().enumerate() {
            let values: Vec<String> = values.iter().map(ToString::to_string).collect();
            write!(f, "{} {column} is {}", if at == 0 { " where" } else { "," }, values.join(" or "))?;
        }
        Ok(())
    }
}

pub(super) fn checked(raw: Vec<RawExpect>) -> Result<Vec<Expectation>, ScenarioErrorKind> {
    let columns = cell_columns();
    let known = |name: &str, path: &str, what: &str| -> Result<CellColumn, ScenarioErrorKind> {
        columns.iter().find(|column| column.name == name).cloned().ok_or_else(|| {
            let near = nearest(name, columns.iter().map(|column| column.name.as_str()));
            let hint = near.map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"));
            value(path, &format!("`{name}`"), &format!("{what}{hint}"))
        })
    };
    let one = |at: usize, raw: RawExpect| {
        let path = format!("expect[{at}]");
        let what = "a metric of `kvlab list metrics` that is in `cells`, or a column beside one";
        let metric = known(&raw.metric, &format!("{path}.metric"), what)?;
        if !metric.is_metric || metric.kind == "text" {
            return Err(value(&format!("{path}.metric"), &format!("`{}`", raw.metric), what));
        }
        for (name, bound) in [
            ("at_least", raw.at_least),
            ("at_most", raw.at_most),
            ("equals", raw.equals),
            ("within", raw.within),
        ] {
            if let Some(bound) = bound.filter(|bound| !bound.is_finite()) {
                return Err(value(&format!("{path}.{name}"), &bound.to_string(), "a finite number"));
            }
        }
        if let Some(within) = raw.within.filter(|within| *within < 0.0) {
            return Err(value(&format!("{path}.within"), &within.to_string(), "0 or more"));
        }
        let has_range = raw.at_least.is_some() || raw.at_most.is_some();
        if has_range == raw.equals.is_some() {
            let found = if has_range { "a range and `equals`" } else { "no bound" };
            return Err(value(&path, found, "`at_least`, `at_most`, both of them, or `equals`"));
        }
        if let (Some(least), Some(most)) = (raw.at_least, raw.at_most)
            && least > most
        {
            return Err(value(&format!("{path}.at_least"), &least.to_string(), &format!("at most {most}")));
        }
        let mut rows = Vec::new();
        for (name, Wanted(values)) in raw.rows.0 {
            let path = format!("{path}.where.{name}");
            let column = known(&name, &path, "a column of `cells`")?;
            let fits = |found: &Scalar| match found {
                Scalar::Text(_) => column.kind == "text",
                Scalar::Number(_) => matches!(column.kind, "int" | "real"),
                Scalar::Bool(_) => column.kind == "bool",
                Scalar::Absent => true,
            };
            if values.is_empty() {
                return Err(value(&path, "an empty list", "at least one value"));
            }
            if let Some(other) = values.iter().find(|value| !fits(value)) {
                let accepted = match column.kind {
                    "text" => "a text",
                    "bool" => "true or false",
                    _ => "a number",
                };
                return Err(value(&path, &format!("`{other}`"), &format!("{accepted}, or null")));
            }
            rows.push((name, values));
        }
        Ok(Expectation {
            metric: raw.metric,
            rows,
            arm: raw.arm,
            at_least: raw.at_least,
            at_most: raw.at_most,
            equals: raw.equals,
            within: raw.within,
        })
    };
    raw.into_iter().enumerate().map(|(at, raw)| one(at, raw)).collect()
}
