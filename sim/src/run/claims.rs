//! The table `claims`: published figures and ours as numbers, one row a claim that has both a kind and a number.

use super::serve::{ClaimResult, Measured};
use super::{RunError, claims};
use crate::results::{
    CLAIM_COLUMNS, RESULTS_VERSION, Results, ResultsManifest, SourceInfo, cells_table, series_table,
    sha256_hex, table_of,
};
use crate::scenario::{Measure, Scenario};
use crate::table::Value;

/// The claims of `scenarios` as results with no cell, made by `command`.
///
/// # Errors
/// As [`claims()`].
pub fn claim_results(scenarios: &[Scenario], command: &str) -> Result<Results, RunError> {
    let mut rows = Vec::new();
    for scenario in scenarios {
        rows.extend(claims(scenario)?.iter().map(|result| row(scenario, result)));
    }
    let joined = |of: fn(&Scenario) -> &str| scenarios.iter().map(of).collect::<Vec<_>>().join("\n");
    let scenario_text = joined(|scenario| &scenario.text);
    let manifest = ResultsManifest {
        version: RESULTS_VERSION,
        tool: concat!("kvlab ", env!("CARGO_PKG_VERSION")).to_owned(),
        scenario: "papers".to_owned(),
        why: joined(|scenario| &scenario.why),
        scenario_digest: sha256_hex(scenario_text.as_bytes()),
        scenario_text,
        sources: vec![SourceInfo {
            name: "generated problems".to_owned(),
            digest: String::new(),
            synthetic: true,
            model: "published protocols as numbers".to_owned(),
            provider: String::new(),
            sequences: 0,
            tokens: 0,
            layers: 0,
            q_heads: 0,
            kv_heads: 0,
            vocab: 0,
        }],
        command: command.to_owned(),
    };
    let more = vec![("claims".to_owned(), table_of(CLAIM_COLUMNS, &rows)?)];
    Ok(Results { manifest, cells: cells_table(&[])?, series: series_table(&[])?, more })
}

fn row(scenario: &Scenario, ClaimResult { claim, as_published, corrected }: &ClaimResult) -> Vec<Value> {
    let text = |value: &str| Value::Text(value.to_owned());
    let real = |value: Option<f64>| value.filter(|v| v.is_finite()).map_or(Value::Absent, Value::Real);
    let unit = claim.as_published.as_ref().or(claim.corrected.as_ref()).map(unit);
    let mut row = vec![
        text(&scenario.id),
        text(&claim.what),
        unit.map_or(Value::Absent, |unit| text(unit.word)),
        text(&claim.published),
        real(unit.and_then(|unit| unit.first_in(&claim.published))),
    ];
    for found in [as_published, corrected] {
        let value = found.as_ref().and_then(|found| found.value);
        let interval = found.as_ref().and_then(|Measured { interval, .. }| *interval);
        row.extend([real(value), real(interval.map(|ends| ends.0)), real(interval.map(|ends| ends.1))]);
    }
    row.push(text(&claim.why));
    row
}

/// In what a figure is said.
#[derive(Clone, Copy)]
struct Unit {
    word: &'static str,
    /// What follows a number in the published text, and what such a number is worth in our unit.
    signs: &'static [(&'static str, f64)],
}

fn unit(measure: &Measure) -> Unit {
    match measure {
        Measure::Speedup { .. } => Unit { word: "times", signs: &[("×", 1.0)] },
        Measure::Millis { .. } => Unit { word: "ms", signs: &[("ms", 1.0)] },
        // Published gigabytes of memory are GiB: the scenario says why.
        Measure::PeakGib { .. } => Unit { word: "GiB", signs: &[("GiB", 1.0), ("GB", 1.0)] },
        Measure::Share { .. } => Unit { word: "share", signs: &[("%", 0.01)] },
    }
}

impl Unit {
    /// The first number in `text` that stands before one of the signs.
    fn first_in(self, text: &str) -> Option<f64> {
        let found = self.signs.iter().filter_map(|(sign, worth)| {
            let at = text.find(sign)?;
            let before = text[..at].trim_end();
            let start = before
                .rfind(|c: char| !(c.is_ascii_digit() || c == '.'))
                .map_or(0, |last| last + before[last..].chars().next().map_or(1, char::len_utf8));
            Some((at, before[start..].parse::<f64>().ok()? * worth))
        });
        found.min_by_key(|(at, _)| *at).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_in_the_unit_is_what_was_published() {
        let times = unit(&Measure::Speedup { of: String::new(), over: String::new() });
        for (text, expected) in [
            ("1.343× (1.310× in the earlier commit)", Some(1.343)),
            ("410.9 / 132.9 = 3.09×", Some(3.09)),
            ("about 1.81 ×", Some(1.81)),
            ("not measured", None),
        ] {
            assert_eq!(times.first_in(text), expected, "{text}");
        }
        let gib = unit(&Measure::PeakGib { arm: String::new() });
        assert_eq!(gib.first_in("33.9 GB (DKV), 34.3 GB (AttnV)"), Some(33.9));
        let share = unit(&Measure::Share { num: 1, den: 2 });
        assert_eq!(share.first_in("28.6 % against 0 % exact").map(|v| (v * 1e6).round()), Some(286_000.0));
    }
}
