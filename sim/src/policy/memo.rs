//! Work that the cells of a sweep share: draws and sums that depend on coordinates, not on a cell's budget.

use super::compose::Reason;
use super::lists::{Listed, Lists};
use crate::num::Row;
use crate::types::Pos;
use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// What a shared piece of work depends on, beside the layer and the sequence that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoKey {
    /// Seed; 0 where nothing is drawn.
    pub seed: u64,
    /// Eviction; 0 where it does not matter.
    pub eviction: u32,
    /// The KV head and 1; 0 where all heads of the layer have the same.
    pub head: u32,
    /// Anything else: parameters that change the result, a length.
    pub variant: u64,
    /// Id of the policy part whose work it is.
    pub part: &'static str,
}

/// The most recent shared pieces of one layer of one sequence. Looking something up never changes a result, only its cost.
#[derive(Debug, Default)]
pub struct Memo {
    entries: RefCell<VecDeque<(MemoKey, Rc<dyn Any>)>>,
    slots: Lists<usize>,
    tokens: Lists<Pos>,
    marks: Lists<bool>,
    words: Lists<u64>,
    numbers: Lists<f32>,
    doubles: Lists<f64>,
    reasons: Lists<Reason>,
    rows: Lists<Row>,
}

macro_rules! listed {
    ($($field:ident: $of:ty),+) => {
        $(impl Listed for $of {
            fn lists(memo: &Memo) -> &Lists<Self> {
                &memo.$field
            }
        })+
    };
}

listed! { slots: usize, tokens: Pos, marks: bool, words: u64, numbers: f32, doubles: f64, reasons: Reason, rows: Row }

impl Memo {
    /// Pieces that are remembered.
    const ENTRIES: usize = 256;

    /// The piece under `key`; `make` is called when it is not there.
    ///
    /// `key` must name everything that the piece depends on, `T` included.
    pub fn get<T: 'static>(&self, key: MemoKey, make: impl FnOnce() -> T) -> Rc<T> {
        let found =
            self.entries.borrow().iter().rev().find(|entry| entry.0 == key).map(|entry| entry.1.clone());
        if let Some(piece) = found.and_then(|piece| piece.downcast::<T>().ok()) {
            return piece;
        }
        let piece = Rc::new(make());
        let mut entries = self.entries.borrow_mut();
        if entries.len() == Self::ENTRIES {
            entries.pop_front();
        }
        entries.push_back((key, piece.clone()));
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_made_once_and_old_ones_are_forgotten() {
        let memo = Memo::default();
        let key = |variant| MemoKey { part: "x", seed: 1, eviction: 2, head: 0, variant };
        let mut made = 0;
        for _ in 0..3 {
            assert_eq!(
                *memo.get(key(0), || {
                    made += 1;
                    5u32
                }),
                5
            );
        }
        assert_eq!(made, 1);
        for variant in 1..=256 {
            memo.get(key(variant), || 0u8);
        }
        memo.get(key(0), || {
            made += 1;
            5u32
        });
        assert_eq!(made, 2);
    }
}
