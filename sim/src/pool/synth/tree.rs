//! What the generated trees share: nodes that own blocks, with scores, and prompts along their paths.

use crate::pool::{PoolError, StreamBuilder};
use crate::rng::{Purpose, Stream, StreamKey};

/// A node of a problem's tree.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Edges to the root.
    pub(super) depth: u32,
    /// How promising it looks, in 0..=1.
    pub(super) score: f32,
    /// Ids of all blocks from the root's first to its own last.
    path: Vec<u64>,
    /// Attention mass on each of them.
    attention: Vec<f32>,
    pub(super) children: Vec<usize>,
    pub(super) visits: u32,
}

/// A problem and its tree. Node 0 is the root.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    /// Blocks a node adds.
    segment_blocks: u32,
    block_tokens: u32,
    next_id: u64,
    pub(super) draws: Stream,
}

impl Tree {
    /// A tree with a root of `prompt_blocks` blocks.
    pub(super) fn new(
        id: &str,
        problem: u32,
        prompt_blocks: u32,
        segment_blocks: u32,
        block_tokens: u32,
        seed: u64,
    ) -> Self {
        let draws = StreamKey { seq: problem, ..StreamKey::new(seed, Purpose::Workload, id) }.stream();
        let mut tree = Self {
            nodes: Vec::new(),
            segment_blocks,
            block_tokens,
            // Problems have nothing in common.
            next_id: u64::from(problem) << 32,
            draws,
        };
        let (path, attention) = tree.grow(&[], &[], prompt_blocks);
        let root = Node { depth: 0, score: 0.5, path, attention, children: Vec::new(), visits: 0 };
        tree.nodes.push(root);
        tree
    }

    fn grow(&mut self, path: &[u64], attention: &[f32], blocks: u32) -> (Vec<u64>, Vec<f32>) {
        let (mut path, mut attention) = (path.to_vec(), attention.to_vec());
        for _ in 0..blocks {
            path.push(self.next_id);
            self.next_id += 1;
            attention.push(self.unit().max(0.01));
        }
        (path, attention)
    }

    #[expect(clippy::cast_possible_truncation, reason = "binary32 is enough")]
    pub(super) fn unit(&mut self) -> f32 {
        self.draws.uniform() as f32
    }

    /// A new child of `parent`, whose score is near its parent's.
    pub(super) fn child(&mut self, parent: usize) -> usize {
        let step = self.unit() - 0.5;
        let (depth, score) = (self.nodes[parent].depth + 1, self.nodes[parent].score);
        let (path, attention) = (self.nodes[parent].path.clone(), self.nodes[parent].attention.clone());
        let (path, attention) = self.grow(&path, &attention, self.segment_blocks);
        let score = (score + 0.6 * step).clamp(0.01, 0.99);
        self.nodes.push(Node { depth, score, path, attention, children: Vec::new(), visits: 0 });
        let at = self.nodes.len() - 1;
        self.nodes[parent].children.push(at);
        at
    }

    /// Asks for the prompt that ends with a node, and one more token: all of its blocks can be found.
    pub(super) fn ask(&self, node: usize, builder: &mut StreamBuilder) -> Result<(), PoolError> {
        let Node { depth, score, path, attention, .. } = &self.nodes[node];
        let blocks = u32::try_from(path.len()).unwrap_or(u32::MAX);
        let tokens = blocks.saturating_mul(self.block_tokens).saturating_add(1);
        builder.push(tokens, path, Some(*score), Some(*depth), attention)
    }
}
