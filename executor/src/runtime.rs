//! All contact with ONNX Runtime: the process-wide environment, sessions, values. No other file names `ort`.
//!
//! The library is loaded once per process, from a path that was checked before, and with one pool of threads for all
//! sessions. Which library and how many threads is decided by whoever comes first; a different wish later is an error.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use ort::{
    environment::{Environment, GlobalThreadPoolOptions},
    ep,
    logging::LogLevel,
    memory::Allocator,
    session::{
        OutputSelector, RunOptions, Session as OrtSession, SessionInputValue,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
    value::{DynValue, Tensor as OrtTensor, TensorRef},
};
use serde::Serialize;

use crate::{
    graph::{self, BuiltGraph},
    setup::{CUDA_NEEDS, LibraryFile, RUNTIME_MINOR_NEEDED},
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

/// What ONNX Runtime refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The library cannot be loaded.
    #[error("failed to load the ONNX Runtime library {}: {why}", path.display())]
    Load {
        /// The library.
        path: PathBuf,
        /// The loader's reason.
        why: String,
    },
    /// The library is too old.
    #[error("failed to use the ONNX Runtime library {}: its version is {found}, needed is 1.{RUNTIME_MINOR_NEEDED} or newer", path.display())]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// The process already runs with another library.
    #[error("failed to load the ONNX Runtime library {}: this process already runs with {}", asked.display(), running.display())]
    OtherLibrary {
        /// The library asked for now.
        asked: PathBuf,
        /// The one that runs.
        running: PathBuf,
    },
    /// The process already runs with another number of threads.
    #[error("failed to use {asked} threads: this process already runs with {running}")]
    OtherThreads {
        /// Threads asked for now.
        asked: usize,
        /// Threads that run.
        running: usize,
    },
    /// CUDA was asked for and does not work.
    #[error("failed to use CUDA: {why}")]
    CudaUnavailable {
        /// The runtime's reason.
        why: String,
    },
    /// A call failed.
    #[error("failed to {action}: {why}")]
    Call {
        /// What was tried.
        action: &'static str,
        /// The runtime's message.
        why: String,
    },
    /// An output has another shape or type than its graph says.
    #[error("failed to read output {output:?} of a session: {why}")]
    Output {
        /// The output.
        output: String,
        /// What is wrong with it.
        why: String,
    },
}

impl RuntimeError {
    fn call<R>(action: &'static str) -> impl FnOnce(ort::Error<R>) -> Self {
        move |error| Self::Call { action, why: error.message().to_owned() }
    }
}

/// The one environment of the process.
struct Running {
    environment: Environment,
    library: LibraryFile,
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
    running: &'static Running,
    report: RuntimeReport,
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
        Ok(Self { running, report })
    }

    /// The environment that a report is about, for a session more.
    pub(crate) fn again(report: &RuntimeReport) -> Result<Self, RuntimeError> {
        let running = RUNNING.get().ok_or_else(|| RuntimeError::Call {
            action: "find the environment",
            why: "it was never started".to_owned(),
        })?;
        Ok(Self { running, report: report.clone() })
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
        Ok(Session { session })
    }

    fn build(&self, graph: BuiltGraph) -> ort::Result<OrtSession> {
        let mut builder = plain_builder(&self.running.environment)?;
        if self.report.provider == Provider::Cuda {
            cuda().register(&mut builder)?;
        }
        let weights: Arc<[u8]> = graph.weights.into();
        let mut builder =
            builder.with_external_initializer_file_in_memory(graph::WEIGHTS_LOCATION, weights)?;
        builder.commit_from_memory(&graph.model)
    }
}

fn plain_builder(environment: &Environment) -> ort::Result<SessionBuilder> {
    let builder = OrtSession::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        // Lengths differ from call to call, so patterns of the last call do not help.
        .with_memory_pattern(false)?
        // One arena per session would hold the largest pass of every layer for ever.
        .with_execution_providers([ep::CPU::default().with_arena_allocator(false).build()])?;
    Ok(builder)
}

fn cuda() -> ep::ExecutionProviderDispatch {
    // Full f32 products, so that results are comparable with the CPU's.
    ep::CUDA::default().with_tf32(false).build().error_on_failure()
}

/// Registers CUDA, then really runs a small session on it. Registration alone says nothing: without a driver it can
/// succeed, and by default its failure is silent.
fn try_cuda(running: &Running) -> Result<(), String> {
    let environment = &running.environment;
    let folder = running.library.path.parent().unwrap_or(Path::new(""));
    // The provider looks for NVIDIA's libraries where the system does; those beside it are found once they are loaded.
    for path in CUDA_NEEDS.iter().map(|name| folder.join(name)).filter(|path| path.is_file()) {
        ort::util::preload_dylib(&path)
            .map_err(|error| format!("{} cannot be loaded: {error}", path.display()))?;
    }
    let attempt = || -> ort::Result<()> {
        let mut builder = OrtSession::builder(environment)?;
        cuda().register(&mut builder)?;
        let mut session = builder.with_disable_cpu_fallback()?.commit_from_memory(&graph::probe(None))?;
        let input = OrtTensor::from_array(([1_usize, 1], vec![1.0_f32]))?;
        session.run(vec![(graph::io::ROWS, SessionInputValue::from(input))])?;
        Ok(())
    };
    attempt().map_err(|error| cuda_reason(folder, error.message()))
}

/// Why CUDA does not work, from the runtime's own words where there are no better ones.
fn cuda_reason(folder: &Path, said: &str) -> String {
    const PROVIDER: &str = "libonnxruntime_providers_cuda.so";
    // Files and functions of the runtime come first, then what happened.
    let said = said.rsplit(" : FAIL : ").next().unwrap_or(said).trim();
    if said.contains("not enabled in this build") {
        return format!("the ONNX Runtime library in {} was built without CUDA", folder.display());
    }
    if !said.starts_with("Failed to load library") {
        return said.to_owned();
    }
    let parts = ["libonnxruntime_providers_shared.so", PROVIDER];
    if let Some(part) = parts.into_iter().find(|part| !folder.join(part).is_file()) {
        return format!(
            "the provider library {part} is not in {}, beside the ONNX Runtime library",
            folder.display()
        );
    }
    let missing: Vec<&str> =
        CUDA_NEEDS.into_iter().filter(|name| ort::util::preload_dylib(*name).is_err()).collect();
    match missing.as_slice() {
        [] => said.to_owned(),
        ["libcuda.so.1"] => {
            "libcuda.so.1 is missing: it comes with NVIDIA's driver, so this machine has none, or no GPU"
                .to_owned()
        }
        _ => format!("libraries that {PROVIDER} needs are missing: {}", missing.join(", ")),
    }
}

/// An input of a session.
pub(crate) enum Feed<'a> {
    /// Numbers of ours, not empty.
    View { shape: &'a [usize], data: &'a [f32] },
    /// An output of an earlier run.
    Held(&'a Tensor),
}

/// A graph ready to run.
#[derive(Debug)]
pub(crate) struct Session {
    session: OrtSession,
}

impl Session {
    /// Runs the graph and gives the outputs named, in that order.
    pub(crate) fn run<const N: usize>(
        &mut self,
        inputs: &[(&'static str, Feed<'_>)],
        outputs: [&'static str; N],
    ) -> Result<[Tensor; N], RuntimeError> {
        let failed = RuntimeError::call("run a session");
        let taken = self.run_inner(inputs, &outputs).map_err(failed)?;
        let mut tensors =
            taken.into_iter().zip(outputs).map(|(value, name)| Tensor::from_output(value, name));
        let mut next = || {
            tensors.next().unwrap_or_else(|| {
                Err(RuntimeError::Output { output: "next".to_owned(), why: "it did not come".to_owned() })
            })
        };
        let mut results = Vec::with_capacity(N);
        for _ in 0..N {
            results.push(next()?);
        }
        results
            .try_into()
            .map_err(|_| RuntimeError::Output { output: outputs.concat(), why: "wrong number".to_owned() })
    }

    fn run_inner(
        &mut self,
        inputs: &[(&'static str, Feed<'_>)],
        outputs: &[&'static str],
    ) -> ort::Result<Vec<Option<DynValue>>> {
        let mut values: Vec<(&str, SessionInputValue<'_>)> = Vec::with_capacity(inputs.len());
        for (name, feed) in inputs {
            let value = match feed {
                Feed::View { shape, data } => TensorRef::from_array_view((*shape, *data))?.into(),
                Feed::Held(tensor) => SessionInputValue::from(&tensor.value),
            };
            values.push((name, value));
        }
        let selected =
            outputs.iter().fold(OutputSelector::no_default(), |selector, name| selector.with(*name));
        let options = RunOptions::new()?.with_outputs(selected);
        let mut results = self.session.run_with_options(values, &options)?;
        Ok(outputs.iter().map(|name| results.remove(name)).collect())
    }
}

/// A graph that somebody else made, run once.
pub(crate) struct Foreign<'a> {
    /// The graph.
    pub(crate) path: &'a Path,
    /// Files with its constants, by the names the graph has for them.
    pub(crate) externals: &'a [(String, PathBuf)],
    /// What is changed in its bytes before it runs.
    pub(crate) edit: &'a dyn Fn(&mut [u8]),
}

/// An input of such a graph.
pub(crate) enum ForeignInput {
    /// Integers of 64 bits.
    Integers { shape: [usize; 2], values: Vec<i64> },
    /// An array without elements, of single or half precision.
    Empty { shape: [usize; 4], is_half: bool },
}

impl Foreign<'_> {
    /// All elements of an output of single or half precision. The session is gone afterwards.
    pub(crate) fn run(
        &self,
        runtime: &Runtime,
        inputs: Vec<(&str, ForeignInput)>,
        output: &str,
    ) -> Result<Vec<f32>, RuntimeError> {
        let read = |path: &Path| {
            let why = |error: std::io::Error| format!("{}: {error}", path.display());
            std::fs::read(path)
                .map_err(|error| RuntimeError::Call { action: "read a graph", why: why(error) })
        };
        let mut graph = read(self.path)?;
        (self.edit)(&mut graph);
        let externals = self
            .externals
            .iter()
            .map(|(name, path)| Ok((name.as_str(), Arc::<[u8]>::from(read(path)?))))
            .collect::<Result<Vec<_>, RuntimeError>>()?;
        let value = self
            .run_inner(runtime, &graph, externals, inputs, output)
            .map_err(RuntimeError::call("run the exported graph"))?;
        let wrong = |why: &str| RuntimeError::Output { output: output.to_owned(), why: why.to_owned() };
        let value = value.ok_or_else(|| wrong("it did not come"))?;
        if let Ok((_, data)) = value.try_extract_tensor::<f32>() {
            return Ok(data.to_vec());
        }
        match value.try_extract_tensor::<half::f16>() {
            Ok((_, data)) => Ok(data.iter().map(|value| value.to_f32()).collect()),
            Err(error) => Err(wrong(error.message())),
        }
    }

    fn run_inner(
        &self,
        runtime: &Runtime,
        graph: &[u8],
        externals: Vec<(&str, Arc<[u8]>)>,
        inputs: Vec<(&str, ForeignInput)>,
        output: &str,
    ) -> ort::Result<Option<DynValue>> {
        let mut builder = plain_builder(&runtime.running.environment)?;
        for (name, bytes) in externals {
            builder = builder.with_external_initializer_file_in_memory(name, bytes)?;
        }
        let mut session = builder.commit_from_memory(graph)?;
        let mut values: Vec<(&str, SessionInputValue<'_>)> = Vec::with_capacity(inputs.len());
        for (name, input) in inputs {
            let value = match input {
                ForeignInput::Integers { shape, values } => {
                    OrtTensor::from_array((shape, values))?.into_dyn()
                }
                ForeignInput::Empty { shape, is_half: false } => {
                    OrtTensor::<f32>::new(&Allocator::default(), shape)?.into_dyn()
                }
                ForeignInput::Empty { shape, is_half: true } => {
                    OrtTensor::<half::f16>::new(&Allocator::default(), shape)?.into_dyn()
                }
            };
            values.push((name, SessionInputValue::from(value)));
        }
        let mut results = session.run(values)?;
        Ok(results.remove(output))
    }
}

/// An array of `f32` that the runtime holds.
#[derive(Debug)]
pub(crate) struct Tensor {
    value: DynValue,
    shape: Vec<usize>,
}

impl Tensor {
    /// Takes an array over.
    pub(crate) fn new(shape: &[usize], data: Vec<f32>) -> Result<Self, RuntimeError> {
        let failed = RuntimeError::call("make a value");
        let value = if data.is_empty() {
            // Allocated by the runtime, since an empty vector has no address to hand over.
            OrtTensor::<f32>::new(&Allocator::default(), shape.to_vec()).map_err(failed)?
        } else {
            OrtTensor::from_array((shape.to_vec(), data)).map_err(failed)?
        };
        Ok(Self { value: value.into_dyn(), shape: shape.to_vec() })
    }

    fn from_output(value: Option<DynValue>, name: &'static str) -> Result<Self, RuntimeError> {
        let wrong = |why: String| RuntimeError::Output { output: name.to_owned(), why };
        let value = value.ok_or_else(|| wrong("it did not come".to_owned()))?;
        let (shape, _) =
            value.try_extract_tensor::<f32>().map_err(|error| wrong(error.message().to_owned()))?;
        let shape = shape.iter().map(|size| usize::try_from(*size)).collect::<Result<Vec<_>, _>>();
        let shape = shape.map_err(|_| wrong("a dimension is negative".to_owned()))?;
        Ok(Self { value, shape })
    }

    /// Outermost first.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Row-major.
    pub(crate) fn data(&self) -> &[f32] {
        let (_, data) = self.value.try_extract_tensor::<f32>().expect("it was read as f32 when it was made");
        data
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("report", &self.report).finish_non_exhaustive()
    }
}
