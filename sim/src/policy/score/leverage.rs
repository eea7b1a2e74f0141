//! Keep keys that the others do not span: statistical leverage of the key before its rotation.
//!
//! Keys are centred over the scored tokens, multiplied by a Gaussian sketch to `sketch` dimensions, and a token scores
//! x (XᵀX + jitter)⁻¹ xᵀ. Code: NVIDIA/kvpress `kvpress/presses/leverage_press.py` (part of Compactor, Chari et al. 2025,
//! arXiv 2507.08143). Differs: kvpress turns scores into z-scores over all heads and positions of a layer, which changes
//! no ranking inside a head; the sketch is shared by the heads of a layer; it also works after the prompt. Needs: k and the
//! rotary frequencies. Cost: O(n · head_dim · sketch + sketch³).

use super::Score;
use super::kv_sketch::check_sketch;
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "leverage",
    family: Family::Score,
    summary: "statistical leverage of the sketched key before its rotation (LeverageScore)",
    citation: "Chari et al. 2025, arXiv 2507.08143; NVIDIA/kvpress kvpress/presses/leverage_press.py",
    needs: Needs::K.and(Needs::ROPE),
    randomness: Randomness::Random,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        check_sketch(SPEC.id, "sketch", params.sketch)?;
        if !(params.jitter.is_finite() && params.jitter >= 0.0) {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "jitter",
                found: params.jitter.to_string(),
                accepted: "a finite number, 0 or more",
            });
        }
        Ok(Box::new(Leverage { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Dimensions of the sketch, drawn afresh at each eviction; 0 for none.
    sketch: u32 = 48,
    /// Added to the diagonal; ten times as much, up to five times over, while the matrix cannot be factored.
    jitter: f64 = 0.01,
}

#[derive(Debug)]
struct Leverage {
    params: Params,
}

/// The lower factor of a symmetric matrix, both `[rows, rows]` flattened; nothing if it is not positive definite.
pub(super) fn cholesky(matrix: &[f64], rows: usize) -> Option<Vec<f64>> {
    let mut lower = vec![0.0; rows * rows];
    for i in 0..rows {
        for j in 0..=i {
            let mut rest = matrix[i * rows + j];
            for k in 0..j {
                rest -= lower[i * rows + k] * lower[j * rows + k];
            }
            if i == j {
                if !(rest > 0.0 && rest.is_finite()) {
                    return None;
                }
                lower[i * rows + i] = rest.sqrt();
            } else {
                lower[i * rows + j] = rest / lower[j * rows + j];
            }
        }
    }
    Some(lower)
}

/// x (L Lᵀ)⁻¹ xᵀ: the squared norm of L⁻¹ x.
fn leverage(lower: &[f64], row: &[f64]) -> f64 {
    let rows = row.len();
    let mut solved = vec![0.0; rows];
    for i in 0..rows {
        let mut rest = row[i];
        for k in 0..i {
            rest -= lower[i * rows + k] * solved[k];
        }
        solved[i] = rest / lower[i * rows + i];
    }
    solved.iter().fold(0.0, |total, x| total + x * x)
}

/// Leverage of each of `rows`, `[token][dimension]`.
fn leverages(rows: &[Vec<f64>], jitter: f64) -> Option<Vec<f64>> {
    let width = rows.first().map_or(0, Vec::len);
    let mut gram = vec![0.0; width * width];
    for row in rows {
        for i in 0..width {
            for j in 0..=i {
                gram[i * width + j] += row[i] * row[j];
            }
        }
    }
    let mut jitter = jitter;
    for _attempt in 0..6 {
        let mut matrix = gram.clone();
        (0..width).for_each(|i| matrix[i * width + i] += jitter);
        if let Some(lower) = cholesky(&matrix, width) {
            return Some(rows.iter().map(|row| leverage(&lower, row)).collect());
        }
        jitter *= 10.0;
    }
    None
}

impl Leverage {
    /// Centred and sketched keys, `[token][dimension]`.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "f32 by definition")]
    fn rows(&self, view: &HeadView<'_>, draws: &Draws) -> Result<Vec<Vec<f64>>, PolicyError> {
        let rope = view.rope(SPEC.id)?;
        let mut keys: Vec<Vec<f32>> =
            view.scored().iter().map(|&pos| rope.unrotated(view.data.key(pos), pos)).collect();
        let width = keys.first().map_or(0, Vec::len);
        let mut mean = vec![0.0; width];
        keys.iter().for_each(|key| num::add_scaled(&mut mean, 1.0, key));
        mean.iter_mut().for_each(|x| *x /= keys.len().max(1) as f32);
        keys.iter_mut().for_each(|key| num::add_scaled(key, -1.0, &mean));
        if self.params.sketch == 0 {
            return Ok(keys.iter().map(|key| key.iter().map(|&x| f64::from(x)).collect()).collect());
        }
        let mut stream = draws.of_layer(SPEC.id);
        let spread = 1.0 / f64::from(self.params.sketch).sqrt();
        let columns: Vec<Vec<f32>> = (0..self.params.sketch)
            .map(|_| (0..width).map(|_| (stream.normal() * spread) as f32).collect())
            .collect();
        let project = |key: &Vec<f32>| columns.iter().map(|c| f64::from(num::dot(key, c))).collect();
        Ok(keys.iter().map(project).collect())
    }
}

impl Score for Leverage {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(clippy::cast_possible_truncation, reason = "scores are f32")]
    fn score(&self, view: &HeadView<'_>, draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        let rows = self.rows(view, draws)?;
        out.clear();
        match leverages(&rows, self.params.jitter) {
            Some(scores) => out.extend(scores.into_iter().map(|score| score as f32)),
            // Keys that are no numbers: the stack names the place.
            None => out.resize(rows.len(), f32::NAN),
        }
        Ok(())
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Without jitter, leverages of independent rows sum to the rank, and a row at a right angle to all others has 1.
    #[test]
    fn leverages_sum_to_the_rank() {
        let rows = [vec![1.0, 0.0, 0.0], vec![2.0, 0.0, 0.0], vec![0.0, 3.0, 1.0], vec![0.0, 1.0, 3.0]];
        let found = leverages(&rows, 0.0).unwrap();
        assert!((found.iter().sum::<f64>() - 3.0).abs() < 1e-12, "{found:?}");
        for (found, expected) in found.iter().zip([0.2, 0.8, 1.0, 1.0]) {
            assert!((found - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn a_matrix_without_full_rank_is_helped_by_jitter() {
        let rows = [vec![1.0, 1.0], vec![2.0, 2.0]];
        assert!(leverages(&rows, 0.0).is_none());
        assert!(leverages(&rows, 0.01).is_some());
    }
}
