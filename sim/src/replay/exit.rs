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
