//! Layer exits over recorded lens facts: exact decisions for a pass that is not continued.

use crate::policy::exit::{Exit, ExitView, LayerFacts};
use crate::trace::LensRow;

/// What an exit policy did to one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExitOutcome {
    /// Layers run at each decode position with lens facts, `[pos]`.
    pub layers_run: Vec<u16>,
    /// Positions whose argmax at the exit layer equals the last layer's.
    pub agreeing: u64,
    /// Layers of the model.
    pub layers: u16,
}

impl ExitOutcome {
    /// Decode positions with lens facts.
    #[must_use]
    pub fn positions(&self) -> u64 {
        self.layers_run.len() as u64
    }

    /// Layers run, over all positions.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.layers_run.iter().map(|&run| u64::from(run)).sum()
    }

    /// Layers not run, over all positions.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.positions() * u64::from(self.layers) - self.run()
    }

    /// Positions that leave out a layer which a later position of the sequence runs.
    #[must_use]
    pub fn hole_positions(&self) -> u64 {
        let is_short = self.layers_run.iter().rev().scan(0, |deepest, &run| {
            let is_short = run < *deepest;
            *deepest = (*deepest).max(run);
            Some(u64::from(is_short))
        });
        is_short.sum()
    }

    /// Pairs of a position and a layer it left out although a later position of the sequence runs that layer and would attend
    /// to what is not there.
    #[must_use]
    pub fn holes(&self) -> u64 {
        let deepest_after = self.layers_run.iter().rev().scan(0, |deepest, &run| {
            let holes = u64::from((*deepest).max(run) - run);
            *deepest = (*deepest).max(run);
            Some(holes)
        });
        deepest_after.sum()
    }

    /// Positions that stop before the last layer.
    #[must_use]
    pub fn exited(&self) -> u64 {
        self.layers_run.iter().filter(|&&run| run < self.layers).count() as u64
    }

    /// Positions that run exactly `layers` layers.
    #[must_use]
    pub fn count(&self, layers: u16) -> u64 {
        self.layers_run.iter().filter(|&&run| run == layers).count() as u64
    }
}

/// Applies `exit` to each position of `rows`, `[pos, layer]` flattened with `layers` entries a position, of a model with `vocab`
/// tokens. A policy that reads what lens facts do not hold never exits.
#[must_use]
pub fn replay_exit(exit: &dyn Exit, rows: &[LensRow], layers: u16, vocab: u32) -> ExitOutcome {
    let mut outcome = ExitOutcome { layers, ..ExitOutcome::default() };
    let facts: Vec<LayerFacts> = rows.iter().map(LayerFacts::from).collect();
    let width = usize::from(layers.max(1));
    for (position, facts) in rows.chunks_exact(width).zip(facts.chunks_exact(width)) {
        let run = exit.layers_run(&ExitView::of(facts, vocab)).clamp(1, layers);
        outcome.layers_run.push(run);
        outcome.agreeing += u64::from(position[usize::from(run) - 1].agrees_with_last);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::ExitOutcome;
    use proptest::prelude::*;

    #[test]
    fn only_what_a_later_position_needs_is_a_hole() {
        let holes = |runs: &[u16]| ExitOutcome { layers_run: runs.to_vec(), agreeing: 0, layers: 4 }.holes();
        assert_eq!(holes(&[]), 0);
        let positions =
            |runs: &[u16]| ExitOutcome { layers_run: runs.to_vec(), agreeing: 0, layers: 4 }.hole_positions();
        assert_eq!([&[][..], &[4, 4, 1], &[1, 2, 2], &[2, 1, 4, 3]].map(positions), [0, 0, 1, 2]);
        assert_eq!(holes(&[4, 4, 1]), 0);
        assert_eq!(holes(&[1, 4]), 3);
        assert_eq!(holes(&[2, 1, 3, 1]), 1 + 2);
    }

    proptest! {
        #[test]
        fn holes_are_counted_as_by_looking_at_every_pair(runs in prop::collection::vec(1..7_u16, 0..20)) {
            let naive: usize = (0..runs.len())
                .map(|at| (runs[at]..6).filter(|&layer| runs[at + 1..].iter().any(|&run| run > layer)).count())
                .sum();
            let outcome = ExitOutcome { layers_run: runs, agreeing: 0, layers: 6 };
            prop_assert_eq!(outcome.holes(), naive as u64);
            prop_assert!(outcome.holes() <= outcome.skipped());
        }
    }
}
