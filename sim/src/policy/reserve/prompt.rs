//! Reserve the prompt: a control that never forgets the question.
//!
//! A prompt that does not fit beside the recent buffer is refused with the numbers. Needs: positions. Cost: O(n).

use super::Reserve;
use crate::policy::doc::{defaults, params};
use crate::policy::{Draws, Entry, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "prompt",
    family: Family::Reserve,
    summary: "all tokens of the prompt",
    citation: "-",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Reserve> = Entry {
    spec: &SPEC,
    build: |raw| {
        raw.parse::<Params>(SPEC.id)?;
        Ok(Box::new(Prompt))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {}

#[derive(Debug)]
struct Prompt;

impl Reserve for Prompt {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn reserved(&self, _capacity: u32) -> u32 {
        0
    }

    fn wanted(&self, _capacity: u32, view: &HeadView<'_>) -> u32 {
        view.at.prompt_len
    }

    fn reserve(
        &self,
        view: &HeadView<'_>,
        choice: &[usize],
        count: usize,
        _draws: &Draws,
    ) -> Result<Vec<usize>, PolicyError> {
        let scored = view.scored();
        let of_prompt: Vec<usize> =
            choice.iter().copied().filter(|&slot| scored[slot].get() < view.at.prompt_len).collect();
        if of_prompt.len() > count {
            let (prompt, recent) = (view.at.prompt_len, view.recent);
            let reason = format!(
                "a prompt of {prompt} tokens and {recent} recent ones do not fit: {} of the prompt would have to go",
                of_prompt.len() - count
            );
            return Err(PolicyError::Refused { policy: SPEC.id, reason });
        }
        Ok(of_prompt)
    }

    fn reason(&self) -> &'static str {
        "prompt"
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}
