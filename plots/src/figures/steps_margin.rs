//! `steps-margin`: what each value of margin gives, exactly.

use super::step_curve::StepCurve;
use crate::figure::{Place, Section};

/// The figure.
pub(crate) const STEPS_MARGIN: StepCurve = StepCurve {
    id: "steps-margin",
    title: "Every margin at once",
    question: "How far must the surest branch lead before verification can be skipped?",
    place: Place { section: Section::Trees, rank: 3 },
    axis: "margin",
    own: "margin",
    label: "margin: smallest lead of the surest branch at a skip",
};
