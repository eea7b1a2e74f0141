//! Reserve the widest value states: the N_v tokens with the largest max − min over the channels of their value.
//!
//! Paper: VaSE (arXiv 2606.03928); code terarachang/VaSE `cache_utils.py`, mode `range_sink_sample_attn`. Sinks have
//! small ranges and are protected by the stack; they count among the N_v slots, as in the reference. N_v is chosen
//! anew at each eviction: a token loses its slot when wider ones arrive. Ties go to the earlier position. Needs: v.
//! Cost: O(n · head_dim), once a token if the data source remembers ranges.

use super::Reserve;
use crate::num;
use crate::policy::select::slots_of;
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "value-range",
    family: Family::Reserve,
    summary: "the N_v tokens with the widest value states, sinks included",
    citation: "VaSE, arXiv 2606.03928",
    needs: Needs { queries: false, keys: false, values: true, lens: false },
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Reserve> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(ValueRange::checked(raw.parse(SPEC.id)?)?)),
    defaults: || serde_json::to_value(Params::default()).unwrap_or_default(),
};

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// N_v in tokens. Absent: `share` of the budget decides.
    pub tokens: Option<u32>,
    /// N_v as a share of the budget C, rounded down. VaSE uses a quarter.
    pub share: f64,
}

impl Default for Params {
    fn default() -> Self {
        Self { tokens: None, share: 0.25 }
    }
}

#[derive(Debug)]
struct ValueRange {
    params: Params,
}

impl ValueRange {
    fn checked(params: Params) -> Result<Self, PolicyError> {
        if !(0.0..=1.0).contains(&params.share) {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "share",
                found: params.share.to_string(),
                accepted: "0 to 1",
            });
        }
        Ok(Self { params })
    }
}

impl Reserve for ValueRange {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u32 is a u32")]
    fn reserved(&self, capacity: u32) -> u32 {
        self.params.tokens.unwrap_or((f64::from(capacity) * self.params.share).floor() as u32)
    }

    fn reserve(
        &self,
        view: &HeadView<'_>,
        choice: &[usize],
        count: usize,
        _draws: &Draws,
    ) -> Result<Vec<usize>, PolicyError> {
        let scored = view.scored();
        let mut widths = Vec::with_capacity(choice.len());
        for &slot in choice {
            let width = view.data.value_range(scored[slot]);
            if width.is_nan() {
                return Err(PolicyError::NotANumber {
                    policy: SPEC.id,
                    seq: view.at.seq,
                    layer: view.at.layer,
                    head: view.at.head,
                    pos: scored[slot],
                });
            }
            widths.push((width, scored[slot].get()));
        }
        // Positions break ties.
        Ok(slots_of(view, choice, &num::top(widths, count)))
    }

    fn params(&self) -> serde_json::Value {
        serde_json::to_value(self.params).unwrap_or_default()
    }
}
