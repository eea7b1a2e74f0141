//! Layer exits over recorded lens facts: exact decisions for a pass that is not continued.

use crate::policy::exit::Exit;
use crate::trace::LensRow;

/// What an exit policy did to one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExitOutcome {
    /// Decode positions with lens facts.
    pub positions: u64,
    /// Positions by layers run: index `n` counts those that ran `n + 1` layers, `[layer]`.
    pub by_layers_run: Vec<u64>,
    /// Positions whose argmax at the exit layer equals the last layer's.
    pub agreeing: u64,
}

impl ExitOutcome {
    /// Layers not run, over all positions.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        let layers = self.by_layers_run.len() as u64;
        (1..).zip(&self.by_layers_run).map(|(run, count)| (layers - run) * count).sum()
    }

    /// Layers run, over all positions.
    #[must_use]
    pub fn run(&self) -> u64 {
        (1..).zip(&self.by_layers_run).map(|(run, count): (u64, &u64)| run * count).sum()
    }

    /// Positions that stop before the last layer.
    #[must_use]
    pub fn exited(&self) -> u64 {
        let early = self.by_layers_run.len().saturating_sub(1);
        self.by_layers_run[..early].iter().sum()
    }
}

/// Applies `exit` to each position of `rows`, `[pos, layer]` flattened with `layers` entries a position.
#[must_use]
pub fn replay_exit(exit: &dyn Exit, rows: &[LensRow], layers: u16) -> ExitOutcome {
    let mut outcome = ExitOutcome { by_layers_run: vec![0; usize::from(layers)], ..ExitOutcome::default() };
    for position in rows.chunks_exact(usize::from(layers)) {
        let run = usize::from(exit.layers_run(position).clamp(1, layers));
        outcome.positions += 1;
        outcome.by_layers_run[run - 1] += 1;
        outcome.agreeing += u64::from(position[run - 1].agrees_with_last);
    }
    outcome
}
