//! Which ink, dash and marker a series gets: a fixed table for known policy labels, then a stable assignment.
//!
//! The assignment follows the sorted labels of the whole study, so a policy looks the same in every figure.
//! Looks differ in at least two of ink, dash and marker, so they can be told apart in greyscale.

use super::{
    BLUE, BROWN, Dash, GOLD, GREEN, GREY, Ink, MAGENTA, Marker, PURPLE, SKY, Stroke, TEXT, VERMILION,
};
use std::collections::{BTreeMap, BTreeSet};

/// How a series looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Look {
    pub(crate) stroke: Stroke,
    pub(crate) marker: Marker,
}

const fn look(ink: Ink, dash: Dash, marker: Marker) -> Look {
    Look { stroke: Stroke { ink, width: 1.8, dash }, marker }
}

/// Known policy labels in the order of legends: references first, then from plain to composed.
const KNOWN: &[(&str, Look)] = &[
    ("full", look(TEXT, Dash::Dashed, Marker::Circle)),
    ("random", look(GREY, Dash::Dotted, Marker::Cross)),
    ("belady", look(TEXT, Dash::Dotted, Marker::Diamond)),
    ("recency", look(GOLD, Dash::Dotted, Marker::Down)),
    ("streaming-llm", look(GOLD, Dash::Long, Marker::Up)),
    ("h2o", look(BROWN, Dash::Solid, Marker::Up)),
    ("tova", look(BROWN, Dash::Dashed, Marker::Diamond)),
    ("knorm", look(SKY, Dash::Dashed, Marker::Down)),
    ("keydiff", look(SKY, Dash::Alternating, Marker::Up)),
    ("lagkv", look(SKY, Dash::Long, Marker::Circle)),
    ("window-mass", look(BLUE, Dash::Long, Marker::Square)),
    ("snapkv", look(BLUE, Dash::Solid, Marker::Circle)),
    ("snapkv-prefill", look(BLUE, Dash::Dotted, Marker::Square)),
    ("snapkv-value", look(BLUE, Dash::Alternating, Marker::Square)),
    ("r-kv", look(MAGENTA, Dash::Solid, Marker::Down)),
    ("curdkv", look(PURPLE, Dash::Dashed, Marker::Up)),
    ("expected-attention", look(GREEN, Dash::Long, Marker::Diamond)),
    ("vase-attnv", look(VERMILION, Dash::Solid, Marker::Square)),
    ("vase-dkv", look(PURPLE, Dash::Alternating, Marker::Diamond)),
];

const SPARE_INKS: [Ink; 7] = [GREEN, MAGENTA, SKY, BROWN, GOLD, BLUE, PURPLE];
const SPARE_DASHES: [Dash; 4] = [Dash::Solid, Dash::Long, Dash::Alternating, Dash::Dashed];
const SPARE_MARKERS: [Marker; 5] =
    [Marker::Up, Marker::Diamond, Marker::Down, Marker::Square, Marker::Circle];

/// Shades from light to strong for ordered values.
pub(super) const STEPS: [Ink; 5] = [
    Ink { light: [0x46, 0x96, 0xc1], dark: [0x1f, 0x74, 0xa8] },
    Ink { light: [0x2b, 0x86, 0xb8], dark: [0x3f, 0x90, 0xc4] },
    Ink { light: [0x17, 0x66, 0xa0], dark: [0x6a, 0xae, 0xdb] },
    Ink { light: [0x1b, 0x45, 0x80], dark: [0x9c, 0xcb, 0xea] },
    Ink { light: [0x1c, 0x23, 0x52], dark: [0xd2, 0xe8, 0xf6] },
];

/// The look of the `at`-th of `count` ordered values, for instance thresholds.
pub(crate) fn ordinal(at: usize, count: usize) -> Look {
    let step = if count <= 1 { 2 } else { at.min(count - 1) * (STEPS.len() - 1) / (count - 1) };
    let dash = [Dash::Solid, Dash::Long, Dash::Alternating, Dash::Dashed, Dash::Dotted][at % 5];
    let marker = [Marker::Circle, Marker::Square, Marker::Up, Marker::Diamond, Marker::Down][at % 5];
    look(STEPS[step], dash, marker)
}

/// Looks of all series of a study.
#[derive(Clone, Debug)]
pub(crate) struct Palette {
    looks: BTreeMap<String, (usize, Look)>,
}

impl Palette {
    /// Looks for `series`, pairs of (policy label, series label); the two differ when a policy has variants.
    pub(crate) fn new<'a>(series: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let sorted: BTreeSet<(&str, &str)> = series.into_iter().collect();
        let mut spare = BTreeMap::new();
        for (policy, _) in &sorted {
            if KNOWN.iter().all(|(known, _)| known != policy) {
                let next = spare.len();
                spare.entry(*policy).or_insert(next);
            }
        }
        let mut variants: BTreeMap<&str, usize> = BTreeMap::new();
        let mut looks = BTreeMap::new();
        for (policy, label) in &sorted {
            let variant = variants.entry(policy).and_modify(|count| *count += 1).or_insert(0);
            let (rank, base) = base_look(policy, spare.get(policy).copied().unwrap_or(0));
            looks.insert((*label).to_owned(), (rank, varied(base, *variant)));
        }
        Self { looks }
    }

    /// The look of `label`; a plain grey when the palette does not know it.
    pub(crate) fn look(&self, label: &str) -> Look {
        self.looks.get(label).map_or(look(GREY, Dash::Solid, Marker::Circle), |(_, look)| *look)
    }

    /// Where `label` stands in legends: known policies in their fixed order, then the others by name.
    pub(crate) fn rank(&self, label: &str) -> usize {
        self.looks.get(label).map_or(usize::MAX, |(rank, _)| *rank)
    }
}

fn base_look(policy: &str, spare: usize) -> (usize, Look) {
    match KNOWN.iter().position(|(known, _)| *known == policy) {
        Some(at) => (at, KNOWN[at].1),
        None => {
            let ink = SPARE_INKS[spare % SPARE_INKS.len()];
            let dash = SPARE_DASHES[spare % SPARE_DASHES.len()];
            let marker = SPARE_MARKERS[spare % SPARE_MARKERS.len()];
            (KNOWN.len() + spare, look(ink, dash, marker))
        }
    }
}

/// Variants of one policy share the ink and differ in dash and marker.
fn varied(base: Look, variant: usize) -> Look {
    if variant == 0 {
        return base;
    }
    let dash = SPARE_DASHES[(variant + 1) % SPARE_DASHES.len()];
    let marker = SPARE_MARKERS[variant % SPARE_MARKERS.len()];
    Look { stroke: Stroke { dash, ..base.stroke }, marker }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_looks_differ_in_two_ways_so_that_greyscale_is_enough() {
        for (at, (name, a)) in KNOWN.iter().enumerate() {
            for (other, b) in &KNOWN[..at] {
                assert!(
                    a.stroke.dash != b.stroke.dash || a.marker != b.marker,
                    "{name} and {other} differ in ink only"
                );
            }
        }
    }

    #[test]
    fn full_is_dashed_in_the_text_ink() {
        let palette = Palette::new([("full", "full"), ("zeta", "zeta")]);
        assert_eq!(palette.look("full").stroke.ink, TEXT);
        assert_eq!(palette.look("full").stroke.dash, Dash::Dashed);
    }

    #[test]
    fn unknown_labels_get_looks_by_sorted_order_whatever_the_order_given() {
        let a = Palette::new([("b", "b"), ("a", "a"), ("snapkv", "snapkv")]);
        let b = Palette::new([("snapkv", "snapkv"), ("a", "a"), ("b", "b")]);
        for label in ["a", "b", "snapkv"] {
            assert_eq!(a.look(label), b.look(label));
            assert_eq!(a.rank(label), b.rank(label));
        }
        assert!(a.rank("snapkv") < a.rank("a") && a.rank("a") < a.rank("b"));
    }

    #[test]
    fn variants_share_the_ink() {
        let palette = Palette::new([("snapkv", "snapkv N_v=8"), ("snapkv", "snapkv N_v=16")]);
        let (a, b) = (palette.look("snapkv N_v=8"), palette.look("snapkv N_v=16"));
        assert_eq!(a.stroke.ink, b.stroke.ink);
        assert_ne!(a, b);
    }
}
