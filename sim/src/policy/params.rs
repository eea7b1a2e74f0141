//! From the `params` of a scenario to a policy's own `Params`, with the path in the error.

use super::PolicyError;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A table of the program, written in YAML; the reason as text when it does not fit.
pub(crate) fn from_yaml_text<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_yaml::from_str(text).map_err(|error| error.to_string())
}

/// The parameters of one policy as they stood in the scenario; `Default` means none were given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawParams(serde_yaml::Value);

impl RawParams {
    /// Wraps a YAML value; a missing or null value means "all defaults".
    #[must_use]
    pub fn from_yaml(value: serde_yaml::Value) -> Self {
        Self(value)
    }

    /// Parameters built in code, for tests and compositions.
    ///
    /// # Errors
    /// When `params` cannot be represented (a map with non-string keys, say).
    pub fn from_params<P: Serialize>(params: &P) -> Result<Self, PolicyError> {
        serde_yaml::to_value(params).map(Self).map_err(|error| PolicyError::BadParams {
            kind: "params".to_owned(),
            path: ".".to_owned(),
            reason: error.to_string(),
        })
    }

    /// The same parameters with another value of a number. A whole number stays one, for parameters that count.
    #[must_use]
    pub fn with(&self, name: &str, value: f64) -> Self {
        let mut map = self.0.as_mapping().cloned().unwrap_or_default();
        #[expect(clippy::cast_possible_truncation, reason = "whole and within the range of i64, checked")]
        let number = if value.fract().to_bits() == 0 && value.abs() < 1e15 {
            serde_yaml::Value::from(value as i64)
        } else {
            serde_yaml::Value::from(value)
        };
        map.insert(name.into(), number);
        Self(map.into())
    }

    /// Whether `name` is given, and not as null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// The policy's own parameters.
    ///
    /// # Errors
    /// When a key is unknown, or a value has the wrong type; the error holds the path and the accepted keys.
    pub fn parse<P: DeserializeOwned + Default>(&self, kind: &str) -> Result<P, PolicyError> {
        if self.0.is_null() {
            return Ok(P::default());
        }
        if let Some(path) = not_a_number(&self.0) {
            let reason = "found .nan, which is no number".to_owned();
            return Err(PolicyError::BadParams { kind: kind.to_owned(), path, reason });
        }
        serde_path_to_error::deserialize(self.0.clone()).map_err(|error| PolicyError::BadParams {
            kind: kind.to_owned(),
            path: error.path().to_string(),
            reason: error.inner().to_string(),
        })
    }
}

/// The path of the first number that is none.
fn not_a_number(value: &serde_yaml::Value) -> Option<String> {
    let inside = |key: String, value| {
        let path = not_a_number(value)?;
        Some(if path.is_empty() { key } else { format!("{key}.{path}") })
    };
    match value {
        serde_yaml::Value::Number(number) => number.is_nan().then(String::new),
        serde_yaml::Value::Sequence(values) => {
            values.iter().enumerate().find_map(|(at, value)| inside(format!("[{at}]"), value))
        }
        serde_yaml::Value::Mapping(map) => {
            map.iter().find_map(|(key, value)| inside(key.as_str().unwrap_or_default().to_owned(), value))
        }
        _ => None,
    }
}
