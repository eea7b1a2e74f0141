//! `survival`: what is still held at the end, by position.

use super::policy_curve::PolicyCurve;
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const SURVIVAL: PolicyCurve = PolicyCurve {
    id: "survival",
    title: "What is still held at the end, by position",
    question: "Does a policy keep the beginning, the recent end, or something between?",
    place: Place { section: Section::Eviction, rank: 7 },
    metric: "survival",
    needs: &[Need::Series("survival")],
    x: ("Position in the sequence (0 = first token, 1 = last)", "position"),
    natural: (0.0, 1.0),
    note: "Each point is a twentieth of the sequence, drawn at its left edge; over all layers, KV heads and sequences.",
};
