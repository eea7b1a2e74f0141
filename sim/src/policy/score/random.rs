//! Keep at random: the control that every scorer has to beat.
//!
//! Source: NVIDIA/kvpress `kvpress/presses/random_press.py`. Differs: the draw belongs to (seed, sequence, layer, KV
//! head, eviction, position), so runs at two budgets share their noise. Needs: positions. Cost: O(n).

use super::Score;
use crate::policy::doc::{defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "random",
    family: Family::Score,
    summary: "every token gets a uniform draw, fresh at each eviction",
    citation: "NVIDIA/kvpress kvpress/presses/random_press.py",
    needs: Needs::NONE,
    randomness: Randomness::Random,
    laws: &[Law::Stack],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(Random))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct Random;

impl Score for Random {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a score needs no more than 24 bits; ties go to the lower position"
    )]
    fn score(&self, view: &HeadView<'_>, draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        let seen = view.at.seen;
        let uniform = view.shared(draws.key_of_head(SPEC.id, u64::from(seen)), || -> Vec<f32> {
            let mut stream = draws.of_head(SPEC.id);
            (0..seen).map(|_| stream.uniform() as f32).collect()
        });
        out.clear();
        out.extend(view.scored().iter().map(|pos| uniform[pos.idx()]));
        Ok(())
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
