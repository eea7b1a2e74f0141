//! `kvlab record --branches`: problems as trees of prompts.

use super::record::{Args, tool, workload};
use super::{above_0, runtime};
use crate::exit::CliError;
use crate::output::news;
use crate::progress::Bars;
use kvlab_executor::Model;
use kvlab_executor::branches::{BranchPlan, Protocol, TreeSet, record_branches};
use kvlab_sim::trace::Leftover;
use std::num::{NonZeroU32, NonZeroUsize};

/// Arguments of recordings of branch trees.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct BranchArgs {
    /// Record trees of prompts instead of sequences: so many branches a problem, each behind its own prefix and behind the
    /// root's, with a verifier's view after every layer. No queries, keys and values are stored, so what chooses among them (--hidden, --lens,
    /// --prompt-lens, --dtype, --weights) and --max-bytes do not go with it
    #[arg(long, value_name = "N", value_parser = branch_count, conflicts_with_all = ["hidden", "lens", "prompt_lens", "weights", "dtype", "max_bytes"])]
    pub(crate) branches: Option<NonZeroU32>,
    /// With --branches: all branches have the root's wording, only hints differ
    #[arg(long, requires = "branches")]
    pub(crate) one_wording: bool,
    /// With --branches: decode at most so many of a problem's branches in one pass; 1 decodes them one by one. Facts of steps differ by rounding [default: 8]
    #[arg(long, value_name = "N", requires = "branches", value_parser = above_0::<NonZeroUsize>)]
    pub(crate) batch: Option<NonZeroUsize>,
    /// With --branches: record as the reference notebook of RKSC did, with its defects D4 to D7 and D13 (docs/papers.md) and 8 new tokens where
    /// --max-new-tokens says nothing else, for comparisons with its figures only; the trace says so
    #[arg(long, requires = "branches", conflicts_with = "batch")]
    pub(crate) as_published: bool,
    /// With --branches: leave out the facts of single decoding steps
    #[arg(long, requires = "branches")]
    pub(crate) no_steps: bool,
}

/// Branches that go through a pass together when nobody says otherwise.
const BATCH: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not 0");

/// New tokens of the reference notebook.
const PUBLISHED_NEW_TOKENS: u32 = 8;

/// Branches of a problem, 1 to 4096.
pub(crate) fn branch_count(text: &str) -> Result<NonZeroU32, String> {
    let count = text.parse::<NonZeroU32>().ok().filter(|count| count.get() <= 4096);
    count.ok_or_else(|| "accepted is 1 to 4096".to_owned())
}

/// The trees that the arguments name.
pub(crate) fn trees(args: &Args, branches: NonZeroU32) -> Result<TreeSet, CliError> {
    args.items.trees(&args.model, branches.get(), args.branching.one_wording)
}

/// Records the trees of `set` into the trace that `args` names.
pub(crate) fn into_trace(
    model: &mut Model,
    set: &TreeSet,
    args: &Args,
    leftover: Leftover,
    bars: &Bars,
) -> Result<(), CliError> {
    runtime::tell(model);
    let is_published = args.branching.as_published;
    let usual = if is_published { PUBLISHED_NEW_TOKENS } else { set.usual_new_tokens };
    let max_new_tokens = args.max_new_tokens.unwrap_or(usual);
    if is_published {
        news(
            "as published: the protocol of the reference notebook with its defects; the manifest names them",
        );
    }
    news(&format!(
        "recording {} problems: up to {} continuations of {max_new_tokens} tokens, each with a verifier",
        set.items.len(),
        set.items.iter().map(|item| 2 * item.branches.len()).sum::<usize>(),
    ));
    let plan = BranchPlan {
        chunk: NonZeroUsize::new(256).unwrap_or(NonZeroUsize::MIN),
        max_new_tokens,
        batch: if is_published { NonZeroUsize::MIN } else { args.branching.batch.unwrap_or(BATCH) },
        protocol: if is_published { Protocol::AsPublished } else { Protocol::Corrected },
        steps: !args.branching.no_steps,
        times: args.times,
        tool: tool(),
        workload: workload(args, &set.name)?,
        seed: args.items.seed(),
        grader: set.grader,
        verdict_words: set.verdict_words,
    };
    record_branches(model, &set.items, &plan, &args.out, leftover, bars)?;
    Ok(())
}
