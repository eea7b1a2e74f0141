//! Difficulty: how many statements a problem has. More statements mean more steps that must all be right, and
//! longer distances between a value and its use.

/// A difficulty. Accuracy of a fixed model falls from the first of [`LEVELS`] to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// Name on the command line.
    pub id: &'static str,
    /// Fewest statements of a problem, at least 4.
    pub statements_min: u32,
    /// Most statements of a problem, at most 72.
    pub statements_max: u32,
}

/// The named levels, easy to hard.
pub const LEVELS: [Level; 6] = [
    Level { id: "easy", statements_min: 8, statements_max: 8 },
    Level { id: "light", statements_min: 11, statements_max: 12 },
    Level { id: "default", statements_min: 15, statements_max: 17 },
    Level { id: "hard", statements_min: 23, statements_max: 26 },
    Level { id: "extreme", statements_min: 36, statements_max: 40 },
    Level { id: "marathon", statements_min: 64, statements_max: 68 },
];

/// Position of the default level in [`LEVELS`].
pub const DEFAULT_LEVEL: usize = 2;

impl Level {
    /// The level with exactly `statements` statements; it is not in [`LEVELS`].
    ///
    /// Values outside `4..=72` are moved to the nearest end.
    #[must_use]
    pub fn sized(statements: u32) -> Self {
        let statements = statements.clamp(4, 72);
        Self { id: "sized", statements_min: statements, statements_max: statements }
    }

    /// The named level, if there is one.
    #[must_use]
    pub fn named(id: &str) -> Option<Self> {
        LEVELS.into_iter().find(|level| level.id == id)
    }

    /// One word that tells levels apart in the key of a random stream.
    pub(super) fn key(self) -> u64 {
        (u64::from(self.statements_min) << 32) | u64::from(self.statements_max)
    }
}
