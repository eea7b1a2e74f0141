//! The block with the smallest ω goes first: RKSC's branch-aware block manager.
//!
//! ω = score · attention^κ / (depth + 1), and the block unused for longest among equals. `score` is that of the best branch that
//! uses the block (or their mean), κ = 0 is the formula of the description, κ = 1 its "attention-weighted" wording. Paper:
//! RKSC (arXiv 2606.09937); code AnirudhSekar/RKSC `rksc.ipynb`. `form: as-coded` is what the notebook's class does: one score,
//! no attention, ties to what was stored first, and no regard to blocks that continue the one that goes. In the notebook
//! itself scores and depths never change, so that the rule is `fifo`, and its records hold no memory. Differs: a block of a
//! running request stays, while the notebook may drop the record that it is adding. Needs: scores, depths and attention of the
//! stream, where it has them. Cost: O(log n) an access.

use super::{BlockFacts, Pool, Rank};
use crate::num;
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "rsbcm",
    family: Family::Pool,
    summary: "the block with the smallest score times attention over depth + 1 goes first",
    citation: "RKSC, arXiv 2606.09937; AnirudhSekar/RKSC rksc.ipynb",
    needs: Needs::NONE,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Pool> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Rsbcm::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

/// Which of the two rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// As the paper describes it, for blocks of a tree.
    #[default]
    Described,
    /// As the notebook's class computes it.
    AsCoded,
}

/// The score of a block that several branches use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shared {
    /// That of the best branch.
    #[default]
    Max,
    /// The mean.
    Mean,
}

params! {
    /// κ: power of the attention mass; 0 leaves it out.
    kappa: f64 = 1.0,
    /// `described` or `as-coded`.
    form: Form = Form::Described,
    /// Score of a block that several branches use: `max` or `mean`.
    shared: Shared = Shared::Max,
}

/// The branch-aware ranking.
#[derive(Debug)]
pub struct Rsbcm {
    params: Params,
}

impl Rsbcm {
    /// # Errors
    /// When κ is negative or no number.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        if params.kappa >= 0.0 && params.kappa.is_finite() {
            return Ok(Self { params });
        }
        let (found, accepted) = (params.kappa.to_string(), "0 or more");
        Err(PolicyError::OutOfRange { kind: SPEC.id, param: "kappa", found, accepted })
    }

    fn omega(&self, block: &BlockFacts) -> f64 {
        let score = match self.params.shared {
            Shared::Max => block.score_max,
            Shared::Mean => block.score_mean,
        };
        let weight = match self.params.form {
            Form::AsCoded => 1.0,
            Form::Described => power(block.attention, self.params.kappa),
        };
        f64::from(score) * weight / (f64::from(block.depth) + 1.0)
    }
}

/// `base^exponent` for a base in (0, 1]; exact for exponents 0 and 1.
#[expect(clippy::cast_possible_truncation, reason = "binary32 is enough to rank by")]
fn power(base: f32, exponent: f64) -> f64 {
    if exponent <= 0.0 {
        1.0
    } else if (exponent - 1.0).abs() < f64::EPSILON {
        f64::from(base)
    } else {
        f64::from(num::exp((exponent * num::ln(f64::from(base))) as f32))
    }
}

impl Pool for Rsbcm {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn rank(&self, block: &BlockFacts) -> Rank {
        let then = match self.params.form {
            Form::Described => block.last_access,
            Form::AsCoded => block.created,
        };
        Rank { worth: self.omega(block), then }
    }

    fn is_leaf_first(&self) -> bool {
        self.params.form == Form::Described
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(params: Params, blocks: &[(f32, u32)]) -> Vec<f64> {
        let policy = Rsbcm::checked(params).unwrap();
        let facts = |&(score, depth): &(f32, u32)| BlockFacts {
            score_max: score,
            score_mean: score,
            depth,
            attention: 0.25,
            ..BlockFacts::default()
        };
        blocks.iter().map(|block| policy.rank(&facts(block)).worth).collect()
    }

    /// Golden vector: (score, depth) = (0.9, 3), (0.5, 0), (0.8, 1), (0.3, 1) gives ω = 0.225, 0.5, 0.4, 0.15.
    #[test]
    fn omega_is_score_over_depth_plus_one() {
        let blocks = [(0.9, 3), (0.5, 0), (0.8, 1), (0.3, 1)];
        let params = Params { kappa: 0.0, ..Params::default() };
        let omega = ranks(params, &blocks);
        for (found, expected) in omega.iter().zip([0.225, 0.5, 0.4, 0.15]) {
            assert!((found - expected).abs() < 1e-7, "{found} {expected}");
        }
        let mut order: Vec<usize> = (0..4).collect();
        order.sort_by(|&a, &b| omega[a].total_cmp(&omega[b]));
        assert_eq!(order, [3, 0, 2, 1]);
        // Without attention both forms are one formula.
        assert_eq!(omega, ranks(Params { form: Form::AsCoded, ..Params::default() }, &blocks));
    }

    #[test]
    fn kappa_is_the_power_of_attention() {
        let of = |kappa| ranks(Params { kappa, ..Params::default() }, &[(1.0, 0)])[0];
        assert_eq!((of(0.0), of(1.0)), (1.0, 0.25));
        assert!((of(0.5) - 0.5).abs() < 1e-6 && (of(2.0) - 0.0625).abs() < 1e-7);
        assert!(Rsbcm::checked(Params { kappa: f64::NAN, ..Params::default() }).is_err());
        assert!(Rsbcm::checked(Params { kappa: -1.0, ..Params::default() }).is_err());
    }
}
