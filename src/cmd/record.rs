//! `kvlab record`: a model and problems become a trace.

use super::items::ItemArgs;
use super::runtime::{CHAIN, RuntimeArgs};
use crate::exit::{CliError, Done};
use crate::output::{self, news};
use crate::progress::Bars;
use kvlab_executor::problems::problem_file_sha256;
use kvlab_executor::{ExecutorError, ItemSet, Model, OpenLoop, PromptLens, Provider, RecordPlan, record};
use kvlab_sim::trace::{Dtype, Leftover, StoredFields, ToolInfo, WorkloadInfo};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Run a model on problems and record what policies need: queries, keys, values, and logit-lens facts per layer.
///
/// Decoding is greedy, batch 1. An interrupted recording goes on where it stopped when the command is given again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: kvlab record --problems questions.jsonl --limit 8 --out my-trace\nEach line of a \
problem file is an object with `id`, `question` and maybe `answer` and `choices`."
)]
pub(crate) struct Args {
    /// Folder for the trace
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// `chain` (inside the program), `smollm2`, a GGUF file, or a Hugging Face folder
    #[arg(long, default_value = CHAIN, value_name = "MODEL")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) items: ItemArgs,
    /// Most tokens generated for a problem [default: enough for most of these problems]
    #[arg(long, value_name = "N")]
    pub(crate) max_new_tokens: Option<u32>,
    /// Also record the hidden state after each layer
    #[arg(long)]
    pub(crate) hidden: bool,
    /// Look through the lens at every N-th prompt position too (generated positions are always looked at)
    #[arg(long, value_name = "N")]
    pub(crate) prompt_lens: Option<NonZeroUsize>,
    /// How queries, keys and values are stored
    #[arg(long, value_enum, default_value_t = StoreDtype::F32)]
    pub(crate) dtype: StoreDtype,
    /// Threads within an operator [default: all cores]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Seed of generated problems, written into the trace; greedy decoding draws nothing
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Throw away an interrupted recording or a finished trace at --out, and begin anew
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
}

/// How a tensor is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StoreDtype {
    /// As the model computed it.
    #[default]
    F32,
    /// Half the bytes; decisions on it may differ from those on f32.
    F16,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    if args.out.exists() && !args.force {
        return Err(CliError::Exists {
            path: args.out.clone(),
            remedy: "choose another --out, or give --force",
        });
    }
    let bars = Bars::default();
    let items = args.items.load(args.seed, &args.model)?;
    let mut model = args.runtime.load(&args.model, args.threads, &bars)?;
    // Only now, when a new recording can begin.
    if args.out.exists() {
        std::fs::remove_dir_all(&args.out)
            .map_err(|source| CliError::Io { path: args.out.clone(), source })?;
    }
    let leftover = if args.force { Leftover::Discard } else { Leftover::Resume };
    into_trace(&mut model, &items, args, leftover, &bars)?;
    news(&format!("trace written to {}", args.out.display()));
    Ok(Done::All)
}

/// Records `set` into the trace that `args` names.
pub(crate) fn into_trace(
    model: &mut Model,
    set: &ItemSet,
    args: &Args,
    leftover: Leftover,
    bars: &Bars,
) -> Result<(), CliError> {
    let runtime = model.runtime();
    if let Some(reason) = &runtime.fallback_reason {
        let provider = match runtime.provider {
            Provider::Cuda => "CUDA",
            Provider::Cpu => "the CPU",
        };
        news(&format!("running on {provider}: {reason}"));
    }
    let max_new_tokens = args.max_new_tokens.unwrap_or(set.usual_new_tokens);
    let digest = args.items.problems.as_ref().map(|path| problem_file_sha256(path)).transpose();
    let digest = digest.map_err(ExecutorError::from)?;
    estimate(model, set.items.len(), max_new_tokens, args);
    let attention = match args.dtype {
        StoreDtype::F32 => Dtype::F32,
        StoreDtype::F16 => Dtype::F16,
    };
    let plan = RecordPlan {
        open_loop: OpenLoop {
            chunk: NonZeroUsize::new(256).unwrap_or(NonZeroUsize::MIN),
            max_new_tokens,
            fields: StoredFields { hidden: args.hidden, attention: Some(attention), lens: true, lens_top: 8 },
            prompt_lens: args.prompt_lens.map_or(PromptLens::Last, PromptLens::Every),
        },
        tool: ToolInfo {
            name: "kvlab".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: None,
        },
        workload: WorkloadInfo { name: set.name.clone(), seed: args.seed, file_sha256: digest },
        seed: args.seed,
        grader: Some(set.grader),
    };
    record(model, &set.items, &plan, &args.out, leftover, bars)?;
    Ok(())
}

/// Says what will be written before anything runs.
fn estimate(model: &Model, sequences: usize, max_new_tokens: u32, args: &Args) {
    let config = model.config();
    let scalars = config.layers * config.head_dim * (config.q_heads + 2 * config.kv_heads);
    let bytes = match args.dtype {
        StoreDtype::F32 => 4,
        StoreDtype::F16 => 2,
    };
    let hidden = if args.hidden { config.layers * config.hidden * 4 } else { 0 };
    let per_token = (scalars * bytes + hidden) as u64;
    news(&format!(
        "recording {sequences} problems, up to {max_new_tokens} new tokens each: {:.2} MB a token",
        output::megabytes(per_token)
    ));
}
