//! Monte Carlo tree search: each walk goes down from the root to the most promising child, counting what was visited rarely as
//! promising, adds a node, and comes back. `together` problems take turns.

use super::check;
use super::tree::Tree;
use crate::num;
use crate::pool::{BlockStream, PoolError, StreamBuilder};
use serde::{Deserialize, Serialize};

const ID: &str = "mcts-trees";

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Params {
    /// Problems.
    problems: u32,
    /// Problems that take turns.
    together: u32,
    /// Walks of a problem.
    walks: u32,
    /// Most children of a node.
    branch: u32,
    /// Most levels below the root.
    depth: u32,
    /// Weight of what was visited rarely (UCT).
    exploration: f32,
    /// Blocks of the root's prompt.
    prompt_blocks: u32,
    /// Blocks that a node adds.
    segment_blocks: u32,
    /// Tokens of a block.
    block_tokens: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            problems: 40,
            together: 4,
            walks: 48,
            branch: 4,
            depth: 6,
            exploration: 0.5,
            prompt_blocks: 16,
            segment_blocks: 4,
            block_tokens: 16,
        }
    }
}

pub(super) fn stream(params: &Params, seed: u64) -> Result<BlockStream, PoolError> {
    for (what, found, high) in [
        ("problems", params.problems, 1e5),
        ("together", params.together, 1e4),
        ("walks", params.walks, 1e5),
        ("branch", params.branch, 256.0),
        ("depth", params.depth, 64.0),
        ("prompt_blocks", params.prompt_blocks, 1e5),
        ("segment_blocks", params.segment_blocks, 1e4),
        ("block_tokens", params.block_tokens, 1e6),
    ] {
        check(ID, what, found.into(), 1.0, high)?;
    }
    check(ID, "exploration", params.exploration.into(), 0.0, 100.0)?;
    let mut builder = StreamBuilder::new(ID, true, params.block_tokens);
    let mut waiting = 0..params.problems;
    let mut running: Vec<(Tree, u32)> = Vec::new();
    loop {
        while running.len() < params.together as usize {
            let Some(problem) = waiting.next() else { break };
            let (prompt, segment) = (params.prompt_blocks, params.segment_blocks);
            let tree = Tree::new(ID, problem, prompt, segment, params.block_tokens, seed);
            tree.ask(0, &mut builder)?;
            running.push((tree, 0));
        }
        if running.is_empty() {
            return builder.finish();
        }
        for (tree, walks) in &mut running {
            let reached = walk(tree, params);
            tree.ask(reached, &mut builder)?;
            *walks += 1;
        }
        running.retain(|(_, walks)| *walks < params.walks);
    }
}

/// Goes down, adds a node where there is room, and gives where the walk ended.
fn walk(tree: &mut Tree, params: &Params) -> usize {
    let mut at = 0;
    loop {
        tree.nodes[at].visits += 1;
        if tree.nodes[at].depth >= params.depth {
            return at;
        }
        if tree.nodes[at].children.len() < params.branch as usize {
            at = tree.child(at);
            tree.nodes[at].visits += 1;
            return at;
        }
        at = best(tree, at, params.exploration);
    }
}

/// The child with the largest score plus bonus; of equals the earlier one.
#[expect(clippy::cast_possible_truncation, reason = "binary32 is enough")]
fn best(tree: &Tree, parent: usize, exploration: f32) -> usize {
    let total = num::ln(f64::from(tree.nodes[parent].visits.max(1))) as f32;
    let value = |&child: &usize| {
        let visits = f64::from(tree.nodes[child].visits.max(1)) as f32;
        tree.nodes[child].score + exploration * (total / visits).sqrt()
    };
    let children = &tree.nodes[parent].children;
    let mut best = children[0];
    for child in &children[1..] {
        if value(child) > value(&best) {
            best = *child;
        }
    }
    best
}
