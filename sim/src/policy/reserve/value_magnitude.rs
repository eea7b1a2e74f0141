//! Reserve large value states: the N_v tokens with the largest values by a measure, the range in VaSE.
//!
//! Paper: VaSE (arXiv 2606.03928); code terarachang/VaSE `cache_utils.py`, mode `range_sink_sample_attn`. Sinks have
//! small ranges and are protected by the stack; they count among the N_v slots, as in the reference, unless
//! `sinks_inside` is false. N_v is chosen
//! anew at each eviction: a token loses its slot when wider ones arrive. Ties go to the earlier position. Needs: v.
//! Cost: O(n · head_dim + n log n); on a recording O(n), since the order of widths is worked out once a head.

use super::Reserve;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::select::{best, first_ranked};
use crate::policy::{
    Draws, Entry, Family, HeadView, Law, Magnitude, Needs, PolicyError, PolicySpec, Randomness,
};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "value-magnitude",
    family: Family::Reserve,
    summary: "the N_v tokens with the largest value states (VaSE: by range), sinks included",
    citation: "VaSE, arXiv 2606.03928",
    needs: Needs::V,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Reserve> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(ValueMagnitude::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// N_v in tokens. Absent: `share` of the budget decides.
    tokens: Option<u32> = None,
    /// N_v as a share of the budget C, rounded down. VaSE uses a quarter.
    share: f64 = 0.25,
    /// Measure of the value: range, l1, l2, variance or absmax.
    measure: Magnitude = Magnitude::Range,
    /// Whether sinks count among the N_v slots, as in VaSE.
    sinks_inside: bool = true,
}

#[derive(Debug)]
struct ValueMagnitude {
    params: Params,
}

impl ValueMagnitude {
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

impl Reserve for ValueMagnitude {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u32 is a u32")]
    fn reserved(&self, capacity: u32) -> u32 {
        self.params.tokens.unwrap_or((f64::from(capacity) * self.params.share).floor() as u32)
    }

    fn holds_sinks(&self) -> bool {
        self.params.sinks_inside
    }

    fn reserve(
        &self,
        view: &HeadView<'_>,
        choice: &[usize],
        count: usize,
        _draws: &Draws,
    ) -> Result<Vec<usize>, PolicyError> {
        let scored = view.scored();
        if let Some(ranks) = view.data.value_ranks(self.params.measure) {
            return Ok(first_ranked(view, &ranks, choice, count));
        }
        let mut widths = Vec::with_capacity(choice.len());
        for &slot in choice {
            let width = self.params.measure.of_value(view.data, scored[slot]);
            if width.is_nan() {
                return Err(PolicyError::NotANumber {
                    policy: SPEC.id,
                    seq: view.at.seq,
                    layer: view.at.layer,
                    head: view.at.head,
                    pos: scored[slot],
                });
            }
            widths.push(width);
        }
        Ok(best(view, widths.into_iter(), choice, count).slots)
    }

    fn reason(&self) -> &'static str {
        "value"
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
