//! Branch trees: every stack run live, and replayed over the recording of the same problems.

use kvlab_sim::{
    scenario::TreePlan,
    table::Value,
    trace::{BranchStep, Problem},
    trees::{
        Choice, ProblemDecision, TreeError, TreeFacts, TreeModel, TreeStack, full_pipeline, replay_problem,
    },
};

use super::{FidelityError, identity_rate, ulp};
use crate::{
    branches::{
        LiveProblem, TreeExec, TreeItem, TreeSet,
        exec::{FullPipeline, Rows, TreeRun, results, source, wanted},
        layers_and_vocab, recorded, solve_live,
    },
    closed_loop::study::is_of_the_cell,
    error::ExecutorError,
    model::Model,
    progress::Progress,
};

/// How many decisions of live runs over branch trees the replay reproduces.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TreeIdentity {
    /// Decisions that were compared: per branch what it shares, what it writes and how many layers verify it; per problem whether decoding was
    /// stopped, whether verification was skipped, who won and with which answer.
    pub decisions: u64,
    /// Those that are the same.
    pub equal: u64,
    /// Those of the replay that change when every recorded number moves by one unit in the last place.
    pub flipped: u64,
    /// Problems whose answer a replay cannot tell: cut texts were not recorded. Of them only sharing, texts and stops are compared.
    pub undetermined: u64,
    /// Largest difference between the run and the recording of a cosine between states, or of the verifier's probability of yes where it stopped.
    pub fact_error: f64,
    /// The first decision that is not reproduced.
    pub first: Option<TreeDifference>,
}

/// A decision about a branch tree that came out otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeDifference {
    /// Id of the problem.
    pub item: String,
    /// The branch, from 1; absent for what is decided about the whole problem.
    pub branch: Option<usize>,
    /// What was decided.
    pub what: &'static str,
    /// What the run did.
    pub live: String,
    /// What the replay does.
    pub replayed: String,
    /// The numbers behind it, live and recorded, where there are some.
    pub behind: Option<String>,
}

impl std::fmt::Display for TreeDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { item, what, live, replayed, .. } = self;
        write!(f, "problem {item}")?;
        if let Some(branch) = self.branch {
            write!(f, ", branch {branch}")?;
        }
        write!(f, ", {what}: {live} in the run, {replayed} in the replay")?;
        self.behind.as_ref().map_or(Ok(()), |behind| write!(f, " ({behind})"))
    }
}

impl TreeIdentity {
    /// Whether every decision is reproduced.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.equal == self.decisions && self.first.is_none()
    }
}

/// One cell over branch trees.
#[derive(Debug, Clone)]
pub struct TreeCellFidelity {
    /// Label of the stack.
    pub stack: String,
    /// The seed.
    pub seed: Option<u64>,
    /// How many decisions the replay reproduces; nothing where the stack did not run.
    pub identity: Option<TreeIdentity>,
    /// Why it did not.
    pub failure: Option<String>,
}

/// What was found.
#[derive(Debug, Clone)]
pub struct TreeFidelity {
    /// Tables: `cells` has a row of `arm = replay` and one of `arm = real` for each cell.
    pub results: kvlab_sim::results::Results,
    /// The cells, in plan order.
    pub cells: Vec<TreeCellFidelity>,
}

/// A cell with both of its halves.
struct Both<'p> {
    live: TreeRun<'p>,
    replayed: TreeRun<'p>,
    nudged: Vec<u16>,
    identity: TreeIdentity,
}

/// Runs and replays every stack over branch trees on every problem of `set`: each problem is recorded in memory with all its
/// counterfactuals, then solved live under each stack, and the decisions are compared one by one.
///
/// # Errors
/// As [`crate::branches::exec_trees`], and a replay that cannot be made.
pub fn tree_fidelity(
    model: &mut Model,
    set: &TreeSet,
    exec: &TreeExec<'_>,
    progress: &dyn Progress,
) -> Result<TreeFidelity, ExecutorError> {
    exec.study().map_err(ExecutorError::from)?;
    let items = wanted(set, exec.scenario)?;
    let of_model = layers_and_vocab(model);
    let plans = exec.scenario.plan(of_model.vocab).trees;
    let mut cells: Vec<Both<'_>> = plans.iter().map(Both::of).collect();
    let runnable = plans.iter().filter(|plan| plan.stack.is_ok()).count() as u64;
    progress.start(&format!("comparing {}", exec.scenario.id), Some(items.len() as u64 * (runnable + 2)));
    for (index, item) in (0..).zip(items) {
        let facts = TreeFacts::new(index, recorded(model, item, &exec.plan)?);
        progress.advance(1);
        let nudged = TreeFacts::new(index, ulp::nudged_problem(&facts.problem, index));
        let full = FullPipeline::run(model, item, &exec.plan, index)?;
        progress.advance(1);
        for cell in &mut cells {
            let Ok(stack) = &cell.live.plan.stack else { continue };
            progress.advance(1);
            if cell.live.failure.is_some() {
                continue;
            }
            let seed = cell.live.plan.seed.unwrap_or(0);
            match solve_live(model, item, &exec.plan, stack, (index, seed), &cell.live.history) {
                Ok(live) => {
                    let choice = full.choice(stack, of_model)?;
                    let replayed = Replayed { stack, model: of_model, seed };
                    cell.compare(&replayed, (&facts, &nudged), live, choice)?;
                }
                Err(error) if is_of_the_cell(&error) => {
                    cell.live.failure = Some(format!("{}: {error}", item.item));
                }
                Err(error) => return Err(error),
            }
        }
    }
    progress.finish();
    tables(model, set, items, exec, &cells)
}

/// How a stack is replayed.
struct Replayed<'a> {
    stack: &'a TreeStack,
    model: TreeModel,
    seed: u64,
}

impl Replayed<'_> {
    fn decided(&self, facts: &TreeFacts, history: &[u16]) -> Result<ProblemDecision, TreeError> {
        replay_problem(self.stack, facts, self.model, self.seed, history)
    }
}

impl<'p> Both<'p> {
    fn of(plan: &'p TreePlan) -> Self {
        Self {
            live: TreeRun::of(plan),
            replayed: TreeRun::of(plan),
            nudged: Vec::new(),
            identity: TreeIdentity::default(),
        }
    }

    /// One more problem: what the run did, what the replay does, and what it would do with other last places.
    fn compare(
        &mut self,
        replay: &Replayed<'_>,
        (facts, nudged): (&TreeFacts, &TreeFacts),
        live: LiveProblem,
        full: Choice,
    ) -> Result<(), FidelityError> {
        let decided = replay.decided(facts, &self.replayed.history)?;
        let moved = replay.decided(nudged, &self.nudged)?;
        if replay.stack.is_stateful() {
            let runs = moved.branches.iter().filter_map(|branch| branch.layers_run);
            self.nudged.extend(runs.map(|layers| layers.saturating_sub(1)));
        }
        let texts_of = |decision: &ProblemDecision| -> Result<Vec<String>, TreeError> {
            let cut = |branch: &kvlab_sim::trees::BranchDecision| {
                let outcome = facts.outcome(branch.branch, branch.sharing.prefix)?;
                let made = branch.generated as usize;
                Ok(text(&outcome.steps[..outcome.steps.len().min(made)]))
            };
            decision.branches.iter().map(cut).collect()
        };
        let compared = if decided.is_determined { Compared::Everything } else { Compared::Decoding };
        let of_replay = decisions(&decided, &texts_of(&decided)?, compared);
        let of_nudged = decisions(&moved, &texts_of(&moved)?, compared);
        let texts: Vec<String> =
            live.lived.branches.iter().map(|branch| text(&branch.outcome.steps)).collect();
        let of_run = decisions(&live.decision, &texts, compared);
        let identity = &mut self.identity;
        identity.undetermined += u64::from(!decided.is_determined);
        identity.decisions += of_run.len().max(of_replay.len()) as u64;
        identity.flipped +=
            of_replay.iter().zip(&of_nudged).filter(|(one, other)| one != other).count() as u64;
        let apart = similarity_error(&live.problem, &facts.problem);
        identity.fact_error = identity.fact_error.max(apart).max(score_error(&live.decision, &decided));
        for (run, replayed) in of_run.iter().zip(&of_replay) {
            if run == replayed {
                identity.equal += 1;
            } else if identity.first.is_none() {
                identity.first = Some(TreeDifference {
                    item: facts.problem.item.clone(),
                    branch: run.branch,
                    what: run.what,
                    live: run.value.clone(),
                    replayed: replayed.value.clone(),
                    behind: run.branch.map(|at| behind(replay.stack, at, (&live, &decided), facts)),
                });
            }
        }
        self.live.push(live.decision, full);
        let of_facts = full_pipeline(replay.stack.winner.as_ref(), facts)?;
        self.replayed.push(decided, of_facts);
        Ok(())
    }
}

/// What can be compared of a problem.
#[derive(Clone, Copy, PartialEq)]
enum Compared {
    Everything,
    /// What comes before verification.
    Decoding,
}

/// One decision, for comparison and for print.
#[derive(Debug, PartialEq)]
struct Decision {
    branch: Option<usize>,
    what: &'static str,
    value: String,
}

/// The decisions about a problem, those about branches first.
fn decisions(decision: &ProblemDecision, texts: &[String], compared: Compared) -> Vec<Decision> {
    let mut all = Vec::new();
    let count = |count: Option<u32>| count.map_or_else(|| "none".to_owned(), |count| count.to_string());
    for (branch, text) in decision.branches.iter().zip(texts) {
        let mut add = |what, value| all.push(Decision { branch: Some(branch.branch), what, value });
        let sharing = branch.sharing;
        add(
            "prefix",
            format!("the {} prefix with {} tokens reused", sharing.prefix.word(), sharing.reused_tokens),
        );
        add("text", text.clone());
        if compared == Compared::Everything {
            add("layers of verification", count(branch.layers_run.map(u32::from)));
        }
    }
    let mut add = |what, value| all.push(Decision { branch: None, what, value });
    add("steps after which decoding stops", count(decision.stopped_after));
    if compared == Compared::Everything {
        add("verification", if decision.skipped { "skipped" } else { "run" }.to_owned());
        let winner = decision.choice.winner.map_or_else(|| "none".to_owned(), |winner| winner.to_string());
        add("winner", winner);
        add("answer", decision.choice.answer.clone().unwrap_or_else(|| "none".to_owned()));
    }
    all
}

/// The tokens of a text, in print.
fn text(steps: &[BranchStep]) -> String {
    let tokens: Vec<String> = steps.iter().map(|step| step.token.get().to_string()).collect();
    format!("tokens [{}]", tokens.join(" "))
}

fn similarity_error(live: &Problem, recorded: &Problem) -> f64 {
    let pairs = live.branches.iter().zip(&recorded.branches);
    let cosines = pairs.flat_map(|(live, recorded)| live.similarity.iter().zip(&recorded.similarity));
    let apart = |one: f32, other: f32| (f64::from(one) - f64::from(other)).abs();
    cosines
        .map(|(live, recorded)| {
            apart(live.cos_last, recorded.cos_last).max(apart(live.cos_mean, recorded.cos_mean))
        })
        .fold(0.0, f64::max)
}

/// Scores of verifications that ran as many layers.
fn score_error(live: &ProblemDecision, replayed: &ProblemDecision) -> f64 {
    let pairs = live.branches.iter().zip(&replayed.branches);
    let same = pairs.filter(|(live, replayed)| live.layers_run == replayed.layers_run);
    let scores = same.filter_map(|(live, replayed)| Some((live.score?, replayed.score?)));
    scores.map(|(live, replayed)| (live - replayed).abs()).fold(0.0, f64::max)
}

/// The numbers that a decision about a branch hangs on, in the run and in the recording.
fn behind(
    stack: &TreeStack,
    branch: usize,
    (live, replayed): (&LiveProblem, &ProblemDecision),
    facts: &TreeFacts,
) -> String {
    let of = |problem: &Problem, decision: &ProblemDecision| {
        let sigma =
            stack.share.as_asks().and_then(|asks| asks.sigma(&problem.branches.get(branch)?.similarity).ok());
        let decided = decision.branches.iter().find(|decided| decided.branch == branch);
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.9}"));
        format!(
            "σ {}, confidence {}, p_yes {}",
            number(sigma),
            number(decided.map(|decided| decided.confidence)),
            number(decided.and_then(|decided| decided.score))
        )
    };
    format!("run: {}; recording: {}", of(&live.problem, &live.decision), of(&facts.problem, replayed))
}

fn tables(
    model: &Model,
    set: &TreeSet,
    items: &[TreeItem],
    exec: &TreeExec<'_>,
    cells: &[Both<'_>],
) -> Result<TreeFidelity, ExecutorError> {
    let source = source(model, set, items, &exec.plan)?;
    let rows = Rows::of(&source, exec, items, layers_and_vocab(model));
    let (mut table, mut real_rows, mut series) = (Vec::new(), Vec::new(), Vec::new());
    let mut found = Vec::new();
    for cell in cells {
        let failure = cell.live.failure.as_deref();
        let is_run = cell.live.plan.stack.is_ok() && failure.is_none();
        let mut replayed = rows.row("replay", cell.live.plan, failure);
        let mut real = rows.real(&cell.live);
        if is_run {
            rows.fill(&mut replayed, &cell.replayed.decided);
            let identity = &cell.identity;
            identity_rate(&mut real, "reproduced_rate", identity.equal, identity.decisions);
            identity_rate(&mut real, "ulp_flipped_decision_rate", identity.flipped, identity.decisions);
            real.real("fact_error", identity.fact_error);
            if let Some(first) = &identity.first {
                real.text("lint", format!("not reproduced: {first}"));
            }
            for (row, run) in [(&replayed, &cell.replayed), (&real, &cell.live)] {
                if let Value::Text(id) = row.get("cell") {
                    series.extend(rows.measures.histogram(&id, &run.decided));
                }
            }
        }
        table.push(replayed);
        real_rows.push(real);
        found.push(TreeCellFidelity {
            stack: cell.live.plan.label.clone(),
            seed: cell.live.plan.seed,
            identity: is_run.then(|| cell.identity.clone()),
            failure: match &cell.live.plan.stack {
                Ok(_) => cell.live.failure.clone(),
                Err(error) => Some(error.to_string()),
            },
        });
    }
    table.extend(real_rows);
    Ok(TreeFidelity { results: results(exec, source, &table, &series, &[])?, cells: found })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvlab_sim::policy::share::Sharing;
    use kvlab_sim::trace::{Branch, Confidences, Outcome, Prefix, Similarity, Verdict, VerdictLayer};
    use kvlab_sim::trees::{LivedBranch, LivedProblem, TreeParts};
    use kvlab_sim::types::TokenId;
    use std::collections::BTreeSet;

    const MODEL: TreeModel = TreeModel { layers: 3, vocab: 50 };

    fn step(token: u32) -> BranchStep {
        BranchStep {
            token: TokenId::new(token),
            prob: 0.75,
            top1_prob: 0.75,
            entropy_nats: 0.5,
            top20_surprise_nats: 3.0,
            uniform_kl_nats: 2.0,
            in_answer: false,
        }
    }

    fn outcome(token: u32, p_yes: f32) -> Outcome {
        let layer = VerdictLayer {
            p_yes,
            raw_p_yes: p_yes,
            entropy_nats: 1.0,
            raw_entropy_nats: 1.0,
            top1: TokenId::new(1),
            top1_prob: 0.5,
            top2_prob: 0.25,
            cos_previous: 0.9,
            js_previous_nats: 0.1,
        };
        let steps = vec![step(token), step(token + 1)];
        Outcome {
            answer: Some(token.to_string()),
            correct: Some(token == 10),
            finish_reason: "eos".to_owned(),
            generated: 2,
            confidences: Confidences::over(&steps),
            steps,
            verdict: Some(Verdict { prompt_tokens: 7, layers: vec![layer; 3] }),
        }
    }

    /// A root and two branches; the first wins by its verdict.
    fn problem() -> Problem {
        let branch = |parent, cosine: f32, own: Option<Outcome>| Branch {
            parent,
            seq: None,
            wording: 0,
            wording_level: 0,
            hint: None,
            prefix_len: 2,
            tokens: vec![TokenId::new(3), TokenId::new(4), TokenId::new(5)],
            similarity: if parent.is_some() {
                vec![Similarity { cos_last: cosine, cos_mean: cosine }; 4]
            } else {
                Vec::new()
            },
            root: own.clone(),
            own,
        };
        Problem {
            item: "p".to_owned(),
            expected_answer: Some("10".to_owned()),
            branches: vec![
                branch(None, 1.0, None),
                branch(Some(0), 0.5, Some(outcome(10, 0.9))),
                branch(Some(0), 0.5, Some(outcome(20, 0.2))),
            ],
        }
    }

    /// A run of the problem that shares nothing and verifies everything.
    fn run(layers: u16, first_token: u32) -> LiveProblem {
        let problem = problem();
        let lived = |at: usize, p_yes| {
            let token = if at == 1 { first_token } else { 20 };
            LivedBranch {
                branch: at,
                sharing: Sharing::NOTHING,
                outcome: Outcome { verdict: None, ..outcome(token, 0.5) },
                whole_tokens: 2,
                verifier_tokens: 7,
                verified: Some((layers, p_yes)),
            }
        };
        let lived = LivedProblem {
            branches: vec![lived(1, f64::from(0.9_f32)), lived(2, f64::from(0.2_f32))],
            skipped: false,
            stopped_after: None,
        };
        let stack = TreeStack::build(&TreeParts::default()).unwrap();
        let decision = lived.decided(&stack, &TreeFacts::new(0, problem.clone()), MODEL).unwrap();
        LiveProblem { problem, lived, decision }
    }

    fn compared(live: LiveProblem) -> TreeIdentity {
        let plan = TreePlan {
            label: "full".to_owned(),
            seed: None,
            swept: Vec::new(),
            stack: TreeStack::build(&TreeParts::default()),
        };
        let mut both = Both::of(&plan);
        let replay = Replayed { stack: plan.stack.as_ref().unwrap(), model: MODEL, seed: 0 };
        let facts = TreeFacts::new(0, problem());
        let nudged = TreeFacts::new(0, ulp::nudged_problem(&problem(), 0));
        both.compare(&replay, (&facts, &nudged), live, Choice::default()).unwrap();
        both.identity
    }

    #[test]
    fn a_run_that_decides_as_the_replay_is_reproduced() {
        let same = compared(run(3, 10));
        assert!(same.is_exact() && same.flipped == 0, "{same:?}");
        // Two branches with three decisions, and four about the problem.
        assert_eq!((same.decisions, same.equal, same.undetermined), (10, 10, 0));
    }

    #[test]
    fn what_came_out_otherwise_is_named_with_its_place_and_numbers() {
        let found = compared(run(2, 10));
        assert_eq!((found.decisions - found.equal, found.is_exact()), (2, false));
        let first = found.first.unwrap();
        assert_eq!((first.branch, first.what), (Some(1), "layers of verification"));
        let said = first.to_string();
        assert!(
            said.starts_with("problem p, branch 1, layers of verification: 2 in the run, 3 in the replay")
        );
        assert!(said.contains("p_yes 0.8999"), "{said}");
        // Another text, and with it another answer.
        let found = compared(run(3, 11));
        assert_eq!(found.decisions - found.equal, 2);
        assert_eq!(found.first.unwrap().what, "text");
    }

    #[test]
    fn facts_that_differ_are_measured_and_decide_nothing_by_themselves() {
        let mut live = run(3, 10);
        live.problem.branches[2].similarity[1].cos_mean = 0.25;
        let found = compared(live);
        assert!(found.is_exact());
        assert!((found.fact_error - 0.25).abs() < 1e-12);
        let mut live = run(3, 10);
        live.decision.branches[0].score = live.decision.branches[0].score.map(|score| score - 0.125);
        assert!((compared(live).fact_error - 0.125).abs() < 1e-12);
    }

    #[test]
    fn a_winner_by_a_hair_may_flip_with_the_last_place() {
        // Two branches that differ in nothing: a nudge decides which is first.
        let mut even = problem();
        even.branches[2].own = Some(outcome(20, 0.9));
        let nudged = ulp::nudged_problem(&even, 0);
        let stack = TreeStack::build(&TreeParts::default()).unwrap();
        let replay = Replayed { stack: &stack, model: MODEL, seed: 0 };
        let winners: BTreeSet<Option<usize>> = (0..20)
            .map(|index| TreeFacts::new(index, ulp::nudged_problem(&even, index)))
            .map(|facts| replay.decided(&facts, &[]).unwrap().choice.winner)
            .collect();
        assert_eq!(winners.len(), 2, "both win under some nudge");
        let prefix = Prefix::Own;
        let moved = |at: usize| nudged.branches[at].outcome(prefix).unwrap().steps[0].prob.to_bits();
        assert_eq!(moved(1).abs_diff(0.75_f32.to_bits()), 1);
    }
}
