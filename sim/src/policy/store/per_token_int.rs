//! Keys and values as integers, each token with its own scales.
//!
//! Every group of channels of a vector is rounded to 2^bits levels between its smallest and largest channel. The form of
//! the storage study in VaSE (arXiv 2606.03928: 2 or 4 bits, groups of 32 or 64). Differs: round to nearest, where the study uses
//! HQQ's optimised rounding. Needs: nothing. Cost: bits + 32 / group a channel.

use super::{Precision, Store, StoreView, Stored, check_bits};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "per-token-int",
    family: Family::Store,
    summary: "keys and values as 2, 4 or 8-bit integers with scales a token",
    citation: "VaSE, arXiv 2606.03928",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Store> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        check_bits(SPEC.id, "bits", params.bits)?;
        if params.group == 0 {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "group",
                found: "0".to_owned(),
                accepted: "1 or more",
            });
        }
        Ok(Box::new(PerTokenInt { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// Bits a channel: 2, 4 or 8.
    bits: u8 = 4,
    /// Channels that share a scale and a smallest value.
    group: u16 = 32,
}

#[derive(Debug)]
struct PerTokenInt {
    params: Params,
}

impl Store for PerTokenInt {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn store(&self, view: &StoreView<'_>) -> Result<Vec<Stored>, PolicyError> {
        let int = Precision::Int { bits: self.params.bits, group: self.params.group };
        Ok(vec![Stored { key: int, value: int }; view.resident.len()])
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}
