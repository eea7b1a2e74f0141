//! `kvlab inspect`: what a trace holds.

use crate::exit::{CliError, Done};
use crate::output;
use kvlab_sim::trace::{Trace, TraceSource};
use std::path::PathBuf;

/// Show what a trace holds: model, runtime, sequences, fields, and which studies it can serve.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Trace folder
    trace: PathBuf,
    /// Print the manifest as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<Done, CliError> {
    let trace = Trace::open(&args.trace)?;
    let manifest = trace.manifest();
    if args.json {
        output::json(manifest)?;
        return Ok(Done::All);
    }
    let shape = trace.shape();
    let has = |field: &str| manifest.fields.iter().any(|known| known.name.split('.').next() == Some(field));
    let serves = |names: &[&str]| {
        let missing: Vec<&str> = names.iter().copied().filter(|name| !has(name)).collect();
        if missing.is_empty() { "yes".to_owned() } else { format!("no, it has no {}", missing.join(", ")) }
    };
    let mut text = format!(
        "model     {} ({}), {} layers, {} query / {} KV heads of {} channels, hidden {}, vocabulary {}\n",
        manifest.model.name,
        manifest.model.family,
        shape.layers,
        shape.q_heads,
        shape.kv_heads,
        shape.head_dim,
        shape.hidden,
        shape.vocab,
    );
    match (&manifest.synthetic, &manifest.runtime) {
        (Some(synthetic), _) => {
            text += &format!("synthetic {} (seed {})\n", synthetic.generator, synthetic.seed)
        }
        (None, Some(run)) => {
            text += &format!(
                "runtime   {} {}, {}, {} threads\n",
                run.library, run.version, run.provider, run.threads
            );
        }
        (None, None) => {}
    }
    text += &format!("digest    {}\n", trace.digest());
    text += &format!(
        "fields    {}\n",
        manifest.fields.iter().map(|f| f.name.as_str()).collect::<Vec<_>>().join(", ")
    );
    text += &format!("eviction  {}\n", serves(&["q", "k", "v"]));
    text += &format!("exit      {}\n", serves(&["lens"]));
    for sequence in &manifest.sequences {
        text += &format!(
            "sequence  {} {}: {} prompt + {} generated tokens, {}\n",
            sequence.seq,
            sequence.item,
            sequence.prompt_len,
            sequence.len - sequence.prompt_len,
            sequence.finish_reason
        );
    }
    output::print(&text)?;
    Ok(Done::All)
}
