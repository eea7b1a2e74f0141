//! Larger budgets for lower layers: PyramidKV's straight line over the layers.
//!
//! With n the mean budget, T the tokens seen, W the window: min = n / beta, max = 2n − min; if max > T − W then
//! max = T − W and min = 2n − max; layer l of L gets max − l · (max − min) / (L − 1), rounded. If not
//! T ≥ max ≥ min ≥ W, every layer gets n. Paper: Cai et al. 2024, "PyramidKV" (arXiv 2406.02069); formula of
//! NVIDIA/kvpress `kvpress/presses/pyramidkv_press.py`, after Zefan-Cai/KVCache-Factory. Differs: W is the recent
//! buffer, and at decode n is the budget C. A layer whose line rises above what it holds keeps what it holds. Needs:
//! nothing. Cost: none.

use super::{Budget, Place};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Law, Needs, PolicyError, PolicySpec, Randomness};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "pyramid",
    family: Family::Budget,
    summary: "budgets fall in a straight line from the first layer to the last (PyramidKV)",
    citation: "Cai et al. 2024, arXiv 2406.02069; NVIDIA/kvpress kvpress/presses/pyramidkv_press.py",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[Law::HeadSymmetric],
};

/// Registry line.
pub const ENTRY: Entry<dyn Budget> = Entry {
    spec: &SPEC,
    build: |raw| {
        let params: Params = raw.parse(SPEC.id)?;
        if params.beta == 0 {
            return Err(PolicyError::OutOfRange {
                kind: SPEC.id,
                param: "beta",
                found: "0".to_owned(),
                accepted: "1 or more",
            });
        }
        Ok(Box::new(Pyramid { params }))
    },
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

params! {
    /// The last layer gets the mean budget divided by this; 1 for none of it.
    beta: u32 = 20,
}

#[derive(Debug)]
struct Pyramid {
    params: Params,
}

/// Tokens that layer `layer` of `layers` keeps.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the tokens seen")]
fn tokens(layer: u16, layers: u16, seen: u32, window: u32, mean: f64, beta: u32) -> u32 {
    let (total, window) = (f64::from(seen), f64::from(window));
    let mut min = mean / f64::from(beta);
    let mut max = 2.0 * mean - min;
    if max >= total - window {
        max = total - window;
        min = 2.0 * mean - max;
    }
    if layers < 2 || !(total >= max && max >= min && min >= window) {
        return mean.round_ties_even() as u32;
    }
    let fall = (max - min) / f64::from(layers - 1);
    (max - f64::from(layer) * fall).round_ties_even() as u32
}

impl Budget for Pyramid {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn share(&self, place: Place<'_>, mean: u32) -> u32 {
        let (layer, layers) = (place.layer.get(), place.shape.layers);
        tokens(layer, layers, place.seen, place.recent, f64::from(mean), self.params.beta)
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Golden vector G11 of the policy specification: W 64, beta 20, 8 layers.
    #[test]
    fn budgets_are_the_golden_ones() {
        let line = |seen: u32, keep: f64| -> Vec<u32> {
            (0..8).map(|layer| tokens(layer, 8, seen, 64, f64::from(seen) * keep, 20)).collect()
        };
        assert_eq!(line(4096, 0.5), [3994, 3438, 2882, 2326, 1770, 1214, 658, 102]);
        assert_eq!(line(4096, 0.1), [410; 8], "the last layer could not hold the window");
        assert_eq!(line(16_384, 0.25), [7987, 6875, 5764, 4652, 3540, 2428, 1317, 205]);
    }
}
