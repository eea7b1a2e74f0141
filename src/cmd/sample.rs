//! Which problems of a trace are read: flags of `sweep`, `replay` and `tune`.

use crate::exit::CliError;
use kvlab_sim::scenario::{Scenario, ScenarioError, SourceFlags, Strata};
use std::path::Path;

/// Which problems are read; they go before `source` of the scenario.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SampleArgs {
    /// Read at most so many sequences, and so many problems with branches: the first ones, or drawn ones with --fraction or --stratify
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Read a share of the problems, drawn by a hash of their ids: the same ones every time, and a larger share keeps them
    #[arg(long, value_name = "SHARE")]
    fraction: Option<f64>,
    /// Draw from each group of problems in proportion
    #[arg(long, value_enum, value_name = "BY")]
    stratify: Option<StrataArg>,
    /// Draw other problems
    #[arg(long, value_name = "N")]
    draw_seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum StrataArg {
    /// The problem's id without the number at its end: workload, level and seed of built-in problems.
    IdPrefix,
}

impl SampleArgs {
    /// `scenario`, the file `path`, reading what the flags say.
    pub(crate) fn on(&self, scenario: Scenario, path: &Path) -> Result<Scenario, CliError> {
        let flags = SourceFlags {
            limit: self.limit,
            fraction: self.fraction,
            stratify: self.stratify.map(|strata| match strata {
                StrataArg::IdPrefix => Strata::IdPrefix,
            }),
            seed: self.draw_seed,
        };
        let named = |kind| ScenarioError { file: path.display().to_string(), kind: Box::new(kind) };
        Ok(scenario.reading(&flags).map_err(named)?)
    }

    /// As they would be typed, each with a space in front.
    pub(crate) fn typed(&self) -> String {
        let mut words = String::new();
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                words += &format!(" --{name} {value}");
            }
        };
        add("limit", self.limit.map(|limit| limit.to_string()));
        add("fraction", self.fraction.map(|fraction| fraction.to_string()));
        add("stratify", self.stratify.map(|StrataArg::IdPrefix| "id-prefix".to_owned()));
        add("draw-seed", self.draw_seed.map(|seed| seed.to_string()));
        words
    }
}
