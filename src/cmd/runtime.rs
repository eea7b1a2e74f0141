//! The arguments of verbs that run a model.

use crate::exit::CliError;
use crate::output::news;
use crate::progress::Bars;
use kvlab_executor::setup::{LibraryFile, SetupOptions, cuda_library, ensure_library, ensure_model};
use kvlab_executor::{ExecutorError, LoadOptions, Model, Provider, ProviderChoice, embedded_model};
use kvlab_sim::scenario::nearest;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// The name under which the demonstration model is known.
pub(crate) const SMOLLM2: &str = "smollm2";

/// The name under which the model inside the program is known.
pub(crate) const CHAIN: &str = "chain";

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Ep {
    /// CUDA if it works, else the CPU; says which and why.
    #[default]
    Auto,
    /// CUDA, or an error with the reason.
    Cuda,
    /// The CPU.
    Cpu,
}

/// Arguments of verbs that load the runtime.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LibraryArgs {
    /// ONNX Runtime library to load. Default: $ORT_DYLIB_PATH, kvlab's cache, the active Python, else it is installed
    #[arg(long, value_name = "FILE")]
    ort_lib: Option<PathBuf>,
}

impl LibraryArgs {
    /// Set-up options from these arguments and the environment.
    pub(crate) fn setup_options(&self) -> SetupOptions {
        SetupOptions { ort_lib: self.ort_lib.clone(), ..SetupOptions::from_env() }
    }
}

/// Arguments of verbs that run a model.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RuntimeArgs {
    #[command(flatten)]
    library: LibraryArgs,
    /// Execution provider
    #[arg(long, value_enum, default_value_t = Ep::Auto)]
    ep: Ep,
}

/// Names that are no paths.
const NAMES: [&str; 2] = [CHAIN, SMOLLM2];

/// The file or folder of `model`: a name of ours, which is unpacked or fetched, or a path.
pub(crate) fn model_path(model: &str, setup: &SetupOptions, bars: &Bars) -> Result<PathBuf, CliError> {
    let path = PathBuf::from(model);
    match model {
        // A file or folder of that name is meant when there is one.
        _ if path.exists() => Ok(path),
        CHAIN => Ok(embedded_model(setup).map_err(ExecutorError::from)?),
        SMOLLM2 => Ok(ensure_model(setup, bars).map_err(ExecutorError::from)?.path),
        _ => {
            let meant = nearest(model, NAMES).map_or(String::new(), |name| format!("; did you mean {name}?"));
            let reason = format!(
                "there is no such file or folder, and it is none of the names {}{meant}",
                NAMES.join(", ")
            );
            Err(CliError::NoModel { path, reason })
        }
    }
}

impl RuntimeArgs {
    /// The library to load: one named by hand, the GPU runtime in the cache where a GPU may be used, or the usual one.
    fn library(&self, bars: &Bars) -> Result<LibraryFile, CliError> {
        let setup = self.library.setup_options();
        let is_named = setup.ort_lib.is_some() || setup.ort_dylib_path.is_some();
        let gpu = if is_named || self.ep == Ep::Cpu { None } else { cuda_library(&setup) };
        match gpu {
            Some(library) => Ok(library),
            None => Ok(ensure_library(&setup, bars).map_err(ExecutorError::from)?),
        }
    }

    /// Loads `model`: a name of ours, a GGUF file, a Hugging Face folder or an exported ONNX decoder.
    pub(crate) fn load(
        &self,
        model: &str,
        threads: Option<NonZeroUsize>,
        bars: &Bars,
    ) -> Result<Model, CliError> {
        // A model that is not there is no reason to install a runtime.
        let path = model_path(model, &self.library.setup_options(), bars)?;
        let library = self.library(bars)?;
        let mut options = LoadOptions::new(library);
        if let Some(threads) = threads {
            options.threads = threads;
        }
        options.provider = match self.ep {
            Ep::Auto => ProviderChoice::Auto,
            Ep::Cuda => ProviderChoice::Cuda,
            Ep::Cpu => ProviderChoice::Cpu,
        };
        Model::load(&path, &options, bars).map_err(|error| CliError::in_model(&path, error))
    }
}

/// Says what runs the model when that is not what was hoped for.
pub(crate) fn tell(model: &Model) {
    let runtime = model.runtime();
    if let Some(reason) = &runtime.fallback_reason {
        let provider = match runtime.provider {
            Provider::Cuda => "CUDA",
            Provider::Cpu => "the CPU",
        };
        news(&format!("running on {provider}: {reason}"));
    }
}
