//! Seeded cases: amounts, small generated traces, and residents with holes.

use crate::policy::compose::Knobs;
use crate::rng::{Purpose, Stream, StreamKey};
use crate::rope::Rope;
use crate::trace::synth::{SynthLength, SynthSpec, Synthetic};
use crate::trace::{KeyState, LayerTensors, RopeInfo, SequenceMeta, TraceError, TraceSource};
use crate::types::{LayerIdx, ModelShape, Pos};
use ndarray::Array3;

/// The draws of one case.
pub(super) struct Case {
    stream: Stream,
}

impl Case {
    pub(super) fn new(seed: u64, case: u32, id: &str) -> Self {
        Self { stream: StreamKey { step: case, ..StreamKey::new(seed, Purpose::Workload, id) }.stream() }
    }

    /// Uniform in `low..=high`.
    pub(super) fn between(&mut self, low: u32, high: u32) -> u32 {
        let width = u64::from(high.saturating_sub(low)) + 1;
        low + u32::try_from(self.stream.below(width)).unwrap_or(0)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.stream.bits()
    }

    /// Amounts in which the budget is a multiple of the period.
    pub(super) fn knobs(&mut self) -> Knobs {
        let recent = self.between(1, 6);
        let capacity = recent * (self.between(1, 4) + 1);
        Knobs { capacity, recent, sinks: self.between(0, 2), period: recent, window: self.between(1, 8) }
    }

    /// A trace of one or two layers and up to three sequences.
    pub(super) fn trace(&mut self) -> Result<Synthetic, TraceError> {
        let (kv_heads, group) = (self.between(1, 2), self.between(1, 3));
        let head_dim = [4, 8, 16][self.between(0, 2) as usize];
        let narrow = |x: u32| u16::try_from(x).unwrap_or(1);
        let shape = ModelShape {
            layers: narrow(self.between(1, 2)),
            q_heads: narrow(kv_heads * group),
            kv_heads: narrow(kv_heads),
            head_dim,
            hidden: 12,
            vocab: 50,
        };
        let lengths = (0..self.between(1, 2))
            .map(|_| {
                let prompt_len = self.between(1, 23);
                SynthLength { prompt_len, len: prompt_len + self.between(0, 39) }
            })
            .collect();
        let workload = if self.between(0, 3) == 0 { "noise" } else { "sinks-and-hitters" };
        Synthetic::build(workload, SynthSpec { shape, lengths, seed: self.bits() })
    }

    /// Numbers near 1 for an output matrix, `[hidden, q_head, head_dim]`.
    #[expect(clippy::cast_possible_truncation, reason = "any numbers will do")]
    pub(super) fn w_o(&mut self, shape: &ModelShape) -> Array3<f32> {
        let dims = (shape.hidden as usize, usize::from(shape.q_heads), usize::from(shape.head_dim));
        Array3::from_shape_simple_fn(dims, || self.stream.normal() as f32)
    }

    /// Residents that a stack could have left: sinks and the newest tokens, and some of the others.
    pub(super) fn resident(&mut self, len: u32, knobs: &Knobs) -> Vec<Pos> {
        let holes = self.bits();
        let newest = len.saturating_sub(knobs.recent + 1);
        let stays = |pos: &u32| *pos < knobs.sinks || *pos >= newest || holes >> (pos % 64) & 1 == 1;
        (0..len).filter(stays).map(Pos::new).collect()
    }
}

/// A rotation for heads of this size.
pub(super) fn rope(head_dim: u16) -> Option<Rope> {
    let pairs = u32::from(head_dim / 2);
    let info = RopeInfo {
        style: "rotate-half".to_owned(),
        theta: 10_000.0,
        scaling: None,
        keys: KeyState::PostRope,
        inv_freq: Some((0..pairs).map(|pair| 1.0 / f64::from(1 + 3 * pair)).collect()),
        attention_scaling: None,
    };
    Rope::new(&info).ok()
}

/// The first sequence of a trace with its first layer.
pub(super) fn first(trace: &Synthetic) -> Result<(&SequenceMeta, LayerTensors), TraceError> {
    let meta = &trace.sequences()[0];
    Ok((meta, trace.layer(meta.seq, LayerIdx::new(0))?))
}
