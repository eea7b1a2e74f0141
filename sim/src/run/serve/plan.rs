//! The arms of a serving study as they are run: what each has to do, under which cost.

use super::super::RunError;
use super::super::context::Context;
use super::super::lint::Found;
use super::recorded::{Decided, Recorded};
use super::{ArmResult, serve_problems};
use crate::cost::BatchCost;
use crate::results::cell_id;
use crate::scenario::{Arm, ProblemSizes, ServeStudy};
use crate::serve::ProblemDecisions;
use crate::trees::{Choice, ProblemDecision, TreeStack};

/// One arm as it is run.
pub(super) struct ArmPlan<'s> {
    pub(super) arm: &'s Arm,
    /// Absent where no draw is made.
    pub(super) seed: Option<u64>,
    /// What decides about recorded problems; absent for generated ones.
    pub(super) stack: Option<TreeStack>,
}

impl<'s> ArmPlan<'s> {
    pub(super) fn of(study: &ServeStudy, arm: &'s Arm, seeds: &[u64]) -> Result<Vec<Self>, RunError> {
        let stack = || {
            study.is_recorded().then(|| TreeStack::build(&arm.parts())).transpose().map_err(RunError::from)
        };
        let first = stack()?;
        if !first.as_ref().is_some_and(TreeStack::is_random) {
            return Ok(vec![Self { arm, seed: None, stack: first }]);
        }
        seeds.iter().map(|&seed| Ok(Self { arm, seed: Some(seed), stack: stack()? })).collect()
    }

    pub(super) fn params(&self, study: &ServeStudy, cost: &dyn BatchCost) -> serde_json::Value {
        let Arm { label, serve, .. } = self.arm;
        match (&self.stack, study.sizes()) {
            (Some(stack), _) => serde_json::json!({
                "arm": { "label": label, "serve": serve }, "stack": stack.params(), "problems": "recorded",
                "arrivals": study.arrivals, "cost": cost.params(),
            }),
            (None, sizes) => serde_json::json!({
                "arm": self.arm, "problems": sizes, "arrivals": study.arrivals, "cost": cost.params(),
            }),
        }
    }

    pub(super) fn label(&self) -> String {
        let seed = self.seed.map_or_else(String::new, |seed| format!("  seed {seed}"));
        format!("{}{seed}", self.arm.label)
    }
}

/// Every arm of a study, under its cost model.
pub(super) struct Plans<'s> {
    pub(super) study: &'s ServeStudy,
    pub(super) cost: Box<dyn BatchCost>,
    pub(super) arms: Vec<ArmPlan<'s>>,
    /// What others are compared with: of several seeds the first, see [`Plans::baseline_of`].
    pub(super) baseline: usize,
    /// Further ones, likewise.
    pub(super) against: Vec<usize>,
}

impl<'s> Plans<'s> {
    pub(super) fn of(context: &Context<'_>, study: &'s ServeStudy, seeds: &[u64]) -> Result<Self, RunError> {
        let mut cost = study.cost()?;
        if study.is_recorded() {
            let source_name = || context.source.name().to_owned();
            if context.problems.is_empty() {
                return Err(RunError::NoProblems { source_name: source_name() });
            }
            let layers = context.shape.layers;
            cost = cost.of_layers(layers);
            if let Some(found) = cost.layers().filter(|&found| found != layers) {
                return Err(RunError::CostLayers { found, source_name: source_name(), layers });
            }
        }
        let mut arms = Vec::new();
        for arm in &study.arms {
            arms.extend(ArmPlan::of(study, arm, seeds)?);
        }
        let place = |label: &String| arms.iter().position(|plan| plan.arm.label == *label);
        let baseline = place(&study.baseline).unwrap_or(0);
        let against = study.against.iter().filter_map(place).collect();
        Ok(Self { study, cost, arms, baseline, against })
    }

    /// The place of the arm that `plan` is compared with: where the baseline draws, the one of the same seed, or the first for an arm that draws nothing.
    pub(super) fn baseline_of(&self, plan: &ArmPlan<'_>) -> usize {
        let label = &self.arms[self.baseline].arm.label;
        let is_same = |other: &ArmPlan<'_>| other.arm.label == *label && other.seed == plan.seed;
        self.arms.iter().position(is_same).unwrap_or(self.baseline)
    }

    /// Content hash of an arm: the arms that speed-ups are over are a part of it.
    pub(super) fn id(&self, context: &Context<'_>, plan: &ArmPlan<'_>) -> String {
        let params = plan.params(self.study, self.cost.as_ref());
        let baseline = &self.arms[self.baseline_of(plan)];
        if self.study.is_recorded() {
            let mut key = serde_json::json!({
                "source": context.digest, "problems": context.problems_key(), "study": "serve", "params": params,
                "baseline": baseline.params(self.study, self.cost.as_ref()), "seed": plan.seed,
            });
            if let Some(seed) = baseline.seed {
                key["baseline_seed"] = seed.into();
            }
            return cell_id(&self.with_against(key));
        }
        let key = serde_json::json!({ "study": "serve", "params": params, "baseline": baseline.arm });
        cell_id(&self.with_against(key))
    }

    /// A key of a cell with the further arms, where there are some.
    fn with_against(&self, mut key: serde_json::Value) -> serde_json::Value {
        if !self.against.is_empty() {
            let params = |&at: &usize| self.arms[at].params(self.study, self.cost.as_ref());
            key["against"] = self.against.iter().map(params).collect();
        }
        key
    }

    /// What an arm has to do, and what its stack decided where problems are recorded; the reason when the recording does not hold what the stack looks at.
    pub(super) fn work(&self, plan: &ArmPlan<'_>, problems: &Problems<'_>) -> Result<Work, String> {
        match (problems, &plan.stack) {
            (Problems::Recorded(recorded), Some(stack)) => {
                let decided = recorded.decide(stack, plan.seed.unwrap_or(0));
                let Decided { decisions, work } = decided.map_err(|error| error.to_string())?;
                Ok((work, Some(decisions)))
            }
            (Problems::Sizes(sizes), _) => {
                Ok((sizes.decisions(plan.arm, self.cost.layers().unwrap_or(1)), None))
            }
            (Problems::Recorded(_), None) => Err("no stack decides about recorded problems".to_owned()),
        }
    }

    /// What is to be said about the thresholds of the arms, `[arm]`; nothing where problems are generated.
    pub(super) fn found(&self, problems: &Problems<'_>) -> Vec<Found> {
        let Problems::Recorded(recorded) = problems else { return Vec::new() };
        recorded.found(self.arms.iter().map(|plan| TreeStack::build(&plan.arm.parts())))
    }

    pub(super) fn serve(&self, plan: &ArmPlan<'_>, work: &[ProblemDecisions]) -> Result<ArmResult, RunError> {
        serve_problems(self.study, plan.arm, work, self.cost.as_ref())
    }
}

/// What has to be done about each problem, and what a stack decided about it where it is recorded.
pub(super) type Work = (Vec<ProblemDecisions>, Option<Vec<(ProblemDecision, Choice)>>);

/// What is served.
pub(super) enum Problems<'s> {
    Sizes(&'s ProblemSizes),
    Recorded(Recorded),
}

impl<'s> Problems<'s> {
    pub(super) fn of(context: &Context<'_>, study: &'s ServeStudy) -> Result<Self, RunError> {
        match study.sizes() {
            Some(sizes) => Ok(Self::Sizes(sizes)),
            None => Ok(Self::Recorded(Recorded::read(context)?)),
        }
    }
}
