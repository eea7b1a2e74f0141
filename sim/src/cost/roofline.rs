//! The roofline: a layer takes the longer of its arithmetic and its traffic, at what the data sheet says.
//!
//! Arithmetic: two operations a parameter and token, four a channel of a query head and attended pair. Traffic: the layer's
//! matrices once, keys and values of all resident and new tokens once, copies read and written. The head counts likewise, once for all
//! positions of a product. What a device does besides (norms, activations, sampling) is small and left out. The host prepares layers while the
//! device works, so the pass takes the longer of the two (`host_nanos_a_layer` of the software). Operations and bytes are exact
//! integers; times are rounded up to nanoseconds.

use super::tables::named;
use super::{
    BatchCost, CostError, Device, Model, Software, Work, bad_params, devices, models, nanos, software,
};
use crate::policy::RawParams;
use crate::types::Nanos;
use serde::{Deserialize, Serialize};

/// Bytes of a stored number.
const SCALAR: u64 = 2;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Params {
    device: String,
    model: String,
    software: String,
}

impl Default for Params {
    fn default() -> Self {
        Self { device: "a100-sxm4-40gb".into(), model: "qwen2.5-7b".into(), software: "ideal".into() }
    }
}

/// A model on a device under some software.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// The device.
    pub device: Device,
    /// The model.
    pub model: Model,
    /// What runs it.
    pub software: Software,
}

impl Roofline {
    /// A roofline by names.
    ///
    /// # Errors
    /// When a name is not known.
    pub fn named(device: &str, model: &str, by: &str) -> Result<Self, CostError> {
        Ok(Self {
            device: named("device", devices()?, |d| &d.name, device)?,
            model: named("model", models()?, |m| &m.name, model)?,
            software: named("software", software()?, |s| &s.name, by)?,
        })
    }

    /// The longer of computing and moving, seconds.
    #[expect(clippy::cast_precision_loss, reason = "a rounding in the sixteenth digit")]
    fn seconds(&self, operations: u64, bytes: u64) -> f64 {
        let compute = operations as f64 / (self.device.flops * self.software.compute_share);
        let memory = bytes as f64 / (self.device.bytes_per_second * self.software.memory_share);
        compute.max(memory)
    }
}

pub(super) fn build(raw: &RawParams) -> Result<Box<dyn BatchCost>, CostError> {
    let params: Params = raw.parse("roofline").map_err(bad_params("roofline"))?;
    Ok(Box::new(Roofline::named(&params.device, &params.model, &params.software)?))
}

impl BatchCost for Roofline {
    fn duration(&self, work: &Work) -> Nanos {
        let model = &self.model;
        let layers = work.layers.min(model.layers);
        let q_width = u64::from(model.q_heads) * u64::from(model.head_dim);
        let kv_token = 2 * u64::from(model.kv_heads) * u64::from(model.head_dim) * SCALAR;
        let operations = 2 * model.layer_params() * work.new_tokens() + 4 * q_width * work.attended_pairs();
        let moved = work.read_tokens() + work.new_tokens() + 2 * work.copied_tokens;
        let layer = self.seconds(operations, model.layer_params() * SCALAR + kv_token * moved);
        let head_params = u64::from(model.hidden) * u64::from(model.vocab);
        let head = if work.heads == 0 {
            0.0
        } else {
            let bytes = head_params * SCALAR * u64::from(work.head_products.max(1));
            self.seconds(2 * head_params * u64::from(work.heads), bytes)
        };
        let device = f64::from(layers) * layer + head;
        let host = Nanos::new(u64::from(layers) * self.software.host_nanos_a_layer);
        nanos(device).max(host)
    }

    fn layers(&self) -> Option<u16> {
        Some(self.model.layers)
    }

    fn of_layers(self: Box<Self>, _layers: u16) -> Box<dyn BatchCost> {
        self
    }

    fn model(&self) -> Option<&Model> {
        Some(&self.model)
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({ "device": self.device, "model": self.model, "software": self.software })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Row;
    use super::*;

    fn work(new_tokens: u32, context_tokens: u32, rows: usize) -> Work {
        let rows = vec![Row { new_tokens, context_tokens }; rows];
        Work { rows, layers: u16::MAX, heads: 1, head_products: 1, copied_tokens: 0 }
    }

    /// By hand: one row decodes on an ideal device, so every matrix but the embedding is read once: 7.07 G numbers of 2 bytes at 1555 GB/s
    /// are 9.09 ms, and 1000 tokens of 57,344 bytes 0.04 ms.
    #[test]
    fn decoding_is_bound_by_reading_the_weights() {
        let ideal = Roofline::named("a100-sxm4-40gb", "qwen2.5-7b", "ideal").unwrap();
        let millis = ideal.duration(&work(1, 1000, 1)).get() / 1000;
        assert!((9_080..9_160).contains(&millis), "{millis} us");
        let host = Roofline::named("a100-sxm4-40gb", "qwen2.5-7b", "transformers-eager").unwrap();
        assert_eq!(host.duration(&work(1, 1000, 1)).get(), 28 * 1_190_000);
    }

    /// A long prompt is bound by arithmetic: 2 · 6.53e9 · 4096 operations at 312e12 are 171 ms, attention adds 4 · 3584 · 28 · 4096²/2.
    #[test]
    fn a_long_prompt_is_bound_by_arithmetic() {
        let ideal = Roofline::named("a100-sxm4-40gb", "qwen2.5-7b", "ideal").unwrap();
        let millis = ideal.duration(&work(4096, 0, 1)).get() / 1_000_000;
        assert!((181..184).contains(&millis), "{millis} ms");
    }

    #[test]
    fn fewer_layers_and_no_head_cost_less() {
        let ideal = Roofline::named("h100-sxm5-80gb", "llama-3-8b", "ideal").unwrap();
        let all = ideal.duration(&work(100, 100, 8));
        let half = ideal.duration(&Work { layers: 16, heads: 0, ..work(100, 100, 8) });
        assert!(half.get() * 2 < all.get() + 2);
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        let error = Roofline::named("a100", "qwen2.5-7b", "ideal").unwrap_err().to_string();
        assert!(error.contains("`a100`") && error.contains("a100-sxm4-40gb"), "{error}");
    }
}
