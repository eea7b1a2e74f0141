//! The sessions and tables that run a model: one session per layer, one for the output head, the embedding, the frequencies.

use std::sync::Arc;

use crate::{
    decode::{Head, NewHead},
    device::Memory,
    error::ExecutorError,
    family::DecoderConfig,
    graph::{AttentionOutput, head_graph, layer_graph},
    model::LoadOptions,
    progress::Progress,
    rope::Rope,
    runtime::{Crossed, Runtime, Session, Traffic},
    setup::sha256_of_bytes,
    weights::WeightSource,
};

/// The sessions and tables that run a model.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) config: DecoderConfig,
    pub(crate) rope: Rope,
    pub(crate) layers: Vec<Session>,
    /// Where what layers store and pass on lies.
    pub(crate) memory: Memory,
    pub(crate) head: Head,
    pub(crate) gives_attention: bool,
    traffic: Arc<Traffic>,
    /// `[vocab, hidden]`
    embedding: Vec<f32>,
    /// SHA-256 over the digests of both graphs.
    pub(crate) graph_sha256: String,
}

impl Engine {
    pub(crate) fn build(
        config: &DecoderConfig,
        weights: &dyn WeightSource,
        runtime: &Runtime,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Self, ExecutorError> {
        progress.start("loading the model", Some(config.layers as u64 + 1));
        let attention = if options.attention { AttentionOutput::Given } else { AttentionOutput::Hidden };
        let memory = Memory::new(options.cache, runtime, config)?;
        let mut layers = Vec::with_capacity(config.layers);
        let mut layer_graph_sha256 = String::new();
        for layer in 0..config.layers {
            let graph = layer_graph(config, &weights.layer(layer)?, attention, memory.residence());
            if layer == 0 {
                layer_graph_sha256 = sha256_of_bytes(&graph.model);
            }
            layers.push(runtime.session(graph)?);
            progress.advance(1);
        }
        let embedding = weights.embedding()?;
        let own_head = weights.head()?;
        let graph = head_graph(config, own_head.as_ref().unwrap_or(&embedding));
        let digests = layer_graph_sha256 + &sha256_of_bytes(&graph.model);
        let graph_sha256 = sha256_of_bytes(digests.as_bytes());
        let head = Head::new(NewHead {
            session: runtime.session(graph)?,
            final_norm: weights.final_norm()?,
            rms_eps: config.rms_eps,
            vocab: config.vocab,
            threads: options.threads,
        });
        progress.advance(1);
        progress.finish();
        let traffic = Arc::clone(runtime.traffic());
        let (config, rope, gives_attention) = (config.clone(), Rope::new(config), options.attention);
        Ok(Self { config, rope, layers, memory, head, gives_attention, traffic, embedding, graph_sha256 })
    }

    /// Bytes that crossed between the host and the sessions.
    pub(crate) fn crossed(&self) -> Crossed {
        self.traffic.crossed()
    }

    /// Rows of the embedding, `[q_pos, hidden]`. Tokens were checked before.
    pub(crate) fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        let width = self.config.hidden;
        tokens.iter().flat_map(|token| &self.embedding[*token as usize * width..][..width]).copied().collect()
    }
}
