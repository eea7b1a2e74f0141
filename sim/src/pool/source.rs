//! Streams from traces: requests that were imported, branches of recorded trees, or recorded prompts.

use super::{BlockStream, PoolError, StreamBuilder};
use crate::trace::{BlockIds, Prefix, TraceSource};

/// Tokens of a block where nothing else is asked for: as in vLLM.
const BLOCK_TOKENS: u32 = 16;

/// What a trace asks of a block cache: its requests, else the root and the branches of its trees, else the prompts of its
/// sequences, in their order. `block_tokens` can be chosen where tokens are known (16 when absent); imported requests have
/// blocks of their own size.
///
/// A branch asks for its own prompt, has its mean top-1 probability as score, and new blocks have its depth in the tree.
///
/// # Errors
/// When the trace cannot be read, asks for nothing, has ids that contradict each other, or blocks of another size.
pub fn from_trace(trace: &dyn TraceSource, block_tokens: Option<u32>) -> Result<BlockStream, PoolError> {
    let name = trace.name();
    if let Some(found) = trace.request_block_tokens() {
        if let Some(asked) = block_tokens.filter(|&asked| asked != found) {
            return Err(PoolError::BlockTokens { stream: name.to_owned(), found, asked });
        }
        let mut builder = StreamBuilder::new(name, trace.is_synthetic(), found);
        let mut refused = None;
        trace.visit_requests(&mut |_, request| {
            if refused.is_none() {
                refused = builder.push(request.input_tokens, &request.hashes, None, None, &[]).err();
            }
            Ok(())
        })?;
        return match refused {
            Some(error) => Err(error),
            None => builder.finish(),
        };
    }
    let block_tokens = block_tokens.unwrap_or(BLOCK_TOKENS).max(1);
    let mut builder = StreamBuilder::new(name, trace.is_synthetic(), block_tokens);
    let mut ids = BlockIds::default();
    let len = |tokens: &[crate::types::TokenId]| u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    if trace.problems() > 0 {
        for index in 0..trace.problems() {
            let problem = trace.problem(index)?;
            for (branch, depth) in problem.branches.iter().zip(problem.depths()) {
                let outcome = branch.outcome(Prefix::Own).or(branch.root.as_ref());
                let score = outcome.map(|outcome| outcome.confidences.mean_top1_prob);
                let hashes = ids.of(&branch.tokens, block_tokens);
                builder.push(len(&branch.tokens), &hashes, score, Some(depth), &[])?;
            }
        }
    } else {
        for meta in trace.sequences() {
            let tokens = trace.prompt_tokens(meta.seq)?;
            builder.push(len(&tokens), &ids.of(&tokens, block_tokens), None, None, &[])?;
        }
    }
    // Trees and sequences belong to a model whose shape is known.
    Ok(builder.finish()?.for_model(trace.shape(), 2))
}
