//! `pareto-work`: right answers against the work of verifying.

use super::pareto::Pareto;
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const PARETO_WORK: Pareto = Pareto {
    id: "pareto-work",
    title: "Right answers against the work of verifying",
    question: "Which stacks answer most problems with the least work of the verifier?",
    place: Place { section: Section::Trees, rank: 6 },
    study: "trees",
    needs: &[Need::CellColumn("tree_accuracy"), Need::CellColumn("verify_work_rate")],
    cost: "verify_work_rate",
    gain: "tree_accuracy",
};
