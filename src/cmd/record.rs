//! `kvlab record`: a model and problems become a trace.

use super::above_0;
use super::items::ItemArgs;
use super::record_branches::{self, BranchArgs};
use super::runtime::{self, CHAIN, RuntimeArgs};
use crate::exit::{CliError, Done};
use crate::output::{self, news};
use crate::progress::Bars;
use kvlab_executor::branches::TreeSet;
use kvlab_executor::problems::problem_file_sha256;
use kvlab_executor::{
    ExecutorError, Forecast, ItemSet, Model, OpenLoop, PlannedWeights, PromptLens, RecordPlan, record,
};
use kvlab_sim::trace::{
    Dtype, Leftover, LensForms, StoredFields, ToolInfo, Trace, TraceWriter, WorkloadInfo, leftovers,
};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Run a model on problems and record what policies need: queries, keys, values, and logit-lens facts per layer.
///
/// Decoding is greedy, batch 1. An interrupted recording goes on where it stopped when the command is given again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: kvlab record --model smollm2 --problems questions.jsonl --limit 8 --out my-trace\nEach line of a \
problem file is an object with `id`, `question` and maybe `answer` and `choices`."
)]
pub(crate) struct Args {
    /// Folder for the trace
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// `chain` (inside the program), `smollm2`, a GGUF file, a Hugging Face folder, or an exported ONNX decoder
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
    /// In which forms the lens looks at hidden states: `both`, with the final norm and without it, or `normed`, half of the rows. Without the other
    /// form, exits with `lens: raw` cannot be replayed
    #[arg(long, value_enum, default_value_t, value_name = "FORMS")]
    pub(crate) lens: LensArg,
    /// Look through the lens at every N-th prompt position too (generated positions are always looked at)
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>)]
    pub(crate) prompt_lens: Option<NonZeroUsize>,
    /// How queries, keys and values are stored
    #[arg(long, value_enum, default_value_t = StoreDtype::F32)]
    pub(crate) dtype: StoreDtype,
    /// Also keep weights that some policies and checks need: `w-o`, the attention's output matrices; `head`, the final norm
    /// and the unembedding; `none` [default: w-o when it is below 8 MB]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHICH,...")]
    pub(crate) weights: Vec<WeightArg>,
    /// Most bytes the trace may take, as a number or with kB, MB, GB, KiB, MiB or GiB behind it; problems that may not fit
    /// are left out, and it is said how many
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_bytes: Option<u64>,
    /// Also measure how long prefill, decoding, single layers, gates, the head and evictions take on this machine, and keep the times for
    /// `cost: {kind: measured}` of a serving study. They differ from one recording to the next, and the trace with them
    #[arg(long)]
    pub(crate) times: bool,
    /// Threads within an operator [default: all cores]
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>)]
    pub(crate) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) branching: BranchArgs,
    /// Throw away an interrupted recording at --out and begin anew; a finished trace there stays until the new one is whole, and is replaced then
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

/// In which forms the lens looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LensArg {
    /// With the final norm and without it.
    #[default]
    Both,
    /// With the final norm only.
    Normed,
}

/// Weights of the model that a trace may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WeightArg {
    /// The attention's output matrix of every layer, for policies that weigh values by their effect.
    #[value(name = "w-o", aliases = ["w_o", "wo"])]
    WO,
    /// Final norm and unembedding, so that entropies can be computed again from hidden states.
    Head,
    /// None.
    None,
}

/// Matrices of at most so many bytes are kept without being asked for.
const SMALL_WEIGHTS: usize = 8_000_000;

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    check_weights(args)?;
    check_target(args)?;
    let bars = Bars::default();
    let work = match args.branching.branches {
        None => Work::Sequences(args.items.load(&args.model)?),
        Some(branches) => Work::Trees(record_branches::trees(args, branches)?),
    };
    let mut model = args.runtime.load(&args.model, args.threads, &bars)?;
    match &work {
        Work::Sequences(set) => into_trace(&mut model, set, args, leftover(args), &bars)?,
        Work::Trees(set) => record_branches::into_trace(&mut model, set, args, leftover(args), &bars)?,
    }
    news(&format!("trace written to {}", args.out.display()));
    Ok(Done::All)
}

/// What is recorded.
enum Work {
    Sequences(ItemSet),
    Trees(TreeSet),
}

/// Refuses weights that are kept and not kept.
fn check_weights(args: &Args) -> Result<(), CliError> {
    if args.weights.len() > 1 && args.weights.contains(&WeightArg::None) {
        let reason = "`none` goes with no other weights: leave it out, or give it alone".to_owned();
        return Err(CliError::Usage { flag: "--weights", reason });
    }
    Ok(())
}

/// What is done about what earlier recordings left.
fn leftover(args: &Args) -> Leftover {
    if args.force { Leftover::Replace } else { Leftover::Resume }
}

/// Refuses a target that would be lost or could not be read afterwards: only a trace may be replaced, and only on demand.
fn check_target(args: &Args) -> Result<(), CliError> {
    let out = &args.out;
    let refuse = |remedy: &str| Err(CliError::Exists { path: out.clone(), remedy: remedy.to_owned() });
    if out.extension().is_some_and(|extension| extension == "partial" || extension == "replaced") {
        let reason =
            "names ending in `.partial` and `.replaced` are kept for what interrupted recordings leave";
        return Err(CliError::Invalid { path: out.clone(), reason: reason.to_owned() });
    }
    let Ok(meta) = out.symlink_metadata() else {
        return Ok(TraceWriter::check_place(out, leftover(args))?);
    };
    if !args.force {
        return refuse(&not_replaced(out));
    }
    if !meta.is_dir() || Trace::open(out).is_err() || out.file_name().is_none() {
        return refuse("it is no trace, so --force does not replace it: choose another --out");
    }
    Ok(())
}

/// How a recording goes on whose place is taken; what lies beside it is of recordings that were to replace it.
fn not_replaced(out: &Path) -> String {
    let mut remedy = "choose another --out, or give --force".to_owned();
    for (path, what) in leftovers(out) {
        let goes_on = path.extension().is_some_and(|extension| extension == "partial");
        let or = if goes_on { " and which goes on without it once the trace is moved away" } else { "" };
        remedy += &format!("; beside it is {}, {what}, which --force removes{or}", path.display());
    }
    remedy
}

/// Records `set` into the trace that `args` names.
pub(crate) fn into_trace(
    model: &mut Model,
    set: &ItemSet,
    args: &Args,
    leftover: Leftover,
    bars: &Bars,
) -> Result<(), CliError> {
    runtime::tell(model);
    let max_new_tokens = args.max_new_tokens.unwrap_or(set.usual_new_tokens);
    let attention = match args.dtype {
        StoreDtype::F32 => Dtype::F32,
        StoreDtype::F16 => Dtype::F16,
    };
    let forms = match args.lens {
        LensArg::Both => LensForms::Both,
        LensArg::Normed => LensForms::Normed,
    };
    let plan = RecordPlan {
        open_loop: OpenLoop {
            chunk: NonZeroUsize::new(256).unwrap_or(NonZeroUsize::MIN),
            max_new_tokens,
            fields: StoredFields {
                hidden: args.hidden,
                attention: Some(attention),
                lens: Some(forms),
                lens_top: 8,
            },
            prompt_lens: args.prompt_lens.map_or(PromptLens::Last, PromptLens::Every),
        },
        tool: tool(),
        workload: workload(args, &set.name)?,
        seed: args.items.seed(),
        grader: Some(set.grader),
        weights: weights(model, args, attention),
        max_bytes: args.max_bytes,
        times: args.times,
    };
    let forecast = Forecast::of(model, &set.items, &plan)?;
    news(&format!(
        "recording {} problems, up to {max_new_tokens} new tokens each: at most {:.1} MB and, by a trial of a few tokens, about {}",
        forecast.sequences,
        output::megabytes(forecast.most_bytes),
        about(forecast.most_time),
    ));
    record(model, &set.items, &plan, &args.out, leftover, bars)?;
    if let Some(max) = args.max_bytes {
        let recorded = Trace::open(&args.out)?.manifest().sequences.len();
        if recorded < set.items.len() {
            let all = set.items.len();
            news(&format!(
                "{recorded} of {all} problems recorded: the others might not fit into {max} bytes"
            ));
        }
    }
    Ok(())
}

/// A time that is an estimate.
fn about(time: std::time::Duration) -> String {
    match time.as_secs() {
        0..2 => "a second".to_owned(),
        seconds @ 2..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// Bytes, as people write them.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "" | "B" => 1_u64,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err("accepted is a whole number, with kB, MB, GB, KiB, MiB or GiB behind it".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "accepted is a whole number of bytes".to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "more bytes than there can be".to_owned())
}

/// Where the problems come from.
pub(crate) fn workload(args: &Args, name: &str) -> Result<WorkloadInfo, CliError> {
    let digest = args.items.problems.as_ref().map(|path| problem_file_sha256(path)).transpose();
    let file_sha256 = digest.map_err(ExecutorError::from)?;
    Ok(WorkloadInfo { name: name.to_owned(), seed: args.items.seed(), file_sha256 })
}

/// This program.
pub(crate) fn tool() -> ToolInfo {
    ToolInfo { name: "kvlab".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned(), revision: None }
}

/// Which weights are kept, stored as queries, keys and values are.
fn weights(model: &Model, args: &Args, dtype: Dtype) -> PlannedWeights {
    let config = model.config();
    let w_o_bytes = 4 * config.layers * config.hidden * config.q_width();
    let is_wanted = |which| args.weights.contains(&which);
    let has_w_o = is_wanted(WeightArg::WO) || (args.weights.is_empty() && w_o_bytes < SMALL_WEIGHTS);
    PlannedWeights { w_o: has_w_o.then_some(dtype), head: is_wanted(WeightArg::Head).then_some(dtype) }
}
