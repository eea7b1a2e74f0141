//! The version of the result tables and who can read whom.

use super::ResultsError;
use serde::{Deserialize, Serialize};

/// Version of the result tables that this build writes.
pub const RESULTS_VERSION: ResultsVersion = ResultsVersion { major: 1, minor: 2 };

/// `major` changes when a reader must refuse, `minor` when columns are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultsVersion {
    /// Readers of another major version refuse.
    pub major: u16,
    /// Readers of the same major version ignore columns they do not know.
    pub minor: u16,
}

impl ResultsVersion {
    /// # Errors
    /// When the major versions differ.
    pub fn check_readable(self) -> Result<(), ResultsError> {
        if self.major == RESULTS_VERSION.major {
            Ok(())
        } else {
            Err(ResultsError::Version { found: self, supported: RESULTS_VERSION })
        }
    }
}

impl std::fmt::Display for ResultsVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
