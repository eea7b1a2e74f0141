//! Tiny generated traces.

use kvlab_sim::trace::synth::{SynthLength, SynthSpec, Synthetic};
use kvlab_sim::types::ModelShape;
use proptest::prelude::*;

/// Shapes and lengths small enough for thousands of cases.
pub(crate) fn tiny_spec() -> impl Strategy<Value = SynthSpec> {
    let shape = (1u16..3, 1u16..3, 1u16..4, prop_oneof![Just(4u16), Just(8), Just(16)]);
    let length = (1u32..24, 0u32..40);
    (shape, proptest::collection::vec(length, 1..4), any::<u64>()).prop_map(
        |((layers, kv_heads, group, head_dim), lengths, seed)| SynthSpec {
            shape: ModelShape {
                layers,
                q_heads: kv_heads * group,
                kv_heads,
                head_dim,
                hidden: 16,
                vocab: 50,
            },
            lengths: lengths
                .into_iter()
                .map(|(prompt_len, more)| SynthLength { prompt_len, len: prompt_len + more })
                .collect(),
            seed,
        },
    )
}

/// The trace of `spec` under the generator with structure in it.
pub(crate) fn build(spec: SynthSpec) -> Synthetic {
    Synthetic::build("sinks-and-hitters", spec).unwrap()
}

/// A fixed small trace: 2 layers, 4 query heads over 2 KV heads, three sequences.
pub(crate) fn fixed() -> Synthetic {
    build(SynthSpec {
        shape: ModelShape { layers: 2, q_heads: 4, kv_heads: 2, head_dim: 8, hidden: 16, vocab: 50 },
        lengths: [(12, 70), (5, 64), (30, 41)]
            .map(|(prompt_len, len)| SynthLength { prompt_len, len })
            .to_vec(),
        seed: 11,
    })
}
