//! A score policy of your own: the laws that it must keep, and what it does on a generated trace.
//!
//! ```text
//! cargo run --example own_policy
//! ```
//!
//! A score policy says what a resident token is worth; the stack around it protects sinks and recent tokens, keeps to the
//! budget and breaks ties. To ship one with kvlab, give it a file under `sim/src/policy/score/` with a `SPEC`, an `ENTRY` and
//! `Params`, and one line in `sim/src/policy/registry.rs`: scenarios, lists and the test suite then know it.

use kvlab_sim::contract::{Options, Subject, check};
use kvlab_sim::policy::compose::{Knobs, Part, Stack, StackSpec};
use kvlab_sim::policy::score::Score;
use kvlab_sim::policy::{
    Draws, Family, HeadView, Law, Needs, PolicyError, PolicySpec, Randomness, RawParams, registry,
};
use kvlab_sim::replay::{EvictionCell, Settings, replay_layer};
use kvlab_sim::trace::TraceSource;
use kvlab_sim::trace::synth::{SynthLength, SynthSpec, Synthetic};
use kvlab_sim::types::ModelShape;

/// Keeps tokens whose key and value are far apart: a toy, but a complete one.
#[derive(Debug)]
struct KeyValueGap;

const SPEC: PolicySpec = PolicySpec {
    id: "key-value-gap",
    family: Family::Score,
    summary: "tokens whose key and value are far apart are worth more",
    citation: "-",
    // What is read must be declared: the contract watches.
    needs: Needs::KV,
    randomness: Randomness::Deterministic,
    // What is claimed is tested.
    laws: &[Law::Stack, Law::HeadSymmetric],
};

impl Score for KeyValueGap {
    fn spec(&self) -> &'static PolicySpec {
        &SPEC
    }

    fn score(&self, view: &HeadView<'_>, _draws: &Draws, out: &mut Vec<f32>) -> Result<(), PolicyError> {
        out.clear();
        out.extend(view.scored().iter().map(|&pos| {
            let (key, value) = (view.data.key(pos), view.data.value(pos));
            key.iter().zip(value).map(|(k, v)| (k - v) * (k - v)).sum::<f32>()
        }));
        Ok(())
    }

    fn params(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}

/// The policy under the periodic driver. Its score need not be registered.
fn stack(knobs: &Knobs) -> Result<Stack, PolicyError> {
    let spec = StackSpec::periodic(SPEC.id, *knobs, Part::plain(SPEC.id))?;
    Stack::with_score(spec, Box::new(KeyValueGap))
}

#[expect(clippy::print_stdout, reason = "an example prints")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let report = check(&Subject::new(SPEC.id, stack), Options::default());
    println!("{report}");
    if !report.is_clean() {
        return Err("the policy breaks a law".into());
    }

    let shape = ModelShape { layers: 2, q_heads: 4, kv_heads: 2, head_dim: 16, hidden: 32, vocab: 100 };
    let lengths = vec![SynthLength { prompt_len: 64, len: 192 }];
    let trace = Synthetic::build("sinks-and-hitters", SynthSpec { shape, lengths, seed: 1 })?;
    let knobs = Knobs { capacity: 48, recent: 16, sinks: 4, period: 16, window: 16 };
    let rival = |id: &str| registry::composition(id)?.stack(&knobs, &RawParams::default());
    let stacks = [stack(&knobs)?, rival("random")?, rival("snapkv")?, rival("oracle")?];
    let cells: Vec<EvictionCell<'_>> = stacks.iter().map(|stack| EvictionCell { stack, seed: 0 }).collect();

    let mut recalls = vec![0.0; cells.len()];
    let mut terms = 0.0;
    for meta in trace.sequences() {
        for layer in shape.layer_ids() {
            let tensors = trace.layer(meta.seq, layer)?;
            let settings = Settings { output_error_every: 0, ..Settings::default() };
            let outcomes = replay_layer(&shape, meta, layer, &tensors, &cells, settings)?;
            terms += f64::from(meta.len - meta.prompt_len) * f64::from(shape.q_heads);
            for (recall, outcome) in recalls.iter_mut().zip(outcomes) {
                *recall += outcome.recall.iter().sum::<f64>();
            }
        }
    }
    println!("attention-mass recall at {} of 192 tokens (synthetic data):", knobs.capacity);
    for (stack, recall) in stacks.iter().zip(recalls) {
        println!("  {:<14} {:.3}", stack.label(), recall / terms);
    }
    Ok(())
}
