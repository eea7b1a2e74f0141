//! Training records: token ids and, per position, the token to be predicted there (or nothing).

use super::draw::Draw;
use super::level::Level;
use super::problem::{NAMES, Name, Problem, ProblemId, Split};
use super::proposal::{spotted, verify_prompt};
use super::vocabulary::{END_TOKEN, encode, name_text, token_id};
use super::wording::{HINTS, WORDINGS, Wording};

/// One training sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Token ids, `[kv_pos]`.
    pub tokens: Vec<u8>,
    /// What to predict at each position, `[kv_pos]`; `NOTHING` where there is no loss. In `judge` records this is the
    /// verdict so far at each token of the proposal, so it is not always the next token.
    pub targets: Vec<u8>,
}

/// No loss at this position.
const NOTHING: u8 = 255;

/// Shares of the kinds of records, in percent; the rest is `solve`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mixture {
    /// Pure lookup: pairs of name and value, asked again and again.
    pub recall_percent: u32,
    /// Problem and proposed solution, verdict.
    pub judge_percent: u32,
    /// Problem and a chain with several flaws, each to be noticed where it is.
    pub check_percent: u32,
    /// Fewest statements.
    pub statements_min: u32,
    /// Most statements of all but the long problems; lengths are drawn so that short ones are more frequent.
    pub statements_max: u32,
    /// Share of long problems among all records.
    pub long_percent: u32,
    /// Most statements of a long problem; their lengths are uniform from `statements_max` on.
    pub long_max: u32,
}

/// Record number `index` of the training set `seed`.
#[must_use]
pub fn training_record(seed: u64, mixture: Mixture, index: u64) -> Record {
    let mut draw = Draw::keyed([seed, u64::MAX, 0, index]);
    let kind = draw.below(100);
    let first = draw.between(mixture.statements_min, mixture.statements_max);
    let second = draw.between(mixture.statements_min, mixture.statements_max);
    let mut statements = first.min(second);
    if draw.percent(mixture.long_percent) {
        statements = draw.between(mixture.statements_max, mixture.long_max);
    }
    if kind < mixture.recall_percent {
        return recall(&mut draw, statements);
    }
    let level = Level::sized(statements);
    let problem = Problem::of(ProblemId { seed, level, split: Split::Training, index });
    let wording = WORDINGS[draw.index(WORDINGS.len())];
    if kind < mixture.recall_percent + mixture.judge_percent {
        let proposed =
            if draw.percent(50) { problem.solution(wording) } else { problem.flawed(wording, &mut draw) };
        return judged_record(&problem, wording, &proposed).expect("the generator writes vocabulary words");
    }
    if kind < mixture.recall_percent + mixture.judge_percent + mixture.check_percent {
        return check(&problem, wording, &mut draw);
    }
    let hint = HINTS[draw.index(HINTS.len())];
    solve(&problem.prompt(wording, hint), &problem.solution(wording))
}

/// Loss on every token after the prompt, the end token included.
fn solve(prompt: &str, solution: &str) -> Record {
    let prompt = encode(prompt).expect("the generator writes vocabulary words");
    let solution = encode(&format!("{solution} {END_TOKEN}")).expect("the generator writes vocabulary words");
    let mut targets = vec![NOTHING; prompt.len() - 1];
    targets.extend(&solution);
    targets.push(NOTHING);
    let mut tokens = prompt;
    tokens.extend(&solution);
    Record { tokens, targets }
}

/// The record of a proposed solution: at each of its tokens the verdict so far, at the end the verdict.
///
/// `None` if `proposed` contains words that are not in the vocabulary, or if it deviates and still has the right
/// answer (its label would be ambiguous).
#[must_use]
pub fn judged_record(problem: &Problem, wording: Wording, proposed: &str) -> Option<Record> {
    let proposed_ids = encode(proposed)?;
    let right_ids = encode(&problem.solution(wording))?;
    let deviation = (0..proposed_ids.len()).find(|&i| right_ids.get(i) != proposed_ids.get(i));
    let is_right = super::parse_answer(proposed) == Some(problem.answer);
    if is_right != deviation.is_none() {
        return None;
    }
    let [yes, no] = [token_id("yes")?, token_id("no")?];
    let mut tokens = encode(&verify_prompt(problem, wording, proposed))?;
    let prefix = tokens.len() - proposed_ids.len() - 1;
    let mut targets = vec![NOTHING; prefix];
    for position in 0..=proposed_ids.len() {
        let is_flawed = deviation.is_some_and(|first| position >= first);
        targets.push(if is_flawed { no } else { yes });
    }
    let end = token_id(END_TOKEN)?;
    tokens.extend([if is_right { yes } else { no }, end]);
    targets.extend([end, NOTHING]);
    Some(Record { tokens, targets })
}

/// Like a judged record, but each token is judged on its own and there is no verdict at the end.
fn check(problem: &Problem, wording: Wording, draw: &mut Draw) -> Record {
    let (text, flags) = spotted(problem, wording, draw);
    let prompt = format!("check : {} shown : {text}", problem.body(wording));
    let tokens = encode(&prompt).expect("the generator writes vocabulary words");
    let [yes, no] = ["yes", "no"].map(|word| token_id(word).expect("both are in the vocabulary"));
    let mut targets = vec![NOTHING; tokens.len() - flags.len()];
    targets.extend(flags.into_iter().map(|is_flaw| if is_flaw { no } else { yes }));
    Record { tokens, targets }
}

/// `recall : c 3 e 8 + e 8 c 3 …`: loss on each value whose name was there before.
fn recall(draw: &mut Draw, names: u32) -> Record {
    let mut order: Vec<Name> = (0..NAMES).map(Name).collect();
    draw.shuffle(&mut order);
    order.truncate(names as usize);
    let mut words = vec!["recall".to_owned(), ":".to_owned()];
    let mut asked = vec![false, false];
    let mut values: Vec<u8> = Vec::new();
    let pairs = names * 4;
    for _ in 0..pairs {
        let is_new = values.is_empty() || (values.len() < order.len() && draw.percent(40));
        if is_new {
            values.push(draw.digit());
        }
        let position = if is_new { values.len() - 1 } else { draw.index(values.len()) };
        if draw.percent(15) {
            // A mention without a value, as in the statements of a problem.
            words.extend([name_text(order[position]).to_owned(), ["+", "-", ";"][draw.index(3)].to_owned()]);
            asked.extend([false, false]);
            if is_new {
                values.pop();
            }
            continue;
        }
        words.extend([name_text(order[position]).to_owned(), values[position].to_string()]);
        asked.extend([!is_new, false]);
    }
    let tokens = encode(&words.join(" ")).expect("the generator writes vocabulary words");
    // `asked` is true at the name; the value is the token after it.
    let targets = (0..tokens.len()).map(|i| if asked[i] { tokens[i + 1] } else { NOTHING }).collect();
    Record { tokens, targets }
}
