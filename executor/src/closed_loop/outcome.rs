//! What a run held in memory, and what it evicted.

use kvlab_sim::replay::LayerEviction;
use serde::{Deserialize, Serialize};

use crate::journal::hex;

/// What one run held and evicted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Footprint {
    /// Evictions in order, `[layer][eviction]`, with the kept sets in the stack's slot order.
    #[serde(with = "layers")]
    pub evictions: Vec<Vec<LayerEviction>>,
    /// Most resident entries over all layers and KV heads at a time, after a token is stored and before an eviction.
    pub peak_entries: u64,
    /// Resident over seen, before an eviction at that step, mean over decode steps; absent without one.
    #[serde(with = "hex::option")]
    pub mean_keep_ratio: Option<f64>,
    /// Most bits held at a time in the representation of the store, selection metadata included; see `peak_entries` for when.
    pub peak_stored_bits: u64,
    /// Tokens that query heads attended to, summed over heads, layers and decode steps.
    pub attended: u64,
    /// Bits read by decode steps, keys, values and selection metadata.
    pub read_bits: u64,
    /// Decode steps.
    pub steps: u32,
    /// Tokens seen, prompt included.
    pub seen: u32,
}

impl Footprint {
    /// Steps at which anything was evicted.
    #[must_use]
    pub fn eviction_count(&self) -> u64 {
        self.evictions.iter().map(Vec::len).max().unwrap_or(0) as u64
    }
}

/// Evictions in a journal: hex digits a layer, of each eviction the tokens seen, the number of heads and their kept sets.
mod layers {
    use kvlab_sim::{ledger::KeptSet, replay::LayerEviction};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::journal::hex;

    pub(super) fn serialize<S: Serializer>(
        layers: &[Vec<LayerEviction>],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(layers.iter().map(|layer| {
            let mut bytes = Vec::new();
            for LayerEviction { seen, heads } in layer {
                bytes.extend(seen.to_le_bytes());
                bytes.extend(u32::try_from(heads.len()).unwrap_or(u32::MAX).to_le_bytes());
                for set in heads {
                    bytes.extend(set.count.to_le_bytes());
                    bytes.extend(set.digest);
                }
            }
            hex::of_bytes(&bytes)
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Vec<LayerEviction>>, D::Error> {
        let layers = Vec::<String>::deserialize(deserializer)?;
        let wrong = || D::Error::custom("expected the evictions of a layer as hex digits");
        layers
            .iter()
            .map(|text| hex::bytes_of(text).and_then(|bytes| layer(&bytes)).ok_or_else(wrong))
            .collect()
    }

    fn layer(mut bytes: &[u8]) -> Option<Vec<LayerEviction>> {
        let mut evictions = Vec::new();
        while !bytes.is_empty() {
            let (seen, count) = (number(&mut bytes)?, number(&mut bytes)?);
            let set = |_| {
                let count = number(&mut bytes)?;
                let (digest, rest) = bytes.split_first_chunk()?;
                bytes = rest;
                Some(KeptSet { count, digest: *digest })
            };
            let heads = (0..count).map(set).collect::<Option<_>>()?;
            evictions.push(LayerEviction { seen, heads });
        }
        Some(evictions)
    }

    fn number(bytes: &mut &[u8]) -> Option<u32> {
        let (first, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u32::from_le_bytes(*first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvlab_sim::{ledger::KeptSet, types::Pos};

    #[test]
    fn a_footprint_comes_back_from_a_journal_as_it_was() {
        let set =
            |positions: &[u32]| KeptSet::of(&positions.iter().copied().map(Pos::new).collect::<Vec<_>>());
        let evictions = vec![
            vec![
                LayerEviction { seen: 9, heads: vec![set(&[0, 3]), set(&[])] },
                LayerEviction { seen: 300, heads: Vec::new() },
            ],
            Vec::new(),
        ];
        let footprint = Footprint {
            evictions,
            mean_keep_ratio: Some(1.0 / 3.0),
            read_bits: u64::MAX,
            ..Footprint::default()
        };
        let text = serde_json::to_string(&footprint).unwrap();
        assert_eq!(serde_json::from_str::<Footprint>(&text).unwrap(), footprint);
        // A layer that was cut within a set.
        let cut = text.replacen("\",\"\"]", "\"]", 1).replacen("00000000\"]", "\"]", 1);
        assert!(cut != text && serde_json::from_str::<Footprint>(&cut).is_err(), "{cut}");
    }
}
