//! Arguments of verbs that run a scenario's policies in the loop of a model.

use super::items::ItemArgs;
use super::record::tool;
use super::runtime::{self, CHAIN, RuntimeArgs};
use super::study::{self, TableArgs};
use super::{above_0, folder};
use crate::exit::CliError;
use crate::output::{Format, news};
use crate::progress::Bars;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use kvlab_executor::branches::{BranchPlan, Protocol, TreeExec, TreeSet};
use kvlab_executor::closed_loop::{ExecPlan, Mode};
use kvlab_executor::fidelity::pool_study;
use kvlab_executor::{ExecutorError, ItemSet, JOURNAL, Journal, Model};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::trace::WorkloadInfo;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

/// What is run, on which problems, and where results go.
#[derive(Debug, clap::Args)]
pub(crate) struct LiveArgs {
    /// Scenario file; its `eviction` section is run, or another one
    pub(crate) scenario: PathBuf,
    /// `chain` (inside the program), `smollm2`, a GGUF file, a Hugging Face folder, or an exported ONNX decoder
    #[arg(long, default_value = CHAIN, value_name = "MODEL")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) items: ItemArgs,
    /// Most tokens generated for a problem, or for each of its branches [default: enough for most of these problems]
    #[arg(long, value_name = "N")]
    pub(crate) max_new_tokens: Option<u32>,
    /// Which section is run [default: the first of these that is there]
    #[arg(long, value_enum)]
    pub(crate) study: Option<Section>,
    /// For `trees` and `pool`: branches of a problem, as recorded by `kvlab record --branches` [default: 8]
    #[arg(long, value_name = "N", value_parser = super::record_branches::branch_count)]
    pub(crate) branches: Option<NonZeroU32>,
    /// For `trees` and `pool`: all branches have the root's wording, only hints differ
    #[arg(long)]
    pub(crate) one_wording: bool,
    /// For `trees`: decode at most so many of a problem's branches in one pass. With more than 1, facts differ from those of a recording one by one by
    /// rounding [default: 1]
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>)]
    pub(crate) batch: Option<NonZeroUsize>,
    /// Folder for the result tables; for `eviction`, finished runs are kept there until the tables are written
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// For `eviction`: throw away the runs that an interrupted start kept, and make all of them anew
    #[arg(long)]
    pub(crate) fresh: bool,
    #[command(flatten)]
    pub(crate) export: TableArgs,
    /// How the table is printed
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// Threads of the model [default: all cores]
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>)]
    pub(crate) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
}

/// A section of a scenario that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Section {
    /// Token eviction, selection and storage.
    Eviction,
    /// Stacks over branch trees.
    Trees,
    /// Block caches that the prompts of branch trees are served from: `kvlab fidelity` only.
    Pool,
}

/// What is run, made ready before the model is loaded.
pub(crate) enum Work<'a> {
    /// Sequences under eviction policies.
    Eviction(ItemSet, ExecPlan<'a>),
    /// Branch trees.
    Trees(TreeSet, Box<TreeExec<'a>>),
    /// Block caches over their prompts.
    Pool(TreeSet, Box<TreeExec<'a>>),
}

/// Branches of a problem when nobody says how many.
const BRANCHES: u32 = 8;

/// Prompt tokens per pass.
const CHUNK: NonZeroUsize = match NonZeroUsize::new(256) {
    Some(chunk) => chunk,
    None => NonZeroUsize::MIN,
};

impl LiveArgs {
    /// The section that is run: the one that was asked for, or the first that is there.
    fn section(&self, scenario: &Scenario) -> Section {
        let there = [
            (Section::Eviction, scenario.eviction.is_some()),
            (Section::Trees, scenario.trees.is_some()),
            (Section::Pool, scenario.pool.is_some()),
        ];
        let mut there = there.iter().filter(|(_, is_there)| *is_there).map(|(section, _)| *section);
        let first = there.next().unwrap_or(Section::Eviction);
        if self.study.is_none() && there.next().is_some() {
            news("the scenario has several sections that can be run: running the first; `--study` chooses");
        }
        self.study.unwrap_or(first)
    }

    /// Refuses flags that mean nothing to the section that is run.
    fn refuse_idle(&self, section: Section) -> Result<(), CliError> {
        let (trees, pool) = (section == Section::Trees, section == Section::Pool);
        let given = [
            ("--branches", self.branches.is_some(), trees || pool, "`trees` and `pool`"),
            ("--one-wording", self.one_wording, trees || pool, "`trees` and `pool`"),
            ("--batch", self.batch.is_some(), trees, "`trees`"),
            ("--fresh", self.fresh, section == Section::Eviction, "`eviction`"),
        ];
        match given.iter().find(|(_, is_given, has_use, _)| *is_given && !has_use) {
            None => Ok(()),
            Some((flag, .., sections)) => {
                let run = section.to_possible_value();
                let run = run.as_ref().map_or("", PossibleValue::get_name);
                let reason = format!("it is for {sections} sections, and the one that is run is `{run}`");
                Err(CliError::Usage { flag, reason })
            }
        }
    }

    /// What `scenario` and these arguments say to run.
    pub(crate) fn work<'a>(&self, scenario: &'a Scenario, mode: Mode) -> Result<Work<'a>, CliError> {
        folder::check_scenario(&self.out, &scenario.id, self.fresh)?;
        if scenario.draw.is_some() {
            let reason = "`source.fraction` and `source.stratify` draw from a trace; here the flags say which problems are run";
            return Err(CliError::Invalid { path: self.scenario.clone(), reason: reason.to_owned() });
        }
        let section = self.section(scenario);
        self.refuse_idle(section)?;
        if section == Section::Eviction {
            let items = self.items.load(&self.model)?;
            let plan = ExecPlan {
                scenario,
                mode,
                max_new_tokens: self.max_new_tokens.unwrap_or(items.usual_new_tokens),
                chunk: CHUNK,
                command: study::command_line(),
            };
            plan.study().map_err(ExecutorError::from)?;
            return Ok(Work::Eviction(items, plan));
        }
        let branches = self.branches.map_or(BRANCHES, NonZeroU32::get);
        let set = self.items.trees(&self.model, branches, self.one_wording)?;
        let plan = BranchPlan {
            times: false,
            chunk: CHUNK,
            max_new_tokens: self.max_new_tokens.unwrap_or(set.usual_new_tokens),
            batch: self.batch.unwrap_or(NonZeroUsize::MIN),
            protocol: Protocol::Corrected,
            steps: true,
            tool: tool(),
            workload: WorkloadInfo { name: set.name.clone(), seed: self.items.seed(), file_sha256: None },
            seed: self.items.seed(),
            grader: set.grader,
            verdict_words: set.verdict_words,
        };
        let exec = TreeExec { scenario, plan, command: study::command_line() };
        if section == Section::Pool {
            pool_study(scenario).map_err(ExecutorError::from)?;
            return Ok(Work::Pool(set, Box::new(exec)));
        }
        exec.study().map_err(ExecutorError::from)?;
        Ok(Work::Trees(set, Box::new(exec)))
    }

    /// The runs that an interrupted start kept; says what is to be said about them.
    pub(crate) fn journal(&self) -> Result<Journal, CliError> {
        if self.fresh {
            Journal::discard(&self.out).map_err(ExecutorError::from)?;
        }
        let journal = Journal::open(&self.out).map_err(ExecutorError::from)?;
        if journal.was_cut() {
            let path = self.out.join(JOURNAL);
            news(&format!("{}: its last line was cut off: that run is made again", path.display()));
        }
        Ok(journal)
    }

    /// Ends what [`LiveArgs::journal`] gave, once the tables are written; says so when something stays in it.
    pub(crate) fn close(&self, journal: Journal) -> Result<(), CliError> {
        let others = journal.close().map_err(ExecutorError::from)?;
        if others > 0 {
            let path = self.out.join(JOURNAL);
            news(&format!(
                "{}: stays, with {others} runs of other problems or cells, for the command that they were made for",
                path.display()
            ));
        }
        Ok(())
    }

    /// Refuses a checker of answers where none is given.
    pub(crate) fn refuse_grader(&self, why: &str) -> Result<(), CliError> {
        match &self.items.grader {
            None => Ok(()),
            Some(_) => Err(CliError::Usage {
                flag: "--grader",
                reason: format!(
                    "with {why} the full cache's tokens are fed and no answer is graded: leave it out"
                ),
            }),
        }
    }

    /// The model, loaded and told of.
    pub(crate) fn load(&self, bars: &Bars) -> Result<Model, CliError> {
        let model = self.runtime.load(&self.model, self.threads, bars)?;
        runtime::tell(&model);
        Ok(model)
    }
}
