//! `pareto-bytes`: accuracy against the largest cache, every policy and budget.

use super::pareto::Pareto;
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const PARETO_BYTES: Pareto = Pareto {
    id: "pareto-bytes",
    title: "Accuracy against the largest cache, every policy and budget",
    question: "Which policies solve most with the least memory?",
    place: Place { section: Section::Eviction, rank: 5 },
    study: "eviction",
    needs: &[Need::CellColumn("accuracy"), Need::CellColumn("peak_stored_kv_bytes")],
    cost: "peak_stored_kv_bytes",
    gain: "accuracy",
};
