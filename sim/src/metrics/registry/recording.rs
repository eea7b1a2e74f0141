//! Properties of a recording, before any policy.

use crate::metrics::{Better, Evidence, Metric, Scope};

/// Sorted by id.
pub(super) const METRICS: &[Metric] = &[
    Metric {
        id: "lens_entropy_nats",
        label: "Entropy of the logit lens, with the final norm",
        unit: "nats",
        better: Better::Neither,
        evidence: Evidence::Recorded,
        scope: Scope::Series { x: "layer (0 = first)" },
        doc: "quantiles over decode positions of the entropy of softmax(unembed(final_norm(hidden)))",
    },
    Metric {
        id: "raw_lens_entropy_nats",
        label: "Entropy of the logit lens, without the final norm",
        unit: "nats",
        better: Better::Neither,
        evidence: Evidence::Recorded,
        scope: Scope::Series { x: "layer (0 = first)" },
        doc: "quantiles over decode positions of the entropy of softmax(unembed(hidden)), the form of the RKSC notebook",
    },
    Metric {
        id: "token_entropy_nats",
        label: "Entropy of the logit lens at a position, with the final norm",
        unit: "nats",
        better: Better::Neither,
        evidence: Evidence::Recorded,
        scope: Scope::Series { x: "position in the sequence (tokens)" },
        doc: "entropy of softmax(unembed(final_norm(hidden))) by layer and decode position of the first sequence that is read; of a long sequence the mean over neighbouring positions, x to x_hi",
    },
    Metric {
        id: "value_range_count",
        label: "Value states",
        unit: "tokens x KV heads",
        better: Better::Neither,
        evidence: Evidence::Recorded,
        scope: Scope::Series { x: "range of the value state (max - min over channels)" },
        doc: "histogram of Range(v) over tokens and KV heads of one layer; x is the left edge of the bin, x_hi the right one",
    },
    Metric {
        id: "value_range_cut",
        label: "Range of the N_v-th widest value state",
        unit: "",
        better: Better::Neither,
        evidence: Evidence::Recorded,
        scope: Scope::Series { x: "N_v (tokens reserved)" },
        doc: "Range(v) of the N_v-th widest token at the end of a sequence, mean over sequences and KV heads of one layer",
    },
];
