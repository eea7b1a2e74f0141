//! What running the model gives.

use crate::metrics::{Better, Evidence, Metric, Scope};

/// Sorted by id.
pub(super) const METRICS: &[Metric] = &[
    Metric {
        id: "accuracy",
        label: "Task accuracy",
        unit: "",
        better: Better::Higher,
        evidence: Evidence::Executed,
        scope: Scope::CellRate,
        doc: "numerator: problems answered as expected by the free-running model with the policy in the loop (greedy); denominator: problems with an expected answer. No answer counts as wrong",
    },
    Metric {
        id: "accuracy_vs_full",
        label: "Task accuracy minus that of the full cache",
        unit: "",
        better: Better::Higher,
        evidence: Evidence::Executed,
        scope: Scope::CellMean,
        doc: "+1 where only the policy's answer is right, -1 where only the full cache's is, else 0; mean over problems with an expected answer, so its interval is that of the paired difference",
    },
    Metric {
        id: "generated_tokens",
        label: "Generated tokens",
        unit: "tokens",
        better: Better::Neither,
        evidence: Evidence::Executed,
        scope: Scope::CellMean,
        doc: "tokens generated in a free run, an end token included; mean over problems",
    },
    Metric {
        id: "next_token_kl",
        label: "KL of the next token, full cache to policy",
        unit: "nats",
        better: Better::Lower,
        evidence: Evidence::Executed,
        scope: Scope::CellMean,
        doc: "KL(full || policy) of the next-token distribution, teacher-forced on the full-cache run; mean over its tokens after the first, those before any eviction included, then over problems",
    },
    Metric {
        id: "state_cosine",
        label: "Cosine of states to the full cache's",
        unit: "",
        better: Better::Higher,
        evidence: Evidence::Executed,
        scope: Scope::Series { x: "evictions before" },
        doc: "cosine between the residual stream after a layer in a run under the policy and in that of the full cache on the same tokens, mean over decode steps with that many evictions before and over problems",
    },
    Metric {
        id: "top1_agreement",
        label: "Same most probable next token as the full cache",
        unit: "",
        better: Better::Higher,
        evidence: Evidence::Executed,
        scope: Scope::CellRate,
        doc: "numerator: teacher-forced positions whose most probable next token is the full cache's; denominator: tokens of the full-cache run after the first of each problem",
    },
    Metric {
        id: "truncated_rate",
        label: "Runs cut at the token limit",
        unit: "",
        better: Better::Lower,
        evidence: Evidence::Executed,
        scope: Scope::CellRate,
        doc: "numerator: free runs that reached the limit of generated tokens without an end; denominator: problems",
    },
];
