//! What can be wrong with an execution besides the model and the policies.

/// An execution that cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClosedLoopError {
    /// There is nothing to run.
    #[error("failed to execute: there is no problem to run")]
    NoItems,
    /// The scenario has no stacks.
    #[error(
        "failed to execute the scenario `{scenario}`: it has no `eviction` section; only token eviction is executed"
    )]
    NoEviction {
        /// Id of the scenario.
        scenario: String,
    },
}
