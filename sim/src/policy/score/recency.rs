//! Keep what came last: with sinks this is StreamingLLM without re-rotation.
//!
//! Paper: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453); code
//! mit-han-lab/streaming-llm `streaming_llm/kv_cache.py`. Differs: keys keep their original positions, as everywhere
//! in kvlab; the original re-rotates them to their place in the cache. Needs: positions. Cost: O(n).

use super::Score;
use crate::policy::doc::{defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "recency",
    family: Family::Score,
    summary: "later tokens are worth more",
    citation: "Xiao et al. 2023, arXiv 2309.17453",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(Recency))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct Recency;

impl Score for Recency {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(clippy::cast_precision_loss, reason = "positions stay below 2^24")]
    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        out.clear();
        out.extend(view.scored().iter().map(|pos| pos.get() as f32));
        Ok(())
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
