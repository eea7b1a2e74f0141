//! The arguments that say which problems a model is given.

use super::runtime::CHAIN;
use crate::exit::CliError;
use kvlab_executor::branches::TreeSet;
use kvlab_executor::grade::{CHECKERS, checker};
use kvlab_executor::workload::chain::{DEFAULT_LEVEL, LEVELS, Level};
use kvlab_executor::{BUILT_INS, ExecutorError, ItemSet};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

/// Arguments of verbs that give problems to a model.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ItemArgs {
    /// Problem file (JSON Lines) [default: what the model is made for: `chain` problems, else 24 questions of GSM8K]
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    pub(crate) problems: Option<PathBuf>,
    /// Built-in problems instead of a file (`kvlab list problems` says more)
    #[arg(long, value_name = "NAME", value_parser = built_in_ids())]
    pub(crate) workload: Option<String>,
    /// Difficulty of `chain` problems
    #[arg(long, default_value = LEVELS[DEFAULT_LEVEL].id, value_parser = level_ids())]
    pub(crate) level: String,
    /// How many problems are generated
    #[arg(long, default_value = "24", value_name = "N")]
    pub(crate) count: NonZeroU32,
    /// How answers are checked [default: what the problems ask for; `auto` for files]
    #[arg(long, value_name = "NAME", value_parser = checker_ids())]
    pub(crate) grader: Option<String>,
    /// Take at most so many problems
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<NonZeroUsize>,
}

fn built_in_ids() -> clap::builder::PossibleValuesParser {
    BUILT_INS.iter().map(|known| known.id).collect::<Vec<_>>().into()
}

fn checker_ids() -> clap::builder::PossibleValuesParser {
    CHECKERS.iter().map(|known| known.id).collect::<Vec<_>>().into()
}

fn level_ids() -> clap::builder::PossibleValuesParser {
    LEVELS.iter().map(|level| level.id).collect::<Vec<_>>().into()
}

impl ItemArgs {
    /// No arguments: for verbs that choose the items themselves.
    pub(crate) fn none() -> Self {
        let level = LEVELS[DEFAULT_LEVEL].id.to_owned();
        Self { problems: None, workload: None, level, count: NonZeroU32::MIN, grader: None, limit: None }
    }

    /// The items that these arguments name, for the model called `model`; `seed` is that of generated problems.
    pub(crate) fn load(&self, seed: u64, model: &str) -> Result<ItemSet, CliError> {
        let usual = if model == CHAIN { "chain" } else { "gsm8k" };
        let id = self.workload.as_deref().unwrap_or(usual);
        let level = Level::named(&self.level).unwrap_or(LEVELS[DEFAULT_LEVEL]);
        let mut set = match &self.problems {
            Some(path) => ItemSet::of_file(path),
            None => ItemSet::built_in(id, level, self.count.get(), seed),
        }
        .map_err(ExecutorError::from)?;
        if let Some(known) = self.grader.as_deref().and_then(checker) {
            set.grader = known.grade;
        }
        set.truncate(self.limit.map_or(usize::MAX, NonZeroUsize::get));
        Ok(set)
    }

    /// The trees of prompts that these arguments name, each with `branches` branches.
    pub(crate) fn trees(
        &self,
        seed: u64,
        model: &str,
        branches: u32,
        one_wording: bool,
    ) -> Result<TreeSet, CliError> {
        let usual = if model == CHAIN { "chain" } else { "gsm8k" };
        let level = Level::named(&self.level).unwrap_or(LEVELS[DEFAULT_LEVEL]);
        let mut set = match (&self.problems, self.workload.as_deref().unwrap_or(usual)) {
            (Some(path), _) => TreeSet::of_file(path, branches, one_wording),
            (None, id) => TreeSet::built_in(id, level, self.count.get(), seed, branches, one_wording),
        }
        .map_err(ExecutorError::from)?;
        if let Some(known) = self.grader.as_deref().and_then(checker) {
            set.grader = known.grade;
        }
        set.items.truncate(self.limit.map_or(usize::MAX, NonZeroUsize::get));
        Ok(set)
    }
}
