//! Sample without replacement, with the scores as weights.
//!
//! Each candidate gets ln(w) − ln(e) with e ~ Exp(1), and the largest are kept: equal in law to sequential draws
//! without replacement (Plackett–Luce) and to torch's `multinomial`. Paper: VaSE (arXiv 2606.03928), section on
//! AttnV; the weights are the smoothed attention itself, and `exponent`
//! is our own knob: weights to that power, 1 in the paper. Differs: where the reference
//! fails when fewer positive weights than slots remain, the rest is filled with the most recent candidates. A draw
//! belongs to (seed, sequence, layer, KV head, eviction, position). Needs: non-negative scores. Cost: O(n + k log k).

use super::{Select, Selection, best};
use crate::num::logs;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Needs, PolicyError, PolicySpec, Randomness, lists};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "weighted-sample",
    family: Family::Select,
    summary: "samples without replacement, scores are the weights",
    citation: "VaSE, arXiv 2606.03928",
    needs: Needs::NONE,
    randomness: Randomness::Random,
    laws: &[crate::policy::Law::Stack],
};

/// Registry line.
pub const ENTRY: Entry<dyn Select> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        if !(params.exponent.is_finite() && params.exponent >= 0.0) {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "exponent",
                found: params.exponent.to_string(),
                accepted: "a finite number, 0 or more",
            });
        }
        Ok(Box::new(WeightedSample { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Power that the weights are raised to; 1 in VaSE, 0 for a uniform draw among positive weights.
    exponent: f64 = 1.0,
}

#[derive(Debug)]
struct WeightedSample {
    params: Params,
}

impl Select for WeightedSample {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn select(
        &self,
        view: &HeadView<'_>,
        scores: &[f32],
        choice: &[usize],
        count: usize,
        draws: &Draws,
    ) -> Result<Selection, PolicyError> {
        if scores.iter().any(|&score| score < 0.0 || score == f32::INFINITY) {
            return Err(PolicyError::Contract {
                policy: SPEC.id,
                rule: "weights must be finite and not negative",
            });
        }
        let scored = view.scored();
        let seen = view.at.seen;
        let ln_e = view.shared(draws.key_of_head(SPEC.id, u64::from(seen)), || {
            draws.of_head(SPEC.id).ln_exponentials(seen as usize)
        });
        let mut keys: Vec<f32> = lists::take(view.data);
        keys.extend(choice.iter().map(|&slot| scores[slot]));
        let mut drawn: Vec<f64> = lists::take(view.data);
        drawn.extend(choice.iter().map(|&slot| ln_e[scored[slot].idx()]));
        logs::sampling_keys(&mut keys, self.params.exponent, &drawn);
        lists::give_back(view.data, drawn);
        let positive = keys.iter().filter(|key| key.is_finite()).count();
        let mut selection = best(view, keys.iter().copied(), choice, count.min(positive));
        if count > positive {
            let mut rest: Vec<usize> =
                choice.iter().zip(&keys).filter(|(_, key)| !key.is_finite()).map(|(&slot, _)| slot).collect();
            rest.sort_unstable_by_key(|&slot| std::cmp::Reverse(scored[slot]));
            selection.slots.extend(rest.into_iter().take(count - positive));
            (selection.tied, selection.filled) = (false, count - positive);
        }
        lists::give_back(view.data, keys);
        Ok(selection)
    }

    fn takes_weights(&self) -> bool {
        true
    }

    fn reason(&self) -> &'static str {
        "sampled"
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::num;

    // Golden vector G7 of the policy specification: exponentials [0.7, 0.2, 1.1, 0.05] with weights [0.5, 0.3, 0.15,
    // 0.05] give keys w/e = [0.7143, 1.5, 0.1364, 1.0], so two draws choose {1, 3} in that order.
    #[test]
    fn fixed_exponentials_choose_the_golden_set() {
        let mut keys = [0.5f32, 0.3, 0.15, 0.05];
        logs::sampling_keys(&mut keys, 1.0, &[0.7, 0.2, 1.1, 0.05].map(num::ln));
        let order = num::top(keys.iter().copied().zip(0u32..).collect(), 2);
        assert_eq!(order.iter().map(|c| c.1).collect::<Vec<_>>(), [1, 3]);
        assert!((f64::from(keys[0]).exp() - 0.7143).abs() < 1e-4);
    }
}
