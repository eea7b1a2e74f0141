//! `exit-map`: leaving layers early, over θ and ε.

use super::gate_map::GateMap;
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const EXIT_MAP: GateMap = GateMap {
    id: "exit-map",
    title: "Leaving layers early, over θ and ε",
    question: "Which pairs of θ and ε skip layers while the next token stays?",
    place: Place { section: Section::Exit, rank: 3 },
    study: "exit",
    needs: &[Need::CellColumn("theta"), Need::CellColumn("epsilon"), Need::CellColumn("exit_agreement")],
    x: ("theta", "θ"),
    y: ("epsilon", "ε"),
    metrics: &["skip_rate", "exit_rate", "mean_layers_run", "exit_agreement"],
};
