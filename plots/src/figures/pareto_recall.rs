//! `pareto-recall`: attention mass kept against the largest cache.

use super::pareto::Pareto;
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const PARETO_RECALL: Pareto = Pareto {
    id: "pareto-recall",
    title: "Attention mass kept against the largest cache",
    question: "Which policies keep most attention with the least memory?",
    place: Place { section: Section::Eviction, rank: 6 },
    study: "eviction",
    needs: &[Need::CellColumn("attn_mass_recall"), Need::CellColumn("peak_stored_kv_bytes")],
    cost: "peak_stored_kv_bytes",
    gain: "attn_mass_recall",
};
