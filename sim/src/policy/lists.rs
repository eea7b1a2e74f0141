//! Lists that a decision needs for a moment and gives back: the next decision on the layer saves asking for memory.

use super::{HeadData, Memo};
use std::cell::RefCell;

/// Empty lists of one type that are used again. What was in them never matters, only their room.
#[derive(Debug)]
pub(crate) struct Lists<T>(RefCell<Vec<Vec<T>>>);

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self(RefCell::new(Vec::new()))
    }
}

impl<T> Lists<T> {
    /// More lists than that are not kept: a policy may hand over ones of its own.
    const MOST: usize = 16;

    fn take(&self) -> Vec<T> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    fn give_back(&self, mut list: Vec<T>) {
        let mut kept = self.0.borrow_mut();
        if list.capacity() > 0 && kept.len() < Self::MOST {
            list.clear();
            kept.push(list);
        }
    }
}

/// Which lists of a memo hold the type.
pub(crate) trait Listed: Sized {
    fn lists(memo: &Memo) -> &Lists<Self>;
}

/// An empty list, used before where somebody keeps some.
pub(crate) fn take<T: Listed>(data: &dyn HeadData) -> Vec<T> {
    data.memo().map_or_else(Vec::new, |memo| T::lists(memo).take())
}

/// Gives a list back that is not needed any more.
pub(crate) fn give_back<T: Listed>(data: &dyn HeadData, list: Vec<T>) {
    if let Some(memo) = data.memo() {
        T::lists(memo).give_back(list);
    }
}
