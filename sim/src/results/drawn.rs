//! Columns of the tables that are there to be drawn: more detail than a cell's row or a series can hold.

use super::Columns;

/// Columns of `retained`, which tokens one KV head of one sequence holds after each eviction, and why, with kind and meaning.
/// Positions next to each other with the same reason are one row.
pub const RETAINED_COLUMNS: Columns = &[
    ("cell", "text", "the cell"),
    ("sequence", "int", "index of the sequence in the trace"),
    ("layer", "int", "zero-based layer"),
    ("kv_head", "int", "zero-based KV head"),
    ("seen", "int", "tokens seen when the eviction happened"),
    ("from", "int", "first position of the run"),
    ("upto", "int", "last position of the run, up to and including this"),
    (
        "reason",
        "text",
        "why the stack kept it: `sink`, `recent`, `value` (reserved for its value), `prompt`, `reserved` (another reserve), `sampled`, `score`, `block` (shares a block with a protected token), `fits` (nothing had to go)",
    ),
];

/// Columns of `phases`, where the time of each problem of simulated serving went, with kind and meaning. They add up to its latency.
pub const PHASE_COLUMNS: Columns = &[
    ("cell", "text", "the cell"),
    ("item", "text", "id of the problem"),
    ("waiting_ms", "real", "simulated time in which no pass had work of the problem"),
    ("gate_ms", "real", "in passes for the similarity gate"),
    (
        "prefill_ms",
        "real",
        "in batches that hold prompt tokens of the problem, computed for the first time or again",
    ),
    ("decode_ms", "real", "in batches in which the problem only generates"),
    ("verify_ms", "real", "in passes of the verifier"),
];

/// Columns of `speedups`, what an arm of simulated serving saves over several others, with kind and meaning. Problems are resampled in pairs; those that one of both refused
/// are left out of the speed-up.
pub const SPEEDUP_COLUMNS: Columns = &[
    ("cell", "text", "the cell"),
    (
        "baseline",
        "text",
        "label of the arm that the speed-up is over: the study's baseline, then those of `serve.against`",
    ),
    ("speedup", "real", "mean simulated latency of that arm over that of the cell"),
    ("speedup_lo", "real", "lower end of its 95 % interval"),
    ("speedup_hi", "real", "upper end of its 95 % interval"),
    (
        "baseline_nanos",
        "int",
        "numerator: simulated nanoseconds from arrival to answer, all problems of that arm",
    ),
    ("nanos", "int", "denominator: the same of the cell"),
    ("baseline_generated_tokens", "int", "tokens that the other arm generates"),
    (
        "generated_tokens",
        "int",
        "tokens that the cell generates: where they are fewer, a part of the speed-up is fewer tokens",
    ),
];

/// Columns of `wordings`, the similarity σ of branches by how far their wording is from the root's, with kind and meaning.
pub const WORDING_COLUMNS: Columns = &[
    ("stack", "text", "label of the stack whose similarity gate is read"),
    ("group", "text", "content hash of everything that decides σ and more, as in `steps` (12 hex digits)"),
    ("tau", "real", "smallest similarity at which a branch of the stack shares"),
    ("level", "int", "0 identical wording, 1 minor rewording, 2 other structure, 3 other framing"),
    ("branches", "int", "branches that may answer, with a σ"),
    ("sigma_min", "real", "smallest σ"),
    ("sigma_p10", "real", "its 10 % quantile (nearest rank)"),
    ("sigma_p50", "real", "median"),
    ("sigma_p90", "real", "90 % quantile"),
    ("sigma_max", "real", "largest σ"),
    ("sharing", "int", "branches with a σ of at least tau"),
    ("both_answers", "int", "branches decoded behind both prefixes"),
    ("changed_answers", "int", "of those, branches that answer otherwise behind the root's prefix"),
];

/// Columns of `claims`, published figures beside what the simulator gives, with kind and meaning.
pub const CLAIM_COLUMNS: Columns = &[
    ("scenario", "text", "id of the scenario"),
    ("claim", "text", "what was measured, in words"),
    ("unit", "text", "`times` for speed-ups, `ms`, `GiB` or `share`"),
    ("published_text", "text", "the published figure, as published"),
    ("published", "real", "its first number in that unit, absent where it has none"),
    ("as_published", "real", "the figure under the published protocol, its defects included"),
    ("as_published_lo", "real", "95 % interval over resampled problems, lower end; Wilson's for shares"),
    ("as_published_hi", "real", "upper end"),
    ("corrected", "real", "the figure without the protocol's defects"),
    ("corrected_lo", "real", "95 % interval, lower end"),
    ("corrected_hi", "real", "upper end"),
    ("why", "text", "why they differ"),
];

/// Columns of `calibration`, a fitted curve from an estimate of the replay to an executed outcome, with kind and meaning.
pub const CALIBRATION_COLUMNS: Columns = &[
    ("kind", "text", "`knot` of the curve, or `cell` that it was fitted on"),
    ("estimate", "text", "metric of the replay"),
    ("outcome", "text", "metric of the runs"),
    ("policy", "text", "label of the policy; absent for knots"),
    ("budget_tokens", "int", "C of the cell"),
    ("seed", "int", "seed of the cell"),
    ("value", "real", "the estimate"),
    ("curve", "real", "height of the curve there"),
    (
        "curve_lo",
        "real",
        "lower end of the curve's interval: nine of ten cells of policies left out of the fit lie inside",
    ),
    ("curve_hi", "real", "upper end"),
    ("executed", "real", "what executing the cell gave; absent for knots"),
    ("left_out", "real", "what a curve fitted without the cell's policy predicts; absent for knots"),
    ("problems", "int", "problems behind every cell"),
];

/// Columns of `recommended`, a setting that `kvlab tune` chose, with kind and meaning.
pub const RECOMMENDED_COLUMNS: Columns = &[
    ("stack", "text", "label of the stack that was tuned"),
    (
        "params",
        "text",
        "its effective parameters, canonical JSON: what is recommended holds for a stack that differs in thresholds only",
    ),
    ("source", "text", "name of the trace that it was tuned on"),
    ("axis", "text", "the threshold: tau, tau-conf, margin, theta or epsilon"),
    ("value", "real", "its recommended value; nats for theta and epsilon"),
    ("guarantee", "text", "what is guaranteed of the whole setting, in words with numbers"),
];
