//! The lists of policies, sorted by id. Adding one here makes it known to scenarios, lists and the contract suite.

use super::attend::{self, Attend};
use super::budget::{self, Budget};
use super::compose::{self, CompositionEntry, Knobs};
use super::exit::{self, Exit};
use super::pool::{self, Pool};
use super::reserve::{self, Reserve};
use super::schedule::{self, Schedule};
use super::score::{self, Score};
use super::select::{self, Select};
use super::share::{self, Share};
use super::store::{self, Store};
use super::verify::{self, Verify};
use super::winner::{self, Winner};
use super::{Entry, Law, ParamDoc, PolicyError, PolicySpec, RawParams};

/// Attend policies.
pub const ATTENDS: &[Entry<dyn Attend>] = &[
    attend::full::ENTRY,
    attend::oracle_block::ENTRY,
    attend::oracle_top_k::ENTRY,
    attend::quest::ENTRY,
    attend::seer_gate::ENTRY,
];

/// Budget policies.
pub const BUDGETS: &[Entry<dyn Budget>] =
    &[budget::ada::ENTRY, budget::pyramid::ENTRY, budget::share_of_seen::ENTRY, budget::uniform::ENTRY];

/// Named stacks.
pub const COMPOSITIONS: &[CompositionEntry] = &[
    compose::adakv::ENTRY,
    compose::attn_range::ENTRY,
    compose::criticalkv::ENTRY,
    compose::cur::ENTRY,
    compose::curdkv::ENTRY,
    compose::evict_large_range::ENTRY,
    compose::expected_attention::ENTRY,
    compose::full::ENTRY,
    compose::h2o::ENTRY,
    compose::h2o_normalised::ENTRY,
    compose::keydiff::ENTRY,
    compose::knorm::ENTRY,
    compose::kv_int2::ENTRY,
    compose::kv_int4::ENTRY,
    compose::kv_int8::ENTRY,
    compose::kv_mixed::ENTRY,
    compose::lagkv::ENTRY,
    compose::leverage::ENTRY,
    compose::oracle::ENTRY,
    compose::oracle_block::ENTRY,
    compose::oracle_top_k::ENTRY,
    compose::pyramidkv::ENTRY,
    compose::quest::ENTRY,
    compose::r_kv::ENTRY,
    compose::r_kv_vase::ENTRY,
    compose::random::ENTRY,
    compose::seer_gate::ENTRY,
    compose::snapkv::ENTRY,
    compose::snapkv_prefill::ENTRY,
    compose::streaming_llm::ENTRY,
    compose::tova::ENTRY,
    compose::vase_attnv::ENTRY,
    compose::vase_dkv::ENTRY,
    compose::vatp::ENTRY,
];

/// Exit policies.
pub const EXITS: &[Entry<dyn Exit>] = &[
    exit::classifier::ENTRY,
    exit::entropy::ENTRY,
    exit::entropy_adaptive::ENTRY,
    exit::entropy_below::ENTRY,
    exit::fixed::ENTRY,
    exit::margin::ENTRY,
    exit::max_prob::ENTRY,
    exit::never::ENTRY,
    exit::patience::ENTRY,
    exit::saturation::ENTRY,
    exit::soft_patience::ENTRY,
    exit::two_way_margin::ENTRY,
];

/// Pool policies.
pub const POOLS: &[Entry<dyn Pool>] = &[
    pool::belady::ENTRY,
    pool::depth_only::ENTRY,
    pool::fifo::ENTRY,
    pool::lfu::ENTRY,
    pool::lru::ENTRY,
    pool::mru::ENTRY,
    pool::rsbcm::ENTRY,
    pool::score_only::ENTRY,
    pool::slru::ENTRY,
];

/// Reserve policies.
pub const RESERVES: &[Entry<dyn Reserve>] =
    &[reserve::none::ENTRY, reserve::prompt::ENTRY, reserve::random::ENTRY, reserve::value_magnitude::ENTRY];

/// Schedule policies.
pub const SCHEDULES: &[Entry<dyn Schedule>] = &[
    schedule::decode_interval::ENTRY,
    schedule::end_of_prefill::ENTRY,
    schedule::every_n::ENTRY,
    schedule::never::ENTRY,
    schedule::on_overflow::ENTRY,
];

/// Score policies.
pub const SCORES: &[Entry<dyn Score>] = &[
    score::accumulated_attention::ENTRY,
    score::critical::ENTRY,
    score::expected_attention::ENTRY,
    score::key_diff::ENTRY,
    score::key_norm::ENTRY,
    score::kv_sketch::ENTRY,
    score::lag_kv::ENTRY,
    score::last_attention::ENTRY,
    score::leverage::ENTRY,
    score::narrow_value::ENTRY,
    score::oracle::ENTRY,
    score::r_kv::ENTRY,
    score::random::ENTRY,
    score::recency::ENTRY,
    score::value_magnitude::ENTRY,
    score::value_weighted::ENTRY,
    score::window_mass::ENTRY,
];

/// Select policies.
pub const SELECTS: &[Entry<dyn Select>] = &[select::top_k::ENTRY, select::weighted_sample::ENTRY];

/// Share policies.
pub const SHARES: &[Entry<dyn Share>] = &[
    share::always::ENTRY,
    share::asks::ENTRY,
    share::exact_prefix::ENTRY,
    share::off::ENTRY,
    share::radix::ENTRY,
];

/// Store policies.
pub const STORES: &[Entry<dyn Store>] =
    &[store::exact::ENTRY, store::half::ENTRY, store::mixed::ENTRY, store::per_token_int::ENTRY];

/// Verify policies.
pub const VERIFIES: &[Entry<dyn Verify>] = &[
    verify::always::ENTRY,
    verify::cgee::ENTRY,
    verify::gap::ENTRY,
    verify::majority::ENTRY,
    verify::never::ENTRY,
    verify::random::ENTRY,
    verify::relative_gap::ENTRY,
    verify::top::ENTRY,
    verify::z_score::ENTRY,
];

/// Winner policies.
pub const WINNERS: &[Entry<dyn Winner>] = &[
    winner::highest_confidence::ENTRY,
    winner::highest_score::ENTRY,
    winner::majority::ENTRY,
    winner::score_confidence::ENTRY,
    winner::weighted_majority::ENTRY,
];

/// A policy as lists show it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Identity and capabilities.
    pub spec: &'static PolicySpec,
    /// The parameters with their defaults.
    pub defaults: serde_json::Value,
    /// What each parameter means.
    pub docs: &'static [ParamDoc],
    /// What it claims and the contract suite tests; of a composition, what its parts claim together with their defaults.
    pub laws: Vec<Law>,
}

/// What the parts of a composition claim together. Nothing where it cannot be built or never evicts, nor nesting where slots are reserved: a
/// larger budget reserves other tokens.
fn laws_of(entry: &CompositionEntry) -> Vec<Law> {
    let knobs = Knobs { capacity: 128, recent: 16, sinks: 4, period: 16, window: 16 };
    let Ok(stack) = entry.stack(&knobs, &RawParams::default()) else {
        return Vec::new();
    };
    let claims = |law: &Law| {
        stack.can_evict() && stack.claims(*law) && (*law != Law::Stack || stack.value_tokens() == 0)
    };
    [Law::Stack, Law::HeadSymmetric].into_iter().filter(claims).collect()
}

/// Every policy of every family, by family, then by id.
#[must_use]
pub fn all() -> Vec<Listed> {
    fn of<T: ?Sized + 'static>(entries: &'static [Entry<T>]) -> Vec<Listed> {
        entries
            .iter()
            .map(|entry| Listed {
                spec: entry.spec,
                defaults: (entry.defaults)(),
                docs: entry.docs,
                laws: entry.spec.laws.to_vec(),
            })
            .collect()
    }
    let compositions = COMPOSITIONS
        .iter()
        .map(|entry| Listed {
            spec: entry.spec,
            defaults: (entry.defaults)(),
            docs: entry.docs,
            laws: laws_of(entry),
        })
        .collect();
    [
        of(ATTENDS),
        of(BUDGETS),
        compositions,
        of(EXITS),
        of(POOLS),
        of(RESERVES),
        of(SCHEDULES),
        of(SCORES),
        of(SELECTS),
        of(SHARES),
        of(STORES),
        of(VERIFIES),
        of(WINNERS),
    ]
    .concat()
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
            let (a, b) = (pair[0].spec, pair[1].spec);
            assert!((a.family, a.id) < (b.family, b.id), "{} before {}", a.id, b.id);
        }
        for Listed { spec, .. } in all {
            assert!(
                spec.id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
                "{}",
                spec.id
            );
            assert!(!spec.summary.is_empty() && !spec.citation.is_empty(), "{}", spec.id);
        }
    }

    #[test]
    fn every_parameter_has_a_meaning_and_nothing_else_has() {
        for Listed { spec, defaults, docs, .. } in all() {
            let keys: Vec<&str> =
                defaults.as_object().map(|map| map.keys().map(String::as_str).collect()).unwrap_or_default();
            let names: Vec<&str> = docs.iter().map(|doc| doc.name).collect();
            assert_eq!(keys, names, "{} {}", spec.family.word(), spec.id);
            assert!(docs.iter().all(|doc| !doc.meaning.is_empty()), "{}", spec.id);
        }
    }
}
