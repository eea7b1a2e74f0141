//! What a problem counts as on which a setting cannot run.

use super::measured::{Kind, Term};
use crate::scenario::{Bound, Constraint, Direction, Objective};

/// What a problem counts as on which a setting cannot run. Such a problem must not take the setting out of the race: that would be a choice by
/// the problems that the setting is tested on, and the guarantee would be one about the problems on which it happens to run.
#[derive(Clone, Copy)]
pub(super) struct WholeLoss<'a> {
    pub(super) objective: &'a Objective,
    pub(super) constraints: &'a [Constraint],
    pub(super) kinds: &'a [Kind],
}

impl WholeLoss<'_> {
    /// `[metric]`: the worst value of each constraint's metric, none better than the full cache's in the objective, and nothing in the rest.
    fn terms(self, anchor: Option<&[Term]>) -> Vec<Term> {
        let worst = |is_high_bad: bool| Term::new(if is_high_bad { 1.0 } else { 0.0 }, 1.0);
        let of = |(at, kind): (usize, &Kind)| match (at.checked_sub(1), kind) {
            (None, Kind::Unbounded) => anchor.map_or_else(Term::default, |terms| terms[at]),
            (None, _) => worst(self.objective.direction == Direction::Minimise),
            (Some(at), _) => match self.constraints.get(at).map(|constraint| constraint.bound) {
                Some(bound) => worst(matches!(bound, Bound::AtMost(_))),
                None => Term::default(),
            },
        };
        self.kinds.iter().enumerate().map(of).collect()
    }

    /// `found`, `[candidate][metric]`, the full cache first, with a whole loss for each candidate that cannot run, of which `tell` hears place and reason.
    pub(super) fn applied(
        self,
        found: Vec<Result<Vec<Term>, String>>,
        mut tell: impl FnMut(usize, String),
    ) -> Vec<Vec<Term>> {
        let anchor = found.first().and_then(|terms| terms.as_ref().ok()).cloned();
        let of = |(at, terms): (usize, Result<Vec<Term>, String>)| match terms {
            Ok(terms) => terms,
            Err(reason) => {
                tell(at, reason);
                self.terms(anchor.as_deref())
            }
        };
        found.into_iter().enumerate().map(of).collect()
    }
}
