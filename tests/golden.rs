//! Decisions against independent implementations.

mod scores;
mod vectors;

use kvlab_sim::policy::compose::{Knobs, Stack};
use kvlab_sim::policy::{At, RawParams, registry};
use kvlab_sim::replay::RecordedHead;
use kvlab_sim::trace::LayerTensors;
use kvlab_sim::types::{KvHead, LayerIdx, ModelShape, Pos, SeqIdx};
use ndarray::Array3;
use safetensors::SafeTensors;

const SHAPE: ModelShape =
    ModelShape { layers: 1, q_heads: 9, kv_heads: 3, head_dim: 64, hidden: 576, vocab: 49152 };
const LEN: u32 = 400;

fn floats(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let bytes = tensors.tensor(name).unwrap().data().to_vec();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn positions(tensors: &SafeTensors<'_>, name: &str) -> Vec<u32> {
    let bytes = tensors.tensor(name).unwrap().data().to_vec();
    bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes(b.try_into().unwrap()))).collect()
}

/// The kept sets of `snapkv-prefill` equal those of kvpress 0.5.5 on four layers of SmolLM2 and two ratios.
///
/// kvpress keeps int(400 · (1 − ratio)) positions a KV head, the 64 of the window among them. No boundary is tied
/// (`gap` > 0 everywhere), so our rule, score then lower position, is not needed here.
#[test]
fn window_mass_keeps_what_snapkv_of_kvpress_keeps() {
    let bytes =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/evict/snapkv.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    for layer in [0, 10, 14, 29] {
        let window = floats(&golden, &format!("layer{layer}.q"));
        let mut q = Array3::<f32>::zeros((9, LEN as usize, 64));
        let stored = Array3::from_shape_vec((9, 64, 64), window).unwrap();
        q.slice_mut(ndarray::s![.., LEN as usize - 64.., ..]).assign(&stored);
        let k = Array3::from_shape_vec((3, LEN as usize, 64), floats(&golden, &format!("layer{layer}.k")))
            .unwrap();
        let tensors = LayerTensors { q, v: Array3::zeros(k.raw_dim()), k };
        for (ratio, capacity) in [("0.5", 200u32), ("0.75", 100)] {
            let expected = positions(&golden, &format!("layer{layer}.kept_{ratio}"));
            let gaps = floats(&golden, &format!("layer{layer}.gap_{ratio}"));
            assert!(gaps.iter().all(|gap| *gap > 0.0), "a tie at the boundary would need the tie rule");
            for head in 0..3u16 {
                let kept = keep(&tensors, KvHead::new(head), capacity);
                let rows = expected.chunks_exact(capacity as usize).nth(usize::from(head)).unwrap();
                assert_eq!(kept, rows, "layer {layer}, head {head}, ratio {ratio}");
            }
        }
    }
}

fn keep(tensors: &LayerTensors, head: KvHead, capacity: u32) -> Vec<u32> {
    let knobs = Knobs { capacity, recent: 64, sinks: 0, period: 1, window: 64 };
    let stack: Stack =
        registry::composition("snapkv-prefill").unwrap().stack(&knobs, &RawParams::default()).unwrap();
    let data = RecordedHead::new(tensors, &SHAPE, LayerIdx::new(0), head, LEN).unwrap();
    let at =
        At { seq: SeqIdx::new(0), layer: LayerIdx::new(0), head, eviction: 0, seen: LEN, prompt_len: LEN };
    let all: Vec<Pos> = (0..LEN).map(Pos::new).collect();
    let mut kept: Vec<u32> =
        stack.evict(&data, at, &all, capacity, 0).unwrap().kept.iter().map(|pos| pos.get()).collect();
    kept.sort_unstable();
    kept
}
