//! From recorded problems to what a step table needs of them.

use super::StepTable;
use super::problem::{Composition, ExitPoint, ExitPoints, ProblemFacts, Said, Verdict};
use crate::policy::PolicyError;
use crate::policy::exit::{ExitView, LayerFacts, Lens, entropy};
use crate::policy::share::{ShareView, Sharing, asks};
use crate::policy::verify::VerifyView;
use crate::policy::verify::cgee::Lead;
use crate::trace::{Outcome, Prefix};
use crate::trees::{TreeError, TreeFacts, TreeModel, TreeStack, confidences, full_pipeline, prompt_work};
use rayon::prelude::*;

impl<'a> StepTable<'a> {
    /// The table of a stack over recorded problems. The stack's own thresholds do not matter, everything else about it does.
    ///
    /// # Errors
    /// When the trace lacks what the stack or the full pipeline looks at, or the stack is no function of one problem: a decode-level exit,
    /// a policy that draws, or one that remembers earlier problems.
    pub fn build(trees: &[TreeFacts], stack: &'a TreeStack, model: TreeModel) -> Result<Self, TreeError> {
        if stack.decode_exit.is_some() || stack.is_random() || stack.is_stateful() {
            let reason =
                "step functions need a stack that decides about a problem by its recorded facts alone: no \
                          decode-level exit, no draws, no memory"
                    .to_owned();
            let source = PolicyError::Refused { policy: stack.exit.spec().id, reason };
            return Err(TreeError::Policy { problem: 0, source });
        }
        Self::of_whole_texts(trees, stack, model)
    }

    /// As [`StepTable::build`], as if no decoding stopped early and nothing was drawn: what thresholds are compared with is the same for any stack, what
    /// they lead to is not.
    ///
    /// # Errors
    /// When the trace lacks what the stack or the full pipeline looks at.
    pub fn of_whole_texts(
        trees: &[TreeFacts],
        stack: &'a TreeStack,
        model: TreeModel,
    ) -> Result<Self, TreeError> {
        let problems: Vec<ProblemFacts> = trees
            .par_iter()
            .map(|facts| Builder { stack, facts, model }.problem())
            .collect::<Result<_, _>>()?;
        let known = |facts: &ProblemFacts| facts.full.correct.is_some();
        Ok(Self {
            stack,
            rule: stack.verify.as_cgee(),
            branches: trees.iter().map(|facts| facts.leaves.len() as u64).sum(),
            gradable: problems.iter().filter(|facts| known(facts)).count() as u64,
            full_correct: problems.iter().filter(|facts| facts.full.correct == Some(true)).count() as u64,
            layers: model.layers,
            problems,
        })
    }
}

struct Builder<'a> {
    stack: &'a TreeStack,
    facts: &'a TreeFacts,
    model: TreeModel,
}

/// A branch and what it shares: as a similarity says where it depends on one, else always the same.
#[derive(Clone, Copy)]
struct Gate {
    branch: usize,
    sigma: Option<f64>,
    fixed: Sharing,
    /// Tokens of the root's prefix.
    root_tokens: u32,
}

impl Gate {
    fn sharing(&self, tau: f64) -> Sharing {
        self.sigma.map_or(self.fixed, |sigma| asks::sharing(sigma, tau, self.root_tokens))
    }
}

impl Builder<'_> {
    fn of_policy(&self, source: PolicyError) -> TreeError {
        TreeError::Policy { problem: self.facts.index, source }
    }

    fn problem(&self) -> Result<ProblemFacts, TreeError> {
        let is_gated = self.stack.share.as_asks().is_some();
        let root_tokens = self.facts.problem.branches.first().map_or(0, |root| root.prefix_len);
        let mut gates = Vec::new();
        for &branch in &self.facts.leaves {
            let view = ShareView { problem: &self.facts.problem, branch, layers: self.model.layers };
            let fixed = self.stack.share.decide(&view).map_err(|source| self.of_policy(source))?;
            gates.push(Gate { branch, sigma: fixed.sigma.filter(|_| is_gated), fixed, root_tokens });
        }
        let mut built = ProblemFacts::default();
        let full = full_pipeline(self.stack.winner.as_ref(), self.facts)?;
        built.full =
            Said { answer: index_of(&mut built.answers, full.answer.as_deref()), correct: full.correct };
        let mut cuts: Vec<f64> = gates.iter().filter_map(|gate| gate.sigma).collect();
        cuts.sort_unstable_by(f64::total_cmp);
        cuts.dedup_by(|a, b| a.total_cmp(b).is_eq());
        // One exit list a (branch, prefix) that is used.
        let mut known: Vec<(usize, Prefix)> = Vec::new();
        let above = cuts.last().map_or(0.0, |last| last.next_up());
        for tau in cuts.iter().copied().chain([above]) {
            let composition = self.composition(&gates, tau, &mut built, &mut known)?;
            built.compositions.push(composition);
        }
        built.cuts = cuts;
        Ok(built)
    }

    fn composition(
        &self,
        gates: &[Gate],
        tau: f64,
        built: &mut ProblemFacts,
        known: &mut Vec<(usize, Prefix)>,
    ) -> Result<Composition, TreeError> {
        let (mut outcomes, mut exits, mut said): (Vec<&Outcome>, _, _) = (Vec::new(), Vec::new(), Vec::new());
        let mut shared = 0;
        for gate in gates {
            let prefix = gate.sharing(tau).prefix;
            shared += u32::from(prefix == Prefix::Root);
            let outcome = self.facts.outcome(gate.branch, prefix)?;
            let at = match known.iter().position(|&key| key == (gate.branch, prefix)) {
                Some(at) => at,
                None => {
                    known.push((gate.branch, prefix));
                    built.exits.push(self.exit_points(gate.branch, prefix)?);
                    known.len() - 1
                }
            };
            exits.push(at);
            let answer = index_of(&mut built.answers, outcome.answer.as_deref());
            said.push(Said { answer, correct: outcome.correct.map(|correct| correct && answer.is_some()) });
            outcomes.push(outcome);
        }
        let winner = self.stack.winner.as_ref();
        let (lead, fixed_skip) = self.skip(&outcomes)?;
        let confidences = confidences(winner, &outcomes).map_err(|source| self.of_policy(source))?;
        let shared_by = gates.iter().map(|gate| (gate.branch, gate.sharing(tau)));
        let mut composition = Composition {
            shared,
            prompts: prompt_work(self.stack, self.facts, self.model, shared_by),
            lead,
            fixed_skip,
            if_skipped: Verdict::default(),
            exits,
            confidences,
            said,
        };
        let chosen = winner.choose(&built.candidates(&composition));
        composition.if_skipped = built.judge(&composition, chosen);
        Ok(composition)
    }

    fn skip(&self, outcomes: &[&Outcome]) -> Result<(Option<Lead>, Option<bool>), TreeError> {
        let verify = self.stack.verify.as_ref();
        if let Some(rule) = verify.as_cgee() {
            let confidences = rule.confidence.of("cgee", rule.over, outcomes);
            return Ok((Lead::of(&confidences.map_err(|source| self.of_policy(source))?), None));
        }
        let view = VerifyView { outcomes, problem: self.facts.index, seed: 0 };
        let skips = verify.skips(&view).map_err(|source| self.of_policy(source))?;
        Ok((None, Some(skips)))
    }

    fn exit_points(&self, branch: usize, prefix: Prefix) -> Result<ExitPoints, TreeError> {
        let layers = self.facts.verdict(branch, prefix)?;
        let outcome = self.facts.outcome(branch, prefix)?;
        let tokens = outcome.verdict.as_ref().map_or(0, |verdict| verdict.prompt_tokens);
        let lens = self.stack.exit.lens();
        let missing = TreeError::NoVerdict { problem: self.facts.index, branch, prefix };
        let score = |run: u16| layers[usize::from(run) - 1].verdict(lens);
        let all = crate::num::count(layers.len()).min(u32::from(u16::MAX));
        let all = u16::try_from(all).unwrap_or(u16::MAX);
        let full = layers.last().and_then(|layer| layer.verdict(Lens::FinalNorm)).ok_or(missing.clone())?;
        let found = ExitPoints { layers: all, tokens, full_says_yes: full >= 0.5, ..ExitPoints::default() };
        if let Some(rule) = self.stack.exit.as_entropy() {
            let early = early_exits(&rule, layers, lens);
            let last = (all, score(all).ok_or(missing)?);
            return Ok(ExitPoints { early, last, ..found });
        }
        // A rule without thresholds: the one layer where it stops, which no threshold moves.
        let run = self.stack.exit.layers_run(&ExitView::of(layers, self.model.vocab)).clamp(1, all);
        Ok(ExitPoints { last: (run, score(run).ok_or(missing)?), ..found })
    }
}

/// The layers where the entropy rule can stop under some thresholds, in order. A layer that an earlier one always pre-empts is left out.
fn early_exits(rule: &entropy::Params, layers: &[LayerFacts], lens: Lens) -> Vec<ExitPoint> {
    let mut points: Vec<ExitPoint> = Vec::new();
    let mut changes: Vec<f64> = Vec::new();
    let mut previous: Option<f64> = None;
    for (at, facts) in layers.iter().enumerate().skip(usize::from(rule.min_layer)) {
        // No negative zero: edges are told apart by their bits, and written down.
        let entropy = facts.entropy(lens) + 0.0;
        match previous {
            Some(before) if entropy.is_finite() => changes.push((entropy - before).abs()),
            _ => changes.clear(),
        }
        previous = entropy.is_finite().then_some(entropy);
        let needed = usize::from(rule.patience);
        if changes.len() < needed || !entropy.is_finite() || at + 1 == layers.len() {
            continue;
        }
        let change = changes[changes.len() - needed..].iter().copied().fold(0.0, f64::max);
        let is_preempted = points.iter().any(|point| point.entropy <= entropy && point.change <= change);
        let (Ok(layers_run), Some(score)) = (u16::try_from(at + 1), facts.verdict(lens)) else { continue };
        if !is_preempted {
            points.push(ExitPoint { layers_run, score, entropy, change });
        }
    }
    points
}

/// The place of an answer among `answers`, where it is put when it is new.
fn index_of(answers: &mut Vec<String>, answer: Option<&str>) -> Option<usize> {
    let answer = answer?;
    Some(answers.iter().position(|known| known == answer).unwrap_or_else(|| {
        answers.push(answer.to_owned());
        answers.len() - 1
    }))
}
