//! Rows of the branch tables as a problem, every value checked on the way.

use super::{Branch, BranchStep, Confidences, Outcome, Prefix, Problem, Similarity, Verdict, VerdictLayer};
use crate::table::Table;
use crate::trace::TraceError;
use crate::trace::facts::Facts;
use crate::trace::facts_schema::{
    BRANCH_OUTCOMES, BRANCH_SIMILARITY, BRANCH_STEPS, BRANCH_TOKENS, BRANCH_VERDICTS, BRANCHES,
};
use crate::trace::manifest::{Manifest, ProblemInfo};
use crate::types::{ModelShape, SeqIdx};
use std::path::PathBuf;

/// Gives the rows of a problem in the table at a path.
pub(crate) type Read<'a> = &'a dyn Fn(&'static str) -> Result<(Table, PathBuf), TraceError>;

/// The problem that `info` announces.
pub(crate) fn problem(
    info: &ProblemInfo,
    manifest: &Manifest,
    read: Read<'_>,
) -> Result<Problem, TraceError> {
    let mut branches = branch_rows(info, manifest, read)?;
    token_rows(info, &mut branches, &manifest.shape, read)?;
    if manifest.holds("branch_similarity.cos_last") {
        similarity_rows(info, &mut branches, &manifest.shape, read)?;
    }
    outcome_rows(info, &mut branches, read)?;
    if manifest.holds("branch_steps.token") {
        step_rows(info, &mut branches, &manifest.shape, read)?;
    }
    if manifest.holds("branch_verdicts.p_yes") {
        verdict_rows(info, &mut branches, &manifest.shape, read)?;
    }
    let branches = branches.into_iter().map(|row| row.branch).collect();
    Ok(Problem { item: info.item.clone(), expected_answer: info.expected_answer.clone(), branches })
}

/// A branch, and what its row says about the other tables.
struct Row {
    branch: Branch,
    tokens: u64,
    digest: String,
    /// Rows of each outcome in the verdict table's layers, `[own, root]`.
    verdict_tokens: [u32; 2],
}

fn branch_rows(info: &ProblemInfo, manifest: &Manifest, read: Read<'_>) -> Result<Vec<Row>, TraceError> {
    let (table, path) = read(BRANCHES)?;
    let facts = Facts::check(&table, BRANCHES, &path)?;
    let mut depths: Vec<u32> = Vec::with_capacity(table.rows());
    (0..table.rows())
        .map(|row| {
            facts.expect("problem", row, info.problem)?;
            facts.expect("branch", row, i64::try_from(row).unwrap_or(i64::MAX))?;
            let parent = facts.optional_count("parent", row)?;
            let depth = match parent {
                None if row == 0 => 0,
                Some(parent) if (parent as usize) < row => depths[parent as usize] + 1,
                other => {
                    let found = other.map_or("nothing".to_owned(), |parent| parent.to_string());
                    return Err(facts.bad(
                        "parent",
                        row,
                        found,
                        "an earlier branch, nothing for branch 0 only",
                    ));
                }
            };
            facts.expect("depth", row, depth)?;
            depths.push(depth);
            let seq = facts.optional_count("seq", row)?;
            if let Some(seq) = seq.filter(|&seq| seq as usize >= manifest.sequences.len()) {
                return Err(facts.bad("seq", row, seq, format!("below {}", manifest.sequences.len())));
            }
            let (prefix_len, suffix) =
                (facts.count("prefix_tokens", row)?, facts.count("suffix_tokens", row)?);
            let wording_level = facts.count("wording_level", row)?;
            if wording_level > 3 {
                return Err(facts.bad("wording_level", row, wording_level, "0 to 3"));
            }
            let branch = Branch {
                parent,
                seq: seq.map(SeqIdx::new),
                wording: facts.count("wording", row)?,
                wording_level,
                hint: facts.optional_count("hint", row)?,
                prefix_len,
                tokens: Vec::new(),
                similarity: Vec::new(),
                own: None,
                root: None,
            };
            let digest = facts.text("prompt_sha256", row).unwrap_or_default().to_owned();
            Ok(Row {
                branch,
                tokens: u64::from(prefix_len) + u64::from(suffix),
                digest,
                verdict_tokens: [0; 2],
            })
        })
        .collect()
}

fn token_rows(
    info: &ProblemInfo,
    branches: &mut [Row],
    shape: &ModelShape,
    read: Read<'_>,
) -> Result<(), TraceError> {
    let (table, path) = read(BRANCH_TOKENS)?;
    let facts = Facts::check(&table, BRANCH_TOKENS, &path)?;
    let total = branches.iter().map(|row| row.tokens).sum::<u64>();
    if total != table.rows() as u64 || branches.iter().any(|row| row.tokens == 0) {
        let accepted = format!("{total}, the sum of prefix_tokens and suffix_tokens, none of them empty");
        return Err(TraceError::malformed(
            &path,
            format!("rows of problem {}", info.problem),
            table.rows(),
            accepted,
        ));
    }
    let mut row = 0..table.rows();
    for (at, branch) in (0_i64..).zip(branches) {
        let Row { branch, tokens, digest, .. } = branch;
        for (pos, row) in (0..*tokens).zip(row.by_ref()) {
            facts.expect("problem", row, info.problem)?;
            facts.expect("branch", row, at)?;
            facts.expect("pos", row, i64::try_from(pos).unwrap_or(i64::MAX))?;
            let in_prefix = pos < u64::from(branch.prefix_len);
            if facts.bool("in_prefix", row) != in_prefix {
                return Err(facts.bad("in_prefix", row, !in_prefix, in_prefix.to_string()));
            }
            branch.tokens.push(facts.token("token", row, shape)?);
        }
        let found = branch.prompt_sha256();
        if found != *digest {
            let place = format!("problem {}, branch {at}", info.problem);
            return Err(TraceError::malformed(
                &path,
                place,
                format!("tokens with SHA-256 {found}"),
                digest.clone(),
            ));
        }
    }
    Ok(())
}

fn similarity_rows(
    info: &ProblemInfo,
    branches: &mut [Row],
    shape: &ModelShape,
    read: Read<'_>,
) -> Result<(), TraceError> {
    let (table, path) = read(BRANCH_SIMILARITY)?;
    let facts = Facts::check(&table, BRANCH_SIMILARITY, &path)?;
    let mut row = 0..table.rows();
    for (at, branch) in (0_i64..).zip(branches).skip(1) {
        for (state, row) in (0..=shape.layers).zip(row.by_ref()) {
            facts.expect("problem", row, info.problem)?;
            facts.expect("branch", row, at)?;
            facts.expect("state", row, state)?;
            branch.branch.similarity.push(Similarity {
                cos_last: facts.within("cos_last", row, -1.0, 1.0)?,
                cos_mean: facts.within("cos_mean", row, -1.0, 1.0)?,
            });
        }
    }
    Ok(())
}

fn outcome_rows(info: &ProblemInfo, branches: &mut [Row], read: Read<'_>) -> Result<(), TraceError> {
    let (table, path) = read(BRANCH_OUTCOMES)?;
    let facts = Facts::check(&table, BRANCH_OUTCOMES, &path)?;
    let mut previous = None;
    for row in 0..table.rows() {
        facts.expect("problem", row, info.problem)?;
        let (at, prefix) = (facts.count("branch", row)?, prefix(&facts, row)?);
        if at as usize >= branches.len() || previous.is_some_and(|previous| previous >= (at, prefix)) {
            let accepted = format!("branches below {} in order, each with own before root", branches.len());
            return Err(facts.bad("branch", row, at, accepted));
        }
        previous = Some((at, prefix));
        let generated = facts.count("generated_tokens", row)?;
        let probability = |column| facts.within(column, row, 0.0, 1.0);
        let outcome = Outcome {
            answer: facts.text("answer", row).map(str::to_owned),
            correct: facts.optional_bool("correct", row),
            finish_reason: facts.text("finish_reason", row).unwrap_or_default().to_owned(),
            generated,
            confidences: Confidences {
                mean_top1_prob: probability("mean_top1_prob")?,
                geometric_mean_prob: probability("geometric_mean_prob")?,
                min_prob: probability("min_prob")?,
                mean_entropy_nats: facts.at_least_zero("mean_entropy_nats", row)?,
                mean_top20_surprise_nats: facts.at_least_zero("mean_top20_surprise_nats", row)?,
                mean_uniform_kl_nats: facts.at_least_zero("mean_uniform_kl_nats", row)?,
            },
            steps: Vec::new(),
            verdict: None,
        };
        let branch = &mut branches[at as usize];
        branch.verdict_tokens[prefix as usize] = facts.count("verdict_tokens", row)?;
        match prefix {
            Prefix::Own => branch.branch.own = Some(outcome),
            Prefix::Root => branch.branch.root = Some(outcome),
        }
    }
    Ok(())
}

fn prefix(facts: &Facts<'_>, row: usize) -> Result<Prefix, TraceError> {
    let found = facts.text("prefix", row).unwrap_or_default();
    Prefix::ALL
        .into_iter()
        .find(|prefix| prefix.word() == found)
        .ok_or_else(|| facts.bad("prefix", row, format!("`{found}`"), "own or root"))
}

/// The outcomes of all branches in the order of the tables, with their key.
fn outcomes(branches: &mut [Row]) -> impl Iterator<Item = (u32, Prefix, u32, &mut Outcome)> {
    (0_u32..).zip(branches).flat_map(|(at, row)| {
        let Row { branch, verdict_tokens: [own_tokens, root_tokens], .. } = row;
        let own = branch.own.as_mut().map(|own| (at, Prefix::Own, *own_tokens, own));
        let root = branch.root.as_mut().map(|root| (at, Prefix::Root, *root_tokens, root));
        own.into_iter().chain(root)
    })
}

fn expect_key(
    facts: &Facts<'_>,
    row: usize,
    problem: u32,
    (branch, key): (u32, Prefix),
    (column, at): (&str, u32),
) -> Result<(), TraceError> {
    facts.expect("problem", row, problem)?;
    facts.expect("branch", row, branch)?;
    if prefix(facts, row)? != key {
        return Err(facts.bad("prefix", row, facts.text("prefix", row).unwrap_or_default(), key.word()));
    }
    facts.expect(column, row, at)
}

fn step_rows(
    info: &ProblemInfo,
    branches: &mut [Row],
    shape: &ModelShape,
    read: Read<'_>,
) -> Result<(), TraceError> {
    let (table, path) = read(BRANCH_STEPS)?;
    let facts = Facts::check(&table, BRANCH_STEPS, &path)?;
    let expected = outcomes(branches).map(|(_, _, _, outcome)| u64::from(outcome.generated)).sum::<u64>();
    if expected != table.rows() as u64 {
        let place = format!("rows of problem {}", info.problem);
        return Err(TraceError::malformed(
            &path,
            place,
            table.rows(),
            format!("{expected}, a row a generated token"),
        ));
    }
    let mut row = 0..table.rows();
    for (at, prefix, _, outcome) in outcomes(branches) {
        for (step, row) in (0..outcome.generated).zip(row.by_ref()) {
            expect_key(&facts, row, info.problem, (at, prefix), ("step", step))?;
            outcome.steps.push(BranchStep {
                token: facts.token("token", row, shape)?,
                prob: facts.within("prob", row, 0.0, 1.0)?,
                top1_prob: facts.within("top1_prob", row, 0.0, 1.0)?,
                entropy_nats: facts.at_least_zero("entropy_nats", row)?,
                top20_surprise_nats: facts.at_least_zero("top20_surprise_nats", row)?,
                uniform_kl_nats: facts.at_least_zero("uniform_kl_nats", row)?,
                in_answer: facts.bool("in_answer", row),
            });
        }
    }
    Ok(())
}

fn verdict_rows(
    info: &ProblemInfo,
    branches: &mut [Row],
    shape: &ModelShape,
    read: Read<'_>,
) -> Result<(), TraceError> {
    let (table, path) = read(BRANCH_VERDICTS)?;
    let facts = Facts::check(&table, BRANCH_VERDICTS, &path)?;
    let judged = outcomes(branches).filter(|(_, _, tokens, _)| *tokens > 0).count() as u64;
    let expected = judged * u64::from(shape.layers);
    if expected != table.rows() as u64 {
        let place = format!("rows of problem {}", info.problem);
        let accepted = format!("{expected}, a row a layer for each outcome with verdict_tokens");
        return Err(TraceError::malformed(&path, place, table.rows(), accepted));
    }
    let mut row = 0..table.rows();
    for (at, prefix, prompt_tokens, outcome) in outcomes(branches).filter(|(_, _, tokens, _)| *tokens > 0) {
        let mut layers = Vec::with_capacity(usize::from(shape.layers));
        for (layer, row) in (0..u32::from(shape.layers)).zip(row.by_ref()) {
            expect_key(&facts, row, info.problem, (at, prefix), ("layer", layer))?;
            let probability = |column| facts.within(column, row, 0.0, 1.0);
            layers.push(VerdictLayer {
                p_yes: probability("p_yes")?,
                raw_p_yes: probability("raw_p_yes")?,
                entropy_nats: facts.at_least_zero("entropy_nats", row)?,
                raw_entropy_nats: facts.at_least_zero("raw_entropy_nats", row)?,
                top1: facts.token("top1_token", row, shape)?,
                top1_prob: probability("top1_prob")?,
                top2_prob: probability("top2_prob")?,
                cos_previous: facts.within("cos_previous", row, -1.0, 1.0)?,
                js_previous_nats: facts.at_least_zero("js_previous_nats", row)?,
            });
        }
        outcome.verdict = Some(Verdict { prompt_tokens, layers });
    }
    Ok(())
}
