//! What can be wrong beside the model and the policies.

use kvlab_sim::{
    fidelity::PredictError, pool::PoolError, replay::ReplayError, run::RunError, trees::TreeError,
};

/// Why a replay could not be compared with a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FidelityError {
    /// The replay over a recorded run.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The study over the full cache's run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The replay of a branch tree.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The requests of a block cache.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The curve from estimate to outcome.
    #[error(transparent)]
    Predict(#[from] PredictError),
}
