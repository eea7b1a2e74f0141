//! The arguments that say which problems a model is given.

use super::above_0;
use super::runtime::CHAIN;
use crate::exit::CliError;
use kvlab_executor::branches::TreeSet;
use kvlab_executor::grade::{AUTO, CHECKERS, Checker, checker};
use kvlab_executor::workload::chain::{DEFAULT_LEVEL, LEVELS, Level};
use kvlab_executor::{BUILT_INS, ExecutorError, ItemSet, ItemSetting};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

/// Arguments of verbs that give problems to a model.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ItemArgs {
    /// Problem file (JSON Lines) [default: what the model is made for: `chain` problems, else 24 questions of GSM8K]
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    pub(crate) problems: Option<PathBuf>,
    /// Built-in problems instead of a file (`kvlab list problems` says more)
    #[arg(long, value_name = "NAME", value_parser = built_in_ids())]
    pub(crate) workload: Option<String>,
    /// Difficulty of `chain` problems [default: default]
    #[arg(long, value_parser = level_ids(), conflicts_with = "problems")]
    pub(crate) level: Option<String>,
    /// How many problems are generated [default: 24]
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroU32>, conflicts_with = "problems")]
    pub(crate) count: Option<NonZeroU32>,
    /// Seed of generated problems, which is written into traces [default: 0]
    #[arg(long, value_name = "N", conflicts_with = "problems")]
    pub(crate) seed: Option<u64>,
    /// How answers are checked [default: what the problems ask for; `auto` for files]
    #[arg(long, value_name = "NAME", value_parser = checker_ids())]
    pub(crate) grader: Option<String>,
    /// Take at most so many problems
    #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>)]
    pub(crate) limit: Option<NonZeroUsize>,
}

/// Problems that are generated when nobody says how many.
const COUNT: u32 = 24;

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
    /// The seed of generated problems.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or(0)
    }

    fn count(&self) -> u32 {
        self.count.map_or(COUNT, NonZeroU32::get)
    }

    fn level(&self) -> Level {
        self.level.as_deref().and_then(Level::named).unwrap_or(LEVELS[DEFAULT_LEVEL])
    }

    /// The built-in problems that are meant for the model called `model`; refuses flags that these do not look at.
    fn built_in(&self, model: &str) -> Result<&str, CliError> {
        let usual = if model == CHAIN { "chain" } else { "gsm8k" };
        let id = self.workload.as_deref().unwrap_or(usual);
        let takes = BUILT_INS.iter().find(|known| known.id == id).map_or(&[][..], |known| known.takes);
        let given = [
            ("--level", ItemSetting::Level, self.level.is_some()),
            ("--count", ItemSetting::Count, self.count.is_some()),
            ("--seed", ItemSetting::Seed, self.seed.is_some()),
        ];
        match given.iter().find(|(_, setting, is_given)| *is_given && !takes.contains(setting)) {
            None => Ok(id),
            Some((flag, ..)) => {
                let others = BUILT_INS.iter().filter(|known| {
                    given.iter().any(|(name, setting, _)| name == flag && known.takes.contains(setting))
                });
                let others: Vec<&str> = others.map(|known| known.id).collect();
                let reason = format!(
                    "it means nothing to the problems of `{id}`, which are what they are; it is for --workload {} (`--limit N` takes the first N of any)",
                    others.join(", ")
                );
                Err(CliError::Usage { flag, reason })
            }
        }
    }

    /// The checker that was asked for.
    fn checker(&self) -> Option<&'static Checker> {
        self.grader.as_deref().and_then(checker)
    }

    /// Refuses a checker that cannot find the answer of a built-in problem; those of files are checked with their lines.
    fn check_answers<'a>(
        &self,
        mut answers: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<(), CliError> {
        let Some(checker) = self.checker() else { return Ok(()) };
        let unfit = answers.find(|(_, answer)| answer.is_some_and(|answer| !(checker.accepts)(answer)));
        match unfit {
            None => Ok(()),
            Some((item, answer)) => {
                let (id, accepted) = (checker.id, checker.accepted);
                let answer = answer.unwrap_or_default();
                let reason = format!("`{id}` accepts {accepted}, and the answer of {item} is {answer:?}");
                Err(CliError::Usage { flag: "--grader", reason })
            }
        }
    }

    /// The items that these arguments name, for the model called `model`.
    pub(crate) fn load(&self, model: &str) -> Result<ItemSet, CliError> {
        let mut set = match &self.problems {
            Some(path) => ItemSet::of_file(path, self.checker().unwrap_or(&AUTO)),
            None => ItemSet::built_in(self.built_in(model)?, self.level(), self.count(), self.seed()),
        }
        .map_err(ExecutorError::from)?;
        set.grader = self.checker().map_or(set.grader, |checker| checker.grade);
        self.check_answers(
            set.items.iter().map(|item| (item.item.as_str(), item.expected_answer.as_deref())),
        )?;
        set.truncate(self.limit.map_or(usize::MAX, NonZeroUsize::get));
        Ok(set)
    }

    /// The trees of prompts that these arguments name, each with `branches` branches.
    pub(crate) fn trees(&self, model: &str, branches: u32, one_wording: bool) -> Result<TreeSet, CliError> {
        let mut set = match &self.problems {
            Some(path) => TreeSet::of_file(path, self.checker().unwrap_or(&AUTO), branches, one_wording),
            None => {
                let id = self.built_in(model)?;
                TreeSet::built_in(id, self.level(), self.count(), self.seed(), branches, one_wording)
            }
        }
        .map_err(ExecutorError::from)?;
        set.grader = self.checker().map_or(set.grader, |checker| checker.grade);
        self.check_answers(
            set.items.iter().map(|item| (item.item.as_str(), item.expected_answer.as_deref())),
        )?;
        set.items.truncate(self.limit.map_or(usize::MAX, NonZeroUsize::get));
        Ok(set)
    }
}
