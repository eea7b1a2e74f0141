//! `recall-vs-budget`: how much of the attention each policy keeps, by budget.

use super::budget_curve::{BUDGET, BudgetCurve};
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const RECALL_VS_BUDGET: BudgetCurve = BudgetCurve {
    id: "recall-vs-budget",
    title: "Attention mass kept, by budget",
    question: "Which policy keeps most of the full cache's attention at a given budget?",
    place: Place { section: Section::Eviction, rank: 1 },
    metric: "attn_mass_recall",
    along: &BUDGET,
    needs: &[Need::CellColumn("attn_mass_recall")],
    largest: 1.0,
};
