//! Traces: what a model run left behind, and the only thing a replay may read.
//!
//! A trace is a directory (`docs/trace-format.md` is the normative page). It is the determinism border: what a
//! model run computes may differ between machines; what is computed from a given trace may not.

mod branches;
mod check;
pub mod edit;
mod error;
mod facts;
mod facts_schema;
mod field;
mod folder;
mod lens_check;
mod manifest;
mod map;
pub mod mooncake;
mod reader;
mod requests;
mod shard;
mod source;
mod summary;
pub mod synth;
mod times;
mod verify;
mod version;
mod weights;
mod writer;

pub use branches::{
    Branch, BranchStep, Confidences, Outcome, Prefix, Problem, Similarity, StoredBranches, Verdict,
    VerdictLayer,
};
pub use error::{PathFault, TraceError};
pub use facts::LensTable;
pub use field::{Dtype, FIELDS, Field, field};
pub use folder::leftovers;
pub use manifest::{
    BranchesInfo, DecodingInfo, DerivedFrom, FieldInfo, KeyState, Manifest, ModelInfo, NormInfo, ProblemInfo,
    RequestsInfo, RopeInfo, RuntimeInfo, SequenceInfo, ShardInfo, SyntheticInfo, TableInfo, ToolInfo,
    WeightInfo, WorkloadInfo,
};
pub use mooncake::BlockIds;
pub use reader::Trace;
pub use requests::{Request, StoredRequests};
pub use source::{LayerTensors, LensRow, SequenceMeta, TraceSource};
pub use summary::{FieldSize, FieldStatistics, StudySupport, Summary, statistics, summary};
pub use verify::{Depth, VerifyReport, verify, verify_to};
pub use version::{TRACE_VERSION, TraceVersion};
pub use weights::{StoredWeights, Weight};
pub use writer::{
    Chunk, FinishedTrace, LayerChunk, Leftover, LensFact, LensForms, LensPosition, RawLensFact, SequenceEnd,
    SequenceStart, StoredFields, TraceHeader, TraceWriter,
};
