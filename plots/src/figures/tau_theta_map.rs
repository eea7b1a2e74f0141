//! `tau-theta-map`: sharing and leaving early together, over τ and θ.

use super::gate_map::GateMap;
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const TAU_THETA_MAP: GateMap = GateMap {
    id: "tau-theta-map",
    title: "Sharing and leaving early together, over τ and θ",
    question: "Do sharing and early exits get in each other’s way?",
    place: Place { section: Section::Trees, rank: 8 },
    study: "trees",
    needs: &[Need::CellColumn("tau"), Need::CellColumn("theta"), Need::CellColumn("tree_accuracy")],
    x: ("tau", "τ"),
    y: ("theta", "θ"),
    metrics: &["share_rate", "verify_skip_rate", "verify_layer_skip_rate", "harm_rate", "tree_accuracy"],
};
