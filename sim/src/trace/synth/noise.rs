//! The null model: independent standard normal queries, keys and values.
//!
//! A policy that seems to win here wins by accident. Lens facts and tokens are those of `sinks-and-hitters`.

use super::sinks_and_hitters::{self, Part, SinksParams};
use super::{Generator, SynthSpec};
use crate::trace::{LayerTensors, LensPosition};
use crate::types::{LayerIdx, SeqIdx, TokenId};
use ndarray::Array3;

const ID: &str = "noise";

/// The generator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise;

impl Generator for Noise {
    fn layer(&self, spec: &SynthSpec, seq: SeqIdx, layer: LayerIdx) -> LayerTensors {
        let tensor = |part: Part, heads: u16| {
            let (len, width) = (spec.len(seq) as usize, usize::from(spec.shape.head_dim));
            let mut tensor = Array3::zeros((usize::from(heads), len, width));
            for (head, mut rows) in (0_u16..).zip(tensor.outer_iter_mut()) {
                let mut stream = part.stream(ID, spec, seq, layer.get(), head);
                rows.iter_mut().for_each(|value| *value = sinks_and_hitters::narrow(stream.normal()));
            }
            tensor
        };
        LayerTensors {
            q: tensor(Part::Queries, spec.shape.q_heads),
            k: tensor(Part::Keys, spec.shape.kv_heads),
            v: tensor(Part::Values, spec.shape.kv_heads),
        }
    }

    fn lens(&self, spec: &SynthSpec, seq: SeqIdx, ranks: u16) -> Vec<LensPosition> {
        sinks_and_hitters::lens(ID, &SinksParams::default(), spec, seq, ranks)
    }

    fn tokens(&self, spec: &SynthSpec, seq: SeqIdx) -> Vec<TokenId> {
        sinks_and_hitters::tokens(ID, spec, seq)
    }
}
