//! The process-wide environment, and sessions on a chosen provider.
//!
//! The library is loaded once per process, from a path that was checked before, and with one pool of threads for all
//! sessions. Which library and how many threads is decided by whoever comes first; a different wish later is an error.

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use ort::{
    environment::{Environment, GlobalThreadPoolOptions},
    ep,
    logging::LogLevel,
    session::{
        Session as OrtSession,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
};
use serde::Serialize;

use super::{
    cuda::{cuda, try_cuda},
    error::RuntimeError,
    session::Session,
    tensor::DeviceMemory,
    traffic::Traffic,
};
use crate::{
    graph::{self, BuiltGraph},
    setup::LibraryFile,
};

/// Which execution provider is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderChoice {
    /// CUDA if it works, else the CPU, with the reason.
    #[default]
    Auto,
    /// CUDA or an error.
    Cuda,
    /// The CPU.
    Cpu,
}

/// Which execution provider runs the sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// NVIDIA GPU.
    Cuda,
    /// Processor.
    Cpu,
}

/// What the sessions run on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuntimeReport {
    /// The library that was loaded.
    pub library: PathBuf,
    /// Its version, when its name carries one.
    pub version: Option<String>,
    /// The library's own description of its build.
    pub build: String,
    /// Threads within an operator.
    pub threads: usize,
    /// The provider asked for.
    pub asked: ProviderChoice,
    /// The provider that runs.
    pub provider: Provider,
    /// Why `auto` did not take CUDA.
    pub fallback_reason: Option<String>,
}

/// The one environment of the process.
pub(super) struct Running {
    pub(super) environment: Environment,
    pub(super) library: LibraryFile,
    threads: usize,
}

static RUNNING: OnceLock<Running> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// Starts the environment, or checks that the running one is the one asked for.
fn running(library: &LibraryFile, threads: NonZeroUsize) -> Result<&'static Running, RuntimeError> {
    // The lock guards nothing but the moment of starting.
    let _guard = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let threads = threads.get();
    if let Some(running) = RUNNING.get() {
        if running.library.path != library.path {
            let running = running.library.path.clone();
            return Err(RuntimeError::OtherLibrary { asked: library.path.clone(), running });
        }
        if running.threads != threads {
            return Err(RuntimeError::OtherThreads { asked: threads, running: running.threads });
        }
        return Ok(running);
    }
    let builder = ort::init_from(&library.path).map_err(|error| load_error(library, &error))?;
    let pool = GlobalThreadPoolOptions::default()
        .with_intra_threads(threads)
        .and_then(|pool| pool.with_inter_threads(1))
        // Spinning threads fight with everything else on a small machine.
        .and_then(|pool| pool.with_spin_control(false))
        .map_err(RuntimeError::call("set up the thread pool"))?;
    let environment = builder
        .with_name("kvlab")
        .with_telemetry(false)
        .with_global_thread_pool(pool)
        .build()
        .map_err(RuntimeError::call("start ONNX Runtime"))?;
    environment.set_log_level(LogLevel::Error);
    Ok(RUNNING.get_or_init(|| Running { environment, library: library.clone(), threads }))
}

fn load_error(library: &LibraryFile, error: &ort::LoadDynamicError) -> RuntimeError {
    let path = library.path.clone();
    match error {
        ort::LoadDynamicError::BadVersion { version_str, .. } => {
            RuntimeError::TooOld { path, found: version_str.clone() }
        }
        ort::LoadDynamicError::MissingApi { .. } => {
            RuntimeError::Load { path, why: "it does not export OrtGetApiBase".to_owned() }
        }
        ort::LoadDynamicError::Dlopen { error, .. } => {
            let cause =
                std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
            RuntimeError::Load { path, why: format!("{error}{cause}") }
        }
        other => RuntimeError::Load { path, why: other.to_string() },
    }
}

/// Makes sessions on a chosen provider.
#[derive(Clone)]
pub(crate) struct Runtime {
    pub(super) running: &'static Running,
    report: RuntimeReport,
    traffic: Arc<Traffic>,
}

impl Runtime {
    /// Starts ONNX Runtime and chooses the provider, by trying it.
    pub(crate) fn start(
        library: &LibraryFile,
        threads: NonZeroUsize,
        asked: ProviderChoice,
    ) -> Result<Self, RuntimeError> {
        let running = running(library, threads)?;
        let (provider, fallback_reason) = match asked {
            ProviderChoice::Cpu => (Provider::Cpu, None),
            ProviderChoice::Cuda | ProviderChoice::Auto => match try_cuda(running) {
                Ok(()) => (Provider::Cuda, None),
                Err(why) if asked == ProviderChoice::Auto => (Provider::Cpu, Some(why)),
                Err(why) => return Err(RuntimeError::CudaUnavailable { why }),
            },
        };
        let report = RuntimeReport {
            library: library.path.clone(),
            version: running.library.version.clone(),
            build: ort::info().to_owned(),
            threads: running.threads,
            asked,
            provider,
            fallback_reason,
        };
        Ok(Self { running, report, traffic: Arc::default() })
    }

    /// The environment that a report is about, for a session more.
    pub(crate) fn again(report: &RuntimeReport) -> Result<Self, RuntimeError> {
        let running = RUNNING.get().ok_or_else(|| RuntimeError::Call {
            action: "find the environment",
            why: "it was never started".to_owned(),
        })?;
        Ok(Self { running, report: report.clone(), traffic: Arc::default() })
    }

    /// The highest revision of the file format that the library reads, if `revision` is beyond it. The library is asked with a graph of a single
    /// node, since only it knows.
    pub(crate) fn highest_revision_below(&self, revision: i64) -> Option<String> {
        const SAID: &str = "max supported IR version: ";
        let attempt = || -> ort::Result<()> {
            OrtSession::builder(&self.running.environment)?
                .commit_from_memory(&graph::probe(Some(revision)))
                .map(drop)
        };
        let message = attempt().err()?.message().to_owned();
        let (_, highest) = message.split_once(SAID)?;
        Some(highest.chars().take_while(char::is_ascii_digit).collect())
    }

    pub(crate) fn report(&self) -> &RuntimeReport {
        &self.report
    }

    /// A session for a graph. The weights are copied by the runtime and need not be kept.
    pub(crate) fn session(&self, graph: BuiltGraph) -> Result<Session, RuntimeError> {
        let session = self.build(graph).map_err(RuntimeError::call("create a session"))?;
        Ok(Session::new(session, self.memory()))
    }

    /// The memory that its sessions compute in.
    pub(crate) fn memory(&self) -> DeviceMemory {
        DeviceMemory::new(self.report.provider, Arc::clone(&self.traffic))
    }

    /// What crosses between host and sessions.
    pub(crate) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    fn build(&self, graph: BuiltGraph) -> ort::Result<OrtSession> {
        let mut builder = plain_builder(&self.running.environment)?;
        if self.report.provider == Provider::Cuda {
            cuda().register(&mut builder)?;
        }
        if !graph.weights.is_empty() {
            let weights: Arc<[u8]> = graph.weights.into();
            builder = builder.with_external_initializer_file_in_memory(graph::WEIGHTS_LOCATION, weights)?;
        }
        builder.commit_from_memory(&graph.model)
    }
}

pub(super) fn plain_builder(environment: &Environment) -> ort::Result<SessionBuilder> {
    let builder = OrtSession::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        // Lengths differ from call to call, so patterns of the last call do not help.
        .with_memory_pattern(false)?
        // One arena per session would hold the largest pass of every layer for ever.
        .with_execution_providers([ep::CPU::default().with_arena_allocator(false).build()])?;
    Ok(builder)
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("report", &self.report).finish_non_exhaustive()
    }
}
