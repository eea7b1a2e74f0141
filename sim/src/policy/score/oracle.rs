//! Keep what will be looked at: the attention that a token receives from all recorded queries still to come.
//!
//! Attention is that of the full cache. A bound, not a policy: with one eviction it keeps more future attention mass than
//! any other scorer with the same sinks, recent buffer and budget; with several, each eviction is best for the whole
//! rest by itself, which is not always best for all of them together. Exact in replay; refused in a running model, which
//! has no future. Needs: q, k and the rest of the recording. Cost: O(group · steps left · n · head_dim).

use super::Score;
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness, scale};
use crate::types::Pos;

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "oracle",
    family: Family::Score,
    summary: "attention mass from all recorded queries still to come: a bound, replay only",
    citation: "-",
    needs: Needs::QK.and(Needs::FUTURE),
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Oracle { params: raw.parse(SPEC.id)? })),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// How many of the next queries count; 0 for all of the recording.
    horizon: u32 = 0,
}

#[derive(Debug)]
struct Oracle {
    params: Params,
}

impl Score for Oracle {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        let Some(len) = view.data.recorded_len() else {
            return Err(PolicyError::Refused {
                policy: SPEC.id,
                reason: "it looks at queries still to come, which only a recording has".to_owned(),
            });
        };
        let seen = view.at.seen;
        let end =
            if self.params.horizon == 0 { len } else { len.min(seen.saturating_add(self.params.horizon)) };
        out.clear();
        out.resize(view.scored().len(), 0.0);
        for query_pos in (seen..end).map(Pos::new) {
            for member in 0..view.data.group() {
                let query = view.data.query(member, query_pos);
                let scale = scale(query.len());
                let mut row: Vec<f32> = (0..=query_pos.get())
                    .map(|pos| num::dot(query, view.data.key(Pos::new(pos))) * scale)
                    .collect();
                num::softmax(&mut row);
                out.iter_mut().zip(view.scored()).for_each(|(score, pos)| *score += row[pos.idx()]);
            }
        }
        Ok(())
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
