//! The columns of `cells` that say what an eviction cell is, the same for a replay and for an executor.

use crate::policy::compose::Granularity;
use crate::results::CellRow;
use crate::scenario::EvictionPlan;
use crate::table::Value;

/// Sets policy, budget, seed, parameters and amounts.
pub fn plan_columns(plan: &EvictionPlan, row: &mut CellRow) {
    row.text("policy", plan.label.clone());
    row.maybe_int("budget_tokens", plan.budget);
    row.set("seed", plan.seed.and_then(|seed| i64::try_from(seed).ok()).map_or(Value::Absent, Value::Int));
    let Ok(stack) = &plan.stack else {
        return;
    };
    row.text("params", stack.params().to_string());
    if stack.attends_to_part() {
        row.text("attend", stack.attend_id());
    }
    if !stack.keeps_exact() {
        row.text("store", stack.store_id());
    }
    if stack.can_evict() {
        if stack.granularity() != Granularity::TokenHead {
            row.text("granularity", String::from(stack.granularity()));
        }
        let knobs = stack.knobs();
        row.int("kv_budget_tokens", knobs.capacity - knobs.recent);
        row.int("recent_tokens", knobs.recent);
        row.int("value_tokens", stack.value_tokens());
        row.int("sink_tokens", knobs.sinks);
        row.maybe_int("period_tokens", stack.period());
        row.maybe_int("window_tokens", Some(stack.window()).filter(|&w| w > 0));
    }
}
