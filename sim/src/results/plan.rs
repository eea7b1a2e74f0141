//! What a study is made of, on disk: `plan.json` in the folder of its results, written before the first unit runs.
//!
//! It holds what is needed to say which units are done, and to put their parts together without scenario file or trace.

use super::{RESULTS_VERSION, ResultsError, ResultsVersion, SourceInfo, sha256_hex};
use crate::table::write_whole;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

const FILE: &str = "plan.json";

/// One unit of a study: what is run, stored and found again as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unit {
    /// Content hash of everything that decides its rows, trace included.
    pub id: String,
    /// The part of the study that it belongs to.
    pub section: Section,
    /// What it is.
    pub kind: UnitKind,
    /// What it is in words, e.g. `snapkv  budget 64  seed 0`.
    pub label: String,
    /// Why it cannot run; absent when it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A part of a study that shares what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Section {
    /// Token eviction.
    Eviction,
    /// Layer exit.
    Exit,
    /// Block caches.
    Pool,
    /// Serving in simulated time.
    Serve,
    /// Branch trees.
    Trees,
}

impl Section {
    /// All, in table order.
    pub const ALL: [Self; 5] = [Self::Eviction, Self::Exit, Self::Pool, Self::Serve, Self::Trees];

    /// The word in the column `study`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Eviction => "eviction",
            Self::Exit => "exit",
            Self::Pool => "pool",
            Self::Serve => "serve",
            Self::Trees => "trees",
        }
    }
}

/// What a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnitKind {
    /// A row of `cells`, with what belongs to it.
    Cell,
    /// Series about the recording itself.
    Recording,
    /// Step functions of thresholds.
    Steps,
}

/// A study as it was planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyPlan {
    /// Version of the table layout.
    pub version: ResultsVersion,
    /// Tool name and version.
    pub tool: String,
    /// The scenario (YAML).
    pub scenario_text: String,
    /// SHA-256 of it.
    pub scenario_digest: String,
    /// What is read of the trace.
    pub source: SourceInfo,
    /// The command line that results are attributed to.
    pub command: String,
    /// In how many shards it was last run.
    pub shards: u32,
    /// The units, in table order.
    pub units: Vec<Unit>,
}

impl StudyPlan {
    /// Writes the plan into the folder `dir`, which is made when it is not there.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn save(&self, dir: &Path) -> Result<(), ResultsError> {
        let path = dir.join(FILE);
        let io = |source| ResultsError::Io { path: path.clone(), source };
        let mut bytes = serde_json::to_vec_pretty(self)
            .map_err(|source| ResultsError::Manifest { path: path.clone(), source })?;
        bytes.push(b'\n');
        fs::create_dir_all(dir).map_err(io)?;
        // Shards write the same plan: what is there already stays as it is.
        if fs::read(&path).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        write_whole(&path, &bytes).map_err(io)
    }

    /// Reads the plan in the folder `dir`; nothing when there is none.
    ///
    /// # Errors
    /// When it is damaged or of another version of the tables.
    pub fn read(dir: &Path) -> Result<Option<Self>, ResultsError> {
        let path = dir.join(FILE);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|source| ResultsError::Io { path: path.clone(), source })?,
        };
        let refused = |source| ResultsError::Manifest { path: path.clone(), source };
        let plan: Self = serde_json::from_slice(&bytes).map_err(refused)?;
        // Another version gives its cells other content hashes, so its parts would be missing without a reason.
        if plan.version != RESULTS_VERSION {
            return Err(ResultsError::Version { found: plan.version, supported: RESULTS_VERSION });
        }
        Ok(Some(plan))
    }

    /// Whether both say that the same units make up the tables.
    #[must_use]
    pub fn is_same_study(&self, other: &Self) -> bool {
        self.units == other.units && self.scenario_digest == other.scenario_digest
    }

    /// Digest of the scenario text.
    #[must_use]
    pub fn digest_of(text: &str) -> String {
        sha256_hex(text.as_bytes())
    }
}
