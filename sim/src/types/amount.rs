//! Amounts: counts, bytes and simulated time.

macro_rules! amount {
    ($(#[$doc:meta] $name:ident($inner:ty);)*) => {$(
        #[$doc]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name($inner);

        impl $name {
            /// Nothing.
            pub const ZERO: Self = Self(0);

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
        }

        impl std::ops::Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl std::ops::Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
                amounts.fold(Self::ZERO, |total, amount| total + amount)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

amount! {
    /// A number of tokens.
    Tokens(u32);
    /// A number of bytes.
    Bytes(u64);
    /// Simulated time in nanoseconds. It never comes from a clock.
    Nanos(u64);
}
