//! The lists of policies, sorted by id. Adding one here makes it known to scenarios, lists and the contract suite.

use super::budget::{self, Budget};
use super::compose::{self, CompositionEntry};
use super::exit::{self, Exit};
use super::reserve::{self, Reserve};
use super::schedule::{self, Schedule};
use super::score::{self, Score};
use super::select::{self, Select};
use super::{Entry, PolicyError, PolicySpec};

/// Budget policies.
pub const BUDGETS: &[Entry<dyn Budget>] = &[budget::uniform::ENTRY];

/// Named stacks.
pub const COMPOSITIONS: &[CompositionEntry] = &[
    compose::full::ENTRY,
    compose::random::ENTRY,
    compose::snapkv::ENTRY,
    compose::snapkv_prefill::ENTRY,
    compose::streaming_llm::ENTRY,
    compose::vase_attnv::ENTRY,
    compose::vase_dkv::ENTRY,
];

/// Exit policies.
pub const EXITS: &[Entry<dyn Exit>] = &[exit::entropy::ENTRY, exit::never::ENTRY];

/// Reserve policies.
pub const RESERVES: &[Entry<dyn Reserve>] = &[reserve::none::ENTRY, reserve::value_range::ENTRY];

/// Schedule policies.
pub const SCHEDULES: &[Entry<dyn Schedule>] =
    &[schedule::end_of_prefill::ENTRY, schedule::every_n::ENTRY, schedule::never::ENTRY];

/// Score policies.
pub const SCORES: &[Entry<dyn Score>] = &[
    score::kv_sketch::ENTRY,
    score::narrow_value::ENTRY,
    score::random::ENTRY,
    score::recency::ENTRY,
    score::window_mass::ENTRY,
];

/// Select policies.
pub const SELECTS: &[Entry<dyn Select>] = &[select::top_k::ENTRY, select::weighted_sample::ENTRY];

/// Every policy of every family with its default parameters, by family, then by id.
#[must_use]
pub fn all() -> Vec<(&'static PolicySpec, serde_json::Value)> {
    fn of<T: ?Sized + 'static>(
        entries: &'static [Entry<T>],
    ) -> Vec<(&'static PolicySpec, serde_json::Value)> {
        entries.iter().map(|entry| (entry.spec, (entry.defaults)())).collect()
    }
    let compositions = COMPOSITIONS.iter().map(|entry| (entry.spec, (entry.defaults)())).collect();
    [of(BUDGETS), compositions, of(EXITS), of(RESERVES), of(SCHEDULES), of(SCORES), of(SELECTS)].concat()
}

/// The registry line with this id.
///
/// # Errors
/// When there is none; the error lists the known ids and the nearest.
pub fn find<'a, T: ?Sized + 'static>(
    entries: &'a [Entry<T>],
    family: &'static str,
    id: &str,
) -> Result<&'a Entry<T>, PolicyError> {
    entries
        .iter()
        .find(|entry| entry.spec.id == id)
        .ok_or_else(|| unknown(family, id, entries.iter().map(|entry| entry.spec.id).collect()))
}

/// The composition with this id.
///
/// # Errors
/// When there is none; the error lists the known ids and the nearest.
pub fn composition(id: &str) -> Result<&'static CompositionEntry, PolicyError> {
    COMPOSITIONS
        .iter()
        .find(|entry| entry.spec.id == id)
        .ok_or_else(|| unknown("composition", id, COMPOSITIONS.iter().map(|entry| entry.spec.id).collect()))
}

fn unknown(family: &'static str, given: &str, known: Vec<&'static str>) -> PolicyError {
    let nearest = crate::scenario::nearest(given, known.iter().copied());
    PolicyError::UnknownKind { family, given: given.to_owned(), nearest, known }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_sorted_unique_and_kebab_case_within_each_family() {
        let all = all();
        for pair in all.windows(2) {
            let (a, b) = (pair[0].0, pair[1].0);
            assert!((a.family, a.id) < (b.family, b.id), "{} before {}", a.id, b.id);
        }
        for (spec, _) in all {
            assert!(
                spec.id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
                "{}",
                spec.id
            );
            assert!(!spec.summary.is_empty() && !spec.citation.is_empty(), "{}", spec.id);
        }
    }
}
