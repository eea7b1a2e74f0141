//! `kvlab tune`: which setting to ship, with a guarantee.

use super::sample::SampleArgs;
use super::{folder, study};
use crate::exit::{CliError, Done};
use crate::output::{self, significant};
use kvlab_sim::scenario::{Direction, Scenario, ScenarioError, TuneFlags, TunedStudy};
use kvlab_sim::table::write_together;
use kvlab_sim::trace::Trace;
use kvlab_sim::tune::{Measurement, Method, Setting, Shortfall, TuneReport, tune};
use std::fmt::Write;
use std::path::PathBuf;

/// Choose the setting to ship: the best objective under constraints that hold with a stated confidence.
///
/// Problems are split by a hash of their ids. Settings are searched on one share, tested on the next (learn-then-test with valid p-values,
/// corrected for the number of tests), and measured on the last, which nothing was chosen on. Without a `tune` section a scenario gets the defaults of
/// scenarios/reference.yaml. When no setting can be certified, the exit code is 5 and it is said how many problems are missing.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kvlab tune scenarios/tuning/thresholds.yaml --trace my-trees --out tuned\n  \
kvlab tune scenarios/tuning/thresholds.yaml --trace my-trees --objective max:verify_skip_rate --at-most harm_rate=0.02\n  \
kvlab tune scenarios/tuning/thresholds.yaml --trace my-trees --transfer other-trees --json"
)]
pub(crate) struct Args {
    /// Scenario file with a study of branch trees or evictions
    scenario: PathBuf,
    /// Trace folder
    #[arg(long, value_name = "DIR")]
    trace: PathBuf,
    /// Folder for tune.json, tuned.yaml and tune.txt
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The study, where the scenario has several
    #[arg(long, value_enum)]
    study: Option<StudyArg>,
    /// METRIC, max:METRIC or min:METRIC [default: the scenario's, else verification work or peak KV bytes]
    #[arg(long, value_name = "METRIC")]
    objective: Option<String>,
    /// A constraint on problems to come, e.g. harm_rate=0.01; given ones replace those of the scenario
    #[arg(long, value_name = "METRIC=NUMBER")]
    at_most: Vec<String>,
    /// A constraint from below, e.g. tree_accuracy_vs_full=-0.005
    #[arg(long, value_name = "METRIC=NUMBER")]
    at_least: Vec<String>,
    /// Probability that the recommended setting breaks a constraint
    #[arg(long, value_name = "NUMBER")]
    delta: Option<f64>,
    /// Share of the problems that the search sees
    #[arg(long, value_name = "SHARE")]
    search: Option<f64>,
    /// Share of the problems that settings are tested on; what is left is held out
    #[arg(long, value_name = "SHARE")]
    calibration: Option<f64>,
    /// Decides which problem is in which share
    #[arg(long)]
    seed: Option<u64>,
    /// How tests are corrected for each other
    #[arg(long, value_enum)]
    method: Option<MethodArg>,
    #[command(flatten)]
    sample: SampleArgs,
    /// Measure the recommended setting on this trace too, on all of its problems
    #[arg(long, value_name = "DIR")]
    transfer: Option<PathBuf>,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Worker threads; 0 for one a core. Results do not depend on it
    #[arg(long, default_value_t = 0, value_parser = study::threads)]
    threads: usize,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum StudyArg {
    /// Thresholds over branch trees.
    Trees,
    /// Policies and budgets of evictions.
    Eviction,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum MethodArg {
    /// From careful to bold, each at full level, up to the first that fails.
    FixedSequence,
    /// Holm's step-down correction.
    Holm,
    /// Every test at its share of the level.
    Bonferroni,
}

impl Args {
    fn flags(&self) -> TuneFlags {
        TuneFlags {
            study: self.study.map(|study| match study {
                StudyArg::Trees => TunedStudy::Trees,
                StudyArg::Eviction => TunedStudy::Eviction,
            }),
            objective: self.objective.clone(),
            at_most: self.at_most.clone(),
            at_least: self.at_least.clone(),
            delta: self.delta,
            search: self.search,
            calibration: self.calibration,
            seed: self.seed,
            method: self.method.map(|method| match method {
                MethodArg::FixedSequence => Method::FixedSequence,
                MethodArg::Holm => Method::Holm,
                MethodArg::Bonferroni => Method::Bonferroni,
            }),
        }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    if let Some(out) = &args.out {
        folder::check(out)?;
    }
    let scenario = args.sample.on(Scenario::load(&args.scenario)?, &args.scenario)?;
    let spec = scenario
        .tune
        .clone()
        .with(&args.flags())
        .map_err(|kind| ScenarioError { file: args.scenario.display().to_string(), kind: Box::new(kind) })?;
    let trace = Trace::open(&args.trace)?;
    let other = args.transfer.as_deref().map(Trace::open).transpose()?;
    let other = other.as_ref().map(|trace| trace as &dyn kvlab_sim::trace::TraceSource);
    let report = tune(&scenario, &spec, &trace, other, args.threads)?;
    let text = words(&report);
    if let Some(out) = &args.out {
        write(&report, &text, out)?;
    }
    if args.json {
        output::json(&report)?;
    } else {
        output::print(&text)?;
    }
    Ok(if report.chosen.is_some() { Done::All } else { Done::CheckFailed })
}

fn write(report: &TuneReport, text: &str, out: &std::path::Path) -> Result<(), CliError> {
    let json = serde_json::to_string_pretty(report).map_err(|error| CliError::Output(error.into()))?;
    let mut files = vec![("tune.txt".to_owned(), text.as_bytes().to_vec())];
    let mut obsolete = Vec::new();
    match &report.chosen {
        Some(chosen) => files.push(("tuned.yaml".to_owned(), chosen.yaml.as_bytes().to_vec())),
        // A recommendation of an earlier run is none of this one.
        None => obsolete.push("tuned.yaml".to_owned()),
    }
    files.push(("tune.json".to_owned(), (json + "\n").into_bytes()));
    write_together(out, &files, &obsolete).map_err(|(path, source)| CliError::Io { path, source })
}

/// The report for people.
fn words(report: &TuneReport) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |content: String| writeln!(text, "{content}").unwrap_or_default();
    let way = if report.objective.direction == Direction::Maximise { "most" } else { "least" };
    let constraints: Vec<String> = report.constraints.iter().map(|constraint| constraint.words()).collect();
    let kind = if report.synthetic { ", synthetic" } else { "" };
    line(format!(
        "{} of {} ({}): {way} {} with {}",
        report.tuned,
        report.source,
        report.study.to_owned() + kind,
        report.objective.metric,
        constraints.join(" and ")
    ));
    line(format!(
        "problems: {} to search, {} to test on (calibration), {} held out (test); seed {}",
        report.problems.search, report.problems.calibration, report.problems.test, report.seed
    ));
    line(format!(
        "searched {} settings; {} were tested, {} correction at δ = {}",
        report.searched.settings,
        report.path.len(),
        report.method.word(),
        report.delta
    ));
    for axis in &report.searched.axes {
        line(format!(
            "  {}: {} of {} distinct values, {}",
            axis.name,
            axis.values.len(),
            axis.distinct,
            axis.values.iter().map(|value| significant(*value)).collect::<Vec<_>>().join(" ")
        ));
    }
    for dropped in &report.searched.dropped {
        line(format!(
            "  dropped in round {}: {}: {}",
            dropped.round,
            setting(&dropped.setting),
            dropped.reason
        ));
    }
    for unrun in &report.searched.unrun {
        line(format!(
            "  cannot run on {} of {} problems, each a whole loss: {}: {}",
            unrun.problems,
            unrun.of,
            setting(&unrun.setting),
            unrun.reason
        ));
    }
    for note in &report.notes {
        line(format!("note: {note}"));
    }
    match &report.chosen {
        None => line("\nNo setting can be recommended: none but the unchanged one is certified.".to_owned()),
        Some(chosen) => {
            line(format!("\nRecommended: {}", setting(&chosen.setting)));
            for guarantee in &chosen.guarantee {
                line(format!("  guaranteed: {guarantee}"));
            }
            line("\nOn the held-out problems (unchanged: nothing shared, skipped or evicted):".to_owned());
            chosen.test.iter().for_each(|measured| line(measurement(measured)));
            line(
                "\nBeside it (objective on search and calibration problems, p on calibration problems):"
                    .to_owned(),
            );
            for neighbour in &chosen.neighbours {
                let objective = neighbour.objective.map_or("-".to_owned(), significant);
                line(format!("  {}: {objective}, p = {}", neighbour.change, p_value(neighbour.p_value)));
            }
        }
    }
    if let Some(shortfall) = &report.shortfall {
        line(format!("\n{}", missing(shortfall)));
    }
    if let Some(unguarded) = &report.unguarded {
        line(format!("\nWithout a guarantee, the best that looks good: {}", setting(&unguarded.setting)));
        let asked = 1 + report.constraints.len();
        unguarded.test.iter().take(asked).for_each(|measured| line(measurement(measured)));
    }
    if let Some(transfer) = &report.transfer {
        let kind = if transfer.synthetic { ", synthetic" } else { "" };
        line(format!(
            "\nOn {}{kind}: {} problems, {} of them in the first trace too (measured, not guaranteed)",
            transfer.source, transfer.problems, transfer.shared_problems
        ));
        if let Some(reason) = transfer.unrun.first() {
            line(format!("  cannot run on {} of them, each a whole loss: {reason}", transfer.unrun.len()));
        }
        transfer.measured.iter().for_each(|measured| line(measurement(measured)));
    }
    if let Some(chosen) = &report.chosen {
        line(format!("\n{}", chosen.yaml.trim_end()));
    }
    text
}

fn setting(setting: &Setting) -> String {
    let one = |(name, value): (&String, &serde_json::Value)| match value {
        serde_json::Value::String(text) => format!("{name} {text}"),
        other => format!("{name} {other}"),
    };
    setting.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn p_value(p: f64) -> String {
    if p < 1e-4 { format!("{p:.1e}") } else { format!("{p:.4}") }
}

/// `  harm_rate (decision): 0.004 [0, 0.012], 1/250; unchanged 0, difference …`
fn measurement(measured: &Measurement) -> String {
    let number = |x: Option<f64>| x.map_or("-".to_owned(), significant);
    let interval = |range: Option<(f64, f64)>| {
        range.map_or(String::new(), |(low, high)| format!(" [{}, {}]", significant(low), significant(high)))
    };
    let mut text = format!(
        "  {} ({}): {}{}, {}/{} over {} problems; unchanged {}",
        measured.metric,
        measured.evidence,
        number(measured.value),
        interval(measured.interval),
        significant(measured.num),
        significant(measured.den),
        measured.n,
        number(measured.unchanged)
    );
    if let Some((difference, range)) = measured.difference {
        text += &format!(", paired difference {}{}", significant(difference), interval(range));
    }
    if let Some(held) = &measured.constraint {
        text += &format!(
            "; {}, loss at most {} by these problems alone",
            if held.is_met { "within the bound" } else { "outside the bound" },
            significant(held.loss_at_most)
        );
    }
    text
}

fn missing(shortfall: &Shortfall) -> String {
    let count = |(calibration, all): (Option<u64>, Option<u64>)| match (calibration, all) {
        (Some(calibration), Some(all)) => {
            format!("{calibration} calibration problems would do, {all} in all")
        }
        _ => "no number of problems would do".to_owned(),
    };
    format!(
        "The next setting ({}) is not certified for \"{}\": {}, p = {} where {} is needed.\n  Without any loss {}; at the rate of losses seen, {}.",
        setting(&shortfall.setting),
        shortfall.constraint.words(),
        shortfall.loss.test.words(),
        p_value(shortfall.p_value),
        significant(shortfall.level),
        count((shortfall.needed_without_loss, shortfall.problems_in_all.0)),
        count((shortfall.needed_at_rate, shortfall.problems_in_all.1))
    )
}
