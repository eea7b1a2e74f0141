//! Full blocks of equal tokens are shared, as vLLM's prefix cache does. No output changes.
//!
//! A block is reused when it and all blocks before it are equal to a cached sequence's, which is what a chained hash without collisions says;
//! at least one token is computed, so a prompt that is cached whole reuses `floor((T - 1) / block)` blocks. RKSC compares with
//! all-or-nothing equality over the root's whole prefix, which no cache does. Needs: nothing. Cost: O(branches · prompt) a branch.

use super::{Against, Share, ShareView, Sharing};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "exact-prefix",
    family: Family::Share,
    summary: "full blocks of equal leading tokens are shared (vLLM rules); outputs do not change",
    citation: "vllm-project/vllm vllm/v1/core/kv_cache_utils.py",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Share> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(ExactPrefix::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Tokens a block.
    block_tokens: u32 = 16,
    /// What is cached when a branch comes: the root's prefix, or the prompts of the branches before it.
    against: Against = Against::Earlier,
}

/// The policy.
#[derive(Debug)]
pub struct ExactPrefix {
    params: Params,
}

impl ExactPrefix {
    /// # Errors
    /// When a parameter is out of range.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        if params.block_tokens == 0 {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "block_tokens",
                found: "0".to_owned(),
                accepted: "1 or more",
            });
        }
        Ok(Self { params })
    }
}

impl Share for ExactPrefix {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn decide(&self, view: &ShareView<'_>) -> Result<Sharing, PolicyError> {
        let cached = num::count(self.params.against.cached_tokens(view));
        Ok(Sharing { reused_tokens: cached - cached % self.params.block_tokens, ..Sharing::NOTHING })
    }

    fn prefills_root(&self) -> bool {
        self.params.against == Against::Root
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::super::for_tests::problem;
    use super::*;
    use crate::policy::RawParams;

    fn reused(policy: &dyn Share, prompts: &[Vec<u32>], branch: usize) -> u32 {
        let problem = problem(prompts);
        policy.decide(&ShareView { problem: &problem, branch, layers: 2 }).unwrap().reused_tokens
    }

    /// Golden vector G17: equal in tokens 0 to 31 and different at 35 share two blocks; a prompt of exactly 32 cached tokens reuses one.
    #[test]
    fn g17_blocks_are_shared_up_to_the_first_difference_and_one_token_is_computed() {
        let exact = (ENTRY.build)(&RawParams::default()).unwrap();
        let first: Vec<u32> = (0..48).collect();
        let mut second = first.clone();
        second[35] = 99;
        let prompts = [vec![7], first.clone(), second, first[..32].to_vec()];
        assert_eq!(reused(exact.as_ref(), &prompts, 1), 0);
        assert_eq!(reused(exact.as_ref(), &prompts, 2), 32);
        assert_eq!(reused(exact.as_ref(), &prompts, 3), 16);
        // Token granularity, as in a radix tree.
        let radix = (super::super::radix::ENTRY.build)(&RawParams::default()).unwrap();
        assert_eq!(reused(radix.as_ref(), &prompts, 2), 35);
        assert_eq!(reused(radix.as_ref(), &prompts, 3), 31);
    }
}
