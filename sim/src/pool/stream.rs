//! What is asked of a block cache, request by request.

use super::PoolError;
use super::intern::Interner;
use crate::types::{Bytes, ModelShape};

/// No block.
pub(super) const NONE: u32 = u32::MAX;

/// One request, besides its blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Asked {
    /// Tokens of its prompt.
    pub tokens: u32,
    /// The score of its branch, in 0..=1; 1 where there is none.
    pub score: f32,
    /// Whether the tokens behind its last full block were asked for before, in front of the same blocks.
    pub tail_again: bool,
}

/// A block of the tree of all prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Node {
    /// The block before it; [`NONE`] for the first of a prompt.
    pub(super) parent: u32,
    /// Blocks before it.
    pub(super) chain: u32,
    pub(super) depth: u32,
    pub(super) attention: f32,
}

/// Requests by their blocks. Blocks have dense indices in the order of their first appearance.
#[derive(Clone, Debug)]
pub struct BlockStream {
    name: String,
    is_synthetic: bool,
    block_tokens: u32,
    block_bytes: Option<Bytes>,
    /// Empty when every request asks for one block and nothing else.
    requests: Vec<Asked>,
    /// End of each request in `blocks`; empty like `requests`.
    ends: Vec<usize>,
    blocks: Vec<u32>,
    nodes: Vec<Node>,
    distinct: u32,
    /// Problems that requests are of, in the order of their first ones, each with the place of its first request; none where requests are of no problem.
    items: Vec<(usize, String)>,
}

impl BlockStream {
    /// A stream of single blocks of `block_tokens` tokens without chains: object ids of a usual cache trace.
    ///
    /// # Errors
    /// When there are no ids, or more different ones than 32 bits can count.
    pub fn flat(
        name: &str,
        is_synthetic: bool,
        block_tokens: u32,
        ids: impl IntoIterator<Item = u64>,
    ) -> Result<Self, PoolError> {
        let mut interner = Interner::new();
        let blocks: Vec<u32> = ids.into_iter().map(|id| interner.index(id).0).collect();
        if interner.len() == NONE {
            return Err(PoolError::TooMany { what: "distinct blocks", limit: u64::from(NONE) - 1 });
        }
        if blocks.is_empty() {
            return Err(PoolError::Empty { stream: name.to_owned() });
        }
        Ok(Self {
            name: name.to_owned(),
            is_synthetic,
            block_tokens,
            block_bytes: None,
            requests: Vec::new(),
            ends: Vec::new(),
            blocks,
            nodes: Vec::new(),
            distinct: interner.len(),
            items: Vec::new(),
        })
    }

    /// Id of the problem that request `at` is of; absent where requests are of no problem.
    #[must_use]
    pub fn item(&self, at: usize) -> Option<&str> {
        let place = self.items.partition_point(|(first, _)| *first <= at).checked_sub(1)?;
        Some(&self.items[place].1)
    }

    /// Name in tables.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it was generated and not recorded.
    #[must_use]
    pub fn is_synthetic(&self) -> bool {
        self.is_synthetic
    }

    /// Tokens of a full block.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Bytes of a block, all layers and KV heads; absent when the model is not known.
    #[must_use]
    pub fn block_bytes(&self) -> Option<Bytes> {
        self.block_bytes
    }

    /// The same stream for blocks of a model of this shape, `bytes_per_scalar` bytes a stored number.
    #[must_use]
    pub fn for_model(self, shape: &ModelShape, bytes_per_scalar: u64) -> Self {
        let streams = u64::from(shape.layers) * u64::from(shape.kv_heads);
        let entry = shape.kv_bytes_per_entry(bytes_per_scalar).get();
        Self { block_bytes: Some(Bytes::new(u64::from(self.block_tokens) * streams * entry)), ..self }
    }

    /// Requests.
    #[must_use]
    pub fn len(&self) -> usize {
        if self.is_flat() { self.blocks.len() } else { self.requests.len() }
    }

    /// Whether there is no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.requests.is_empty()
    }

    /// The working set: distinct full blocks.
    #[must_use]
    pub fn distinct(&self) -> u32 {
        self.distinct
    }

    /// Whether requests are single blocks without chains.
    #[must_use]
    pub fn is_flat(&self) -> bool {
        self.requests.is_empty()
    }

    /// Full blocks asked for, over all requests.
    #[must_use]
    pub fn blocks_asked(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// All full blocks asked for, request after request.
    pub(super) fn all_blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Request `at` and the full blocks of its prompt, from the first one on.
    #[must_use]
    pub fn request(&self, at: usize) -> (Asked, &[u32]) {
        if self.is_flat() {
            let asked = Asked { tokens: self.block_tokens, score: 1.0, tail_again: false };
            return (asked, &self.blocks[at..=at]);
        }
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        (self.requests[at], &self.blocks[start..self.ends[at]])
    }

    /// Blocks of a prompt of `tokens` tokens that can be found: one token is always computed. All of a flat stream.
    #[must_use]
    pub fn usable(&self, tokens: u32) -> usize {
        if self.is_flat() { 1 } else { (tokens.saturating_sub(1) / self.block_tokens) as usize }
    }

    pub(super) fn node(&self, block: u32) -> Node {
        match self.nodes.get(block as usize) {
            Some(node) => *node,
            None => Node { parent: NONE, chain: 0, depth: 0, attention: 1.0 },
        }
    }

    /// Blocks before `block` in its prompt, and the depth of its tree node.
    #[must_use]
    pub fn place(&self, block: u32) -> (u32, u32) {
        let node = self.node(block);
        (node.chain, node.depth)
    }
}

/// Builds a stream of prompts.
#[derive(Debug)]
pub struct StreamBuilder {
    stream: BlockStream,
    interner: Interner,
    tails: Interner,
}

impl StreamBuilder {
    /// A stream that is still empty. `block_tokens` is at least 1.
    #[must_use]
    pub fn new(name: &str, is_synthetic: bool, block_tokens: u32) -> Self {
        Self {
            stream: BlockStream {
                name: name.to_owned(),
                is_synthetic,
                block_tokens: block_tokens.max(1),
                block_bytes: None,
                requests: Vec::new(),
                ends: Vec::new(),
                blocks: Vec::new(),
                nodes: Vec::new(),
                distinct: 0,
                items: Vec::new(),
            },
            interner: Interner::new(),
            tails: Interner::new(),
        }
    }

    /// Says that the requests from here on are of the problem `item`.
    pub fn begin_item(&mut self, item: &str) {
        self.stream.items.push((self.stream.requests.len(), item.to_owned()));
    }

    /// Adds a request for a prompt of `tokens` tokens. `ids` names its blocks from the first one on; the id behind the last full
    /// block, if there is one, names its short end. Blocks without an id are never found. New blocks get `depth` (their place in
    /// the prompt when it is absent) and the `attention` that stands at their place (1 when there is none).
    ///
    /// # Errors
    /// When an id stands behind another block than before, or there are more blocks than 32 bits can count.
    pub fn push(
        &mut self,
        tokens: u32,
        ids: &[u64],
        score: Option<f32>,
        depth: Option<u32>,
        attention: &[f32],
    ) -> Result<(), PoolError> {
        let request = self.stream.requests.len() as u64;
        let full = ids.len().min((tokens / self.stream.block_tokens) as usize);
        let mut parent = NONE;
        for (at, &id) in ids[..full].iter().enumerate() {
            let (block, is_new) = self.interner.index(id);
            let chain = u32::try_from(at).unwrap_or(u32::MAX);
            if is_new {
                if block == NONE - 1 {
                    return Err(PoolError::TooMany { what: "distinct blocks", limit: u64::from(NONE) - 1 });
                }
                let attention = attention.get(at).copied().unwrap_or(1.0);
                self.stream.nodes.push(Node { parent, chain, depth: depth.unwrap_or(chain), attention });
            } else {
                let before = self.stream.nodes[block as usize].parent;
                if before != parent {
                    let name =
                        |block| if block == NONE { "nothing".to_owned() } else { format!("block {block}") };
                    let (found, before) = (name(parent), name(before));
                    return Err(PoolError::Chain { request, block: at, id, found, before });
                }
            }
            self.stream.blocks.push(block);
            parent = block;
        }
        let tail_again = ids.get(full).is_some_and(|&id| !self.tails.index(id).1);
        self.stream.requests.push(Asked { tokens, score: score.unwrap_or(1.0), tail_again });
        self.stream.ends.push(self.stream.blocks.len());
        Ok(())
    }

    /// The stream.
    ///
    /// # Errors
    /// When it has no request.
    pub fn finish(self) -> Result<BlockStream, PoolError> {
        if self.stream.requests.is_empty() {
            return Err(PoolError::Empty { stream: self.stream.name });
        }
        Ok(BlockStream { distinct: self.interner.len(), ..self.stream })
    }
}
