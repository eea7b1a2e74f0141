//! `steps-epsilon`: what each value of epsilon gives, exactly.

use super::step_curve::StepCurve;
use crate::figure::{Place, Section};

/// The figure.
pub(crate) const STEPS_EPSILON: StepCurve = StepCurve {
    id: "steps-epsilon",
    title: "Every limit ε on the change of entropy at once",
    question: "How much may the entropy still change where a verification stops?",
    place: Place { section: Section::Trees, rank: 5 },
    axis: "epsilon",
    own: "epsilon_nats",
    label: "ε: largest change of the entropy at a stop (nats)",
};
