//! The command line of kvlab: parse, dispatch, turn errors into exit codes; nothing else.

mod cmd;
mod exit;
mod output;
mod progress;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Record a reasoning LLM once, replay it through KV-cache and early-exit policies, and see what every threshold does.
#[derive(Debug, Parser)]
#[command(name = "kvlab", version, propagate_version = true, max_term_width = 110, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Demo(cmd::demo::Args),
    Setup(cmd::setup::Args),
    Record(cmd::record::Args),
    Replay(cmd::replay::Args),
    Sweep(cmd::sweep::Args),
    Tune(cmd::tune::Args),
    Status(cmd::status::Args),
    Merge(cmd::merge::Args),
    Diff(cmd::diff::Args),
    Exec(cmd::exec::Args),
    Fidelity(cmd::fidelity::Args),
    Paper(cmd::paper::Args),
    Pareto(cmd::pareto::Args),
    Plot(cmd::plot::Args),
    Report(cmd::report::Args),
    Validate(cmd::validate::Args),
    Inspect(cmd::inspect::Args),
    Model(cmd::model::Args),
    Trace(cmd::trace::Args),
    List(cmd::list::Args),
}

/// A Parquet file that nobody vouches for may make its decoder panic. That is caught and told as an error; the panic's own words would
/// only frighten.
fn keep_quiet_about_caught_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let is_caught = info.location().is_some_and(|at| at.file().contains("parquet-"));
        if !is_caught {
            usual(info);
        }
    }));
}

fn main() -> ExitCode {
    keep_quiet_about_caught_panics();
    let outcome = match Cli::parse().verb {
        Verb::Demo(args) => cmd::demo::run(&args),
        Verb::Setup(args) => cmd::setup::run(&args),
        Verb::Record(args) => cmd::record::run(&args),
        Verb::Replay(args) => cmd::replay::run(&args),
        Verb::Sweep(args) => cmd::sweep::run(&args),
        Verb::Tune(args) => cmd::tune::run(&args),
        Verb::Status(args) => cmd::status::run(&args),
        Verb::Merge(args) => cmd::merge::run(&args),
        Verb::Diff(args) => cmd::diff::run(&args),
        Verb::Exec(args) => cmd::exec::run(&args),
        Verb::Fidelity(args) => cmd::fidelity::run(&args),
        Verb::Paper(args) => cmd::paper::run(&args),
        Verb::Pareto(args) => cmd::pareto::run(&args),
        Verb::Plot(args) => cmd::plot::run(&args),
        Verb::Report(args) => cmd::report::run(&args),
        Verb::Validate(args) => cmd::validate::run(&args),
        Verb::Inspect(args) => cmd::inspect::run(&args),
        Verb::Model(args) => cmd::model::run(&args),
        Verb::Trace(args) => cmd::trace::run(&args),
        Verb::List(args) => cmd::list::run(&args),
    };
    exit::code(outcome)
}
