//! The arguments that say which problems a model is given.

use super::runtime::CHAIN;
use crate::exit::CliError;
use kvlab_executor::workload::chain::{DEFAULT_LEVEL, LEVELS, Level};
use kvlab_executor::{ExecutorError, ItemSet};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

/// Arguments of verbs that give problems to a model.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ItemArgs {
    /// Problem file (JSON Lines) [default: what the model is made for: `chain` problems, else 24 questions of GSM8K]
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    pub(crate) problems: Option<PathBuf>,
    /// Built-in problems instead of a file
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) workload: Option<Workload>,
    /// Difficulty of generated problems
    #[arg(long, default_value = LEVELS[DEFAULT_LEVEL].id, value_parser = level_ids())]
    pub(crate) level: String,
    /// How many problems are generated
    #[arg(long, default_value = "24", value_name = "N")]
    pub(crate) count: NonZeroU32,
    /// Take at most so many problems
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<NonZeroUsize>,
}

/// Built-in problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// The first questions of GSM8K.
    Gsm8k,
    /// Generated multi-step arithmetic over named variables.
    Chain,
    /// The same problems with a shown solution, right and flawed ones in turn: is it right?
    ChainVerify,
}

fn level_ids() -> clap::builder::PossibleValuesParser {
    LEVELS.iter().map(|level| level.id).collect::<Vec<_>>().into()
}

impl ItemArgs {
    /// No arguments: for verbs that choose the items themselves.
    pub(crate) fn none() -> Self {
        let level = LEVELS[DEFAULT_LEVEL].id.to_owned();
        Self { problems: None, workload: None, level, count: NonZeroU32::MIN, limit: None }
    }

    /// The items that these arguments name, for the model called `model`; `seed` is that of generated problems.
    pub(crate) fn load(&self, seed: u64, model: &str) -> Result<ItemSet, CliError> {
        let usual = if model == CHAIN { Workload::Chain } else { Workload::Gsm8k };
        let mut set = match (&self.problems, self.workload.unwrap_or(usual)) {
            (Some(path), _) => ItemSet::of_file(path),
            (None, Workload::Gsm8k) => ItemSet::gsm8k_sample(),
            (None, generated) => {
                let level = Level::named(&self.level).unwrap_or(LEVELS[DEFAULT_LEVEL]);
                let make =
                    if generated == Workload::ChainVerify { ItemSet::chain_verify } else { ItemSet::chain };
                Ok(make(level, self.count.get(), seed))
            }
        }
        .map_err(ExecutorError::from)?;
        set.truncate(self.limit.map_or(usize::MAX, NonZeroUsize::get));
        Ok(set)
    }
}
