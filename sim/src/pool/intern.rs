//! Ids of any size to dense indices in order of first appearance.

/// An open hash table from `u64` to consecutive indices. Its order depends on the ids only.
#[derive(Clone, Debug)]
pub(super) struct Interner {
    /// `(id, index + 1)`; an index of 0 means empty.
    slots: Vec<(u64, u32)>,
    len: u32,
}

impl Interner {
    pub(super) fn new() -> Self {
        Self { slots: vec![(0, 0); 1 << 10], len: 0 }
    }

    /// Distinct ids so far.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The index of `id` and whether it is new.
    pub(super) fn index(&mut self, id: u64) -> (u32, bool) {
        if self.len as usize * 2 >= self.slots.len() {
            self.grow();
        }
        let at = self.find(id);
        let slot = &mut self.slots[at];
        if slot.1 != 0 {
            return (slot.1 - 1, false);
        }
        self.len += 1;
        *slot = (id, self.len);
        (self.len - 1, true)
    }

    /// Where `id` is or belongs.
    fn find(&self, id: u64) -> usize {
        let mask = self.slots.len() - 1;
        // Fibonacci hashing: the high bits of the product are well mixed.
        let shift = 64 - self.slots.len().trailing_zeros();
        #[expect(clippy::cast_possible_truncation, reason = "shifted to less than the table's size")]
        let mut at = (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> shift) as usize;
        loop {
            let (there, index) = self.slots[at];
            if index == 0 || there == id {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    fn grow(&mut self) {
        let larger = vec![(0, 0); self.slots.len() * 4];
        let slots = std::mem::replace(&mut self.slots, larger);
        for (id, index) in slots.into_iter().filter(|slot| slot.1 != 0) {
            let at = self.find(id);
            self.slots[at] = (id, index);
        }
    }
}
