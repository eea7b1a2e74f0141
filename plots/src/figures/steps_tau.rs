//! `steps-tau`: what each value of tau gives, exactly.

use super::step_curve::StepCurve;
use crate::figure::{Place, Section};

/// The figure.
pub(crate) const STEPS_TAU: StepCurve = StepCurve {
    id: "steps-tau",
    title: "Every similarity threshold τ at once",
    question: "Above which similarity does sharing a prefix stop costing answers?",
    place: Place { section: Section::Trees, rank: 1 },
    axis: "tau",
    own: "tau",
    label: "τ: smallest similarity at which a branch shares",
};
