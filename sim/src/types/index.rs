//! Index newtypes.

macro_rules! index {
    ($(#[$doc:meta] $name:ident($inner:ty);)*) => {$(
        #[$doc]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name($inner);

        impl $name {
            /// Wraps a number that is known to be of this kind.
            #[must_use]
            pub const fn new(value: $inner) -> Self {
                Self(value)
            }

            /// The bare number.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }

            /// The bare number as an array index.
            #[must_use]
            pub const fn idx(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

index! {
    /// Logical position of a token in its sequence, from 0. It never changes, whatever is evicted.
    Pos(u32);
    /// Place in a compacted cache, from 0. It changes at every eviction.
    Slot(u32);
    /// Decoder block, from 0.
    LayerIdx(u16);
    /// Query head, from 0.
    QHead(u16);
    /// Key-value head, from 0.
    KvHead(u16);
    /// Recorded sequence in a trace, from 0.
    SeqIdx(u32);
    /// Request in a simulation, from 0.
    ReqId(u32);
    /// Branch of a request, from 0 (the root).
    BranchId(u32);
    /// Physical KV block.
    BlockId(u32);
    /// Vocabulary id.
    TokenId(u32);
}
