//! Writes training records or problems of the `chain` workload to stdout, for `tools/train`.
//!
//! The generator is in the library; this file parses arguments and writes bytes.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use kvlab_executor::workload::chain::{
    HINTS, LEVELS, Level, Mixture, Problem, ProblemId, Record, Split, WORDINGS, judged_record,
    tokenizer_json, training_record, verify_prompt,
};

const USAGE: &str = "usage:
  chain_dump records SEED FIRST RECALL% JUDGE% CHECK% STATEMENTS_MIN STATEMENTS_MAX LONG% LONG_MAX   endless binary records
  chain_dump problems SPLIT SEED LEVEL COUNT   JSON lines: prompt, solution, answer, right and flawed verify prompts
  chain_dump judged SPLIT < lines              binary records of `SEED LEVEL INDEX WORDING<tab>proposed solution`
  chain_dump tokenizer                         tokenizer.json";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut out = io::BufWriter::with_capacity(1 << 20, io::stdout().lock());
    let done = match words.as_slice() {
        ["records", numbers @ ..] => records(&mut out, numbers),
        ["problems", split, seed, level, count] => problems(&mut out, split, seed, level, count),
        ["judged", split] => judged(&mut out, split),
        ["tokenizer"] => out.write_all(tokenizer_json().as_bytes()).map(Some),
        _ => Ok(None),
    };
    match done.and_then(|done| out.flush().map(|()| done)) {
        Ok(Some(())) => ExitCode::SUCCESS,
        Ok(None) => complain(USAGE, ExitCode::from(3)),
        // The reader of endless records closes the pipe when it has enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => complain(&error.to_string(), ExitCode::FAILURE),
    }
}

/// Writes to stderr; when even that fails, only the code is left to tell.
fn complain(text: &str, code: ExitCode) -> ExitCode {
    match writeln!(io::stderr(), "{text}") {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Length as u16 little-endian, then the tokens, then the targets.
fn write_record(out: &mut impl Write, record: &Record) -> io::Result<()> {
    let length = u16::try_from(record.tokens.len()).map_err(io::Error::other)?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&record.tokens)?;
    out.write_all(&record.targets)
}

fn records(out: &mut impl Write, numbers: &[&str]) -> io::Result<Option<()>> {
    let numbers: Vec<u64> = numbers.iter().filter_map(|word| word.parse().ok()).collect();
    let [seed, first, recall, judge, check, min, max, long, long_max] = numbers.as_slice() else {
        return Ok(None);
    };
    let small = |number: &u64| u32::try_from(*number).map_err(io::Error::other);
    let mixture = Mixture {
        recall_percent: small(recall)?,
        judge_percent: small(judge)?,
        check_percent: small(check)?,
        statements_min: small(min)?,
        statements_max: small(max)?,
        long_percent: small(long)?,
        long_max: small(long_max)?,
    };
    for index in *first.. {
        write_record(out, &training_record(*seed, mixture, index))?;
    }
    Ok(Some(()))
}

/// A level of the list, or a number of statements.
fn level_of(word: &str) -> Option<Level> {
    Level::named(word).or_else(|| word.parse().ok().map(Level::sized))
}

fn split_of(word: &str) -> io::Result<Split> {
    match word {
        "training" => Ok(Split::Training),
        "evaluation" => Ok(Split::Evaluation),
        _ => Err(io::Error::other(format!("SPLIT is training or evaluation, not '{word}'"))),
    }
}

fn problems(
    out: &mut impl Write,
    split: &str,
    seed: &str,
    level: &str,
    count: &str,
) -> io::Result<Option<()>> {
    let split = split_of(split)?;
    let (Ok(seed), Some(level), Ok(count)) = (seed.parse(), level_of(level), count.parse::<u64>()) else {
        let ids: Vec<&str> = LEVELS.iter().map(|level| level.id).collect();
        let expected = format!("LEVEL is one of {} or a number of statements", ids.join(", "));
        return Err(io::Error::other(expected));
    };
    for index in 0..count {
        let problem = Problem::of(ProblemId { seed, level, split, index });
        let turn = usize::try_from(index).map_err(io::Error::other)?;
        let wording = turn % WORDINGS.len();
        let hint = HINTS[(turn / WORDINGS.len()) % HINTS.len()];
        let text = WORDINGS[wording];
        let solution = problem.solution(text);
        // No token needs escaping in JSON.
        writeln!(
            out,
            "{{\"index\":{index},\"wording\":{wording},\"prompt\":\"{}\",\"solution\":\"{solution}\",\
             \"answer\":{},\"judge_right\":\"{}\",\"judge_flawed\":\"{}\"}}",
            problem.prompt(text, hint),
            problem.answer,
            verify_prompt(&problem, text, &solution),
            verify_prompt(&problem, text, &problem.flawed_solution(text, 0)),
        )?;
    }
    Ok(Some(()))
}

fn judged(out: &mut impl Write, split: &str) -> io::Result<Option<()>> {
    let split = split_of(split)?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let Some((key, proposed)) = line.split_once('\t') else { return Ok(None) };
        let key: Vec<&str> = key.split(' ').collect();
        let [seed, level, index, wording] = key.as_slice() else { return Ok(None) };
        let (Ok(seed), Some(level), Ok(index), Ok(wording)) =
            (seed.parse(), level_of(level), index.parse(), wording.parse::<usize>())
        else {
            return Ok(None);
        };
        let Some(wording) = WORDINGS.get(wording) else { return Ok(None) };
        let problem = Problem::of(ProblemId { seed, level, split, index });
        if let Some(record) = judged_record(&problem, *wording, proposed) {
            write_record(out, &record)?;
        }
    }
    Ok(Some(()))
}
