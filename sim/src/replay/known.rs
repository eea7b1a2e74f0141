//! What measuring a class has found out already, and a scorer that looks at the last queries would work out again.

use crate::types::Pos;
use std::ops::Range;

/// Sums of attention weights of consecutive queries on the tokens of a class.
///
/// Tokens that came after a query have no weight, so a sum made when the query was measured is that over the longer list, to the bit.
#[derive(Debug)]
pub(super) struct Sums {
    /// The first query.
    pub(super) first: u32,
    /// Slots that the next eviction is expected to score: those before the recent buffer.
    pub(super) cut: usize,
    /// On all slots, `[query, member]`.
    pub(super) all: Vec<f64>,
    /// On the slots before `cut`, `[query, member]`.
    pub(super) before: Vec<f64>,
}

impl Sums {
    /// None yet, of queries from `first` on, with room for `count` numbers as far as that is little.
    pub(super) fn from(first: u32, cut: usize, count: usize) -> Self {
        const MOST: usize = 1024;
        let room = || Vec::with_capacity(count.min(MOST));
        Self { first, cut, all: room(), before: room() }
    }
}

/// The class that is being evicted.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Its resident tokens in slot order.
    pub(super) slots: Vec<Pos>,
    /// What its queries gave them; absent where nobody will ask.
    pub(super) sums: Option<Sums>,
}

impl Known {
    /// The sums of the weights of `queries` on `keys`, `[query, member]`, where those are the class's slots or begin them.
    pub(super) fn totals(&self, queries: &Range<u32>, keys: &[Pos], group: usize) -> Option<&[f64]> {
        let sums = self.sums.as_ref()?;
        let is_prefix = std::ptr::eq(keys.as_ptr(), self.slots.as_ptr());
        let list = match keys.len() {
            len if is_prefix && len == self.slots.len() => &sums.all,
            len if is_prefix && len == sums.cut => &sums.before,
            _ => return None,
        };
        let place = |query: u32| Some(query.checked_sub(sums.first)? as usize * group);
        list.get(place(queries.start)?..place(queries.end)?)
    }
}
