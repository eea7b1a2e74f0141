//! Move the budget between the heads of a layer to where scores are high: AdaKV.
//!
//! Every head keeps its own best `safeguard` share of its room; the rest of the layer's room goes to the best scores
//! of all heads together. Paper: Feng et al. 2024, "Ada-KV" (arXiv 2407.11550); code NVIDIA/kvpress
//! `kvpress/presses/adakv_press.py`. Ties go to the lower head, then to the earlier candidate. Differs: sinks and the
//! recent buffer stay in every head. Scores must be comparable between heads: attention masses are. Needs: the scores
//! of all heads of a layer. Cost: O(n log n) a layer.

use super::{Budget, Demand};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "ada",
    family: Family::Budget,
    summary: "the room of a layer goes to the heads with the highest scores, each keeping a safeguard (AdaKV)",
    citation: "Feng et al. 2024, arXiv 2407.11550; NVIDIA/kvpress kvpress/presses/adakv_press.py",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Budget> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        if !(0.0..=1.0).contains(&params.safeguard) {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "safeguard",
                found: params.safeguard.to_string(),
                accepted: "0 to 1",
            });
        }
        Ok(Box::new(Ada { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Share of its own room that a head keeps whatever the others score (alpha in AdaKV).
    safeguard: f64 = 0.2,
}

#[derive(Debug)]
struct Ada {
    params: Params,
}

impl Budget for Ada {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn is_layer_wide(&self) -> bool {
        true
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a count of tokens"
    )]
    fn rooms(&self, heads: &[Demand<'_>]) -> Vec<usize> {
        let mut rooms: Vec<usize> =
            heads.iter().map(|head| (head.room as f64 * self.params.safeguard).floor() as usize).collect();
        let total: usize = heads.iter().map(|head| head.room).sum();
        let spare = total - rooms.iter().sum::<usize>();
        // (score, index over all candidates of the layer), safeguarded ones left out.
        let mut rest: Vec<(f32, u32)> = Vec::new();
        let mut owner: Vec<usize> = Vec::new();
        for (at, (head, &safe)) in heads.iter().zip(&rooms).enumerate() {
            let ranked = num::top(head.scores.iter().copied().zip(0u32..).collect(), head.scores.len());
            for (score, _) in ranked.into_iter().skip(safe) {
                rest.push((score, u32::try_from(owner.len()).unwrap_or(u32::MAX)));
                owner.push(at);
            }
        }
        for (_, candidate) in num::top(rest, spare) {
            rooms[owner[candidate as usize]] += 1;
        }
        rooms
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(safeguard: f64, heads: &[(&[f32], usize)]) -> Vec<usize> {
        let heads: Vec<Demand<'_>> = heads.iter().map(|&(scores, room)| Demand { scores, room }).collect();
        Ada { params: Params { safeguard } }.rooms(&heads)
    }

    #[test]
    fn room_goes_where_scores_are_high_and_the_safeguard_stays() {
        let (high, low): (&[f32], &[f32]) = (&[0.9, 0.8, 0.7, 0.6, 0.5], &[0.1, 0.2, 0.3, 0.4, 0.05]);
        assert_eq!(rooms(0.0, &[(high, 3), (low, 3)]), [5, 1]);
        assert_eq!(rooms(0.7, &[(high, 3), (low, 3)]), [4, 2]);
        assert_eq!(rooms(1.0, &[(high, 3), (low, 3)]), [3, 3], "a full safeguard is the uniform budget");
    }
}
