//! One cell of an eviction study as a run of the engine, for an observer that wants to see all of it.

use super::RunError;
use super::eviction::request;
use crate::engine::{self, Observer, UnitCost, Workload};
use crate::replay::{EvictionCell, LayerOutcome, SequenceOutcome, Settings, replay_layer};
use crate::scenario::{EvictionPlan, EvictionStudy};
use crate::trace::TraceSource;

/// Replays `source` through the cell `plan` and hands every record of the engine to `observer`.
///
/// # Errors
/// When the cell cannot run, the source has no tensors, or the engine refuses.
pub fn timeline(
    source: &dyn TraceSource,
    limit: Option<u32>,
    study: &EvictionStudy,
    plan: &EvictionPlan,
    observer: &mut dyn Observer,
) -> Result<(), RunError> {
    let stack = plan.stack.as_ref().map_err(|error| RunError::Policy(error.clone()))?;
    let cells = [EvictionCell { stack, seed: plan.seed.unwrap_or(0) }];
    let settings = Settings { output_error_every: 0, ..Settings::default() };
    let shape = *source.shape();
    let limit = limit.map_or(usize::MAX, |limit| limit as usize);
    let requests = source.sequences().iter().take(limit).map(|meta| {
        let outcomes = shape
            .layer_ids()
            .map(|layer| {
                let tensors = source.layer(meta.seq, layer)?;
                let mut outcomes = replay_layer(&shape, meta, layer, &tensors, &cells, settings)?;
                Ok(outcomes.pop())
            })
            .collect::<Result<Vec<Option<LayerOutcome>>, RunError>>()?;
        let outcomes: Vec<LayerOutcome> = outcomes.into_iter().flatten().collect();
        Ok(request(meta, &SequenceOutcome::of(&outcomes, meta.len, study.block_tokens)))
    });
    let workload = Workload {
        requests: requests.collect::<Result<_, RunError>>()?,
        shape,
        block_tokens: study.block_tokens,
        bytes_per_scalar: u64::from(study.bytes_per_scalar),
        capacity_blocks: None,
    };
    engine::run(&workload, &engine::Settings::default(), &UnitCost::default(), observer)?;
    Ok(())
}
