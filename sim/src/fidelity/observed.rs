//! Numbers by cell and problem, of a proxy and of an outcome.

/// What a cell is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CellKey {
    /// Label of the policy: cells of one policy are left out together, and drawn together.
    pub policy: String,
    /// C; absent for a policy to which budgets make no difference.
    pub budget: Option<u32>,
    /// The seed; absent where no draw is made.
    pub seed: Option<u64>,
}

/// Mean proxy, mean outcome and how many problems are behind both; nothing without one.
pub(super) type Mean = Option<(f64, f64, usize)>;

/// A proxy and an outcome on the same cells and problems.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    /// The cells, `[cell]`.
    pub cells: Vec<CellKey>,
    /// What the proxy says, `[cell][problem]`, in the direction in which a larger number promises a larger outcome.
    pub proxy: Vec<Vec<Option<f64>>>,
    /// What was executed, `[cell][problem]`, larger is better.
    pub outcome: Vec<Vec<Option<f64>>>,
}

impl Observations {
    /// The same cells in order, without those that `keep` denies.
    #[must_use]
    pub fn filtered(&self, keep: impl Fn(&CellKey) -> bool) -> Self {
        let kept: Vec<usize> = (0..self.cells.len()).filter(|&cell| keep(&self.cells[cell])).collect();
        Self {
            cells: kept.iter().map(|&cell| self.cells[cell].clone()).collect(),
            proxy: kept.iter().map(|&cell| self.proxy[cell].clone()).collect(),
            outcome: kept.iter().map(|&cell| self.outcome[cell].clone()).collect(),
        }
    }

    /// Problems behind a cell; the most over all cells.
    #[must_use]
    pub fn problems(&self) -> usize {
        self.outcome.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Means over the problems in `of`, a problem as often as it is named, of those where proxy and outcome are both known:
    /// `[cell]`, each (proxy, outcome, problems); nothing for a cell without any.
    #[must_use]
    pub(super) fn means(&self, of: &[usize]) -> Vec<Mean> {
        (0..self.cells.len()).map(|cell| self.mean(cell, of)).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "problems are few")]
    fn mean(&self, cell: usize, of: &[usize]) -> Mean {
        let (mut proxy, mut outcome, mut n) = (0.0, 0.0, 0usize);
        for &problem in of {
            let at = |values: &[Vec<Option<f64>>]| values[cell].get(problem).copied().flatten();
            if let (Some(x), Some(y)) = (at(&self.proxy), at(&self.outcome)) {
                proxy += x;
                outcome += y;
                n += 1;
            }
        }
        (n > 0).then(|| (proxy / n as f64, outcome / n as f64, n))
    }

    /// Policies in the order in which they first occur, each with its cells.
    #[must_use]
    pub(super) fn policies(&self) -> Vec<(&str, Vec<usize>)> {
        let mut policies: Vec<(&str, Vec<usize>)> = Vec::new();
        for (cell, key) in self.cells.iter().enumerate() {
            match policies.iter_mut().find(|(policy, _)| *policy == key.policy) {
                Some((_, cells)) => cells.push(cell),
                None => policies.push((&key.policy, vec![cell])),
            }
        }
        policies
    }
}
