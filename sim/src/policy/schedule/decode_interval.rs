//! Evict after every `interval` decode steps, down to the budget.
//!
//! kvpress' `DecodingPress`: NVIDIA/kvpress `kvpress/presses/decoding_press.py`, 512 steps there. The prompt is scored
//! with the rest and nothing happens during prefill. Differs: the queries that scorers look at keep their own
//! rotation, where kvpress turns all buffered ones with the current position. Needs: nothing. Cost: none.

use super::{Moment, Schedule, Tick};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "decode-interval",
    family: Family::Schedule,
    summary: "every `interval` decode steps, once the budget is exceeded (kvpress DecodingPress)",
    citation: "NVIDIA/kvpress kvpress/presses/decoding_press.py",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Schedule> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        if params.interval == 0 {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "interval",
                found: "0".to_owned(),
                accepted: "1 or more",
            });
        }
        Ok(Box::new(DecodeInterval { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Decode steps between evictions (`compression_interval` in kvpress).
    interval: u32 = 512,
}

#[derive(Debug)]
struct DecodeInterval {
    params: Params,
}

impl Schedule for DecodeInterval {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn is_due(&self, Tick { moment, stored, capacity, steps }: Tick) -> bool {
        moment == Moment::DecodeStep && stored > capacity && steps.is_multiple_of(self.params.interval)
    }

    fn period(&self) -> Option<u32> {
        Some(self.params.interval)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evictions_fall_on_multiples_of_the_interval_once_the_budget_is_exceeded() {
        let schedule = DecodeInterval { params: Params { interval: 4 } };
        let mut stored = 5;
        let mut due = Vec::new();
        for steps in 1..=16 {
            stored += 1;
            if schedule.is_due(Tick { moment: Moment::DecodeStep, stored, capacity: 8, steps }) {
                due.push((steps, stored));
                stored = 8;
            }
        }
        assert_eq!(due, [(4, 9), (8, 12), (12, 12), (16, 12)]);
    }
}
