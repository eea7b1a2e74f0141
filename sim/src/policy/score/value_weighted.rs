//! Weigh another score by the size of the value: s · m(v)^γ.
//!
//! With accumulated attention and m = L1 this is VATP: Guo et al. 2024, "Attention Score is not All You Need for Token
//! Importance Indicator in KV Cache Reduction" (arXiv 2406.12335), code guozhiyu/vatp `utils_hh/modify_llama.py`; the
//! product of the sum is the sum of the products there, since a value does not change. With the window attention, m =
//! range and γ = 1 it is the multiplicative weighting of VaSE's early code (`attn_range`). Needs: v and what the inner
//! score needs. Cost: O(n · head_dim) more.

use super::inner::{Inner, handed_on};
use super::{Score, window_mass};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{
    Draws, Entry, Family, HeadView, Law, Magnitude, Needs, PolicyError, PolicySpec, Randomness,
};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "value-weighted",
    family: Family::Score,
    summary: "another score times a power of the value's size (VATP; VaSE's attn_range)",
    citation: "Guo et al. 2024, arXiv 2406.12335; guozhiyu/vatp utils_hh/modify_llama.py",
    needs: Needs::V,
    randomness: Randomness::Deterministic,
    laws: &[Law::Stack, Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Score> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        if !(params.exponent.is_finite() && params.exponent >= 0.0) {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "exponent",
                found: params.exponent.to_string(),
                accepted: "a finite number, 0 or more",
            });
        }
        Ok(Box::new(ValueWeighted { inner: params.of.build()?, params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! { owned;
    /// The score that is weighted: `kind` and `params` of a score policy.
    of: Inner = Inner::plain(window_mass::SPEC.id),
    /// Measure of the value: range, l1, l2, variance or absmax.
    measure: Magnitude = Magnitude::L1,
    /// Power of the measure (gamma); 0 leaves the score as it is.
    exponent: f32 = 1.0,
}

const LOOKS_AT_CHOICE: bool = false;

#[derive(Debug)]
struct ValueWeighted {
    inner: Box<dyn Score>,
    params: Params,
}

/// `base^exponent` for a base of 0 or more; exact for 0, ½, 1 and 2.
#[expect(clippy::cast_possible_truncation, reason = "the logarithm is rounded to f32")]
pub(super) fn power(base: f32, exponent: f32) -> f32 {
    let is = |wanted: f32| (exponent - wanted).abs() < f32::EPSILON;
    if is(0.0) {
        1.0 + 0.0 * base
    } else if is(1.0) {
        base
    } else if is(2.0) {
        base * base
    } else if is(0.5) {
        base.sqrt()
    } else if base > 0.0 {
        num::exp((f64::from(exponent) * num::ln(f64::from(base))) as f32)
    } else {
        base
    }
}

impl Score for ValueWeighted {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn score(&self, view: &HeadView<'_>, draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        self.inner.score(view, draws, out)?;
        for (score, &pos) in out.iter_mut().zip(view.scored()) {
            *score *= power(self.params.measure.of_value(view.data, pos), self.params.exponent);
        }
        Ok(())
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }

    handed_on!(inner);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_powers() {
        for base in [0.0f32, 0.3, 1.0, 7.5] {
            for exponent in [0.0f32, 0.5, 1.0, 1.5, 2.0] {
                let (found, expected) = (power(base, exponent), base.powf(exponent));
                assert!((found - expected).abs() <= 1e-5 * expected.max(1.0), "{base}^{exponent}: {found}");
            }
        }
        assert!(power(f32::NAN, 0.0).is_nan(), "a NaN is not hidden");
    }
}
