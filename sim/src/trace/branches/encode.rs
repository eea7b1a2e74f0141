//! A problem as rows of the branch tables.

use super::{Confidences, Outcome, Prefix, Problem, StoredBranches, Verdict};
use crate::table::Table;
use crate::trace::TraceError;
use crate::trace::facts_schema::{
    BRANCH_OUTCOMES, BRANCH_SIMILARITY, BRANCH_STEPS, BRANCH_TOKENS, BRANCH_VERDICTS, BRANCHES, Rows,
};
use crate::trace::manifest::ProblemInfo;
use crate::types::ModelShape;

/// What the writer refuses in a problem, before any of it is taken.
fn refuse(what: String, found: impl ToString, accepted: impl ToString) -> TraceError {
    TraceError::chunk(what, found, accepted)
}

/// Counts the rows of a problem, and refuses one that no reader would accept.
pub(crate) fn count(
    problem: &Problem,
    index: u32,
    stored: &StoredBranches,
    shape: &ModelShape,
) -> Result<ProblemInfo, TraceError> {
    let place = |branch: usize, what: &str| format!("problem {index}, branch {branch}: {what}");
    if problem.branches.is_empty() || u32::try_from(problem.branches.len()).is_err() {
        return Err(refuse(format!("problem {index}"), problem.branches.len(), "1 to 2^32 - 1 branches"));
    }
    let mut info = ProblemInfo {
        problem: index,
        item: problem.item.clone(),
        expected_answer: problem.expected_answer.clone(),
        branches: u32::try_from(problem.branches.len()).unwrap_or(u32::MAX),
        tokens: 0,
        outcomes: 0,
        steps: 0,
        verdicts: 0,
    };
    for (at, branch) in problem.branches.iter().enumerate() {
        match branch.parent {
            None if at == 0 => {}
            Some(parent) if (parent as usize) < at => {}
            other => {
                return Err(refuse(
                    place(at, "parent"),
                    format!("{other:?}"),
                    "an earlier branch; none for the root only",
                ));
            }
        }
        if branch.tokens.is_empty() || (branch.prefix_len as usize) > branch.tokens.len() {
            let found = format!("{} of {} tokens", branch.prefix_len, branch.tokens.len());
            return Err(refuse(place(at, "prefix_len"), found, "a prompt, and a prefix no longer than it"));
        }
        if let Some(token) = branch.tokens.iter().find(|token| token.get() >= shape.vocab) {
            return Err(refuse(place(at, "tokens"), token, format!("ids below {}", shape.vocab)));
        }
        let states = if at > 0 && stored.similarity { usize::from(shape.layers) + 1 } else { 0 };
        if branch.similarity.len() != states {
            return Err(refuse(place(at, "similarity"), branch.similarity.len(), format!("{states} states")));
        }
        let cosines = branch.similarity.iter().flat_map(|s| [s.cos_last, s.cos_mean]);
        finite(cosines, || place(at, "similarity"))?;
        info.tokens += branch.tokens.len() as u64;
        for prefix in Prefix::ALL {
            let Some(outcome) = branch.outcome(prefix) else { continue };
            info.outcomes += 1;
            info.steps += outcome.steps.len() as u64;
            check_outcome(outcome, stored, shape, &|what| {
                place(at, &format!("{} outcome: {what}", prefix.word()))
            })?;
            info.verdicts += u32::from(outcome.verdict.is_some());
        }
    }
    Ok(info)
}

fn check_outcome(
    outcome: &Outcome,
    stored: &StoredBranches,
    shape: &ModelShape,
    place: &dyn Fn(&str) -> String,
) -> Result<(), TraceError> {
    let steps = if stored.steps { outcome.generated as usize } else { 0 };
    if outcome.steps.len() != steps {
        return Err(refuse(place("steps"), outcome.steps.len(), steps));
    }
    if let Some(step) = outcome.steps.iter().find(|step| step.token.get() >= shape.vocab) {
        return Err(refuse(
            place("steps"),
            format!("id {}", step.token),
            format!("ids below {}", shape.vocab),
        ));
    }
    let c = outcome.confidences;
    let values = [
        c.mean_top1_prob,
        c.geometric_mean_prob,
        c.min_prob,
        c.mean_entropy_nats,
        c.mean_top20_surprise_nats,
        c.mean_uniform_kl_nats,
    ];
    finite(values.into_iter(), || place("confidences"))?;
    let steps = outcome
        .steps
        .iter()
        .flat_map(|s| [s.prob, s.top1_prob, s.entropy_nats, s.top20_surprise_nats, s.uniform_kl_nats]);
    finite(steps, || place("steps"))?;
    if !outcome.steps.is_empty() && Confidences::over(&outcome.steps) != c {
        return Err(refuse(place("confidences"), format!("{c:?}"), "those of the steps"));
    }
    let Some(Verdict { prompt_tokens, layers }) = &outcome.verdict else { return Ok(()) };
    let count = if stored.verdicts { usize::from(shape.layers) } else { 0 };
    if layers.len() != count || *prompt_tokens == 0 || !stored.verdicts {
        let found = format!("{} layers, {prompt_tokens} prompt tokens", layers.len());
        return Err(refuse(
            place("verdict"),
            found,
            format!("{count} layers and at least 1 prompt token, when verdicts are stored"),
        ));
    }
    if let Some(layer) = layers.iter().find(|layer| layer.top1.get() >= shape.vocab) {
        return Err(refuse(
            place("verdict"),
            format!("id {}", layer.top1),
            format!("ids below {}", shape.vocab),
        ));
    }
    let reals = layers.iter().flat_map(|l| {
        [
            l.p_yes,
            l.raw_p_yes,
            l.entropy_nats,
            l.raw_entropy_nats,
            l.top1_prob,
            l.top2_prob,
            l.cos_previous,
            l.js_previous_nats,
        ]
    });
    finite(reals, || place("verdict"))
}

fn finite(values: impl Iterator<Item = f32>, place: impl Fn() -> String) -> Result<(), TraceError> {
    let mut values = values;
    match values.find(|value| !value.is_finite()) {
        Some(value) => Err(refuse(place(), value, "finite numbers")),
        None => Ok(()),
    }
}

/// The rows of problems on their way to the files.
#[derive(Debug)]
pub(crate) struct BranchRows {
    tables: Vec<(&'static str, Rows)>,
}

impl BranchRows {
    pub(crate) fn new(stored: &StoredBranches) -> Self {
        let paths = tables(stored);
        Self { tables: paths.into_iter().map(|path| (path, Rows::new(path))).collect() }
    }

    /// Adds a problem that [`count`] accepted.
    pub(crate) fn push(&mut self, index: u32, problem: &Problem) {
        let depths = problem.depths();
        for (path, rows) in &mut self.tables {
            for (at, branch) in (0_u32..).zip(&problem.branches) {
                match *path {
                    BRANCHES => {
                        rows.int(0, index);
                        rows.int(1, at);
                        rows.optional_int(2, branch.parent.map(i64::from));
                        rows.int(3, depths[at as usize]);
                        rows.optional_int(4, branch.seq.map(|seq| seq.get().into()));
                        rows.int(5, branch.wording);
                        rows.int(6, branch.wording_level);
                        rows.optional_int(7, branch.hint.map(i64::from));
                        rows.int(8, branch.prefix_len);
                        let suffix =
                            u32::try_from(branch.tokens.len()).unwrap_or(u32::MAX) - branch.prefix_len;
                        rows.int(9, suffix);
                        rows.text(10, Some(&branch.prompt_sha256()));
                    }
                    BRANCH_TOKENS => {
                        for (pos, token) in (0_u32..).zip(&branch.tokens) {
                            rows.int(0, index);
                            rows.int(1, at);
                            rows.int(2, pos);
                            rows.int(3, token.get());
                            rows.bool(4, pos < branch.prefix_len);
                        }
                    }
                    BRANCH_SIMILARITY => {
                        for (state, similarity) in (0_u32..).zip(&branch.similarity) {
                            rows.int(0, index);
                            rows.int(1, at);
                            rows.int(2, state);
                            rows.real(3, similarity.cos_last);
                            rows.real(4, similarity.cos_mean);
                        }
                    }
                    path => {
                        for prefix in Prefix::ALL {
                            if let Some(outcome) = branch.outcome(prefix) {
                                outcome_rows(path, rows, (index, at, prefix), outcome);
                            }
                        }
                    }
                }
            }
        }
    }

    /// The rows so far, a table each.
    pub(crate) fn take(&mut self) -> Result<Vec<(&'static str, Table)>, TraceError> {
        self.tables
            .iter_mut()
            .map(|(path, rows)| Ok((*path, rows.take().map_err(TraceError::table)?)))
            .collect()
    }
}

/// The tables that a trace with these branch facts has, sorted by path.
pub(crate) fn tables(stored: &StoredBranches) -> Vec<&'static str> {
    [
        (BRANCH_OUTCOMES, true),
        (BRANCH_SIMILARITY, stored.similarity),
        (BRANCH_STEPS, stored.steps),
        (BRANCH_TOKENS, true),
        (BRANCH_VERDICTS, stored.verdicts),
        (BRANCHES, true),
    ]
    .into_iter()
    .filter_map(|(path, is_stored)| is_stored.then_some(path))
    .collect()
}

fn outcome_rows(
    path: &str,
    rows: &mut Rows,
    (problem, branch, prefix): (u32, u32, Prefix),
    outcome: &Outcome,
) {
    let key = |rows: &mut Rows| {
        rows.int(0, problem);
        rows.int(1, branch);
        rows.text(2, Some(prefix.word()));
    };
    match path {
        BRANCH_OUTCOMES => {
            key(rows);
            rows.text(3, outcome.answer.as_deref());
            rows.optional_bool(4, outcome.correct);
            rows.text(5, Some(&outcome.finish_reason));
            rows.int(6, outcome.generated);
            let c = outcome.confidences;
            rows.real(7, c.mean_top1_prob);
            rows.real(8, c.geometric_mean_prob);
            rows.real(9, c.min_prob);
            rows.real(10, c.mean_entropy_nats);
            rows.real(11, c.mean_top20_surprise_nats);
            rows.real(12, c.mean_uniform_kl_nats);
            rows.int(13, outcome.verdict.as_ref().map_or(0, |verdict| verdict.prompt_tokens));
        }
        BRANCH_STEPS => {
            for (at, step) in (0_u32..).zip(&outcome.steps) {
                key(rows);
                rows.int(3, at);
                rows.int(4, step.token.get());
                rows.real(5, step.prob);
                rows.real(6, step.top1_prob);
                rows.real(7, step.entropy_nats);
                rows.real(8, step.top20_surprise_nats);
                rows.real(9, step.uniform_kl_nats);
                rows.bool(10, step.in_answer);
            }
        }
        _ => {
            for (at, layer) in (0_u32..).zip(outcome.verdict.iter().flat_map(|verdict| &verdict.layers)) {
                key(rows);
                rows.int(3, at);
                rows.real(4, layer.p_yes);
                rows.real(5, layer.raw_p_yes);
                rows.real(6, layer.entropy_nats);
                rows.real(7, layer.raw_entropy_nats);
                rows.int(8, layer.top1.get());
                rows.real(9, layer.top1_prob);
                rows.real(10, layer.top2_prob);
                rows.real(11, layer.cos_previous);
                rows.real(12, layer.js_previous_nats);
            }
        }
    }
}
