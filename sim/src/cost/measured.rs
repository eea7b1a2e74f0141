//! Times of passes, fitted by least squares: a sum of what a pass, each layer, token, attended pair, resident token read, head, product with
//! the unembedding and copied token takes.
//!
//! Measurements are data: lines of JSON that some recorder wrote (`kvlab record --times`), never a clock here. Relative errors are minimised,
//! so that short passes count like long ones. A coefficient that comes out negative is set to zero and the others are fitted again; what
//! nobody varied is part of what it went along with. The error of the fit is part of the model's parameters. In a pass through a part of
//! the layers, tokens, pairs and reads count by that part.

use super::{BatchCost, CostError, Row, Work, bad_params, nanos};
use crate::policy::RawParams;
use crate::types::Nanos;
use serde::{Deserialize, Serialize};

const TERMS: usize = 8;
const NAMES: [&str; TERMS] =
    ["pass", "layer", "token", "attended_pair", "read_token", "head", "head_product", "copied_token"];

/// One timed piece of work: a pass over `rows` sequences alike, a look through the head, or a copy of a part of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// What it is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// Sequences of the batch.
    #[serde(default = "one")]
    pub rows: u32,
    /// Tokens computed in each.
    pub new_tokens: u32,
    /// Resident tokens before them in each.
    pub context_tokens: u32,
    /// Layers that ran; absent for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<u16>,
    /// Positions whose logits were computed, over all rows.
    #[serde(default)]
    pub heads: u32,
    /// Products with the unembedding.
    #[serde(default = "one")]
    pub head_products: u32,
    /// Tokens whose keys and values were copied, in all layers.
    #[serde(default)]
    pub copied_tokens: u64,
    /// Duration in nanoseconds: what the model is fitted to.
    pub nanos: u64,
    /// Median over rounds in nanoseconds, where `nanos` is the least of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_nanos: Option<u64>,
    /// Rounds that were timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
}

fn one() -> u32 {
    1
}

/// A fitted model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Nanoseconds a pass, layer, token, attended pair, read token, head, product with the unembedding and copied token.
    pub coefficients: [f64; TERMS],
    /// Measurements behind it.
    pub measurements: usize,
    /// Mean of |fitted − measured| / measured.
    pub mean_relative_error: f64,
    /// The largest of them.
    pub max_relative_error: f64,
    /// Layers of the model; 0 when it does not matter.
    pub layers: u16,
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn terms(work: &Work, all_layers: u16) -> [f64; TERMS] {
    let is_pass = work.new_tokens() > 0;
    let layers = work.layers.min(all_layers);
    let share = if all_layers == 0 { 1.0 } else { f64::from(layers) / f64::from(all_layers) };
    [
        f64::from(u8::from(is_pass)),
        if is_pass { f64::from(layers) } else { 0.0 },
        share * work.new_tokens() as f64,
        share * work.attended_pairs() as f64,
        share * work.read_tokens() as f64,
        f64::from(work.heads),
        f64::from(work.head_products),
        work.copied_tokens as f64,
    ]
}

fn work_of(measured: &Measurement) -> Work {
    let row = Row { new_tokens: measured.new_tokens, context_tokens: measured.context_tokens };
    // Without new tokens nothing is read either: a head or a copy by itself.
    let rows = if measured.new_tokens > 0 { vec![row; measured.rows as usize] } else { Vec::new() };
    Work {
        rows,
        layers: measured.layers.unwrap_or(u16::MAX),
        heads: measured.heads,
        head_products: measured.head_products,
        copied_tokens: measured.copied_tokens,
    }
}

/// Fits a model to measurements on a model of `layers` layers.
///
/// # Errors
/// When the measurements do not determine a single coefficient.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds stay below 2^53")]
pub fn fit(measurements: &[Measurement], layers: u16) -> Result<Fit, CostError> {
    let rows: Vec<([f64; TERMS], f64)> = measurements
        .iter()
        .filter(|measured| measured.nanos > 0)
        .map(|measured| (terms(&work_of(measured), layers), measured.nanos as f64))
        .collect();
    let mut used = [true; TERMS];
    let coefficients = loop {
        let found = solve(&rows, used);
        let negative = (0..TERMS)
            .filter(|&at| used[at] && !(found[at] > 0.0))
            .min_by(|&a, &b| found[a].total_cmp(&found[b]).then(a.cmp(&b)));
        match negative {
            Some(at) => used[at] = false,
            None => break found,
        }
    };
    let independent = used.iter().filter(|used| **used).count();
    if independent == 0 {
        return Err(CostError::Undetermined { found: rows.len(), independent, needed: TERMS });
    }
    let errors: Vec<f64> = rows
        .iter()
        .map(|(x, t)| (x.iter().zip(coefficients).map(|(x, c)| x * c).sum::<f64>() / t - 1.0).abs())
        .collect();
    Ok(Fit {
        coefficients,
        measurements: rows.len(),
        mean_relative_error: errors.iter().sum::<f64>() / errors.len() as f64,
        max_relative_error: errors.iter().copied().fold(0.0, f64::max),
        layers,
    })
}

/// Least squares on relative errors over the used terms; a term that the others determine gets 0.
fn solve(rows: &[([f64; TERMS], f64)], used: [bool; TERMS]) -> [f64; TERMS] {
    // Columns are scaled to their largest entry, so that pivots can be compared.
    let scale: [f64; TERMS] =
        std::array::from_fn(|at| rows.iter().map(|(x, t)| x[at] / t).fold(0.0, f64::max));
    let mut matrix = [[0.0; TERMS + 1]; TERMS];
    for (x, t) in rows {
        let scaled: [f64; TERMS] =
            std::array::from_fn(|at| if used[at] && scale[at] > 0.0 { x[at] / t / scale[at] } else { 0.0 });
        for (row, &left) in matrix.iter_mut().zip(&scaled) {
            for (cell, &right) in row.iter_mut().zip(&scaled) {
                *cell += left * right;
            }
            row[TERMS] += left;
        }
    }
    let mut is_solved = [false; TERMS];
    let mut pivots = [TERMS; TERMS];
    for column in 0..TERMS {
        let best = (0..TERMS)
            .filter(|&row| !is_solved[row])
            .max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()).then(b.cmp(&a)));
        let Some(row) = best.filter(|&row| matrix[row][column].abs() > 1e-9) else { continue };
        is_solved[row] = true;
        pivots[column] = row;
        let pivot = matrix[row];
        for (at, other) in matrix.iter_mut().enumerate() {
            if at != row {
                let factor = other[column] / pivot[column];
                other.iter_mut().zip(pivot).for_each(|(cell, p)| *cell -= factor * p);
            }
        }
    }
    std::array::from_fn(|at| match pivots[at] {
        TERMS => 0.0,
        row => matrix[row][TERMS] / matrix[row][at] / scale[at],
    })
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// The timed passes.
    measurements: Vec<Measurement>,
    /// A file of them instead, a JSON object a line; what reads a scenario reads it too.
    file: Option<String>,
    /// Layers of the model; 0 when it does not matter.
    layers: u16,
}

/// Where a scenario has its times from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TimesFrom {
    /// They stand in the scenario.
    Scenario,
    /// A file with a line each.
    File(String),
    /// The trace that the scenario is run over.
    Trace,
}

/// Where the times come from.
pub(crate) fn times_from(raw: &RawParams) -> Result<TimesFrom, CostError> {
    let params: Params = raw.parse("measured").map_err(bad_params("measured"))?;
    match (params.file, params.measurements.is_empty()) {
        (None, false) => Ok(TimesFrom::Scenario),
        (Some(file), true) => Ok(TimesFrom::File(file)),
        (None, true) => Ok(TimesFrom::Trace),
        (Some(_), false) => Err(CostError::Params {
            kind: "measured".to_owned(),
            reason: "`measurements` and `file` were given: accepted is one of them, or none for the times of the trace".to_owned(),
        }),
    }
}

/// The parameters with the times in them, their own where none are given. Layers stay those of the scenario where it has some.
pub(crate) fn with_times(
    raw: &RawParams,
    measurements: Option<&[Measurement]>,
    layers: u16,
) -> Result<RawParams, CostError> {
    let params: Params = raw.parse("measured").map_err(bad_params("measured"))?;
    let layers = if params.layers == 0 { layers } else { params.layers };
    let measurements = measurements.map_or(params.measurements, <[Measurement]>::to_vec);
    let filled = Params { measurements, file: None, layers };
    RawParams::from_params(&filled).map_err(bad_params("measured"))
}

/// Parses lines of JSON, an object each; `name` is the file in messages.
///
/// # Errors
/// A line that is no measurement, with its number, and a file without any.
pub fn parse_times(text: &str, name: &str) -> Result<Vec<Measurement>, CostError> {
    let refuse = |reason: String| CostError::Params { kind: "measured".to_owned(), reason };
    let mut times: Vec<Measurement> = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = |what: String| refuse(format!("{name}: line {}: {what}", at + 1));
        let found: Measurement = serde_json::from_str(line).map_err(|error| place(error.to_string()))?;
        if found.nanos == 0 || found.rows == 0 {
            return Err(place("`nanos` or `rows` is 0; accepted is 1 or more".to_owned()));
        }
        times.push(found);
    }
    if times.is_empty() {
        return Err(refuse(format!("{name}: no measurement in it")));
    }
    Ok(times)
}

pub(super) fn build(raw: &RawParams) -> Result<Box<dyn BatchCost>, CostError> {
    let params: Params = raw.parse("measured").map_err(bad_params("measured"))?;
    if times_from(raw)? == TimesFrom::Trace {
        let reason =
            "no times: give `measurements` or `file`, or run it over a trace of `kvlab record --times`";
        return Err(CostError::Params { kind: "measured".to_owned(), reason: reason.to_owned() });
    }
    Ok(Box::new(fit(&params.measurements, params.layers)?))
}

impl BatchCost for Fit {
    fn duration(&self, work: &Work) -> Nanos {
        let terms = terms(work, self.layers);
        nanos(terms.iter().zip(self.coefficients).map(|(term, c)| term * c).sum::<f64>() * 1e-9)
    }

    fn layers(&self) -> Option<u16> {
        (self.layers > 0).then_some(self.layers)
    }

    fn of_layers(self: Box<Self>, layers: u16) -> Box<dyn BatchCost> {
        Box::new(Self { layers: if self.layers == 0 { layers } else { self.layers }, ..*self })
    }

    fn params(&self) -> serde_json::Value {
        let coefficients: serde_json::Map<String, serde_json::Value> =
            NAMES.iter().zip(self.coefficients).map(|(name, c)| ((*name).to_owned(), c.into())).collect();
        serde_json::json!({
            "nanos": coefficients, "measurements": self.measurements, "layers": self.layers,
            "mean_relative_error": self.mean_relative_error, "max_relative_error": self.max_relative_error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rows: u32, new_tokens: u32, context_tokens: u32, of: impl Fn(&Work) -> f64) -> Measurement {
        let pass = Measurement { rows, new_tokens, context_tokens, heads: rows, head_products: 1, ..NONE };
        timed(pass, of)
    }

    const NONE: Measurement = Measurement {
        part: None,
        rows: 1,
        new_tokens: 0,
        context_tokens: 0,
        layers: None,
        heads: 0,
        head_products: 0,
        copied_tokens: 0,
        nanos: 0,
        median_nanos: None,
        rounds: None,
    };

    fn timed(measurement: Measurement, of: impl Fn(&Work) -> f64) -> Measurement {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small positive numbers")]
        let nanos = of(&work_of(&measurement)).round() as u64;
        Measurement { nanos, ..measurement }
    }

    /// Times made of known coefficients give them back.
    #[test]
    fn known_coefficients_are_found_again() {
        // A millisecond a pass, so that rounding to whole nanoseconds does not show.
        let known = [1e6, 2e5, 9e4, 50.0, 1200.0, 4e4, 7e5, 300.0];
        let law = |work: &Work| terms(work, 30).iter().zip(known).map(|(x, c)| x * c).sum();
        let mut passes = Vec::new();
        for rows in [1, 2, 8] {
            for (new, context) in [(1, 64), (1, 512), (1, 2000), (128, 0), (512, 0), (300, 700)] {
                passes.push(measured(rows, new, context, law));
            }
        }
        for layers in [1, 8, 15] {
            passes.push(timed(Measurement { new_tokens: 64, layers: Some(layers), ..NONE }, law));
        }
        for rows in [1, 8, 32] {
            passes.push(timed(Measurement { heads: rows, head_products: 1, ..NONE }, law));
            passes.push(timed(Measurement { copied_tokens: 100 * u64::from(rows), ..NONE }, law));
        }
        let found = fit(&passes, 30).unwrap();
        for (found, known) in found.coefficients.iter().zip(known) {
            assert!((found / known - 1.0).abs() < 1e-2, "{found} {known}");
        }
        assert!(found.max_relative_error < 1e-4, "{found:?}");
        let pass = Work {
            rows: vec![Row { new_tokens: 10, context_tokens: 100 }; 2],
            layers: 30,
            heads: 2,
            head_products: 1,
            copied_tokens: 0,
        };
        assert!((found.duration(&pass).get() as f64 / law(&pass) - 1.0).abs() < 1e-3);
        assert!(found.duration(&Work { layers: 15, ..pass.clone() }) < found.duration(&pass));
    }

    #[test]
    fn lines_of_times_are_read_and_a_bad_one_is_named() {
        let lines = "{\"new_tokens\":4,\"context_tokens\":0,\"heads\":1,\"nanos\":900}\n\n{\"new_tokens\":1,\"context_tokens\":8,\"nanos\":70}\n";
        let found = parse_times(lines, "times.jsonl").unwrap();
        assert_eq!((found.len(), found[0].rows, found[1].head_products), (2, 1, 1));
        for (bad, words) in [
            ("{\"new_tokens\":4,\"context_tokens\":0,\"nanos\":0}", "times.jsonl: line 1: `nanos`"),
            ("\n{\"new\":4}", "times.jsonl: line 2: unknown field `new`"),
            ("", "no measurement"),
        ] {
            let message = parse_times(bad, "times.jsonl").unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn what_nobody_varied_is_not_invented() {
        let passes = vec![measured(1, 1, 64, |_| 5000.0); 4];
        let found = fit(&passes, 0).unwrap();
        assert!(found.max_relative_error < 1e-9 && found.coefficients.iter().all(|&c| c >= 0.0), "{found:?}");
        assert!(matches!(fit(&[], 0), Err(CostError::Undetermined { found: 0, .. })));
    }
}
