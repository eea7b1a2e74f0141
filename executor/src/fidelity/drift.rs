//! How far the states of a run under a policy are from those of the full cache on the same tokens.

use std::collections::BTreeMap;

use kvlab_sim::results::SeriesRow;
use ndarray::ArrayView3;
use serde::{Deserialize, Serialize};

use crate::closed_loop::Footprint;

/// Cosines between states, added up by layer and by how many evictions came before.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Drift {
    /// (layer, evictions before) to (sum of cosines, terms).
    #[serde(with = "sums")]
    sums: BTreeMap<(usize, usize), (f64, u64)>,
}

impl Drift {
    /// Adds what another problem gave.
    pub(super) fn append(&mut self, other: &Self) {
        for (place, (sum, terms)) in &other.sums {
            let own = self.sums.entry(*place).or_default();
            own.0 += sum;
            own.1 += terms;
        }
    }

    /// Adds a run: residual streams after each layer, `[layer, pos, hidden]`, of the full cache and of the policy on the same tokens.
    pub(super) fn add(
        &mut self,
        full: ArrayView3<'_, f32>,
        own: ArrayView3<'_, f32>,
        prompt_len: u32,
        held: &Footprint,
    ) {
        let evicted: Vec<u32> =
            held.evictions.first().map(|layer| layer.iter().map(|e| e.seen).collect()).unwrap_or_default();
        for (layer, (full, own)) in full.outer_iter().zip(own.outer_iter()).enumerate() {
            for (pos, (full, own)) in full.outer_iter().zip(own.outer_iter()).enumerate() {
                if pos < prompt_len as usize {
                    continue;
                }
                // The token at `pos` attends before the eviction at `seen = pos + 1`.
                let before = evicted.iter().filter(|seen| **seen as usize <= pos).count();
                let sum = self.sums.entry((layer, before)).or_default();
                sum.0 += cosine(full.iter(), own.iter());
                sum.1 += 1;
            }
        }
    }

    /// Rows of the series `state_cosine` of a cell.
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    pub(super) fn rows<'a>(&'a self, cell: &'a str) -> impl Iterator<Item = SeriesRow> + 'a {
        self.sums.iter().map(move |(&(layer, evictions), &(sum, n))| SeriesRow {
            cell: cell.into(),
            metric: "state_cosine",
            stat: "mean",
            layer: u16::try_from(layer).ok(),
            x: evictions as f64,
            x_hi: None,
            value: sum / n as f64,
            n,
        })
    }
}

/// The cosine of two states; 1 for two that are zero.
fn cosine<'a>(a: impl Iterator<Item = &'a f32>, b: impl Iterator<Item = &'a f32>) -> f64 {
    let (mut dot, mut of_a, mut of_b) = (0.0, 0.0, 0.0);
    for (a, b) in a.zip(b) {
        let (a, b) = (f64::from(*a), f64::from(*b));
        dot += a * b;
        of_a += a * a;
        of_b += b * b;
    }
    let norm = (of_a * of_b).sqrt();
    if norm > 0.0 { (dot / norm).clamp(-1.0, 1.0) } else { f64::from(u8::from(of_a + of_b <= 0.0)) }
}

/// Sums in a journal: rows of layer, evictions before, bits of the sum, terms.
mod sums {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    type Sums = BTreeMap<(usize, usize), (f64, u64)>;

    pub(super) fn serialize<S: Serializer>(sums: &Sums, serializer: S) -> Result<S::Ok, S::Error> {
        let row =
            |(place, (sum, terms)): (&(usize, usize), &(f64, u64))| (place.0, place.1, sum.to_bits(), *terms);
        serializer.collect_seq(sums.iter().map(row))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Sums, D::Error> {
        let rows = Vec::<(usize, usize, u64, u64)>::deserialize(deserializer)?;
        Ok(rows
            .into_iter()
            .map(|(layer, before, sum, n)| ((layer, before), (f64::from_bits(sum), n)))
            .collect())
    }
}
