//! Which units run together: batches, which are stored as one, and shards, which run apart.

use crate::results::{Section, Unit};

/// One of several equal pieces of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which one, from 0.
    pub index: u32,
    /// Of how many.
    pub count: u32,
}

impl Shard {
    /// All of it.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Places of its units: of every section a run of neighbours, so that cells that share work stay together, and each shard has as
    /// many of the expensive ones.
    #[must_use]
    pub fn share(self, units: &[Unit]) -> Vec<usize> {
        let mut share = Vec::new();
        for section in Section::ALL {
            let start = units.partition_point(|unit| unit.section < section);
            let len = units.partition_point(|unit| unit.section <= section) - start;
            let edge = |index: u32| start + len * index as usize / self.count.max(1) as usize;
            share.extend(edge(self.index)..edge(self.index + 1));
        }
        share
    }

    /// The shard of `count` that runs the unit at this place.
    #[must_use]
    pub fn of(units: &[Unit], place: usize, count: u32) -> Self {
        let shards = (0..count.max(1)).map(|index| Self { index, count });
        let owner = shards.into_iter().find(|shard| shard.share(units).binary_search(&place).is_ok());
        owner.unwrap_or(Self::WHOLE)
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index + 1, self.count)
    }
}

/// The places `wanted` (rising) in `units`, cut into batches of at most `most` units of one section.
#[must_use]
pub fn batches(units: &[Unit], wanted: &[usize], most: usize) -> Vec<Vec<usize>> {
    let mut batches = Vec::new();
    for section in Section::ALL {
        let of_section: Vec<usize> = wanted
            .iter()
            .copied()
            .filter(|&at| units.get(at).is_some_and(|u| u.section == section))
            .collect();
        batches.extend(of_section.chunks(most.max(1)).map(<[usize]>::to_vec));
    }
    batches
}

/// Units of a batch where nothing is said: two percent of the study, and enough that what is shared inside a batch (one pass over the
/// tensors costs about as much as ten further cells) is worth more than what is lost when the batch is.
#[must_use]
pub fn usual_batch(units: &[Unit]) -> usize {
    const LEAST: usize = 64;
    units.len().div_ceil(50).max(LEAST)
}
