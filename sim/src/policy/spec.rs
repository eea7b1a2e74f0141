//! What every policy says about itself.

use super::{ParamDoc, PolicyError, RawParams};

/// The question a policy answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Which resident tokens a query attends to.
    Attend,
    /// How many tokens a head may keep.
    Budget,
    /// A named stack of one policy of each eviction family.
    Composition,
    /// After which layer a pass may stop.
    Exit,
    /// Which cached block goes when the pool is full.
    Pool,
    /// Which tokens are kept before scores are looked at.
    Reserve,
    /// When an eviction is due.
    Schedule,
    /// What a token is worth.
    Score,
    /// Which tokens are kept, given their worth.
    Select,
    /// Which branches are decoded behind the root's prefix.
    Share,
    /// In which representation kept tokens are stored.
    Store,
    /// Whether the branches of a problem are verified.
    Verify,
    /// Which branch answers.
    Winner,
}

impl Family {
    /// The word used in lists and scenarios.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Attend => "attend",
            Self::Budget => "budget",
            Self::Composition => "composition",
            Self::Exit => "exit",
            Self::Pool => "pool",
            Self::Reserve => "reserve",
            Self::Schedule => "schedule",
            Self::Score => "score",
            Self::Select => "select",
            Self::Share => "share",
            Self::Store => "store",
            Self::Verify => "verify",
            Self::Winner => "winner",
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
    /// Rotary frequencies, to undo the rotation.
    pub rope: bool,
    /// Slices of the attention output matrix.
    pub output_weights: bool,
    /// Queries that are yet to come: a recording has them, a running model does not.
    pub future: bool,
    /// Cosines between the states of a branch's prompt and the root's.
    pub similarity: bool,
    /// Branches as they were decoded, with their confidences.
    pub outcomes: bool,
    /// The verifier's view after each layer.
    pub verdicts: bool,
}

impl Needs {
    /// Positions only.
    pub const NONE: Self = Self {
        queries: false,
        keys: false,
        values: false,
        lens: false,
        rope: false,
        output_weights: false,
        future: false,
        similarity: false,
        outcomes: false,
        verdicts: false,
    };
    /// Keys.
    pub const K: Self = Self { keys: true, ..Self::NONE };
    /// Values.
    pub const V: Self = Self { values: true, ..Self::NONE };
    /// Queries and keys.
    pub const QK: Self = Self { queries: true, keys: true, ..Self::NONE };
    /// Keys and values.
    pub const KV: Self = Self::K.and(Self::V);
    /// Queries, keys and values.
    pub const QKV: Self = Self::QK.and(Self::V);
    /// Logit-lens facts.
    pub const LENS: Self = Self { lens: true, ..Self::NONE };
    /// Rotary frequencies.
    pub const ROPE: Self = Self { rope: true, ..Self::NONE };
    /// Slices of the attention output matrix.
    pub const W_O: Self = Self { output_weights: true, ..Self::NONE };
    /// Queries that are yet to come.
    pub const FUTURE: Self = Self { future: true, ..Self::NONE };
    /// Cosines between the states of a branch's prompt and the root's.
    pub const SIMILARITY: Self = Self { similarity: true, ..Self::NONE };
    /// Branches as they were decoded.
    pub const OUTCOMES: Self = Self { outcomes: true, ..Self::NONE };
    /// The verifier's view after each layer.
    pub const VERDICTS: Self = Self { verdicts: true, ..Self::NONE };

    /// The needs of two parts together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            queries: self.queries || other.queries,
            keys: self.keys || other.keys,
            values: self.values || other.values,
            lens: self.lens || other.lens,
            rope: self.rope || other.rope,
            output_weights: self.output_weights || other.output_weights,
            future: self.future || other.future,
            similarity: self.similarity || other.similarity,
            outcomes: self.outcomes || other.outcomes,
            verdicts: self.verdicts || other.verdicts,
        }
    }

    /// The fields as words, e.g. `q k v`; `-` for none.
    #[must_use]
    pub fn words(self) -> String {
        let all = [
            (self.queries, "q"),
            (self.keys, "k"),
            (self.values, "v"),
            (self.lens, "lens"),
            (self.rope, "rope"),
            (self.output_weights, "w_o"),
            (self.future, "future"),
            (self.similarity, "similarity"),
            (self.outcomes, "outcomes"),
            (self.verdicts, "verdicts"),
        ];
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
    /// What each parameter means.
    pub docs: &'static [ParamDoc],
}

impl<T: ?Sized + 'static> std::fmt::Debug for Entry<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("spec", self.spec).finish_non_exhaustive()
    }
}
