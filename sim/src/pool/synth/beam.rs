//! Beam search: at every level the best branches go on, each with several continuations. `together` problems take turns.

use super::check;
use super::tree::Tree;
use crate::pool::{BlockStream, PoolError, StreamBuilder};
use serde::{Deserialize, Serialize};

const ID: &str = "beam-trees";

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Params {
    /// Problems.
    problems: u32,
    /// Problems that take turns.
    together: u32,
    /// Branches that go on at each level.
    beam: u32,
    /// Continuations of each.
    branch: u32,
    /// Levels below the root.
    depth: u32,
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
            beam: 4,
            branch: 4,
            depth: 3,
            prompt_blocks: 16,
            segment_blocks: 4,
            block_tokens: 16,
        }
    }
}

/// One problem on its way.
struct Search {
    tree: Tree,
    /// Branches of this level that go on.
    beam: Vec<usize>,
    /// Children of this level, asked for one a turn.
    asked: Vec<usize>,
    next: usize,
    level: u32,
}

pub(super) fn stream(params: &Params, seed: u64) -> Result<BlockStream, PoolError> {
    for (what, found, high) in [
        ("problems", params.problems, 1e5),
        ("together", params.together, 1e4),
        ("beam", params.beam, 256.0),
        ("branch", params.branch, 256.0),
        ("depth", params.depth, 64.0),
        ("prompt_blocks", params.prompt_blocks, 1e5),
        ("segment_blocks", params.segment_blocks, 1e4),
        ("block_tokens", params.block_tokens, 1e6),
    ] {
        check(ID, what, found.into(), 1.0, high)?;
    }
    let mut builder = StreamBuilder::new(ID, true, params.block_tokens);
    let mut waiting = 0..params.problems;
    let mut running: Vec<Search> = Vec::new();
    loop {
        while running.len() < params.together as usize {
            let Some(problem) = waiting.next() else { break };
            let (prompt, segment) = (params.prompt_blocks, params.segment_blocks);
            let tree = Tree::new(ID, problem, prompt, segment, params.block_tokens, seed);
            tree.ask(0, &mut builder)?;
            running.push(Search { tree, beam: vec![0], asked: Vec::new(), next: 0, level: 0 });
        }
        if running.is_empty() {
            return builder.finish();
        }
        for search in &mut running {
            search.turn(params, &mut builder)?;
        }
        running.retain(|search| search.level < params.depth || search.next < search.asked.len());
    }
}

impl Search {
    /// Asks for the next branch; opens the next level when this one is done.
    fn turn(&mut self, params: &Params, builder: &mut StreamBuilder) -> Result<(), PoolError> {
        if self.next == self.asked.len() {
            let beam = std::mem::take(&mut self.beam);
            self.asked =
                beam.iter().flat_map(|&parent| std::iter::repeat_n(parent, params.branch as usize)).collect();
            for slot in &mut self.asked {
                *slot = self.tree.child(*slot);
            }
            self.next = 0;
            self.level += 1;
            let mut best = self.asked.clone();
            // The best first; of equals the earlier one.
            best.sort_by(|&a, &b| {
                self.tree.nodes[b].score.total_cmp(&self.tree.nodes[a].score).then(a.cmp(&b))
            });
            best.truncate(params.beam as usize);
            self.beam = best;
        }
        let node = self.asked[self.next];
        self.next += 1;
        self.tree.ask(node, builder)
    }
}
