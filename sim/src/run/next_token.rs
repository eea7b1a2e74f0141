//! The next-token effect of the cells of a study, at the sampled steps of each sequence.

use super::RunError;
use super::context::Context;
use crate::policy::PolicyError;
use crate::replay::{NextTokenEffect, NextTokenHead, SequenceOutcome};
use crate::scenario::EvictionStudy;
use crate::trace::{SequenceMeta, TraceError};
use crate::types::LayerIdx;
use rayon::prelude::*;

/// Where the study does not say, the smallest multiple of the output-error step from here on.
const USUAL_STEP: u32 = 32;

/// The head of the model, and every how many decode steps it is used; nothing where the trace does not hold what it takes.
///
/// # Errors
/// When the study asks for it by number and the trace does not hold what it takes.
pub(super) fn head(
    context: &Context<'_>,
    study: &EvictionStudy,
) -> Result<Option<(NextTokenHead, u32)>, RunError> {
    let usual = match study.output_error_every {
        0 => 0,
        every => USUAL_STEP.div_ceil(every) * every,
    };
    let every = study.next_token_every.unwrap_or(usual);
    if every == 0 {
        return Ok(None);
    }
    match needed(context) {
        Ok(head) => Ok(Some((head, every))),
        Err(TraceError::MissingField { .. }) if study.next_token_every.is_none() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn needed(context: &Context<'_>) -> Result<NextTokenHead, TraceError> {
    context.source.w_o(LayerIdx::new(0))?;
    if let Some(first) = context.sequences.first() {
        context.source.last_hidden(first.seq)?;
    }
    NextTokenHead::of(context.source)
}

/// Turns the changes of the residual stream of one sequence into effects, for every cell, and lets go of the changes.
pub(super) fn apply(
    context: &Context<'_>,
    meta: &SequenceMeta,
    head: &NextTokenHead,
    every: u32,
    outcomes: &mut [Result<SequenceOutcome, PolicyError>],
) -> Result<(), RunError> {
    let hidden = context.source.last_hidden(meta.seq)?;
    let steps: Vec<u32> = (0..meta.len - meta.prompt_len).filter(|step| step.is_multiple_of(every)).collect();
    let effects: Vec<Vec<Option<NextTokenEffect>>> = steps
        .par_iter()
        .map(|&step| {
            let pos = (meta.prompt_len + step) as usize;
            let state = hidden.row(pos).to_vec();
            // A cell that could not decide has no sample at all.
            let changes: Vec<Option<&[f32]>> = outcomes
                .iter()
                .map(|outcome| {
                    let samples = &outcome.as_ref().ok()?.projected;
                    samples.iter().find(|sample| sample.step == step).map(|sample| sample.delta.as_slice())
                })
                .collect();
            let given: Vec<&[f32]> = changes.iter().flatten().copied().collect();
            let mut found = head.effects(&state, &given)?.into_iter();
            Ok(changes.iter().map(|change| change.and_then(|_| found.next())).collect())
        })
        .collect::<Result<_, RunError>>()?;
    for (at, outcome) in outcomes.iter_mut().enumerate() {
        if let Ok(outcome) = outcome {
            outcome.next_token = effects.iter().filter_map(|by_cell| by_cell[at]).collect();
            outcome.projected.iter_mut().for_each(|sample| sample.delta = Vec::new());
        }
    }
    Ok(())
}
