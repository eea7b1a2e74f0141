//! Surfaces shaded by a number: what the maps of entropies and of KV heads share.

use crate::number::significant;
use crate::scene::{Extent, Key, Mark, Sample, Side, Span};
use crate::theme::{Ink, SHADES, shade};

/// A word and where it stands.
type Word = (f64, f64, String);

/// Shades of numbers between two ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    ends: Extent,
}

impl Scale {
    /// From the smallest to the largest of `values`; `None` when there is none.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        Extent::of(values).map(|ends| Self { ends })
    }

    /// The shade of `value` and the ink of words on it.
    pub(super) fn inks(&self, value: f64) -> (Ink, Ink) {
        let width = self.ends.width();
        shade(if width > 0.0 && width.is_finite() { (value - self.ends.lo) / width } else { 0.5 })
    }

    /// Tiles in their shades, one mark a shade.
    pub(super) fn marks(&self, tiles: &[(Span, f64)]) -> Vec<Mark> {
        SHADES
            .iter()
            .filter_map(|ink| {
                let boxes: Vec<Span> = tiles
                    .iter()
                    .filter(|(_, value)| value.is_finite() && self.inks(*value).0 == *ink)
                    .map(|(span, _)| *span)
                    .collect();
                (!boxes.is_empty()).then_some(Mark::Boxes { boxes, ink: *ink })
            })
            .collect()
    }

    /// The numbers themselves on their tiles, at (x, y).
    pub(super) fn words(&self, tiles: impl IntoIterator<Item = (f64, f64, f64)>) -> Vec<Mark> {
        let mut by_ink: Vec<(Ink, Vec<Word>)> = Vec::new();
        for (x, y, value) in tiles {
            let ink = self.inks(value).1;
            let word = (x, y, significant(value, 2));
            match by_ink.iter_mut().find(|(known, _)| *known == ink) {
                Some((_, words)) => words.push(word),
                None => by_ink.push((ink, vec![word])),
            }
        }
        by_ink.into_iter().map(|(ink, words)| Mark::Words { words, ink, side: Side::Middle }).collect()
    }

    /// What the shades mean: the middles of a few of them, light first.
    pub(super) fn legend(&self, unit: &str) -> Vec<Key> {
        if self.ends.width() <= 0.0 {
            let label = format!("{}{unit} everywhere", significant(self.ends.lo, 3));
            return vec![Key { label, sample: Sample::Tile { ink: shade(0.5).0 } }];
        }
        [0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0]
            .into_iter()
            .map(|share| {
                let value = self.ends.lo + share * self.ends.width();
                let about = if share > 0.0 && share < 1.0 { "about " } else { "" };
                let label = format!("{about}{}{unit}", significant(value, 2));
                Key { label, sample: Sample::Tile { ink: shade(share).0 } }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_is_light_and_most_is_dark_and_nothing_is_lost() {
        let span = |at: u32| Span { x: (f64::from(at), f64::from(at + 1)), y: (0.0, 1.0) };
        let scale = Scale::of([0.0, 6.0]).unwrap();
        let tiles: Vec<(Span, f64)> = (0..7).map(|at| (span(at), f64::from(at))).collect();
        assert_eq!(scale.marks(&tiles).len(), 7, "seven shades, one tile each");
        assert_eq!(scale.inks(0.0).0, SHADES[0]);
        assert_eq!(scale.inks(6.0).0, SHADES[6]);
        assert_eq!(scale.legend(" nats").len(), 4);
        assert_eq!(Scale::of([2.0]).unwrap().legend("").len(), 1);
    }
}
