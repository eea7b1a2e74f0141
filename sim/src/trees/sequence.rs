//! Problems one after the other, since some policies remember.

use super::{
    Choice, ProblemDecision, TreeError, TreeFacts, TreeModel, TreeStack, full_pipeline, replay_problem,
};

/// Replays `trees` in their order: what was decided about each, and what the full pipeline with the same winner policy chooses, `[problem]`.
///
/// # Errors
/// When the trace lacks what a policy looks at.
pub fn replay_all(
    stack: &TreeStack,
    trees: &[TreeFacts],
    model: TreeModel,
    seed: u64,
) -> Result<Vec<(ProblemDecision, Choice)>, TreeError> {
    let (mut decided, mut history) = (Vec::with_capacity(trees.len()), Vec::new());
    for facts in trees {
        let decision = replay_problem(stack, facts, model, seed, &history)?;
        if stack.is_stateful() {
            let runs = decision.branches.iter().filter_map(|branch| branch.layers_run);
            history.extend(runs.map(|layers| layers.saturating_sub(1)));
        }
        let full = full_pipeline(stack.winner.as_ref(), facts)?;
        decided.push((decision, full));
    }
    Ok(decided)
}
