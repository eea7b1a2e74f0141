//! Branch trees: replay against a twin written from the specification, step functions against the replay, the laws of the families.

mod golden;
mod laws;
mod naive;
mod steps;
mod study;
mod twin;

use kvlab_sim::policy::RawParams;
use kvlab_sim::policy::compose::Part;
use kvlab_sim::trace::TraceSource;
use kvlab_sim::trace::synth::{BranchParams, SyntheticBranches};
use kvlab_sim::trees::{TreeFacts, TreeModel, TreeParts, TreeStack};
use kvlab_sim::types::ModelShape;

const VOCAB: u32 = 60;

fn shape(layers: u16) -> ModelShape {
    ModelShape { layers, q_heads: 1, kv_heads: 1, head_dim: 2, hidden: 2, vocab: VOCAB }
}

fn model(layers: u16) -> TreeModel {
    TreeModel { layers, vocab: VOCAB }
}

/// Generated problems with the facts spread widely, so that thresholds matter.
fn trees(layers: u16, seed: u64, params: BranchParams) -> Vec<TreeFacts> {
    let source = SyntheticBranches::build(shape(layers), seed, params).unwrap();
    (0..source.problems()).map(|at| TreeFacts::new(at, source.problem(at).unwrap())).collect()
}

fn some_trees(seed: u64) -> Vec<TreeFacts> {
    let params = BranchParams {
        problems: 9,
        branches: 5,
        generated: 6,
        sigma_noise: 0.08,
        prefix_tokens: 40,
        gap: 0.1,
        accuracy: 0.4,
        ..BranchParams::default()
    };
    trees(7, seed, params)
}

fn part(kind: &str, params: &serde_json::Value) -> Part {
    Part { kind: kind.to_owned(), params: RawParams::from_params(params).unwrap() }
}

/// ASKS, the two rules, the entropy exit and the published winner.
fn rksc(share: &serde_json::Value, verify: &serde_json::Value, exit: &serde_json::Value) -> TreeStack {
    TreeStack::build(&TreeParts {
        share: part("asks", share),
        verify: part("cgee", verify),
        exit: part("entropy", exit),
        ..TreeParts::default()
    })
    .unwrap()
}
