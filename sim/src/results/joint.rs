//! Columns of `joint`.

/// Columns of `joint`, from which any setting of a stack's thresholds follows: one row a stack, problem and stretch of τ, with kind and
/// meaning. A row is the one of its problem when τ is above `above` and not above `upto`.
pub const JOINT_COLUMNS: &[(&str, &str, &str)] = &[
    ("stack", "text", "label of the stack"),
    (
        "group",
        "text",
        "content hash of everything that decides the facts but the thresholds (12 hex digits), as in `steps`",
    ),
    (
        "params",
        "text",
        "the stack's effective parameters, canonical JSON; the thresholds in it are where sliders start",
    ),
    ("nats", "real", "nats of one unit of theta and epsilon; absent where the stack has neither"),
    ("layers", "int", "layers of the model"),
    ("problem", "int", "index of the problem in the trace"),
    ("item", "text", "id of the problem"),
    ("above", "real", "values of tau above this belong to the row; absent for no lower end"),
    ("upto", "real", "values of tau up to and including this belong to the row; absent for no upper end"),
    ("branches", "int", "branches that may answer"),
    ("shared_branches", "int", "branches decoded behind the root's prefix"),
    ("prompt_tokens", "int", "prompt tokens of all branches"),
    ("reused_tokens", "int", "of them, those that were there already"),
    ("prefill_unshared", "int", "work on prompts with nothing shared, in tokens times layers"),
    ("prefill", "int", "work on prompts, with the root's prefix and the gate"),
    (
        "top",
        "real",
        "largest confidence of a branch; absent for one branch, which is skipped, and where the skip rule has no thresholds",
    ),
    ("gap", "real", "largest minus second largest confidence"),
    ("relative_gap", "real", "the gap over the largest confidence"),
    ("skips", "bool", "what a skip rule without thresholds decides"),
    (
        "stops",
        "text",
        "branches apart by |, each: tokens of the verifier's prompt, layers run where nothing stops it; then layers, entropy (nats), \
         change (nats) of each place where it can stop, in order",
    ),
    ("if_skipped", "int", "the choice after a skip: 1 right + 2 as the full pipeline + 4 harmed + 8 helped"),
    (
        "verified",
        "text",
        "the choice after verification: rank of theta, then rank of epsilon = choice, each only where it changes; a rank is how many \
         different entropies (changes) in `stops` are below the threshold",
    ),
    ("gradable", "bool", "whether an answer is expected"),
    ("full_correct", "bool", "whether the full pipeline gives it"),
];
