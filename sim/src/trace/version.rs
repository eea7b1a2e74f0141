//! The version of the trace format and who can read whom.

use super::TraceError;
use serde::{Deserialize, Serialize};

/// Version of the trace format that this build writes.
pub const TRACE_VERSION: TraceVersion = TraceVersion { major: 1, minor: 1 };

/// `major` changes when a reader must refuse, `minor` when optional fields are added.
///
/// The rule is a function of two versions, so that a test can hold it as a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceVersion {
    /// Readers of another major version refuse.
    pub major: u16,
    /// Readers of the same major version ignore optional fields they do not know.
    pub minor: u16,
}

impl TraceVersion {
    /// Whether a reader that knows versions up to `reader` can read a trace of this version.
    ///
    /// # Errors
    /// When the major versions differ.
    pub fn check_readable_by(self, reader: Self) -> Result<(), TraceError> {
        if self.major == reader.major {
            Ok(())
        } else {
            Err(TraceError::Version { found: self, supported: reader })
        }
    }

    /// Whether a trace of this version may hold things that `reader` does not know.
    #[must_use]
    pub fn is_newer_than(self, reader: Self) -> bool {
        self > reader
    }
}

impl std::fmt::Display for TraceVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_major_version_is_readable_and_no_other() {
        let version = |major, minor| TraceVersion { major, minor };
        // (trace, reader, readable)
        for (trace, reader, readable) in [
            (version(1, 0), version(1, 0), true),
            (version(1, 0), version(1, 7), true),
            (version(1, 7), version(1, 0), true),
            (version(2, 0), version(1, 7), false),
            (version(1, 7), version(2, 0), false),
            (version(0, 9), version(1, 0), false),
        ] {
            assert_eq!(trace.check_readable_by(reader).is_ok(), readable, "{trace} by {reader}");
        }
    }
}
