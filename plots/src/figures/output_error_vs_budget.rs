//! `output-error-vs-budget`: how far eviction moves the attention output, by budget.

use super::budget_curve::{BUDGET, BudgetCurve};
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const OUTPUT_ERROR_VS_BUDGET: BudgetCurve = BudgetCurve {
    id: "output-error-vs-budget",
    title: "Error of the attention output, by budget",
    question: "How far does eviction move the attention output at a given budget?",
    place: Place { section: Section::Eviction, rank: 2 },
    metric: "attn_output_error",
    along: &BUDGET,
    needs: &[Need::CellColumn("attn_output_error")],
    largest: f64::MAX,
};
