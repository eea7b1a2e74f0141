//! Evict in periods: after a decode step, when more than the budget is stored and the count is a multiple of the period.
//!
//! The schedule of VaSE (arXiv 2606.03928, `cache_utils.py`): nothing is evicted during prefill, and a prompt longer
//! than the budget is cut at the first decode step whose stored count is a multiple of the period. The budget must be
//! a multiple of the period, so that the cache then swings between C and C + period. Differs: the period may differ
//! from the recent buffer, with which the reference identifies it. Needs: nothing. Cost: none.

use super::{Moment, Schedule, Tick};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "every-n",
    family: Family::Schedule,
    summary: "every `period` stored tokens, once the budget is exceeded (VaSE)",
    citation: "VaSE, arXiv 2606.03928",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Schedule> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(EveryN::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Eviction period in tokens.
    period: u32 = 64,
}

#[derive(Debug)]
struct EveryN {
    params: Params,
}

impl EveryN {
    fn checked(params: Params) -> Result<Self, PolicyError> {
        if params.period == 0 {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "period",
                found: "0".to_owned(),
                accepted: "1 or more",
            });
        }
        Ok(Self { params })
    }
}

impl Schedule for EveryN {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn is_due(&self, Tick { moment, stored, capacity, .. }: Tick) -> bool {
        moment == Moment::DecodeStep && stored > capacity && stored.is_multiple_of(self.params.period)
    }

    fn period(&self) -> Option<u32> {
        Some(self.params.period)
    }

    fn check(&self, capacity: u32) -> Result<(), PolicyError> {
        let period = self.params.period;
        if capacity.is_multiple_of(period) {
            return Ok(());
        }
        let below = capacity / period * period;
        let above = below.saturating_add(period);
        Err(PolicyError::PeriodMismatch { capacity, period, below: (below > 0).then_some(below), above })
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decode steps (from 1) at which an eviction happens, and the stored count then.
    fn evictions(prompt: u32, capacity: u32, period: u32, steps: u32) -> Vec<(u32, u32)> {
        let schedule = EveryN { params: Params { period } };
        let mut stored = prompt;
        let mut found = Vec::new();
        for step in 1..=steps {
            stored += 1;
            if schedule.is_due(Tick { moment: Moment::DecodeStep, stored, capacity, steps: step }) {
                found.push((step, stored));
                stored = capacity;
            }
        }
        found
    }

    // Golden vector G8 of the policy specification: C = 512, period 64.
    #[test]
    fn evictions_fall_where_the_reference_has_them() {
        assert_eq!(evictions(100, 512, 64, 604), [(476, 576), (540, 576), (604, 576)]);
        assert_eq!(evictions(512, 512, 64, 192), [(64, 576), (128, 576), (192, 576)]);
        assert_eq!(evictions(575, 512, 64, 129), [(1, 576), (65, 576), (129, 576)]);
        assert_eq!(evictions(700, 512, 64, 132), [(4, 704), (68, 576), (132, 576)]);
    }

    #[test]
    fn a_prompt_is_never_cut_during_prefill() {
        assert!(!EveryN { params: Params { period: 64 } }.is_due(Tick {
            moment: Moment::PrefillDone,
            stored: 640,
            capacity: 512,
            steps: 0
        }));
    }
}
