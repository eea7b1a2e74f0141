//! Thresholds and budgets that can never act, with the number that shows it.

use crate::num;
use crate::policy::exit::entropy::{Lens, Params};
use crate::trace::LensRow;

/// The entropies and changes that one lens saw, from the first layer that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Observed {
    entropy: (f64, f64),
    change: (f64, f64),
    largest_possible: f64,
}

impl Observed {
    /// Extremes over `rows` (`layers` entries a position); nothing without rows.
    pub(super) fn of(rows: &[LensRow], layers: u16, min_layer: u16, lens: Lens, vocab: u32) -> Option<Self> {
        let mut entropy: Option<(f64, f64)> = None;
        let mut change: Option<(f64, f64)> = None;
        let widen = |range: &mut Option<(f64, f64)>, x: f64| {
            *range = Some(range.map_or((x, x), |(low, high)| (low.min(x), high.max(x))));
        };
        for position in rows.chunks_exact(usize::from(layers)) {
            let counted: Vec<f64> = position
                .iter()
                .skip(usize::from(min_layer))
                .map(|row| f64::from(lens.entropy_nats(row)))
                .filter(|e| e.is_finite())
                .collect();
            counted.windows(2).for_each(|pair| widen(&mut change, (pair[1] - pair[0]).abs()));
            // The first entropy that counts only serves as "before": no exit is possible there.
            counted.iter().skip(1).for_each(|&e| widen(&mut entropy, e));
        }
        Some(Self { entropy: entropy?, change: change?, largest_possible: num::ln(f64::from(vocab)) })
    }
}

/// What is vacuous or unreachable about these thresholds; nothing when both can act.
pub(super) fn thresholds(params: &Params, observed: &Observed) -> Option<String> {
    let Params { theta, epsilon, .. } = *params;
    let mut findings = Vec::new();
    if theta >= observed.largest_possible {
        findings.push(format!(
            "theta is vacuous: {theta:.3} nats is not below the largest possible entropy, ln V = {:.3}",
            observed.largest_possible
        ));
    } else if theta > observed.entropy.1 {
        findings.push(format!(
            "theta is vacuous: {theta:.3} nats is above every observed entropy (largest {:.3})",
            observed.entropy.1
        ));
    } else if theta <= observed.entropy.0 {
        findings.push(format!(
            "theta is unreachable: no observed entropy is below {theta:.3} nats (smallest {:.3})",
            observed.entropy.0
        ));
    }
    if epsilon > observed.change.1 {
        findings.push(format!(
            "epsilon is vacuous: {epsilon:.3} nats is above every observed change (largest {:.3})",
            observed.change.1
        ));
    } else if epsilon <= observed.change.0 {
        findings.push(format!(
            "epsilon is unreachable: no observed change is below {epsilon:.3} nats (smallest {:.3})",
            observed.change.0
        ));
    }
    (!findings.is_empty()).then(|| findings.join("; "))
}

/// Whether an exit before the last layer is possible at all.
pub(super) fn can_exit(params: &Params, layers: u16) -> bool {
    u32::from(params.min_layer) + u32::from(params.patience) + 1 < u32::from(layers)
}

/// The note on a policy whose earliest exit is the last layer or later.
pub(super) fn too_patient(params: &Params, layers: u16) -> String {
    let Params { min_layer, patience, .. } = *params;
    format!(
        "theta is unreachable: with min_layer {min_layer} and patience {patience} no exit is possible before the last of {layers} layers"
    )
}

/// The note on thresholds that no entropy is compared with.
pub(super) fn nothing_observed(min_layer: u16, layers: u16) -> String {
    format!(
        "theta is unreachable: no entropy is compared with it (min_layer {min_layer}, {layers} layers, and at least one \
         decode position with lens facts is needed)"
    )
}

/// The note on a stack that never had to evict.
#[must_use]
pub fn never_triggered(budget: Option<u32>, longest: u32) -> String {
    let budget = budget.map_or_else(String::new, |b| format!(" of {b} tokens"));
    format!(
        "the policy never triggered: the budget{budget} was not exceeded at any due step (longest sequence {longest} tokens); results equal the full cache"
    )
}
