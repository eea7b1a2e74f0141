//! `steps-theta`: what each value of theta gives, exactly.

use super::step_curve::StepCurve;
use crate::figure::{Place, Section};

/// The figure.
pub(crate) const STEPS_THETA: StepCurve = StepCurve {
    id: "steps-theta",
    title: "Every entropy threshold θ at once",
    question: "Below which entropy can a verification stop early without losing answers?",
    place: Place { section: Section::Trees, rank: 4 },
    axis: "theta",
    own: "theta_nats",
    label: "θ: entropy below which a pass may stop (nats)",
};
