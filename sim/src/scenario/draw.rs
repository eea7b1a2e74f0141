//! Which problems of a trace are read: the first ones, or a share of them drawn by a hash.

use super::checked::value;
use super::{Scenario, ScenarioErrorKind, raw};
use crate::results::sha256_hex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How problems are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Share of the problems; absent for all, up to a limit.
    pub fraction: Option<f64>,
    /// What each group of problems has its share by; absent for one group.
    pub stratify: Option<Strata>,
    /// Decides which.
    pub seed: u64,
}

/// What puts problems into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Strata {
    /// The id of the problem without the number at its end: workload, level and seed of built-in problems, the source of many others.
    IdPrefix,
}

impl Strata {
    /// The word used in scenarios.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::IdPrefix => "id-prefix",
        }
    }

    /// The group of the problem `item`: `chain-easy-0` of `chain-easy-0-17`, `gsm8k` of `gsm8k/17`.
    #[must_use]
    pub fn of(self, item: &str) -> &str {
        match self {
            Self::IdPrefix => {
                let prefix = item.trim_end_matches(|c: char| c.is_ascii_digit());
                prefix.strip_suffix(['-', '_', '/', '.', ':', '#']).unwrap_or(prefix)
            }
        }
    }
}

/// What flags say about the problems that are read; it goes before the scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceFlags {
    /// At most so many.
    pub limit: Option<u32>,
    /// A share of them.
    pub fraction: Option<f64>,
    /// By group.
    pub stratify: Option<Strata>,
    /// Which ones.
    pub seed: Option<u64>,
}

impl SourceFlags {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `fraction 0.25, limit 10, by id-prefix, seed 0`.
impl Draw {
    pub(crate) fn words(self, limit: Option<u32>) -> String {
        let parts = [
            self.fraction.map(|fraction| format!("fraction {fraction}")),
            limit.map(|limit| format!("limit {limit}")),
            self.stratify.map(|strata| format!("by {}", strata.word())),
            Some(format!("seed {}", self.seed)),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Places of those entries of `items`, rising, whose problem is drawn: in each group those with the smallest hashes, so that a
    /// problem's luck depends on its id and the seed alone. Groups have their shares by largest remainders.
    fn places(self, items: &[&str], limit: Option<u32>) -> Vec<usize> {
        let (mut order, mut groups): (BTreeMap<&str, usize>, Vec<Vec<&str>>) = Default::default();
        let mut group_of: BTreeMap<&str, usize> = BTreeMap::new();
        for item in items {
            let next = order.len();
            if *order.entry(item).or_insert(next) < next {
                continue;
            }
            let name = self.stratify.map_or("", |strata| strata.of(item));
            let group = *group_of.entry(name).or_insert(groups.len());
            if group == groups.len() {
                groups.push(Vec::new());
            }
            groups[group].push(item);
        }
        let target = self.target(order.len(), limit);
        let mut drawn: std::collections::BTreeSet<&str> = std::collections::BTreeSet::new();
        let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
        for (mut group, quota) in groups.into_iter().zip(quotas(&sizes, target)) {
            let key = |item: &&str| sha256_hex(format!("kvlab draw 1\0{}\0{item}", self.seed).as_bytes());
            group.sort_by_cached_key(|item| (key(item), *item));
            drawn.extend(&group[..quota]);
        }
        (0..items.len()).filter(|&at| drawn.contains(items[at])).collect()
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a number of problems"
    )]
    fn target(self, all: usize, limit: Option<u32>) -> usize {
        let share = self.fraction.map_or(all, |fraction| ((all as f64 * fraction).round() as usize).max(1));
        share.min(limit.map_or(usize::MAX, |limit| limit as usize)).min(all)
    }
}

/// `target` of all in proportion to `sizes`; what is left over goes to the largest remainders, the first of equal ones.
fn quotas(sizes: &[usize], target: usize) -> Vec<usize> {
    let all: usize = sizes.iter().sum();
    if all == 0 {
        return vec![0; sizes.len()];
    }
    let mut quotas: Vec<usize> = sizes.iter().map(|size| size * target / all).collect();
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(sizes[at] * target % all), at));
    let left = target - quotas.iter().sum::<usize>();
    order.iter().take(left).for_each(|&at| quotas[at] += 1);
    quotas
}

/// Limit and draw after every check; `limit_path` and the like say where they stand.
pub(super) fn checked(
    flags: &SourceFlags,
    path: impl Fn(&str) -> String,
) -> Result<(Option<u32>, Option<Draw>), ScenarioErrorKind> {
    if flags.limit == Some(0) {
        return Err(value(&path("limit"), "0", "1 or more sequences"));
    }
    if let Some(fraction) = flags.fraction.filter(|fraction| !(*fraction > 0.0 && *fraction <= 1.0)) {
        return Err(value(&path("fraction"), &fraction.to_string(), "above 0, at most 1"));
    }
    let is_drawn = flags.fraction.is_some() || flags.stratify.is_some();
    if let (false, Some(seed)) = (is_drawn, flags.seed) {
        let accepted = "a seed beside a fraction or strata: without them the first problems are read";
        return Err(value(&path("seed"), &seed.to_string(), accepted));
    }
    let draw = is_drawn.then(|| Draw {
        fraction: flags.fraction,
        stratify: flags.stratify,
        seed: flags.seed.unwrap_or(0),
    });
    Ok((flags.limit, draw))
}

impl Scenario {
    /// The same, with what flags say about the problems that are read, in its text too.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn reading(self, flags: &SourceFlags) -> Result<Self, ScenarioErrorKind> {
        if flags.is_empty() {
            return Ok(self);
        }
        let merged = SourceFlags {
            limit: flags.limit.or(self.limit),
            fraction: flags.fraction.or(self.draw.and_then(|draw| draw.fraction)),
            stratify: flags.stratify.or(self.draw.and_then(|draw| draw.stratify)),
            seed: flags.seed.or(self.draw.map(|draw| draw.seed)),
        };
        let name = |key: &str| format!("--{}", if key == "seed" { "draw-seed" } else { key });
        let (limit, draw) = checked(&merged, name)?;
        let text = rewritten(&self.text, &merged);
        Ok(Self { limit, draw, text, ..self })
    }

    /// Places of those entries of `items` that are read, rising: entries are sequences, or problems with branches, by their problems' ids.
    ///
    /// A limit counts entries where the first ones are read, and problems where they are drawn.
    #[must_use]
    pub fn read_of(&self, items: &[&str]) -> Vec<usize> {
        match self.draw {
            Some(draw) => draw.places(items, self.limit),
            None => (0..items.len().min(self.limit.map_or(usize::MAX, |limit| limit as usize))).collect(),
        }
    }
}

/// `text` with another `source`; with a comment that says so where it is not written in lines of its own.
fn rewritten(text: &str, flags: &SourceFlags) -> String {
    let mut values = Vec::new();
    let mut add =
        |key: &str, value: Option<String>| values.extend(value.map(|value| format!("{key}: {value}")));
    add("limit", flags.limit.map(|limit| limit.to_string()));
    add("fraction", flags.fraction.map(|fraction| fraction.to_string()));
    add("stratify", flags.stratify.map(|strata| strata.word().to_owned()));
    add("seed", flags.seed.map(|seed| seed.to_string()));
    let source = format!("source: {{{}}}", values.join(", "));
    let mut lines: Vec<&str> = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        is_inside = line.starts_with("source:") || (is_inside && line.starts_with([' ', '#']));
        if !is_inside {
            lines.push(line);
        }
    }
    lines.push(&source);
    let with_key = lines.join("\n") + "\n";
    let is_as_meant = raw::parse(&with_key, "").is_ok_and(|raw| raw.source.flags() == *flags);
    if is_as_meant { with_key } else { format!("{}\n# as flags say: {source}\n", text.trim_end()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 60 + 30 + 10 problems, twelve of them: 7.2, 3.6 and 1.2, so 7, 3 and 1, and the one left over goes to the remainder of 0.6.
    #[test]
    fn shares_by_largest_remainders() {
        assert_eq!(quotas(&[60, 30, 10], 12), [7, 4, 1]);
        assert_eq!(quotas(&[1, 1], 1), [1, 0], "the first of equal remainders");
        assert_eq!(quotas(&[5, 0], 5), [5, 0]);
        assert!(quotas(&[], 0).is_empty());
    }

    #[test]
    fn flags_stand_in_the_text_whatever_was_there() {
        let flags = SourceFlags { limit: Some(3), fraction: Some(0.5), ..SourceFlags::default() };
        let source = "source: {limit: 3, fraction: 0.5}\n";
        let exit = "exit: {theta: 1, epsilon: 1}\n";
        for (before, after) in [
            (format!("id: a\nwhy: b\n{exit}"), format!("id: a\nwhy: b\n{exit}{source}")),
            (
                format!("id: a\nsource:\n  limit: 9 # all\n# more\nwhy: b\n{exit}"),
                format!("id: a\nwhy: b\n{exit}{source}"),
            ),
            ("{id: a, why: b}".to_owned(), format!("{{id: a, why: b}}\n# as flags say: {source}")),
        ] {
            assert_eq!(rewritten(&before, &flags), after);
        }
    }

    #[test]
    fn the_number_at_the_end_of_an_id_is_no_part_of_its_group() {
        for (item, group) in [
            ("chain-easy-0-17", "chain-easy-0"),
            ("gsm8k/17", "gsm8k"),
            ("q17", "q"),
            ("17", ""),
            ("a-b", "a-b"),
        ] {
            assert_eq!(Strata::IdPrefix.of(item), group);
        }
    }

    #[test]
    fn a_larger_fraction_keeps_what_a_smaller_one_had_and_repeats_stay_together() {
        let names: Vec<String> = (0..200).map(|at| format!("p-{}", at / 2)).collect();
        let items: Vec<&str> = names.iter().map(String::as_str).collect();
        let drawn = |fraction: f64, seed: u64| {
            Draw { fraction: Some(fraction), stratify: None, seed }.places(&items, None)
        };
        let (small, large) = (drawn(0.1, 0), drawn(0.3, 0));
        assert_eq!((small.len(), large.len()), (20, 60), "ten and thirty problems of two recordings each");
        assert!(
            small.iter().all(|at| large.contains(at)) && small.iter().all(|at| small.contains(&(at ^ 1)))
        );
        assert_ne!(small, drawn(0.1, 1));
        assert_eq!(drawn(1.0, 5).len(), 200);
        assert_eq!(drawn(0.001, 5).len(), 2, "never none");
    }
}
