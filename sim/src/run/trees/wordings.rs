//! Rows of the table `wordings`: how similar branches are to the root, by how far their wording is from the root's.

use super::tables::{int, real, text};
use crate::policy::share::asks::Params;
use crate::results::cell_id;
use crate::scenario::TreePlan;
use crate::table::Value;
use crate::trace::Prefix;
use crate::trees::TreeFacts;
use std::collections::BTreeMap;

/// What is known of the branches of one level.
#[derive(Default)]
struct Level {
    sigmas: Vec<f64>,
    /// Branches decoded behind both prefixes, and those of them that answer otherwise behind the root's.
    both: u64,
    changed: u64,
}

/// A row a level for the first of a group of cells; none for a stack without a similarity gate or a trace without cosines.
pub(super) fn rows(plan: &TreePlan, key: &str, trees: &[TreeFacts]) -> Vec<Vec<Value>> {
    let Some(params) = plan.stack.as_ref().ok().and_then(|stack| stack.share.as_asks()) else {
        return Vec::new();
    };
    let group = cell_id(&serde_json::json!(key));
    let row = |(level, found): (u32, Level)| {
        let sorted = &found.sigmas;
        let mut row = vec![
            text(Some(&plan.label)),
            text(Some(&group)),
            real(Some(params.tau)),
            int(u64::from(level)),
            int(sorted.len() as u64),
        ];
        row.extend([0, 10, 50, 90, 100].map(|percent| real(quantile(sorted, percent))));
        let sharing = sorted.iter().filter(|sigma| **sigma >= params.tau).count() as u64;
        row.extend([int(sharing), int(found.both), int(found.changed)]);
        row
    };
    levels(&params, trees).into_iter().map(row).collect()
}

fn levels(params: &Params, trees: &[TreeFacts]) -> BTreeMap<u32, Level> {
    let mut levels: BTreeMap<u32, Level> = BTreeMap::new();
    for facts in trees {
        for &at in &facts.leaves {
            let branch = &facts.problem.branches[at];
            let Ok(sigma) = params.sigma(&branch.similarity) else { continue };
            let level = levels.entry(branch.wording_level).or_default();
            level.sigmas.push(sigma);
            if let [Some(own), Some(root)] = Prefix::ALL.map(|prefix| branch.outcome(prefix)) {
                level.both += 1;
                level.changed += u64::from(own.answer != root.answer);
            }
        }
    }
    levels.values_mut().for_each(|level| level.sigmas.sort_unstable_by(f64::total_cmp));
    levels
}

/// The nearest-rank quantile of sorted values.
fn quantile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Nearest rank of ten values: the 10 % quantile is the first, the median the fifth, the 90 % one the ninth.
    #[test]
    fn quantiles_are_those_of_the_nearest_rank() {
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        let found = [0, 10, 50, 90, 100].map(|percent| quantile(&ten, percent));
        assert_eq!(found, [Some(1.0), Some(1.0), Some(5.0), Some(9.0), Some(10.0)]);
        assert_eq!(quantile(&[], 50), None);
    }
}
