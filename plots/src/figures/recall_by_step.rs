//! `recall-by-step`: attention mass kept, by sequence length.

use super::policy_curve::PolicyCurve;
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const RECALL_BY_STEP: PolicyCurve = PolicyCurve {
    id: "recall-by-step",
    title: "Attention mass kept, by sequence length",
    question: "When does a policy lose attention mass, and does it come back?",
    place: Place { section: Section::Eviction, rank: 3 },
    metric: "step_mass_recall",
    needs: &[Need::Series("step_mass_recall")],
    x: ("Sequence length seen (tokens)", "length_tokens"),
    natural: (0.0, 1.0),
    note: "Mean over layers, query heads and the sequences still running at that length, so the right end rests on few sequences.",
};
