//! Parameters as one line of YAML, for pasting.

use serde_json::Value;

/// A value in flow style.
pub(super) fn flow(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let entries: Vec<String> =
                map.iter().map(|(key, value)| format!("{key}: {}", flow(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Array(values) => {
            format!("[{}]", values.iter().map(flow).collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => plain_or_quoted(text),
        other => other.to_string(),
    }
}

/// A text as it is where every YAML reader takes it for one, else in quotes.
pub(super) fn plain_or_quoted(text: &str) -> String {
    const WORDS: [&str; 10] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan"];
    let is_plain = text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !WORDS.contains(&text);
    // JSON's quoted strings are YAML's.
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}
