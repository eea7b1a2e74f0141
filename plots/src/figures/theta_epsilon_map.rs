//! `theta-epsilon-map`: leaving verification early, over θ and ε.

use super::gate_map::GateMap;
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const THETA_EPSILON_MAP: GateMap = GateMap {
    id: "theta-epsilon-map",
    title: "Leaving verification early, over θ and ε",
    question: "Which pairs of θ and ε save layers without losing answers, and where does one of them decide nothing?",
    place: Place { section: Section::Trees, rank: 7 },
    study: "trees",
    needs: &[Need::CellColumn("theta"), Need::CellColumn("epsilon"), Need::CellColumn("tree_accuracy")],
    x: ("theta", "θ"),
    y: ("epsilon", "ε"),
    metrics: &[
        "verify_exit_rate",
        "verify_layer_skip_rate",
        "verify_work_rate",
        "harm_rate",
        "tree_accuracy",
    ],
};
