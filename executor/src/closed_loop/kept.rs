//! Runs in the journal of an execution: what they have in common, and what each depends on besides.

use kvlab_sim::{
    results::RESULTS_VERSION,
    scenario::{EvictionPlan, EvictionStudy},
};
use serde_json::{Value, json};

use super::ExecPlan;
use crate::{
    error::ExecutorError,
    items::ItemSet,
    journal::{RunName, key},
    model::Model,
    record::{self, RecordItem},
};

/// What all runs of an execution have in common: `mode` says how they are run.
///
/// # Errors
/// The weights cannot be read any more.
pub(crate) fn settings(
    model: &Model,
    set: &ItemSet,
    plan: &ExecPlan<'_>,
    (verb, mode): (&str, &str),
) -> Result<Value, ExecutorError> {
    let runtime = record::runtime_info(model.runtime());
    Ok(json!({
        "verb": verb,
        "scenario": plan.scenario.id,
        "model": model.identity()?,
        "workload": set.name,
        "mode": mode,
        "max_new_tokens": plan.max_new_tokens,
        "runtime": {
            "provider": runtime.provider,
            "threads": runtime.threads,
            "library": runtime.library,
            "version": runtime.version,
        },
        "chunk": plan.chunk.get(),
        "results": RESULTS_VERSION.to_string(),
        "tool": concat!("kvlab ", env!("CARGO_PKG_VERSION")),
    }))
}

/// A problem of an execution. Answers are graded anew when they are read, so that no key holds what they should be.
pub(crate) struct Place<'a> {
    item: &'a str,
    parts: Value,
}

impl<'a> Place<'a> {
    /// The problem number `index`, which keys draws.
    pub(crate) fn of(index: usize, item: &'a RecordItem, prompt: &[u32]) -> Self {
        Self { item: &item.item, parts: json!([index, item.item, prompt, item.stops]) }
    }

    /// Key and name of the full cache's run.
    pub(crate) fn full(&self) -> (String, RunName) {
        self.named("full cache", &json!(null))
    }

    /// Key and name of the run of a cell.
    pub(crate) fn cell(&self, plan: &EvictionPlan, study: &EvictionStudy) -> (String, RunName) {
        self.named(&label(plan), &parts(plan, study))
    }

    /// Key and name of what the replay estimates for a cell.
    pub(crate) fn estimates(&self, plan: &EvictionPlan, study: &EvictionStudy) -> (String, RunName) {
        let replay = json!([study.output_error_every, study.next_token_every, study.block_tokens]);
        self.named(&format!("estimates of {}", label(plan)), &json!([parts(plan, study), replay]))
    }

    fn named(&self, run: &str, parts: &Value) -> (String, RunName) {
        let what = json!({ "item": self.parts, "run": parts });
        (key(&what), RunName { item: self.item.to_owned(), run: run.to_owned() })
    }
}

/// Everything about a cell that decides its run.
fn parts(plan: &EvictionPlan, study: &EvictionStudy) -> Value {
    let params = plan.stack.as_ref().map_or(Value::Null, |stack| stack.params());
    json!([plan.label, params, plan.budget, plan.seed, study.bytes_per_scalar])
}

fn label(plan: &EvictionPlan) -> String {
    let budget = plan.budget.map_or_else(String::new, |budget| format!("  budget {budget}"));
    let seed = plan.seed.map_or_else(String::new, |seed| format!("  seed {seed}"));
    format!("{}{budget}{seed}", plan.label)
}
