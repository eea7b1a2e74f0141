//! From a study to its cells.

use super::{HolePolicy, Scenario, ThetaUnit, TreePlan};
use crate::policy::PolicyError;
use crate::policy::compose::Stack;
use crate::policy::exit::entropy::{self, Lens};

/// All cells of a study, in table order.
#[derive(Debug)]
pub struct Plan {
    /// Eviction cells.
    pub eviction: Vec<EvictionPlan>,
    /// Exit cells.
    pub exit: Vec<ExitPlan>,
    /// Cells over branch trees.
    pub trees: Vec<TreePlan>,
}

/// One stack under one budget and seed. A combination that cannot work is a cell too: it is skipped with its reason.
#[derive(Debug)]
pub struct EvictionPlan {
    /// Name of the stack.
    pub label: String,
    /// C; absent for a stack to which it makes no difference.
    pub budget: Option<u32>,
    /// The seed; absent where no draw is made.
    pub seed: Option<u64>,
    /// The stack, or why there is none.
    pub stack: Result<Stack, PolicyError>,
}

/// One pair of thresholds under one lens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExitPlan {
    /// Which states entropies are read from.
    pub lens: Lens,
    /// θ in `unit`.
    pub theta: f64,
    /// ε in `unit`.
    pub epsilon: f64,
    /// The unit of both.
    pub unit: ThetaUnit,
    /// The policy's parameters, in nats.
    pub params: entropy::Params,
    /// What is done about keys and values that exits leave out.
    pub hole_policy: HolePolicy,
}

impl Plan {
    /// Number of cells.
    #[must_use]
    pub fn len(&self) -> usize {
        self.eviction.len() + self.exit.len() + self.trees.len()
    }

    /// Whether there is no cell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Scenario {
    /// The cells of the study on a model with `vocab` tokens.
    ///
    /// A stack without draws gets one cell a budget whatever the seeds; one to which budgets make no difference gets a single cell.
    #[must_use]
    pub fn plan(&self, vocab: u32) -> Plan {
        let trees = self.trees.as_ref().map_or_else(Vec::new, |study| study.cells(&self.seeds));
        Plan { eviction: self.eviction_cells(), exit: self.exit_cells(vocab), trees }
    }

    fn eviction_cells(&self) -> Vec<EvictionPlan> {
        let Some(study) = &self.eviction else {
            return Vec::new();
        };
        let mut cells = Vec::new();
        for choice in &study.policies {
            for &budget in &study.budgets {
                let knobs = study.knobs(budget);
                match choice.stack(&knobs) {
                    Err(error) => cells.push(EvictionPlan {
                        label: choice.label.clone(),
                        budget: Some(budget),
                        seed: None,
                        stack: Err(error),
                    }),
                    Ok(stack) if !stack.is_budgeted() => {
                        cells.push(EvictionPlan {
                            label: choice.label.clone(),
                            budget: None,
                            seed: None,
                            stack: Ok(stack),
                        });
                        break;
                    }
                    Ok(stack) if !stack.is_random() => cells.push(EvictionPlan {
                        label: choice.label.clone(),
                        budget: Some(budget),
                        seed: None,
                        stack: Ok(stack),
                    }),
                    Ok(_) => cells.extend(self.seeds.iter().map(|&seed| EvictionPlan {
                        label: choice.label.clone(),
                        budget: Some(budget),
                        seed: Some(seed),
                        stack: choice.stack(&knobs),
                    })),
                }
            }
        }
        cells
    }

    fn exit_cells(&self, vocab: u32) -> Vec<ExitPlan> {
        let Some(study) = &self.exit else {
            return Vec::new();
        };
        let nats = study.unit.nats(vocab);
        let mut cells = Vec::new();
        for &lens in &study.lenses {
            for &epsilon in &study.epsilon {
                for &theta in &study.theta {
                    let params = entropy::Params {
                        theta: theta * nats,
                        epsilon: epsilon * nats,
                        min_layer: study.min_layer,
                        patience: study.patience,
                        lens,
                        unit: ThetaUnit::Nats,
                    };
                    let (unit, hole_policy) = (study.unit, study.hole_policy);
                    cells.push(ExitPlan { lens, theta, epsilon, unit, params, hole_policy });
                }
            }
        }
        cells
    }
}
