//! P14: parameters survive serialise → parse, and an unknown key is refused by name.

use super::Report;
use crate::policy::PolicyError;
use crate::policy::RawParams;

/// Checks P14 for one policy: `build` gives its effective parameters, `defaults` are those of its registry line.
#[must_use]
pub fn check_params(
    name: &str,
    defaults: &serde_json::Value,
    build: &dyn Fn(&RawParams) -> Result<serde_json::Value, PolicyError>,
) -> Report {
    let mut report = Report { subject: name.to_owned(), ..Report::default() };
    report.count("P14");
    let from = |value: &serde_json::Value| RawParams::from_params(value).and_then(|raw| build(&raw));
    let (given, absent) = (from(defaults), build(&RawParams::default()));
    // A policy that always refuses, for want of something no scenario can give, refuses both alike.
    let is_refused = matches!(absent, Err(PolicyError::Refused { .. }));
    if given != absent || (absent.is_err() && !is_refused) {
        report.find("P14", 0, format!("listed defaults give {given:?}, absent ones {absent:?}"));
    }
    let mut wrong = defaults.clone();
    if let Some(map) = wrong.as_object_mut() {
        map.insert("no_such_key".to_owned(), 1.into());
    }
    match from(&wrong) {
        Err(error) if error.to_string().contains("no_such_key") => {}
        other => report.find("P14", 0, format!("an unknown key gives {other:?}")),
    }
    report
}
