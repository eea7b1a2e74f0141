//! Does the replay tell the truth? Every policy is run in the loop of the model and replayed, on the same problems.
//!
//! Two questions, kept apart. **Identity**: a run under a policy is recorded as it lives, evictions and all, and the same policy is
//! replayed over that recording: every decision must come out the same ([`Identity`]); what differs is named with its place and the
//! gap between scores. **Proxy**: the open-loop replay over the full cache's run estimates what a policy would lose, and
//! the run itself says what it lost; [`kvlab_sim::fidelity`] measures how well the one ranks and predicts the other. Beside both stands how far
//! the states of a run under a policy drift from the recorded ones. Stacks over branch trees need no estimates: [`tree_fidelity`] compares their decisions; [`pool_fidelity`]
//! serves prompts from blocks that are really kept.

mod drift;
mod error;
mod identity;
mod lived;
mod pool;
mod rows;
mod run;
mod trees;
mod ulp;

pub use error::FidelityError;
pub use identity::{Difference, Identity};
pub use pool::{PoolCellFidelity, PoolFidelity, PoolIdentity, pool_fidelity, pool_study};
pub use run::{CellFidelity, Fidelity, FidelityPlan, fidelity, fidelity_kept};
pub use trees::{TreeCellFidelity, TreeDifference, TreeFidelity, TreeIdentity, tree_fidelity};

use rows::identity_rate;
