//! Block caches: the prompts of branch trees served from blocks that are really kept, beside the replay.
//!
//! Policies are the ones of the replay, and so are their decisions. What a run adds is the doing: blocks are keys and values that are stored under
//! their tokens, found again by their tokens, put together and gone on from, and taken away when the policy says so. Whatever the replay says is
//! found must be there, nothing else may be, and the model must say the same as without a cache.

use std::collections::BTreeMap;

use kvlab_sim::{
    policy::pool::Pool,
    pool::{BlockStream, Limits, PoolEvent, from_problems, replay_events},
    results::{CellRow, SourceInfo, cell_id, cells_table, series_table},
    run::pool_measures,
    scenario::{PoolPlan, Scenario, StreamChoice},
    trace::Problem,
};

use super::identity_rate;
use crate::{
    branches::{
        TreeSet,
        exec::{TreeExec, source, wanted},
        prompts, recorded,
    },
    closed_loop::{ClosedLoopError, manifest_of, run_keys},
    decode::{KvBlock, KvCache, Taps},
    error::ExecutorError,
    model::Model,
    progress::Progress,
};

/// How a cache that really holds blocks did what its replay says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolIdentity {
    /// What happened in the replay: requests served, blocks stored, blocks evicted.
    pub events: u64,
    /// Those that happened in the run: the same number of blocks found by their tokens, a block stored, a block there to be taken away.
    pub equal: u64,
    /// Prompt tokens that the model did not compute.
    pub reused_tokens: u64,
    /// Prompt tokens asked for.
    pub asked_tokens: u64,
    /// Largest difference of a logit behind a prompt, with reused blocks and computed whole.
    pub logit_error: f64,
    /// The first event that went otherwise.
    pub first: Option<String>,
}

impl PoolIdentity {
    /// Whether everything happened.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.equal == self.events && self.first.is_none()
    }

    fn count(&mut self, is_same: bool, otherwise: impl FnOnce() -> String) {
        self.events += 1;
        self.equal += u64::from(is_same);
        if !is_same && self.first.is_none() {
            self.first = Some(otherwise());
        }
    }
}

/// One policy at one capacity.
#[derive(Debug, Clone)]
pub struct PoolCellFidelity {
    /// Label of the policy.
    pub policy: String,
    /// The limit, as the scenario says it.
    pub capacity: String,
    /// How the run did; nothing where it could not be.
    pub identity: Option<PoolIdentity>,
    /// Why it could not.
    pub failure: Option<String>,
}

/// What was found.
#[derive(Debug, Clone)]
pub struct PoolFidelity {
    /// Tables: `cells` has a row of `arm = replay` and one of `arm = real` for each cell.
    pub results: kvlab_sim::results::Results,
    /// The cells, in plan order.
    pub cells: Vec<PoolCellFidelity>,
}

/// How often the problems are gone through: a second time, so that what was kept is found and policies part.
const ROUNDS: usize = 2;

/// Serves the prompts of `set`, root and branches of each problem in their order and all problems twice, from a cache that holds blocks, under every policy and capacity
/// of the scenario's `pool` section. Branch scores, which some policies rank by, come from recording each problem first.
///
/// # Errors
/// No problem, a scenario without a `pool` section over a trace, and as [`crate::branches::record_branches`].
pub fn pool_fidelity(
    model: &mut Model,
    set: &TreeSet,
    exec: &TreeExec<'_>,
    progress: &dyn Progress,
) -> Result<PoolFidelity, ExecutorError> {
    let study = pool_study(exec.scenario)?;
    let items = wanted(set, exec.scenario)?;
    let plans = exec.scenario.pool_cells();
    progress.start(&format!("serving {}", exec.scenario.id), Some((items.len() + plans.len()) as u64));
    let (mut problems, mut asked): (Vec<Problem>, Vec<Vec<u32>>) = (Vec::new(), Vec::new());
    for item in items {
        problems.push(recorded(model, item, &exec.plan)?);
        asked.extend(prompts(model, item, &exec.plan)?);
        progress.advance(1);
    }
    let mut whole = Vec::with_capacity(asked.len());
    for prompt in &asked {
        let cache = model.new_cache()?;
        whole.push(go_on(model, cache, prompt, exec)?.1);
    }
    let (problems, asked, whole) = (around(problems), around(asked), around(whole));
    let stream = from_problems((&set.name, false), &problems, study.block_tokens)
        .map_err(super::FidelityError::from)?
        .for_model(&model.shape()?, 2);
    let info = source(model, set, items, &exec.plan)?;
    let (mut replayed, mut real, mut cells) = (Vec::new(), Vec::new(), Vec::new());
    for plan in &plans {
        let policy = plan.choice.build()?;
        let of_arm = |arm| keys(exec.scenario, &info, (plan, policy.as_ref()), &stream, arm);
        let (mut row, mut run) = (of_arm("replay"), of_arm("real"));
        let cell = |identity, failure| PoolCellFidelity {
            policy: plan.choice.label.clone(),
            capacity: plan.capacity.to_string(),
            identity,
            failure,
        };
        progress.advance(1);
        let capacity_blocks = match plan.capacity.blocks(&stream) {
            Ok(blocks) => blocks,
            Err(error) => {
                row.text("status", "skipped");
                row.text("error", error.to_string());
                replayed.push(row);
                cells.push(cell(None, Some(error.to_string())));
                continue;
            }
        };
        let mut live = Live {
            model,
            exec,
            asked: &asked,
            whole: &whole,
            stream: &stream,
            kept: BTreeMap::new(),
            names: BTreeMap::new(),
            current: None,
            identity: PoolIdentity::default(),
        };
        let limits = Limits { capacity_blocks, in_flight: study.in_flight };
        let mut stopped = None;
        let counts = replay_events(&stream, policy.as_ref(), limits, |event| {
            if stopped.is_none() {
                stopped = live.happens(event).err();
            }
        });
        if let Some(error) = stopped {
            return Err(error);
        }
        let identity = live.identity;
        pool_measures(&mut row, &stream, capacity_blocks, &counts);
        identity_rate(&mut run, "pool_hit_rate", identity.reused_tokens, identity.asked_tokens);
        identity_rate(&mut run, "reproduced_rate", identity.equal, identity.events);
        run.count("pool_capacity_blocks", capacity_blocks);
        run.real("reused_logit_error", identity.logit_error);
        if let Some(first) = &identity.first {
            run.text("lint", format!("not reproduced: {first}"));
        }
        replayed.push(row);
        real.push(run);
        cells.push(cell(Some(identity), None));
    }
    progress.finish();
    replayed.extend(real);
    let results = kvlab_sim::results::Results {
        manifest: manifest_of(exec.scenario, &exec.command, info),
        cells: cells_table(&replayed)?,
        series: series_table(&[])?,
        more: Vec::new(),
    };
    Ok(PoolFidelity { results, cells })
}

/// Everything again, after all of it.
fn around<T: Clone>(once: Vec<T>) -> Vec<T> {
    vec![once; ROUNDS].concat()
}

/// The section that is run.
///
/// # Errors
/// There is none, or its requests are generated: those have no text.
pub fn pool_study(scenario: &Scenario) -> Result<&kvlab_sim::scenario::PoolStudy, ClosedLoopError> {
    let study = scenario.pool.as_ref().filter(|study| study.stream == StreamChoice::Trace);
    study.ok_or_else(|| ClosedLoopError::NoPool { scenario: scenario.id.clone() })
}

/// Feeds what the cache does not hold of a prompt; gives the cache after it, and the logits of the last token.
fn go_on(
    model: &mut Model,
    cache: KvCache,
    prompt: &[u32],
    exec: &TreeExec<'_>,
) -> Result<(KvCache, Vec<f32>), ExecutorError> {
    let held = cache.next_position() as usize;
    let mut decoder = model.decoder_with(cache);
    let pass = decoder.feed(&prompt[held..], exec.plan.chunk, Taps::NONE)?;
    let logits = decoder.last_logits(&pass)?;
    Ok((decoder.cache().clone(), logits))
}

fn keys(
    scenario: &Scenario,
    info: &SourceInfo,
    (plan, policy): (&PoolPlan<'_>, &dyn Pool),
    stream: &BlockStream,
    arm: &str,
) -> CellRow {
    let params = serde_json::json!({
        "policy": policy.params(),
        "capacity": plan.capacity.to_string(),
        "block_tokens": stream.block_tokens(),
    });
    let mut row = run_keys(scenario, info, arm, "pool");
    row.text(
        "cell",
        cell_id(&serde_json::json!({
            "source": info.digest,
            "arm": arm,
            "study": "pool",
            "policy": plan.choice.label,
            "kind": policy.spec().id,
            "params": params,
        })),
    );
    row.text("status", "ok");
    row.text("policy", plan.choice.label.clone());
    row.text("params", params.to_string());
    row
}

/// A cache at work.
struct Live<'a> {
    model: &'a mut Model,
    exec: &'a TreeExec<'a>,
    /// Prompts in tokens, `[request]`.
    asked: &'a [Vec<u32>],
    /// Logits behind each of them, computed whole.
    whole: &'a [Vec<f32>],
    stream: &'a BlockStream,
    /// Blocks by all tokens up to their ends.
    kept: BTreeMap<Vec<u32>, KvBlock>,
    /// The tokens of a block by its index in the stream.
    names: BTreeMap<u32, Vec<u32>>,
    /// Keys and values of the request that runs.
    current: Option<KvCache>,
    identity: PoolIdentity,
}

impl Live<'_> {
    fn happens(&mut self, event: PoolEvent) -> Result<(), ExecutorError> {
        let size = self.stream.block_tokens() as usize;
        match event {
            PoolEvent::Served { request, usable } => {
                let at = usize::try_from(request).unwrap_or(usize::MAX) - 1;
                let prompt = &self.asked[at];
                // A token is always computed.
                let most = prompt.len().saturating_sub(1) / size;
                let found: Vec<&KvBlock> =
                    (1..=most).map_while(|blocks| self.kept.get(&prompt[..blocks * size])).collect();
                let own = found.len();
                let cache = self.model.new_cache()?.with_blocks(&found)?;
                let (cache, logits) = go_on(self.model, cache, prompt, self.exec)?;
                let apart = logits.iter().zip(&self.whole[at]);
                let apart = apart.map(|(one, other)| f64::from((one - other).abs())).fold(0.0, f64::max);
                self.identity.logit_error = self.identity.logit_error.max(apart);
                self.identity.reused_tokens += (own * size) as u64;
                self.identity.asked_tokens += prompt.len() as u64;
                self.current = Some(cache);
                self.identity.count(own == usable, || {
                    format!("request {request}: {own} blocks found by their tokens, {usable} in the replay")
                });
            }
            PoolEvent::Stored { request, at, block } => {
                let prompt = &self.asked[usize::try_from(request).unwrap_or(usize::MAX) - 1];
                let (begin, end) = (at * size, (at + 1) * size);
                let tokens = prompt.get(..end).map(<[u32]>::to_vec);
                let cut = |(tokens, cache): (Vec<u32>, &KvCache)| {
                    let ends = [begin, end].map(|pos| u32::try_from(pos).unwrap_or(u32::MAX));
                    KvBlock::cut(cache, ends[0], ends[1]).map(|block| (tokens, block))
                };
                let made = tokens.zip(self.current.as_ref()).map(cut).transpose()?;
                let is_new = match made {
                    Some((tokens, kept)) => {
                        self.names.insert(block, tokens.clone());
                        self.kept.insert(tokens, kept).is_none()
                    }
                    None => false,
                };
                self.identity.count(is_new, || {
                    format!(
                        "request {request}: block {at} of its prompt cannot be stored, or is there already"
                    )
                });
            }
            PoolEvent::Evicted { request, block } => {
                let gone = self.names.get(&block).is_some_and(|tokens| self.kept.remove(tokens).is_some());
                self.identity.count(gone, || {
                    format!("request {request}: block {block} of the replay is to go and is not there")
                });
            }
        }
        Ok(())
    }
}
