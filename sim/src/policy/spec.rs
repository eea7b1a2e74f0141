//! What every policy says about itself.

use super::{PolicyError, RawParams};

/// The question a policy answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// How many tokens a head may keep.
    Budget,
    /// A named stack of one policy of each eviction family.
    Composition,
    /// After which layer a pass may stop.
    Exit,
    /// Which tokens are kept before scores are looked at.
    Reserve,
    /// When an eviction is due.
    Schedule,
    /// What a token is worth.
    Score,
    /// Which tokens are kept, given their worth.
    Select,
}

impl Family {
    /// The word used in lists and scenarios.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Composition => "composition",
            Self::Exit => "exit",
            Self::Reserve => "reserve",
            Self::Schedule => "schedule",
            Self::Score => "score",
            Self::Select => "select",
        }
    }
}

/// Trace fields that a policy reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Post-RoPE queries.
    pub queries: bool,
    /// Post-RoPE keys.
    pub keys: bool,
    /// Values.
    pub values: bool,
    /// Logit-lens facts.
    pub lens: bool,
}

impl Needs {
    /// Positions only.
    pub const NONE: Self = Self { queries: false, keys: false, values: false, lens: false };

    /// The needs of two parts together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            queries: self.queries || other.queries,
            keys: self.keys || other.keys,
            values: self.values || other.values,
            lens: self.lens || other.lens,
        }
    }

    /// The fields as words, e.g. `q k v`; `-` for none.
    #[must_use]
    pub fn words(self) -> String {
        let all = [(self.queries, "q"), (self.keys, "k"), (self.values, "v"), (self.lens, "lens")];
        let words: Vec<&str> = all.iter().filter(|(needed, _)| *needed).map(|(_, word)| *word).collect();
        if words.is_empty() { "-".to_owned() } else { words.join(" ") }
    }
}

/// Whether a policy draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Randomness {
    /// The same input gives the same output; the seed is not looked at.
    Deterministic,
    /// It draws from streams keyed by (seed, sequence, layer, head, eviction).
    Random,
}

/// Properties that a policy claims and the contract suite tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// At the first eviction of a sequence a larger budget keeps a superset.
    Stack,
    /// Permuting KV heads permutes the kept sets.
    HeadSymmetric,
}

impl Law {
    /// The word used in lists.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Stack => "stack",
            Self::HeadSymmetric => "head-symmetric",
        }
    }
}

/// Identity and capabilities of a policy, declared beside its code.
#[derive(Clone, Copy, Debug)]
pub struct PolicySpec {
    /// Kebab-case id, equal to the file name with `-` for `_`.
    pub id: &'static str,
    /// Its family.
    pub family: Family,
    /// One line.
    pub summary: &'static str,
    /// Paper or repository path.
    pub citation: &'static str,
    /// Trace fields it reads.
    pub needs: Needs,
    /// Whether it draws.
    pub randomness: Randomness,
    /// What it claims.
    pub laws: &'static [Law],
}

/// A registry line: what a policy is and how to build one.
pub struct Entry<T: ?Sized + 'static> {
    /// Identity and capabilities.
    pub spec: &'static PolicySpec,
    /// Builds the policy from the `params` of a scenario.
    pub build: fn(&RawParams) -> Result<Box<T>, PolicyError>,
    /// The parameters with their defaults, as they would stand in a scenario.
    pub defaults: fn() -> serde_json::Value,
}

impl<T: ?Sized + 'static> std::fmt::Debug for Entry<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("spec", self.spec).finish_non_exhaustive()
    }
}
