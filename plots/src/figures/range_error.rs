//! `range-error`: whether wide value states suffer more from the store, by layer.

use super::policy_curve::PolicyCurve;
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const RANGE_ERROR: PolicyCurve = PolicyCurve {
    id: "range-error",
    title: "Value range against storage error, by layer",
    question: "Are value states of wide range those that quantisation damages?",
    place: Place { section: Section::Eviction, rank: 8 },
    metric: "range_error_correlation",
    needs: &[Need::Series("range_error_correlation")],
    x: ("Layer (0 = first)", "layer"),
    natural: (-1.0, 1.0),
    note: "Correlation of Range(v) with the squared error of what the store gives back; 0 is no relation. Only policies that store tokens in another form have it.",
};
