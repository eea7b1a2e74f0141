//! `kvlab replay`: policies and thresholds from flags over a trace.

use super::sample::SampleArgs;
use super::study::{self, TableArgs};
use super::{findings, folder};
use crate::exit::{CliError, Done};
use crate::output::{self, Format, news};
use crate::progress::Bars;
use clap::builder::PossibleValuesParser;
use kvlab_sim::policy::exit::HolePolicy;
use kvlab_sim::run::Study;
use kvlab_sim::scenario::{Scenario, ScenarioError, ScenarioErrorKind};
use kvlab_sim::table::Value;
use kvlab_sim::trace::{Trace, TraceSource};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Replay a recorded trace through policies and thresholds given by flags. No model is needed.
///
/// Lists multiply: every policy at every budget and seed, every theta with every epsilon. For more, write a scenario and
/// use `kvlab sweep`.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("what").args(["policy", "theta", "pool", "share", "verify", "exit", "winner", "tau", "tau_conf", "margin"]).multiple(true).required(true))]
#[command(group = clap::ArgGroup::new("exits").args(["theta", "exit"]).multiple(true))]
#[command(
    after_help = "Examples:\n  kvlab replay kvlab-out/trace --policy snapkv,vase-attnv --budget 64,96 --seed 0,1\n  \
kvlab replay kvlab-out/trace --theta 0.5,1,2 --epsilon 0.5\n  \
kvlab replay my-trees --share asks --tau 0.8,0.9 --verify cgee --theta 2 --epsilon 0.5\n  \
kvlab replay requests --pool lru,rsbcm,belady --capacity 0.1,0.5   a cache of prompt blocks\n  kvlab list policies   shows what --policy accepts"
)]
pub(crate) struct Args {
    /// Trace folder
    trace: PathBuf,
    /// Eviction policies (compositions); `full` and `random` are always added as bounds
    #[arg(long, value_delimiter = ',', value_name = "ID,...")]
    policy: Vec<String>,
    /// C, tokens resident per layer and KV head after an eviction (K selected + B recent)
    #[arg(
        long,
        visible_alias = "kv-budget",
        requires = "policy",
        value_delimiter = ',',
        value_name = "TOKENS,...",
        default_value = "64"
    )]
    budget: Vec<u32>,
    /// B, most recent tokens always kept
    #[arg(
        long,
        visible_alias = "recent-buffer",
        requires = "policy",
        default_value_t = 16,
        value_name = "TOKENS"
    )]
    recent: u32,
    /// First tokens always kept
    #[arg(
        long,
        visible_alias = "sink-tokens",
        requires = "policy",
        default_value_t = 4,
        value_name = "TOKENS"
    )]
    sinks: u32,
    /// Eviction period [default: the recent buffer]
    #[arg(long, visible_alias = "evict-every", requires = "policy", value_name = "TOKENS")]
    period: Option<u32>,
    /// W, recent queries that attention scorers look at [default: the recent buffer]
    #[arg(long, visible_alias = "window-size", requires = "policy", value_name = "TOKENS")]
    window: Option<u32>,
    /// Branch trees: share policies, which say what branches get the root's prefix [default: asks with --tau, else off]
    #[arg(long, value_delimiter = ',', value_name = "ID,...")]
    share: Vec<String>,
    /// Branch trees: verify policies, which say when verification is skipped [default: cgee with --tau-conf or --margin, else
    /// always]
    #[arg(long, value_delimiter = ',', value_name = "ID,...")]
    verify: Vec<String>,
    /// Branch trees: exit policies of the verifier's pass [default: entropy with --theta, else never]
    #[arg(long, value_delimiter = ',', value_name = "ID,...")]
    exit: Vec<String>,
    /// Branch trees: winner policies, which say what branch answers [default: score-confidence]
    #[arg(long, value_delimiter = ',', value_name = "ID,...")]
    winner: Vec<String>,
    /// Branch trees: smallest similarity at which a branch shares (asks)
    #[arg(long, value_delimiter = ',', value_name = "SIGMA,...")]
    tau: Vec<f64>,
    /// Branch trees: smallest confidence at a skip of verification (cgee)
    #[arg(long, value_delimiter = ',', value_name = "CONFIDENCE,...")]
    tau_conf: Vec<f64>,
    /// Branch trees: smallest lead of the surest branch at a skip of verification (cgee)
    #[arg(long, value_delimiter = ',', value_name = "LEAD,...")]
    margin: Vec<f64>,
    /// Entropy below which a layer may exit, nats; on a trace without sequences, of the verifier's pass
    #[arg(long, value_delimiter = ',', value_name = "NATS,...")]
    theta: Vec<f64>,
    /// Largest entropy change between consecutive layers at exit, nats
    #[arg(long, requires = "theta", value_delimiter = ',', value_name = "NATS,...", default_value = "0.5")]
    epsilon: Vec<f64>,
    /// First zero-based layer whose entropy is looked at
    #[arg(long, default_value_t = 2, value_name = "LAYER", requires = "exits")]
    min_exit_layer: u16,
    /// What is done about keys and values that exits while decoding leave out: verify-only, copy-state, recompute or forbid
    #[arg(long, requires = "theta", value_name = "POLICY", default_value = "verify-only",
        value_parser = PossibleValuesParser::new(HolePolicy::ALL.map(HolePolicy::word)))]
    hole_policy: String,
    /// Pool policies: the trace's requests, branches or prompts are served from a cache of blocks
    #[arg(long, value_delimiter = ',', value_name = "ID,...")]
    pool: Vec<String>,
    /// What the cache may hold: blocks (512), bytes (1.5GiB) or a share of all distinct blocks (0.25, 25%)
    #[arg(long, requires = "pool", value_delimiter = ',', value_name = "AMOUNT,...", default_value = "0.5")]
    capacity: Vec<String>,
    /// Tokens of a block of the cache [default: that of the requests, or 16]
    #[arg(long, requires = "pool", value_name = "TOKENS")]
    block_tokens: Option<u32>,
    /// Requests that run at the same time and hold their blocks
    #[arg(long, requires = "pool", value_name = "N", default_value_t = 1)]
    in_flight: u32,
    /// States whose entropy is read: final-norm, or raw as in the RKSC notebook
    #[arg(
        long,
        requires = "exits",
        value_delimiter = ',',
        value_name = "LENS,...",
        default_value = "final-norm"
    )]
    lens: Vec<String>,
    /// Seeds of stochastic policies
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_value = "0",
        value_parser = clap::value_parser!(u64).range(..=study::MOST_SEED))]
    seed: Vec<u64>,
    #[command(flatten)]
    sample: SampleArgs,
    /// Worker threads; 0 for one a core. Results do not depend on it
    #[arg(long, default_value_t = 0, value_parser = study::threads)]
    threads: usize,
    /// Folder for the result tables
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    export: TableArgs,
    /// Replay twice, with all cores and with one, and compare the log digest of every cell
    #[arg(long)]
    check: bool,
    /// How the cells are printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    if let Some(out) = &args.out {
        folder::check(out)?;
    }
    let trace = Trace::open(&args.trace)?;
    refuse_idle(args)?;
    let flags = "the flags of `kvlab replay`";
    if args.hole_policy != "verify-only" && asks_for_trees(args, &trace) {
        let reason = format!(
            "--hole-policy {}: over branch trees exits belong to the verifier's pass, which nobody continues, so there are no holes to deal with",
            args.hole_policy
        );
        return Err(CliError::Invalid { path: args.trace.clone(), reason });
    }
    let scenario =
        Scenario::parse(&scenario_text(args, &trace), flags).map_err(|error| typed(args, error))?;
    let scenario = args.sample.on(scenario, Path::new(flags))?;
    findings::tell(&Study::of(&scenario, &trace, study::info(&trace))?, args.threads)?;
    let bars = Bars::default();
    let command = study::command_line();
    let results = study::run(&scenario, &trace, args.threads, command.clone(), &bars)?;
    if let Some(out) = &args.out {
        study::write(&results, out, args.export)?;
    }
    output::table(&results.cells, study::SHOWN, args.format)?;
    if args.check {
        let again = study::run(&scenario, &trace, 1, command, &bars)?;
        for row in 0..results.cells.rows() {
            let (first, second) =
                (results.cells.value("log_digest", row), again.cells.value("log_digest", row));
            if first != second {
                if let Value::Text(cell) = results.cells.value("cell", row) {
                    news(&format!("check failed: cell {cell} has digest {first:?}, then {second:?}"));
                }
                return Ok(Done::CheckFailed);
            }
        }
        news(&format!(
            "check passed: {} cells, equal digests with all threads and with one",
            results.cells.rows()
        ));
    }
    Ok(study::outcome(&results))
}

/// The error about a policy, in words that were typed: those of `full` and `random`, which nobody asked for, are left to the policies that
/// were asked for.
fn typed(args: &Args, error: ScenarioError) -> ScenarioError {
    let ScenarioError { file, kind } = error;
    let own = |id: &str| {
        let alone = scenario_of(args, &[id.to_owned()]);
        Scenario::parse(&alone, &file).err().map(|error| (id.to_owned(), error.kind))
    };
    match *kind {
        ScenarioErrorKind::Policy { source, .. } => {
            let (id, kind) = args.policy.iter().find_map(|id| own(id)).unzip();
            let source = match kind.map(|kind| *kind) {
                Some(ScenarioErrorKind::Policy { source, .. }) => source,
                _ => source,
            };
            let path = id.map_or("`random`, which is always added".to_owned(), |id| format!("--policy {id}"));
            ScenarioError { file, kind: Box::new(ScenarioErrorKind::Policy { path, source }) }
        }
        kind => ScenarioError { file, kind: Box::new(kind) },
    }
}

/// Refuses thresholds that none of the policies named has: they would be swept and change nothing.
fn refuse_idle(args: &Args) -> Result<(), CliError> {
    let has = |named: &[String], id: &str| named.is_empty() || named.iter().any(|given| given == id);
    let (asks, cgee) = (has(&args.share, "asks"), has(&args.verify, "cgee"));
    let exits = args.exit.is_empty() || args.exit.iter().any(|exit| has_lens(exit));
    for (flag, is_given, has_use, of) in [
        ("--tau", !args.tau.is_empty(), asks, "--share asks"),
        ("--tau-conf", !args.tau_conf.is_empty(), cgee, "--verify cgee"),
        ("--margin", !args.margin.is_empty(), cgee, "--verify cgee"),
        ("--theta", !args.theta.is_empty(), exits, "--exit entropy or entropy-adaptive"),
    ] {
        if is_given && !has_use {
            let reason = format!("none of the policies named has it; it is of {of}");
            return Err(CliError::Usage { flag, reason });
        }
    }
    Ok(())
}

/// Whether an exit policy reads the lens, by threshold.
fn has_lens(exit: &str) -> bool {
    matches!(exit, "entropy" | "entropy-adaptive")
}

/// The `eviction` section of the flags, with these policies.
fn eviction_text(args: &Args, policies: &[String]) -> String {
    let amounts: Vec<String> = args.budget.iter().map(u32::to_string).collect();
    let mut text = format!(
        "eviction:\n  budgets: [{}]\n  recent: {}\n  sinks: {}\n",
        amounts.join(", "),
        args.recent,
        args.sinks
    );
    // Writing to a string cannot fail.
    let mut line = |content: String| writeln!(text, "{content}").unwrap_or_default();
    if let Some(period) = args.period {
        line(format!("  period: {period}"));
    }
    if let Some(window) = args.window {
        line(format!("  window: {window}"));
    }
    line("  policies:".to_owned());
    policies.iter().for_each(|id| line(format!("    - use: {}", yaml_string(id))));
    text
}

/// A scenario with these policies and nothing else of the flags.
fn scenario_of(args: &Args, policies: &[String]) -> String {
    format!("id: replay\nwhy: Do the policies fit?\n{}", eviction_text(args, policies))
}

/// The flags as a scenario: one language for everything.
fn scenario_text(args: &Args, trace: &Trace) -> String {
    let list = |values: &[String]| format!("[{}]", values.join(", "));
    let numbers = |values: &[f64]| list(&values.iter().copied().map(yaml_number).collect::<Vec<_>>());
    let mut text = String::from(
        "id: replay\nwhy: What do the policies and thresholds given by flags do on this trace?\n",
    );
    let seeds: Vec<String> = args.seed.iter().map(u64::to_string).collect();
    // Writing to a string cannot fail.
    let mut line = |content: String| writeln!(text, "{content}").unwrap_or_default();
    line(format!("seeds: {}", list(&seeds)));
    if !args.policy.is_empty() {
        let mut policies = vec!["full".to_owned(), "random".to_owned()];
        policies.extend(args.policy.iter().filter(|id| *id != "full" && *id != "random").cloned());
        line(eviction_text(args, &policies));
    }
    let for_trees = asks_for_trees(args, trace);
    if for_trees {
        line(trees_text(args));
    } else if !args.theta.is_empty() {
        line(format!(
            "exit:\n  lens: {}\n  theta: {}\n  epsilon: {}\n  min_layer: {}\n  hole_policy: {}",
            list(&args.lens),
            numbers(&args.theta),
            numbers(&args.epsilon),
            args.min_exit_layer,
            yaml_string(&args.hole_policy)
        ));
    }
    if !args.pool.is_empty() {
        let texts =
            |values: &[String]| list(&values.iter().map(|text| yaml_string(text)).collect::<Vec<_>>());
        line(format!("pool:\n  capacities: {}\n  in_flight: {}", texts(&args.capacity), args.in_flight));
        if let Some(tokens) = args.block_tokens {
            line(format!("  block_tokens: {tokens}"));
        }
        line("  policies:".to_owned());
        args.pool.iter().for_each(|id| line(format!("    - use: {}", yaml_string(id))));
    }
    text
}

/// Whether the flags are about branch trees: θ alone is when there is nothing else in the trace.
fn asks_for_trees(args: &Args, trace: &Trace) -> bool {
    let ids = [&args.share, &args.verify, &args.exit, &args.winner];
    let numbers = [&args.tau, &args.tau_conf, &args.margin];
    ids.iter().any(|given| !given.is_empty())
        || numbers.iter().any(|given| !given.is_empty())
        || (!args.theta.is_empty() && trace.problems() > 0 && trace.sequences().is_empty())
}

/// The `trees` section: every combination of the policies named, with the thresholds that each of them has.
fn trees_text(args: &Args) -> String {
    let or = |given: &[String], default: &str| {
        if given.is_empty() { vec![default.to_owned()] } else { given.to_vec() }
    };
    let shares = or(&args.share, if args.tau.is_empty() { "off" } else { "asks" });
    let has_rules = !args.tau_conf.is_empty() || !args.margin.is_empty();
    let verifies = or(&args.verify, if has_rules { "cgee" } else { "always" });
    let exits = or(&args.exit, if args.theta.is_empty() { "never" } else { "entropy" });
    let winners = or(&args.winner, "score-confidence");
    let mut text = String::from("trees:\n  stacks:");
    let numbers = |values: &[f64]| {
        let values: Vec<String> = values.iter().copied().map(yaml_number).collect();
        format!("[{}]", values.join(", "))
    };
    for share in &shares {
        for verify in &verifies {
            for exit in &exits {
                let has_lens = has_lens(exit);
                let lenses: &[String] = if has_lens { &args.lens } else { &args.lens[..1] };
                for (winner, lens) in
                    winners.iter().flat_map(|winner| lenses.iter().map(move |lens| (winner, lens)))
                {
                    let mut sweep = Vec::new();
                    let mut add = |is_there: bool, key: &str, values: &[f64]| {
                        if is_there && !values.is_empty() {
                            sweep.push(format!("{key}: {}", numbers(values)));
                        }
                    };
                    add(share == "asks", "share.tau", &args.tau);
                    add(verify == "cgee", "verify.tau_conf", &args.tau_conf);
                    add(verify == "cgee", "verify.margin", &args.margin);
                    add(has_lens, "exit.theta", &args.theta);
                    add(has_lens && !args.theta.is_empty(), "exit.epsilon", &args.epsilon);
                    let params = if has_lens {
                        format!(
                            ", params: {{min_layer: {}, lens: {}}}",
                            args.min_exit_layer,
                            yaml_string(lens)
                        )
                    } else {
                        String::new()
                    };
                    let label = if has_lens && args.lens.len() > 1 {
                        format!("{share} + {verify} + {exit} {lens} + {winner}")
                    } else {
                        format!("{share} + {verify} + {exit} + {winner}")
                    };
                    let part = |id: &str| format!("{{kind: {}}}", yaml_string(id));
                    write!(
                        text,
                        "\n    - label: {}\n      share: {}\n      verify: {}\n      exit: {{kind: {}{params}}}\n      winner: {}\n      sweep: {{{}}}",
                        yaml_string(&label),
                        part(share),
                        part(verify),
                        yaml_string(exit),
                        part(winner),
                        sweep.join(", ")
                    )
                    .unwrap_or_default();
                }
            }
        }
    }
    text
}

/// YAML spells what is no finite number in its own way; the scenario's checks refuse it.
fn yaml_number(number: f64) -> String {
    if number.is_finite() {
        number.to_string()
    } else {
        format!(".{number}").to_lowercase().replace(".-", "-.")
    }
}

/// A JSON string is a YAML string.
fn yaml_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
