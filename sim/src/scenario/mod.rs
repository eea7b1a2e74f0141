//! Studies as data: what is read, which stacks and thresholds are tried, and why.
//!
//! `scenarios/reference.yaml` shows every key with its default. [`Scenario::parse`] refuses what it does not know,
//! with file, line and column; [`Scenario::plan`] expands a study to its cells.

mod checked;
mod compare;
mod draw;
mod error;
mod expect;
mod grid;
mod nearest;
mod plan;
mod pool;
mod raw;
mod schema;
mod serve;
mod times;
mod trees;
mod tune;

pub use crate::policy::exit::HolePolicy;
pub use checked::{EvictionStudy, ExitStudy, PolicyChoice, RetainedPlace, Scenario, ThetaUnit};
pub use compare::{Compare, ExitPoint, Pairing};
pub use draw::{Draw, SourceFlags, Strata};
pub use error::{ScenarioError, ScenarioErrorKind};
pub use expect::{Expectation, ExpectedArm, Scalar};
pub use grid::Grid;
pub use nearest::nearest;
pub use plan::{EvictionPlan, ExitPlan, Plan};
pub use pool::{PoolChoice, PoolPlan, PoolStudy, StreamChoice};
pub use schema::schema;
pub use serve::{Arm, Claim, DecodeExit, Gate, Measure, ProblemSizes, ServeStudy, ServedProblems, Span};
pub use trees::{TreeChoice, TreePlan, TreeStudy};
pub use tune::{Bound, Constraint, Direction, Objective, TuneFlags, TuneSpec, TunedStudy};
