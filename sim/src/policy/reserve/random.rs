//! Reserve at random: the control for "any reserved slots help".
//!
//! VaSE's ablation `attn_random` (arXiv 2606.03928). Sinks count among the slots. Draws belong to (seed, sequence,
//! layer, KV head, eviction, position). Needs: positions. Cost: O(n).

use super::Reserve;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::select::best;
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "random",
    family: Family::Reserve,
    summary: "N_v tokens at random, sinks included (VaSE's attn_random)",
    citation: "VaSE, arXiv 2606.03928",
    needs: Needs::NONE,
    randomness: Randomness::Random,
    laws: &[Law::Stack],
};

/// Registry line.
pub const ENTRY: Entry<dyn Reserve> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        if !(0.0..=1.0).contains(&params.share) {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "share",
                found: params.share.to_string(),
                accepted: "0 to 1",
            });
        }
        Ok(Box::new(Random { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// N_v in tokens. Absent: `share` of the budget decides.
    tokens: Option<u32> = None,
    /// N_v as a share of the budget C, rounded down.
    share: f64 = 0.25,
}

#[derive(Debug)]
struct Random {
    params: Params,
}

impl Reserve for Random {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u32 is a u32")]
    fn reserved(&self, capacity: u32) -> u32 {
        self.params.tokens.unwrap_or((f64::from(capacity) * self.params.share).floor() as u32)
    }

    #[expect(clippy::cast_possible_truncation, reason = "24 bits are enough; ties go to the lower position")]
    fn reserve(
        &self,
        view: &HeadView<'_>,
        choice: &[usize],
        count: usize,
        draws: &Draws,
    ) -> Result<Vec<usize>, PolicyError> {
        let scored = view.scored();
        // The score `random` draws too: these are other draws.
        const PART: &str = "random-reserve";
        let seen = view.at.seen;
        let uniform = view.shared(draws.key_of_head(PART, u64::from(seen)), || -> Vec<f32> {
            let mut stream = draws.of_head(PART);
            (0..seen).map(|_| stream.uniform() as f32).collect()
        });
        let drawn = choice.iter().map(|&slot| uniform[scored[slot].idx()]);
        Ok(best(view, drawn, choice, count).slots)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
