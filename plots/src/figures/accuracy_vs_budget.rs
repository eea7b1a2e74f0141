//! `accuracy-vs-budget`: how many problems are still solved with each policy in the loop, by budget.

use super::budget_curve::{BUDGET, BudgetCurve};
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const ACCURACY_VS_BUDGET: BudgetCurve = BudgetCurve {
    id: "accuracy-vs-budget",
    title: "Problems solved, by budget",
    question: "How many problems does the model still solve with a policy in the loop?",
    place: Place { section: Section::Eviction, rank: 0 },
    metric: "accuracy",
    along: &BUDGET,
    needs: &[Need::CellColumn("accuracy")],
    largest: 1.0,
};
