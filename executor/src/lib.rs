//! Reference executor of kvlab: runs a decoder on ONNX Runtime and records what policies need.
//!
//! Data flow: [`setup`] finds or fetches the ONNX Runtime library and a model file; [`Model::load`] reads the weights
//! (GGUF or safetensors) and makes one session per layer and one for the output head; a [`Decoder`] runs a sequence with a
//! cache that keeps original positions, lets every layer and key-value head keep its own rows, taps states, looks through
//! the logit lens, and can stop at any layer. On a GPU its cache stays there, and only new rows and what is tapped cross. [`record()`] writes a trace of it, [`closed_loop`] puts policies in the loop.
//!
//! Not responsible for policies, for the trace format, or for printing: news goes to a [`Progress`].

#![warn(missing_docs)]
#![deny(unsafe_code)]

pub mod branches;
pub mod closed_loop;
mod decode;
mod device;
mod embedded;
mod engine;
mod error;
mod family;
pub mod fidelity;
mod forecast;
mod gguf;
pub mod grade;
mod graph;
mod inspect;
mod items;
mod journal;
mod model;
mod onnx;
mod open_loop;
pub mod parity;
pub mod problems;
mod progress;
mod record;
pub mod reference;
mod rope;
mod runtime;
pub mod setup;
mod text;
mod times;
mod weights;
pub mod workload;

pub use decode::{
    Ask, Attending, BadLogits, DecodeError, Decoder, Distribution, Flow, Head, KvCache, Lanes, LayerCache,
    LayerDone, LensFacts, LensOptions, Pass, Quantity, RawLens, Rewrite, Select, Taps, TopToken,
};
pub use device::CacheMemory;
pub use embedded::{EmbeddedError, embedded_model};
pub use error::ExecutorError;
pub use family::{
    DecoderConfig, FAMILIES, Family, ModelError, RopeScaling, RowOrder, SlidingWindow, TinySpec,
};
pub use forecast::Forecast;
pub use gguf::{GgufError, GgufErrorKind};
pub use inspect::ModelCard;
pub use items::{BUILT_INS, BuiltIn, ItemSet, ItemSetting};
pub use journal::{JOURNAL, Journal, JournalError, JournalStanding, RunName};
pub use model::{LoadOptions, Model, ModelIdentity};
pub use open_loop::{Judge, OpenLoop, Prompt, PromptLens, RecordSink};
pub use progress::{Progress, Quiet, Reached};
pub use record::{Graded, Grader, PlannedWeights, PromptForm, RecordError, RecordItem, RecordPlan, record};
pub use runtime::{Crossed, Provider, ProviderChoice, RuntimeError, RuntimeReport};
pub use text::{ChatMessage, ChatTemplate, TextCodec, TextError};
pub use times::measure_times;
