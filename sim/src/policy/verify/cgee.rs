//! Skip when one branch is sure and clearly ahead: level 1 of CGEE in RKSC (S1).
//!
//! Rule A: top ≥ `tau_conf` and top − second ≥ `margin`. Rule B: top ≥ `floor_scale`·`tau_conf` and (top − second) / max(top, 1e-6) ≥
//! `relative_margin`. A problem with one branch is always skipped. Paper: RKSC (arXiv 2606.09937); code AnirudhSekar/RKSC `rksc.ipynb`.
//! With the published numbers rule B implies rule A's decision up to a confidence of 0.75, so A alone decides only above. Differs from the code in
//! that steps after the end of a text do not count. Needs: outcomes. Cost: O(branches).

use super::{Verify, VerifyView};
use crate::policy::confidence::{Confidence, Over, top_two};
use crate::policy::doc::{as_json, defaults, params};
use crate::policy::exit::check_range;
use crate::policy::{Entry, Family, Needs, PolicyError, PolicySpec, Randomness};
use serde::{Deserialize, Serialize};

/// Identity and capabilities.
pub const SPEC: PolicySpec = PolicySpec {
    id: "cgee",
    family: Family::Verify,
    summary: "skip when one branch is sure and clearly ahead, by an absolute or a relative margin (CGEE level 1)",
    citation: "RKSC, arXiv 2606.09937; AnirudhSekar/RKSC rksc.ipynb",
    needs: Needs::OUTCOMES,
    randomness: Randomness::Deterministic,
    laws: &[],
};

/// Registry line.
pub const ENTRY: Entry<dyn Verify> = Entry {
    spec: &SPEC,
    build: |raw| Ok(Box::new(Cgee::checked(raw.parse(SPEC.id)?)?)),
    defaults: defaults::<Params>,
    docs: Params::DOCS,
};

/// Which rules may skip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The absolute margin only.
    A,
    /// The relative margin only.
    B,
    /// Either.
    #[default]
    Either,
}

params! {
    /// Confidence of a branch.
    confidence: Confidence = Confidence::MeanTop1Prob,
    /// The steps it is over: steps, answer, tail:N, lowest-window:N or bottom-windows:N.
    over: Over = Over::Steps,
    /// Rule A: smallest confidence of the surest branch at a skip.
    tau_conf: f64 = 0.70,
    /// Rule A: smallest lead over the second.
    margin: f64 = 0.06,
    /// The rules in use: a, b or either.
    rule: Rule = Rule::Either,
    /// Rule B: smallest lead as a share of the largest confidence.
    relative_margin: f64 = 0.08,
    /// Rule B: what tau_conf is multiplied by.
    floor_scale: f64 = 0.90,
}

/// The two rules.
#[derive(Debug)]
pub struct Cgee {
    params: Params,
}

impl Cgee {
    /// # Errors
    /// When a threshold is no number, or a confidence is not between 0 and 1 where rule B divides by it.
    pub fn checked(params: Params) -> Result<Self, PolicyError> {
        for (name, value) in [("tau_conf", params.tau_conf), ("margin", params.margin)] {
            check_range(SPEC.id, name, value, (-1e9, 1e9), "a finite number")?;
        }
        check_range(SPEC.id, "relative_margin", params.relative_margin, (-1e9, 1e9), "a finite number")?;
        check_range(SPEC.id, "floor_scale", params.floor_scale, (1e-9, 1e9), "a positive number")?;
        if params.rule != Rule::A {
            crate::policy::winner::check_share(SPEC.id, params.confidence)?;
        }
        Ok(Self { params })
    }
}

/// The surest branch of a problem and its lead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lead {
    /// The largest confidence.
    pub top: f64,
    /// Largest minus second largest.
    pub gap: f64,
    /// The gap over max(top, 1e-6).
    pub relative_gap: f64,
}

impl Lead {
    /// The lead among confidences; nothing with fewer than two.
    #[must_use]
    pub fn of(confidences: &[f64]) -> Option<Self> {
        let (top, second) = top_two(confidences)?;
        let gap = top - second?;
        Some(Self { top, gap, relative_gap: gap / top.max(1e-6) })
    }
}

impl Params {
    /// Whether the problem with this lead is skipped under rule A and under rule B, whether or not they are in use.
    #[must_use]
    pub fn rules(&self, lead: Lead) -> (bool, bool) {
        let a = lead.top >= self.tau_conf && lead.gap >= self.margin;
        let b = lead.top >= self.floor_scale * self.tau_conf && lead.relative_gap >= self.relative_margin;
        (a, b)
    }

    /// Whether a problem with this lead is skipped; one branch alone always is.
    #[must_use]
    pub fn skips(&self, lead: Option<Lead>) -> bool {
        let Some(lead) = lead else { return true };
        let (a, b) = self.rules(lead);
        match self.rule {
            Rule::A => a,
            Rule::B => b,
            Rule::Either => a || b,
        }
    }
}

impl Verify for Cgee {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn skips(&self, view: &VerifyView<'_>) -> Result<bool, PolicyError> {
        let confidences = self.params.confidence.of(SPEC.id, self.params.over, view.outcomes)?;
        Ok(self.params.skips(Lead::of(&confidences)))
    }

    fn params(&self) -> serde_json::Value {
        as_json(&self.params)
    }

    fn as_cgee(&self) -> Option<Params> {
        Some(self.params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden vector G4: (rule A, rule B). 0.70 − 0.64 is below 0.06 in binary64.
    #[test]
    fn g4_the_two_rules_of_level_one() {
        let params = Params::default();
        for (confidences, expected) in [
            (&[0.80, 0.70, 0.60][..], (true, true)),
            (&[0.80, 0.76], (false, false)),
            (&[0.65, 0.59], (false, true)),
            (&[0.62, 0.40], (false, false)),
            (&[0.70, 0.64], (false, true)),
            (&[0.70, 0.6399], (true, true)),
        ] {
            assert_eq!(params.rules(Lead::of(confidences).unwrap()), expected, "{confidences:?}");
        }
        assert!(params.skips(Lead::of(&[0.1])));
        assert!((Lead::of(&[0.65, 0.59]).unwrap().relative_gap - 0.0923).abs() < 1e-4);
    }
}
