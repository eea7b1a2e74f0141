//! How a run and its replay agree.

use crate::metrics::{Better, Evidence, Metric, Scope};

/// Sorted by id.
pub(super) const METRICS: &[Metric] = &[
    Metric {
        id: "fact_error",
        label: "Largest difference of a fact between run and recording",
        unit: "",
        better: Better::Lower,
        evidence: Evidence::Executed,
        scope: Scope::Cell,
        doc: "the largest absolute difference, over problems and branches, of a cosine between prompt states or of the verifier's probability of yes where it stopped: the run computes single rows, the recording all layers at once",
    },
    Metric {
        id: "reproduced_rate",
        label: "Decisions that the replay reproduces",
        unit: "",
        better: Better::Higher,
        evidence: Evidence::Decision,
        scope: Scope::CellRate,
        doc: "numerator: decisions of a live run that the replay over its recording makes too: kept sets (per problem, layer, eviction, KV head), slot by slot; over branch trees, what each branch shares, writes and is verified by, and whether verification is skipped, who wins and with which answer; denominator: decisions of the run or the replay",
    },
    Metric {
        id: "reused_logit_error",
        label: "Largest difference of a logit after reuse",
        unit: "",
        better: Better::Lower,
        evidence: Evidence::Executed,
        scope: Scope::Cell,
        doc: "the largest absolute difference, over requests and the vocabulary, between the logits behind a prompt whose found blocks came from the cache and behind the same prompt computed whole",
    },
    Metric {
        id: "ulp_flipped_decision_rate",
        label: "Decisions that rounding could change",
        unit: "",
        better: Better::Lower,
        evidence: Evidence::Decision,
        scope: Scope::CellRate,
        doc: "numerator: decisions about branch trees that come out otherwise when every recorded number moves by one unit in the last place; denominator: decisions",
    },
    Metric {
        id: "ulp_flipped_set_rate",
        label: "Kept sets that rounding could change",
        unit: "",
        better: Better::Lower,
        evidence: Evidence::Decision,
        scope: Scope::CellRate,
        doc: "numerator: kept sets (per problem, layer, eviction, KV head) that come out otherwise when every query, key and value moves by one unit in the last place; denominator: kept sets",
    },
    Metric {
        id: "ulp_flipped_token_rate",
        label: "Residents that rounding could change",
        unit: "",
        better: Better::Lower,
        evidence: Evidence::Decision,
        scope: Scope::CellRate,
        doc: "numerator: tokens resident at the end (per problem, layer, KV head) that another replaces when every query, key and value moves by one unit in the last place; denominator: tokens resident at the end",
    },
];
