//! Times of passes, fitted by least squares: t ≈ a + b · tokens + c · attended pairs + d · resident tokens read + e · heads.
//!
//! Measurements are data: lines of JSON that some recorder wrote, never a clock here. Relative errors are minimised, so that short passes
//! count like long ones. A coefficient that comes out negative is set to zero and the others are fitted again. The error of the
//! fit is part of the model's parameters. Layers below all of them scale everything but `a` and `e`.

use super::{BatchCost, CostError, Row, Work, bad_params, nanos};
use crate::policy::RawParams;
use crate::types::Nanos;
use serde::{Deserialize, Serialize};

const TERMS: usize = 5;
const NAMES: [&str; TERMS] = ["pass", "token", "attended_pair", "read_token", "head"];

/// One timed pass: `rows` sequences alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// Sequences of the batch.
    #[serde(default = "one")]
    pub rows: u32,
    /// Tokens computed in each.
    pub new_tokens: u32,
    /// Resident tokens before them in each.
    pub context_tokens: u32,
    /// Positions whose logits were computed, over all rows.
    #[serde(default)]
    pub heads: u32,
    /// Duration in nanoseconds.
    pub nanos: u64,
}

fn one() -> u32 {
    1
}

/// A fitted model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Nanoseconds a pass, token, attended pair, read token and head.
    pub coefficients: [f64; TERMS],
    /// Measurements behind it.
    pub measurements: usize,
    /// Mean of |fitted − measured| / measured.
    pub mean_relative_error: f64,
    /// The largest of them.
    pub max_relative_error: f64,
    /// Layers that the measured passes ran.
    pub layers: u16,
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn terms(work: &Work) -> [f64; TERMS] {
    [
        1.0,
        work.new_tokens() as f64,
        work.attended_pairs() as f64,
        work.read_tokens() as f64,
        f64::from(work.heads),
    ]
}

fn work_of(measured: &Measurement) -> Work {
    let row = Row { new_tokens: measured.new_tokens, context_tokens: measured.context_tokens };
    Work {
        rows: vec![row; measured.rows as usize],
        layers: u16::MAX,
        heads: measured.heads,
        head_products: 1,
        copied_tokens: 0,
    }
}

/// Fits a model to measurements of passes through all `layers` layers.
///
/// # Errors
/// When the measurements do not determine a single coefficient.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds stay below 2^53")]
pub fn fit(measurements: &[Measurement], layers: u16) -> Result<Fit, CostError> {
    let rows: Vec<([f64; TERMS], f64)> = measurements
        .iter()
        .filter(|measured| measured.nanos > 0)
        .map(|measured| (terms(&work_of(measured)), measured.nanos as f64))
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
    /// Layers that they ran; 0 when it does not matter.
    layers: u16,
}

pub(super) fn build(raw: &RawParams) -> Result<Box<dyn BatchCost>, CostError> {
    let params: Params = raw.parse("measured").map_err(bad_params("measured"))?;
    Ok(Box::new(fit(&params.measurements, params.layers)?))
}

impl BatchCost for Fit {
    fn duration(&self, work: &Work) -> Nanos {
        let terms = terms(work);
        let share = if self.layers == 0 {
            1.0
        } else {
            f64::from(work.layers.min(self.layers)) / f64::from(self.layers)
        };
        let [pass, token, pair, read, head] = std::array::from_fn(|at| terms[at] * self.coefficients[at]);
        nanos((pass + head + share * (token + pair + read)) * 1e-9)
    }

    fn layers(&self) -> Option<u16> {
        (self.layers > 0).then_some(self.layers)
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
        let mut measurement = Measurement { rows, new_tokens, context_tokens, heads: rows, nanos: 0 };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small positive numbers")]
        let nanos = of(&work_of(&measurement)).round() as u64;
        measurement.nanos = nanos;
        measurement
    }

    /// Times made of known coefficients give them back.
    #[test]
    fn known_coefficients_are_found_again() {
        let known = [50_000.0, 900.0, 0.5, 12.0, 4000.0];
        let law = |work: &Work| terms(work).iter().zip(known).map(|(x, c)| x * c).sum();
        let mut passes = Vec::new();
        for rows in [1, 2, 8] {
            for (new, context) in [(1, 64), (1, 512), (1, 2000), (128, 0), (512, 0), (300, 700)] {
                passes.push(measured(rows, new, context, law));
            }
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
    fn what_nobody_varied_is_not_invented() {
        let passes = vec![measured(1, 1, 64, |_| 5000.0); 4];
        let found = fit(&passes, 0).unwrap();
        assert!(found.max_relative_error < 1e-9 && found.coefficients.iter().all(|&c| c >= 0.0), "{found:?}");
        assert!(matches!(fit(&[], 0), Err(CostError::Undetermined { found: 0, .. })));
    }
}
