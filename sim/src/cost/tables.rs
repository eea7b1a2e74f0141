//! Devices, models and software by name, from tables that state their sources.

use super::CostError;
use crate::policy::from_yaml_text;
use crate::types::{Bytes, ModelShape};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// What a device's data sheet says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its name in scenarios.
    pub name: String,
    /// Floating-point operations a second, dense, 16-bit numbers.
    pub flops: f64,
    /// Memory bandwidth, bytes a second.
    pub bytes_per_second: f64,
    /// Memory, bytes.
    pub memory_bytes: f64,
    /// Where the figures are from.
    pub source: String,
}

/// What software makes of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// Its name in scenarios.
    pub name: String,
    /// Share of the device's operations a second that matrix products reach.
    pub compute_share: f64,
    /// Share of the memory bandwidth that is reached.
    pub memory_share: f64,
    /// Time of the host for one layer of a pass, nanoseconds.
    pub host_nanos_a_layer: u64,
    /// Where the figures are from.
    pub source: String,
}

/// A decoder with all that its cost depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its name in scenarios.
    pub name: String,
    /// Decoder blocks.
    pub layers: u16,
    /// Query heads a layer.
    pub q_heads: u16,
    /// Key-value heads a layer.
    pub kv_heads: u16,
    /// Channels a head.
    pub head_dim: u16,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of the gated feed-forward layer.
    pub intermediate: u32,
    /// Vocabulary size.
    pub vocab: u32,
    /// Whether the unembedding is the embedding.
    pub tied: bool,
    /// Where the figures are from.
    pub source: String,
}

impl Model {
    /// Its shape.
    #[must_use]
    pub fn shape(&self) -> ModelShape {
        let Self { layers, q_heads, kv_heads, head_dim, hidden, vocab, .. } = *self;
        ModelShape { layers, q_heads, kv_heads, head_dim, hidden, vocab }
    }

    /// Numbers in the matrices of one layer: four projections of the attention, three of the gated feed-forward layer.
    #[must_use]
    pub fn layer_params(&self) -> u64 {
        let hidden = u64::from(self.hidden);
        let q = u64::from(self.q_heads) * u64::from(self.head_dim);
        let kv = u64::from(self.kv_heads) * u64::from(self.head_dim);
        2 * hidden * q + 2 * hidden * kv + 3 * hidden * u64::from(self.intermediate)
    }

    /// Numbers in all matrices, embedding and unembedding included.
    #[must_use]
    pub fn params(&self) -> u64 {
        let table = u64::from(self.hidden) * u64::from(self.vocab);
        u64::from(self.layers) * self.layer_params() + table * if self.tied { 1 } else { 2 }
    }

    /// Bytes of the keys and values of one token, all layers and KV heads, two bytes a number.
    #[must_use]
    pub fn kv_bytes_per_token(&self) -> Bytes {
        let streams = u64::from(self.layers) * u64::from(self.kv_heads);
        Bytes::new(streams * self.shape().kv_bytes_per_entry(2).get())
    }
}

/// All devices, sorted by name.
///
/// # Errors
/// Never in practice: the table is part of the program and tested.
pub fn devices() -> Result<Vec<Device>, CostError> {
    table("devices", include_str!("devices.yaml"))
}

/// All models, sorted by name.
///
/// # Errors
/// Never in practice: the table is part of the program and tested.
pub fn models() -> Result<Vec<Model>, CostError> {
    table("models", include_str!("models.yaml"))
}

/// All software, sorted by name.
///
/// # Errors
/// Never in practice: the table is part of the program and tested.
pub fn software() -> Result<Vec<Software>, CostError> {
    table("software", include_str!("software.yaml"))
}

fn table<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<Vec<T>, CostError> {
    from_yaml_text(text).map_err(|reason| CostError::Table { what, reason })
}

/// The entry called `name`.
pub(super) fn named<T>(
    what: &'static str,
    entries: Vec<T>,
    name_of: fn(&T) -> &str,
    given: &str,
) -> Result<T, CostError> {
    let known: Vec<String> = entries.iter().map(|entry| name_of(entry).to_owned()).collect();
    entries.into_iter().find(|entry| name_of(entry) == given).ok_or_else(|| CostError::Unknown {
        what,
        given: given.to_owned(),
        known,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_by_name_and_state_their_sources() {
        let (devices, models, software) = (devices().unwrap(), models().unwrap(), software().unwrap());
        let names = [
            devices.iter().map(|d| (d.name.clone(), d.source.clone())).collect::<Vec<_>>(),
            models.iter().map(|m| (m.name.clone(), m.source.clone())).collect(),
            software.iter().map(|s| (s.name.clone(), s.source.clone())).collect(),
        ];
        for list in names {
            assert!(list.windows(2).all(|pair| pair[0].0 < pair[1].0), "{list:?}");
            assert!(list.iter().all(|(_, source)| !source.is_empty()));
        }
        assert!(models.iter().all(|model| model.shape().check().is_ok()));
    }

    /// Parameter counts as the models' cards state them, in billions.
    #[test]
    fn parameter_counts_are_those_of_the_cards() {
        for (name, billions) in [
            ("qwen2.5-7b", 7.61),
            ("qwen3-14b", 14.77),
            ("llama-3-8b", 8.03),
            ("mistral-7b-v0.3", 7.25),
            ("qwen3-4b", 4.02),
        ] {
            let model = named("model", models().unwrap(), |m| &m.name, name).unwrap();
            #[expect(clippy::cast_precision_loss, reason = "billions")]
            let found = model.params() as f64 / 1e9;
            assert!((found / billions - 1.0).abs() < 0.005, "{name}: {found}");
        }
    }
}
