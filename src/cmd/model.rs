//! `kvlab model`: what a model is, and whether it is run right.

use super::above_0;
use super::runtime::{RuntimeArgs, model_path, tell};
use crate::exit::{CliError, Done};
use crate::output;
use crate::progress::Bars;
use kvlab_executor::parity::{CheckPlan, CheckRow, Verdict, check_model};
use kvlab_executor::setup::SetupOptions;
use kvlab_executor::{ModelCard, RopeScaling};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Look at a model's files, or check that kvlab runs it right.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Say what a model is: family, shape, rotation, storage, bytes a token, tokenizer, what can be recorded. Runs nothing.
    Inspect {
        /// GGUF file, Hugging Face folder, exported ONNX decoder, or a name (`chain`, `smollm2`)
        model: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a model in several ways and compare: with a naive pass in plain Rust, in chunks, stopped early, with evictions,
    /// and with what another implementation gave. Exit code 5 when something differs.
    Check {
        /// GGUF file, Hugging Face folder, exported ONNX decoder, or a name (`chain`, `smollm2`)
        model: String,
        /// Tokens of the probe
        #[arg(long, value_name = "N", default_value = "12", value_parser = above_0::<NonZeroUsize>)]
        tokens: NonZeroUsize,
        /// Leave the naive pass out (it takes about a second a token for a billion parameters)
        #[arg(long)]
        no_naive: bool,
        /// What another implementation gave: safetensors with input_ids, logits and, if you have them, hidden_states
        #[arg(long, value_name = "FILE")]
        expected: Option<PathBuf>,
        /// Threads within an operator [default: all cores]
        #[arg(long, value_name = "N", value_parser = above_0::<NonZeroUsize>)]
        threads: Option<NonZeroUsize>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        runtime: RuntimeArgs,
    },
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    match &args.what {
        What::Inspect { model, json } => {
            let path = model_path(model, &SetupOptions::from_env(), &Bars::default())?;
            let card = ModelCard::read(&path).map_err(|error| CliError::in_model(&path, error))?;
            if *json {
                output::json(&card)?
            } else {
                output::print(&text(&card))?
            }
            Ok(Done::All)
        }
        What::Check { model, tokens, no_naive, expected, threads, json, runtime } => {
            let mut model = runtime.load(model, *threads, &Bars::default())?;
            tell(&model);
            let plan = CheckPlan { tokens: *tokens, naive: !no_naive, expected: expected.clone() };
            let rows = check_model(&mut model, &plan)?;
            if *json {
                output::json(&rows)?
            } else {
                output::print(&rows.iter().map(line).collect::<String>())?
            }
            let failed = rows.iter().any(|row| row.verdict == Verdict::Failed);
            Ok(if failed { Done::CheckFailed } else { Done::All })
        }
    }
}

fn line(row: &CheckRow) -> String {
    let verdict = match row.verdict {
        Verdict::Ok => "ok",
        Verdict::Failed => "FAILED",
        Verdict::Skipped => "skipped",
    };
    let mut text = format!("{verdict:8} {:50}", row.what);
    if let (Some(largest), Some(tolerance)) = (row.largest, row.tolerance) {
        text += &format!(" largest difference {largest:.1e}, accepted {tolerance:.0e}");
    }
    if let Some(note) = &row.note {
        text += &format!(" {note}");
    }
    text.trim_end().to_owned() + "\n"
}

fn text(card: &ModelCard) -> String {
    let config = &card.config;
    let rope = match &config.rope_scaling {
        RopeScaling::None => "no scaling".to_owned(),
        RopeScaling::Linear { factor } => format!("linear scaling by {factor}"),
        RopeScaling::Llama3 { factor, .. } => format!("llama3 scaling by {factor}"),
        RopeScaling::Yarn { factor, original_context, .. } => {
            format!("YaRN by {factor} over {original_context} tokens")
        }
        RopeScaling::PerFrequency { .. } => "a divisor per frequency".to_owned(),
    };
    let window = config.sliding_window.map_or("all earlier tokens".to_owned(), |window| {
        format!("{} tokens from layer {} on", window.tokens, window.first_layer)
    });
    let storage: Vec<String> = card.storage.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let tokenizer =
        card.tokenizer_vocab.map_or("none: token ids only".to_owned(), |vocab| format!("{vocab} tokens"));
    let lines = [
        ("input", card.input.to_owned()),
        ("family", config.family.to_owned()),
        (
            "shape",
            format!(
                "{} layers, {} query / {} KV heads of {} channels, hidden {}, feed-forward {}, vocabulary {}{}",
                config.layers,
                config.q_heads,
                config.kv_heads,
                config.head_dim,
                config.hidden,
                config.ffn,
                config.vocab,
                if config.tied { ", tied head" } else { "" },
            ),
        ),
        ("rope", format!("base {}, {rope}", config.rope_theta)),
        ("attends to", window),
        ("parameters", format!("{:.2} million", card.parameters as f64 / 1e6)),
        (
            "weights",
            format!("{:.1} MB: tensors {}", output::megabytes(card.weight_bytes), storage.join(", ")),
        ),
        (
            "KV cache",
            format!(
                "{} bytes a token in f32 (as run here), {} in f16",
                card.kv_bytes_per_token_f32, card.kv_bytes_per_token_f16
            ),
        ),
        ("tokenizer", tokenizer),
        ("chat", if card.has_chat_template { "has a template" } else { "no template" }.to_owned()),
        ("longest", format!("{} tokens can be recorded or run under a policy", card.longest_sequence)),
        ("taps", card.taps.join(", ")),
    ];
    let note = card.note.map(|note| ("note", note.to_owned()));
    lines.into_iter().chain(note).map(|(name, value)| format!("{name:11} {value}\n")).collect()
}
