//! A budget that grows with the sequence: a share of the tokens seen so far.
//!
//! The form of NVIDIA/kvpress, floor(T · (1 − ratio)), with the share that is kept and not the one removed. At least
//! the recent buffer, the sinks and one token stay. The study's budget is not looked at. Needs: nothing. Cost: none.

use super::Budget;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "share-of-seen",
    family: Family::Budget,
    summary: "a share of the tokens seen so far, the same for every layer and KV head",
    citation: "NVIDIA/kvpress kvpress/presses/scorer_press.py",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Budget> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        if !(params.keep_ratio > 0.0 && params.keep_ratio <= 1.0) {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "keep_ratio",
                found: params.keep_ratio.to_string(),
                accepted: "above 0, at most 1",
            });
        }
        Ok(Box::new(ShareOfSeen { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Share of the tokens seen that stays; 1 minus what kvpress calls the compression ratio.
    keep_ratio: f64 = 0.5,
}

#[derive(Debug)]
struct ShareOfSeen {
    params: Params,
}

impl Budget for ShareOfSeen {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn is_studys(&self) -> bool {
        false
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u32 is a u32")]
    fn mean(&self, _capacity: u32, seen: u32) -> u32 {
        ((f64::from(seen) * self.params.keep_ratio).floor() as u32).max(1)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_one_token_stays() {
        let budget = ShareOfSeen { params: Params { keep_ratio: 0.1 } };
        assert_eq!([1, 2, 3, 9, 10, 400].map(|seen| budget.mean(7, seen)), [1, 1, 1, 1, 1, 40]);
    }
}
