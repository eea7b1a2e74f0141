//! Keep what future queries are expected to look at, taking queries as Gaussian: ExpectedAttention.
//!
//! With mu and Sigma the mean and covariance of the last W queries before their rotation, turned by the mean rotation
//! over the next `future` positions, a token has e = ⟨mu, k⟩/√d + kᵀ Sigma k/(2d); it scores the softmax of e over the
//! resident tokens, mean over the query heads of the group, times the norm of its value. Tokens at the first `sinks`
//! positions are left out and score most, and queries there are not looked at. Paper: Devoto et al. 2025, "Expected
//! Attention" (arXiv 2510.00636); code NVIDIA/kvpress `kvpress/presses/expected_attention_press.py`. Differs: the last W
//! queries in prefill too, where kvpress takes all of the prompt. Needs: q, k, v and the rotary frequencies. Cost:
//! O(group · (W + n) · head_dim²).

use super::Score;
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{
    Draws, Entry, Family, HeadView, Law, Magnitude, Needs, PolicyError, PolicySpec, Randomness, scale,
};
use crate::rope::Turn;
use crate::types::Pos;

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "expected-attention",
    family: Family::Score,
    summary: "expected attention of future queries, taken as Gaussian, times the value's norm",
    citation: "Devoto et al. 2025, arXiv 2510.00636; NVIDIA/kvpress kvpress/presses/expected_attention_press.py",
    needs: Needs::QKV.and(Needs::ROPE),
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        let refuse = |param, found: String, accepted| {
            Err(PolicyError::OutOfRange { kind: SPEC.id, param, found, accepted })
        };
        if params.window == 0 {
            return refuse("window", "0".to_owned(), "1 or more");
        }
        if !(1..=MOST_FUTURE).contains(&params.future) {
            return refuse("future", params.future.to_string(), "1 to 65536");
        }
        if !(params.epsilon.is_finite() && params.epsilon >= 0.0) {
            return refuse("epsilon", params.epsilon.to_string(), "a finite number, 0 or more");
        }
        Ok(Box::new(ExpectedAttention { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

/// Each is a rotation at every eviction.
const MOST_FUTURE: u32 = 65_536;

params! {
    /// W: recent queries that mean and covariance are taken over.
    window: u32 = 256,
    /// Future positions whose rotations are averaged.
    future: u32 = 512,
    /// First positions whose queries are not looked at and whose tokens score most.
    sinks: u32 = 4,
    /// Whether the covariance counts, or the mean alone.
    covariance: bool = true,
    /// Whether the score is multiplied by the norm of the value.
    value_norm: bool = true,
    /// Added to the attention before it is multiplied.
    epsilon: f32 = 0.0,
}

#[derive(Debug)]
struct ExpectedAttention {
    params: Params,
}

/// Mean and covariance of queries, turned to the future.
struct Gaussian {
    /// `[head_dim]`
    mean: Vec<f32>,
    /// Rows of the covariance, `[head_dim][head_dim]`.
    covariance: Vec<Vec<f32>>,
}

impl Gaussian {
    #[expect(clippy::cast_precision_loss, reason = "windows are small")]
    fn of(queries: &[Vec<f32>], future: &Turn<'_>, with_covariance: bool) -> Self {
        let width = queries.first().map_or(0, Vec::len);
        let count = queries.len().max(1) as f32;
        let mut mean = vec![0.0; width];
        queries.iter().for_each(|query| num::add_scaled(&mut mean, 1.0, query));
        mean.iter_mut().for_each(|x| *x /= count);
        let mut covariance = vec![vec![0.0; width]; if with_covariance { width } else { 0 }];
        if with_covariance {
            for query in queries {
                let mut apart = query.clone();
                num::add_scaled(&mut apart, -1.0, &mean);
                // Turning what is apart turns the covariance from both sides.
                future.rotate(&mut apart);
                covariance
                    .iter_mut()
                    .zip(&apart)
                    .for_each(|(row, x)| num::add_scaled(row, x / count, &apart));
            }
        }
        future.rotate(&mut mean);
        Self { mean, covariance }
    }

    /// ⟨mu, k⟩/√d + kᵀ Sigma k/(2d).
    fn expected_logit(&self, key: &[f32]) -> f32 {
        let scale = scale(key.len());
        let along: Vec<f32> = self.covariance.iter().map(|row| num::dot(row, key)).collect();
        let spread = if along.is_empty() { 0.0 } else { num::dot(&along, key) };
        num::dot(&self.mean, key) * scale + spread * scale * scale / 2.0
    }
}

impl Score for ExpectedAttention {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(clippy::cast_precision_loss, reason = "groups are small")]
    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        let Params { window, future, sinks, covariance, value_norm, epsilon } = self.params;
        let (rope, group) = (view.rope(SPEC.id)?, view.data.group());
        let turn = rope.mean(view.at.seen..view.at.seen.saturating_add(future));
        let positions: Vec<Pos> = view.last_queries(window).filter(|pos| pos.get() >= sinks).collect();
        out.clear();
        out.resize(view.resident.len(), 0.0);
        for member in 0..group {
            let queries: Vec<Vec<f32>> =
                positions.iter().map(|&pos| rope.unrotated(view.data.query(member, pos), pos)).collect();
            let Some(first) = queries.first() else {
                break;
            };
            debug_assert!(!first.is_empty());
            let gaussian = Gaussian::of(&queries, &turn, covariance);
            let expected = |&pos: &Pos| {
                let is_sink = pos.get() < sinks;
                if is_sink { f32::NEG_INFINITY } else { gaussian.expected_logit(view.data.key(pos)) }
            };
            let mut row: Vec<f32> = view.resident.iter().map(expected).collect();
            num::softmax(&mut row);
            num::add_scaled(out, 1.0 / group as f32, &row);
        }
        out.truncate(view.scored().len());
        for (score, &pos) in out.iter_mut().zip(view.scored()) {
            *score += epsilon;
            if value_norm {
                *score *= Magnitude::L2.of_value(view.data, pos);
            }
        }
        let most = num::max(out) + 1.0;
        for (score, pos) in out.iter_mut().zip(view.scored()) {
            if pos.get() < sinks {
                *score = most;
            }
        }
        Ok(())
    }

    fn window(&self) -> u32 {
        self.params.window
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
