//! The arguments that say which problems a model is given.

use crate::exit::CliError;
use kvlab_executor::{ExecutorError, ItemSet};
use std::path::PathBuf;

/// Arguments of verbs that give problems to a model.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ItemArgs {
    /// Problem file (JSON Lines) [default: 24 questions of GSM8K]
    #[arg(long, value_name = "FILE")]
    pub(crate) problems: Option<PathBuf>,
    /// Take at most so many problems
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

impl ItemArgs {
    /// The items that these arguments name.
    pub(crate) fn load(&self) -> Result<ItemSet, CliError> {
        let mut set = match &self.problems {
            Some(path) => ItemSet::of_file(path),
            None => ItemSet::gsm8k_sample(),
        }
        .map_err(ExecutorError::from)?;
        set.truncate(self.limit.unwrap_or(usize::MAX));
        Ok(set)
    }
}
