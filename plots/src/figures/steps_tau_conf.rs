//! `steps-tau-conf`: what each value of tau_conf gives, exactly.

use super::step_curve::StepCurve;
use crate::figure::{Place, Section};

/// The figure.
pub(crate) const STEPS_TAU_CONF: StepCurve = StepCurve {
    id: "steps-tau-conf",
    title: "Every confidence threshold τ_conf at once",
    question: "Above which confidence can verification be skipped without losing answers?",
    place: Place { section: Section::Trees, rank: 2 },
    axis: "tau-conf",
    own: "tau_conf",
    label: "τ_conf: smallest confidence at a skip",
};
