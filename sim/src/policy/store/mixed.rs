//! Integers for most tokens, binary16 for the values that would lose most.
//!
//! The `value_tokens` largest value states by a measure (the range: VaSE, arXiv 2606.03928, ties it to the error of quantised
//! values) stay in binary16; every other value and all keys are integers. Ties go to the earlier position. Needs: v. Cost:
//! O(n · head_dim) a choice.

use super::{Precision, Store, StoreView, Stored, check_bits};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Law, Magnitude, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "mixed",
    family: Family::Store,
    summary: "integers, but the N_v largest value states in binary16",
    citation: "VaSE, arXiv 2606.03928",
    needs: Needs::V,
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
        Ok(Box::new(Mixed { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// N_v: values that stay in binary16.
    value_tokens: u32 = 16,
    /// Measure of the value: range, l1, l2, variance or absmax.
    measure: Magnitude = Magnitude::Range,
    /// Bits a channel of the others: 2, 4 or 8.
    bits: u8 = 4,
    /// Channels that share a scale and a smallest value.
    group: u16 = 32,
}

#[derive(Debug)]
struct Mixed {
    params: Params,
}

impl Store for Mixed {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn store(&self, view: &StoreView<'_>) -> Result<Vec<Stored>, PolicyError> {
        let sizes: Vec<(f32, u32)> = view
            .resident
            .iter()
            .zip(view.held)
            // A value that has been rounded already takes no place from one that has not.
            .filter(|(_, held)| held.value.rank() >= Precision::Half.rank())
            .map(|(&pos, _)| (self.params.measure.of_value(view.data, pos), pos.get()))
            .collect();
        if sizes.iter().any(|(size, _)| size.is_nan()) {
            return Err(PolicyError::Contract { policy: SPEC.id, rule: "the size of a value is a number" });
        }
        let mut wide: Vec<u32> =
            num::top(sizes, self.params.value_tokens as usize).into_iter().map(|(_, pos)| pos).collect();
        wide.sort_unstable();
        let int = Precision::Int { bits: self.params.bits, group: self.params.group };
        let of = |pos: &crate::types::Pos| {
            let is_wide = wide.binary_search(&pos.get()).is_ok();
            Stored { key: int, value: if is_wide { Precision::Half } else { int } }
        };
        Ok(view.resident.iter().map(of).collect())
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::PlainHead;
    use crate::types::Pos;

    #[test]
    fn the_widest_values_stay_in_half() {
        let values: Vec<Vec<f32>> = [1.0f32, 5.0, 2.0, 9.0, 5.0].iter().map(|x| vec![-x, *x]).collect();
        let head =
            PlainHead { queries: vec![values.clone()], keys: values.clone(), values, ..PlainHead::default() };
        let resident: Vec<Pos> = [4, 3, 2, 1, 0].map(Pos::new).to_vec();
        let store = Mixed { params: Params { value_tokens: 2, ..Params::default() } };
        let stored =
            store.store(&StoreView { data: &head, resident: &resident, held: &[Stored::EXACT; 5] }).unwrap();
        let halves: Vec<bool> = stored.iter().map(|s| s.value == Precision::Half).collect();
        // Positions 3 and 1: of two equal ones the earlier.
        assert_eq!(halves, [false, true, false, true, false]);
        assert!(stored.iter().all(|s| s.key != Precision::Half));
    }
}
