//! The exported graph: run once on a few tokens, and compared.
//!
//! Products with blocks of integers are asked for in `f32`, since an export may allow rounding activations to 8 bits
//! (`accuracy_level` of `MatMulNBits`), which hides whether the weights were read right. Nothing else is touched.

use std::path::PathBuf;

use super::file::OnnxFile;
use crate::{
    family::{DecoderConfig, ModelError},
    graph::proto::{FLOAT, FLOAT16},
    parity::difference,
    runtime::{Foreign, ForeignInput, Runtime, RuntimeError},
};

/// Largest difference of logits accepted for a graph in single precision, as a share of the largest logit.
const SINGLE_TOLERANCE: f64 = 1e-3;
/// The same where the graph computes in half precision.
const HALF_TOLERANCE: f64 = 5e-2;

/// What is needed to run the graph.
#[derive(Debug)]
pub(crate) struct Untouched {
    path: PathBuf,
    externals: Vec<(String, PathBuf)>,
    /// Element type and name of each cache input.
    caches: Vec<(String, i32)>,
    takes_mask: bool,
    takes_positions: bool,
    is_half_precision: bool,
    kv_heads: usize,
    head_dim: usize,
}

/// Logits of both.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Comparison {
    /// The largest difference.
    pub(crate) largest: f64,
    /// The largest that is accepted.
    pub(crate) accepted: f64,
}

impl Untouched {
    pub(super) fn new(file: &OnnxFile, config: &DecoderConfig) -> Result<Self, ModelError> {
        let (mut caches, mut takes_mask, mut takes_positions) = (Vec::new(), false, false);
        // Old exporters list constants as inputs too.
        let inputs = file.graph.input.iter().filter(|input| file.dims(&input.name).is_none());
        for input in inputs {
            match input.name.as_str() {
                "input_ids" => {}
                "attention_mask" => takes_mask = true,
                "position_ids" => takes_positions = true,
                name if name.starts_with("past") => {
                    let kind = input.kind.as_ref().and_then(|kind| kind.tensor.as_ref());
                    let element = kind.map_or(FLOAT, |tensor| tensor.elem_type);
                    if !matches!(element, FLOAT | FLOAT16) {
                        let what = format!("the element type of input {name:?}");
                        return Err(file.wrong(what, element.to_string(), "1 (float) or 10 (float16)"));
                    }
                    caches.push((name.to_owned(), element));
                }
                other => {
                    let accepted = "input_ids, attention_mask, position_ids and past_*";
                    return Err(file.wrong("an input of the graph", format!("{other:?}"), accepted));
                }
            }
        }
        Ok(Self {
            path: file.path().to_owned(),
            externals: file.external_files()?,
            is_half_precision: caches.iter().any(|(_, element)| *element == FLOAT16),
            caches,
            takes_mask,
            takes_positions,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        })
    }

    /// Logits of the graph for tokens from position 0 on, `[pos * vocab]`.
    pub(crate) fn logits(&self, runtime: &Runtime, tokens: &[u32]) -> Result<Vec<f32>, RuntimeError> {
        let row = |values: Vec<i64>| ForeignInput::Integers { shape: [1, tokens.len()], values };
        let mut inputs = vec![("input_ids", row(tokens.iter().map(|token| i64::from(*token)).collect()))];
        if self.takes_mask {
            inputs.push(("attention_mask", row(vec![1; tokens.len()])));
        }
        if self.takes_positions {
            inputs.push(("position_ids", row((0..).take(tokens.len()).collect())));
        }
        let empty = |element: i32| ForeignInput::Empty {
            shape: [1, self.kv_heads, 0, self.head_dim],
            is_half: element == FLOAT16,
        };
        inputs.extend(self.caches.iter().map(|(name, element)| (name.as_str(), empty(*element))));
        let graph = Foreign { path: &self.path, externals: &self.externals, edit: &ask_for_f32 };
        graph.run(runtime, inputs, "logits")
    }

    /// Compares logits of the graph with ours.
    pub(crate) fn compare(&self, theirs: &[f32], ours: &[f32]) -> Comparison {
        let share = if self.is_half_precision { HALF_TOLERANCE } else { SINGLE_TOLERANCE };
        let scale = theirs.iter().fold(1.0_f64, |most, value| most.max(f64::from(value.abs())));
        let largest = difference(ours, theirs);
        let is_whole = theirs.len() == ours.len();
        Comparison { largest: if is_whole { largest } else { f64::NAN }, accepted: share * scale }
    }
}

/// Sets every `accuracy_level` in a serialised graph to 1, which means `f32`. An attribute is its name, then its integer.
fn ask_for_f32(graph: &mut [u8]) {
    const NAME: &[u8] = b"\x0a\x0eaccuracy_level\x18";
    let mut at = 0;
    while let Some(found) = graph[at..].windows(NAME.len()).position(|window| window == NAME) {
        at += found + NAME.len();
        // Levels are 0 to 4: one byte.
        if let Some(level) = graph.get_mut(at).filter(|level| **level <= 4) {
            *level = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ask_for_f32;
    use crate::graph::proto::Attribute;
    use prost::Message;

    #[test]
    fn levels_are_changed_and_nothing_else_is() {
        let attribute =
            |name: &str, i| Attribute { name: name.to_owned(), i: Some(i), kind: 2, ..Attribute::default() };
        let all = |level| -> Vec<u8> {
            [("bits", 4), ("accuracy_level", level), ("block_size", 4), ("accuracy_level", level)]
                .into_iter()
                .flat_map(|(name, i)| attribute(name, i).encode_to_vec())
                .collect()
        };
        let mut graph = all(4);
        ask_for_f32(&mut graph);
        assert_eq!(graph, all(1));
        // A graph that ends within an attribute is left alone.
        let mut cut = b"\x0a\x0eaccuracy_level\x18".to_vec();
        ask_for_f32(&mut cut);
        assert_eq!(cut, b"\x0a\x0eaccuracy_level\x18");
    }
}
