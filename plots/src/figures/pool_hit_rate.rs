//! `pool-hit-rate`: how many prompt tokens each pool policy finds in the cache, by capacity.

use super::budget_curve::{Along, BudgetCurve};
use crate::figure::{Need, Place, Section};

const CAPACITY: Along =
    Along { study: "pool", column: "pool_capacity_blocks", label: "Capacity of the cache (blocks)" };

/// The figure.
pub(crate) const POOL_HIT_RATE: BudgetCurve = BudgetCurve {
    id: "pool-hit-rate",
    title: "Prompt tokens found in the cache, by capacity",
    question: "Which pool policy finds most at a given capacity, and how far is it from what is possible (belady)?",
    place: Place { section: Section::Serving, rank: 1 },
    metric: "pool_hit_rate",
    along: &CAPACITY,
    needs: &[Need::CellColumn("pool_hit_rate"), Need::CellColumn("pool_capacity_blocks")],
    largest: 1.0,
};
