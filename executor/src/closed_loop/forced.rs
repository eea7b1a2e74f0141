//! Teacher-forced running: the tokens of another run under a policy, with the next-token distribution compared at each.

use serde::{Deserialize, Serialize};

use super::{
    divergence::{divergence_nats, log_normaliser},
    outcome::Footprint,
    run::LiveRun,
};
use crate::{decode::greedy, error::ExecutorError, journal::hex};

/// How far a policy's next-token distributions are from those of the full cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForcedRun {
    /// KL(full || policy) in nats after each fed token but the last, `[step]`.
    #[serde(with = "hex::bits")]
    pub divergences: Vec<f64>,
    /// At how many of these the most probable token is the same.
    pub agreements: u64,
    /// What the run held and evicted.
    pub footprint: Footprint,
}

/// Feeds `tokens` and compares the logits after each but the last with `full`, `[step][vocab]`. Without `full`, or where it is
/// shorter, tokens are fed and nothing is compared.
///
/// # Errors
/// As [`LiveRun::step`], and logits that are no distribution.
pub fn force(
    mut run: LiveRun<'_, '_>,
    tokens: &[u32],
    full: &[Vec<f32>],
) -> Result<ForcedRun, ExecutorError> {
    let (divergences, agreements) = feed(&mut run, tokens, full)?;
    Ok(ForcedRun { divergences, agreements, footprint: run.finish() })
}

/// The steps of [`force`]: divergences and agreements.
pub(crate) fn feed(
    run: &mut LiveRun<'_, '_>,
    tokens: &[u32],
    full: &[Vec<f32>],
) -> Result<(Vec<f64>, u64), ExecutorError> {
    let mut divergences = Vec::new();
    let mut agreements = 0;
    for (step, token) in tokens.iter().enumerate() {
        let logits = run.step(*token)?;
        let Some(full) = full.get(step).filter(|_| step + 1 < tokens.len()) else {
            continue;
        };
        let normalisers = (log_normaliser(full)?, log_normaliser(&logits)?);
        divergences.push(divergence_nats(full, &logits, normalisers));
        agreements += u64::from(greedy(full) == greedy(&logits));
    }
    Ok((divergences, agreements))
}
