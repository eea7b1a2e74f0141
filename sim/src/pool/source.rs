//! Streams from traces: requests that were imported, branches of recorded trees, or recorded prompts.

use super::{BlockStream, PoolError, StreamBuilder};
use crate::trace::{BlockIds, Prefix, Problem, TraceSource};
use crate::types::TokenId;

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
    if trace.problems() > 0 {
        let problems = (0..trace.problems()).map(|index| trace.problem(index));
        let problems = problems.collect::<Result<Vec<_>, _>>()?;
        return Ok(
            from_problems((name, trace.is_synthetic()), &problems, block_tokens)?.for_model(trace.shape(), 2)
        );
    }
    let block_tokens = block_tokens.unwrap_or(BLOCK_TOKENS).max(1);
    let mut builder = StreamBuilder::new(name, trace.is_synthetic(), block_tokens);
    let mut ids = BlockIds::default();
    for meta in trace.sequences() {
        let tokens = trace.prompt_tokens(meta.seq)?;
        builder.begin_item(&meta.item);
        builder.push(len(&tokens), &ids.of(&tokens, block_tokens), None, None, &[])?;
    }
    // Sequences belong to a model whose shape is known.
    Ok(builder.finish()?.for_model(trace.shape(), 2))
}

/// What branch trees ask for: the root and the branches of each problem, in their order, as [`from_trace`] says. `name` is that of the
/// stream, with whether it is synthetic.
///
/// # Errors
/// When there is no problem.
pub fn from_problems(
    (name, is_synthetic): (&str, bool),
    problems: &[Problem],
    block_tokens: Option<u32>,
) -> Result<BlockStream, PoolError> {
    let block_tokens = block_tokens.unwrap_or(BLOCK_TOKENS).max(1);
    let mut builder = StreamBuilder::new(name, is_synthetic, block_tokens);
    let mut ids = BlockIds::default();
    for problem in problems {
        builder.begin_item(&problem.item);
        for (branch, depth) in problem.branches.iter().zip(problem.depths()) {
            let outcome = branch.outcome(Prefix::Own).or(branch.root.as_ref());
            let score = outcome.map(|outcome| outcome.confidences.mean_top1_prob);
            let hashes = ids.of(&branch.tokens, block_tokens);
            builder.push(len(&branch.tokens), &hashes, score, Some(depth), &[])?;
        }
    }
    builder.finish()
}

fn len(tokens: &[TokenId]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}
