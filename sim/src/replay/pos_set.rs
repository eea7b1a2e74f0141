//! A set of positions.

use crate::types::Pos;
use std::ops::Range;

/// A set of positions of one sequence, one bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PosSet(Vec<u64>);

impl PosSet {
    /// The set of `positions`.
    #[must_use]
    pub fn of(positions: &[Pos]) -> Self {
        let words = positions.iter().max().map_or(0, |last| last.idx() / 64 + 1);
        let mut set = Self(vec![0; words]);
        positions.iter().for_each(|pos| set.0[pos.idx() / 64] |= 1 << (pos.idx() % 64));
        set
    }

    /// Adds the members of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }

    /// Members.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Members of both sets.
    #[must_use]
    pub fn shared(&self, other: &Self) -> u64 {
        self.0.iter().zip(&other.0).map(|(a, b)| u64::from((a & b).count_ones())).sum()
    }

    /// Members in `range`.
    #[must_use]
    pub fn count_in(&self, range: Range<u32>) -> u64 {
        let mut count = 0;
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min((start / 64 + 1) * 64);
            let word = self.0.get(start as usize / 64).copied().unwrap_or(0);
            let mask = (u64::MAX >> (64 - (end - start))) << (start % 64);
            count += u64::from((word & mask).count_ones());
            start = end;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_count_meet_and_join() {
        let of = |positions: &[u32]| PosSet::of(&positions.iter().map(|p| Pos::new(*p)).collect::<Vec<_>>());
        let (mut a, b) = (of(&[0, 63, 64, 200]), of(&[63, 64, 65]));
        assert_eq!((a.count(), b.count(), a.shared(&b)), (4, 3, 2));
        a.add(&b);
        assert_eq!((a.count(), a.shared(&b)), (5, 3));
        assert_eq!(a.count_in(0..1000), 5);
        assert_eq!(
            (a.count_in(1..64), a.count_in(64..128), a.count_in(63..65), a.count_in(7..7)),
            (1, 2, 2, 0)
        );
    }
}
