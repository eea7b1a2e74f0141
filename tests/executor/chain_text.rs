//! The `chain` generator against an interpreter that knows only its texts: it parses statements in every wording, solves
//! them, writes the chain of thought, and says what is wrong with a shown solution. It shares no code with the generator.

use kvlab_executor::workload::chain::{
    Flaw, HINTS, LEVELS, Mixture, Problem, ProblemId, Split, WORDINGS, decode, parse_answer, problem,
    training_record, verify_prompt,
};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// `target = left sign right`, or `target = left`; operands are words of the text.
#[derive(Debug, Clone, PartialEq)]
struct Definition {
    target: String,
    left: String,
    operation: Option<(char, String)>,
}

/// What a problem text says.
#[derive(Debug, PartialEq)]
struct Reading {
    definitions: Vec<Definition>,
    question: String,
}

const FLAWS: [Flaw; 5] = [Flaw::Lookup, Flaw::Arithmetic, Flaw::Operation, Flaw::Operand, Flaw::Answer];

fn sign(word: &str) -> char {
    match word {
        "+" | "plus" => '+',
        "-" | "minus" => '-',
        "*" | "times" => '*',
        _ => panic!("no operation: {word}"),
    }
}

fn is_digit(word: &str) -> bool {
    word.len() == 1 && word.as_bytes()[0].is_ascii_digit()
}

/// Reads statements and question from what stands between the first colon and `work` or `shown`.
fn read(body: &str) -> Reading {
    let commas_end = body.starts_with("given ");
    let mut reading = Reading { definitions: Vec::new(), question: String::new() };
    let clauses = body.split([';', '.', '?']).flat_map(|clause| match commas_end {
        true => clause.split(" , ").collect::<Vec<_>>(),
        false => vec![clause],
    });
    for clause in clauses {
        let mut words: Vec<&str> = clause.split_whitespace().collect();
        if let Some(&("let" | "set" | "given" | "then")) = words.first() {
            words.remove(0);
        }
        let (target, left, operation) = match words.as_slice() {
            []
            | ["think", "step", "by", "step"]
            | ["be", "careful"]
            | ["go", "slowly"]
            | ["show", "everything"]
            | ["check", "each", "step"] => continue,
            ["find", name] | ["what", "is", name] => {
                assert_eq!(reading.question, "", "two questions in {body}");
                reading.question = (*name).to_owned();
                continue;
            }
            ["take", value, ",", "call", target] | [value, "gives", target] => (target, value, None),
            ["take", left, ",", word, right, ",", "call", target] | [left, word, right, "gives", target] => {
                (target, left, Some((sign(word), (*right).to_owned())))
            }
            [target, "=" | "is" | ":", value] => (target, value, None),
            [target, ":", word @ ("plus" | "minus" | "times"), left, right]
            | [target, "=" | "is", left, word, right] => {
                (target, left, Some((sign(word), (*right).to_owned())))
            }
            _ => panic!("cannot read '{clause}' of {body}"),
        };
        reading.definitions.push(Definition {
            target: (*target).to_owned(),
            left: (*left).to_owned(),
            operation,
        });
    }
    reading
}

fn compute(left: u32, sign: char, right: u32) -> u32 {
    match sign {
        '+' => (left + right) % 10,
        '-' => (left + 10 - right) % 10,
        _ => left * right % 10,
    }
}

/// The value of an operand: itself, or what the name was given.
fn value(word: &str, known: &BTreeMap<String, u32>) -> u32 {
    if is_digit(word) { word.parse().unwrap() } else { known[word] }
}

impl Reading {
    /// The chain of thought and the answer.
    fn solve(&self) -> (String, u32) {
        let mut known = BTreeMap::new();
        let mut chain = String::new();
        for Definition { target, left, operation } in &self.definitions {
            let first = value(left, &known);
            let result = match operation {
                None => {
                    chain += &format!("{target} {first} ; ");
                    first
                }
                Some((sign, right)) => {
                    let second = value(right, &known);
                    let result = compute(first, *sign, second);
                    let beside = if is_digit(right) { String::new() } else { format!(" {second}") };
                    chain +=
                        &format!("{target} : {left} {first} {sign} {right}{beside} = {target} {result} ; ");
                    result
                }
            };
            assert_eq!(known.insert(target.clone(), result), None, "{target} is defined twice");
        }
        let answer = known[&self.question];
        (format!("{chain}answer {} {answer} .", self.question), answer)
    }

    /// Every place where a shown solution departs from the problem or from its own earlier lines.
    fn mistakes(&self, shown: &str) -> Vec<Flaw> {
        let mut written = BTreeMap::new();
        let mut found = Vec::new();
        let mut lines = shown.strip_suffix(" .").unwrap().split(" ; ");
        for Definition { target, left, operation } in &self.definitions {
            let words: Vec<&str> = lines.next().unwrap().split(' ').collect();
            assert_eq!(words[0], target);
            let result: u32 = words.last().unwrap().parse().unwrap();
            if let Some((sign, right)) = operation {
                let second: u32 = words[words.len() - 4].parse().unwrap();
                let first: u32 = words[3].parse().unwrap();
                let shown_sign = words[4].chars().next().unwrap();
                let is_misread = |name: &str, shown: u32| value(name, &written) != shown;
                found.extend((words[2] != left || words[5] != right).then_some(Flaw::Operand));
                found.extend((shown_sign != *sign).then_some(Flaw::Operation));
                found.extend(
                    (is_misread(words[2], first) || is_misread(words[5], second)).then_some(Flaw::Lookup),
                );
                found.extend((compute(first, shown_sign, second) != result).then_some(Flaw::Arithmetic));
            } else {
                found.extend((value(left, &written) != result).then_some(Flaw::Lookup));
            }
            written.insert(target.clone(), result);
        }
        let answer: Vec<&str> = lines.next().unwrap().split(' ').collect();
        assert_eq!(answer[..2], ["answer", &self.question]);
        assert_eq!(lines.next(), None);
        found.extend((written[&self.question].to_string() != answer[2]).then_some(Flaw::Answer));
        found
    }
}

/// The part of a `solve` or `judge` text that states the problem, and what follows `work :` or `shown :`.
fn halves(text: &str) -> (&str, &str) {
    let (_, text) = text.split_once(" : ").unwrap();
    text.split_once(" work :").or_else(|| text.split_once(" shown :")).map(|(a, b)| (a, b.trim())).unwrap()
}

/// Problems of all levels under several seeds, each with its turn.
fn problems(each: u64) -> impl Iterator<Item = (Problem, usize)> {
    LEVELS.into_iter().flat_map(move |level| {
        (0..each).map(move |index| (problem(index % 7, level, index), usize::try_from(index).unwrap()))
    })
}

#[test]
fn prompt_chain_answer_and_verdict_agree_with_the_interpreter() {
    for (problem, turn) in problems(500) {
        let wording = WORDINGS[turn % WORDINGS.len()];
        let hint = HINTS[turn / WORDINGS.len() % HINTS.len()];
        let prompt = problem.prompt(wording, hint);
        let reading = read(halves(&prompt).0);
        let (chain, answer) = reading.solve();
        assert_eq!(problem.solution(wording), chain, "{prompt}");
        assert_eq!(u32::from(problem.answer), answer, "{prompt}");
        assert_eq!(parse_answer(&chain), Some(problem.answer));
        assert_eq!(reading.mistakes(&chain), []);

        let flawed = problem.flawed_solution(wording, u64::try_from(turn).unwrap());
        let shown = verify_prompt(&problem, wording, &flawed);
        let (body, shown) = halves(&shown);
        assert_eq!(read(body), reading, "the verifier reads the same problem");
        let shown = shown.strip_suffix(" verdict").unwrap();
        assert_eq!(reading.mistakes(shown).len(), 1, "one flaw: {shown}");
        assert_ne!(parse_answer(shown), Some(problem.answer), "{shown}");
    }
}

#[test]
fn all_wordings_and_hints_state_the_same_problem() {
    for (problem, turn) in problems(12) {
        let sorted = |reading: Reading| {
            let mut names: Vec<String> = reading.definitions.iter().map(|d| format!("{d:?}")).collect();
            names.sort();
            (names, reading.question)
        };
        let first = sorted(read(halves(&problem.prompt(WORDINGS[0], HINTS[0])).0));
        let mut texts = Vec::new();
        for wording in WORDINGS {
            let text = problem.prompt(wording, HINTS[turn % HINTS.len()]);
            assert_eq!(sorted(read(halves(&text).0)), first, "{text}");
            texts.push(text);
        }
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), WORDINGS.len(), "wordings differ");
    }
}

#[test]
fn each_flaw_is_the_mistake_it_says() {
    let mut found = [0; 5];
    for (problem, turn) in problems(60) {
        let wording = WORDINGS[turn % WORDINGS.len()];
        let reading = read(halves(&problem.prompt(wording, HINTS[0])).0);
        for (flaw, count) in FLAWS.into_iter().zip(&mut found) {
            let Some(text) = problem.solution_with(flaw, wording, 0) else { continue };
            assert_eq!(reading.mistakes(&text), [flaw], "{text}");
            assert_ne!(parse_answer(&text), Some(problem.answer));
            *count += 1;
        }
    }
    assert!(found.iter().all(|&count| count > 290), "of 300: {found:?}");
}

#[test]
fn training_records_agree_with_the_interpreter() {
    let mixture = Mixture {
        recall_percent: 0,
        judge_percent: 50,
        check_percent: 0,
        statements_min: 4,
        statements_max: 26,
        long_percent: 10,
        long_max: 50,
    };
    let [mut right, mut wrong] = [0, 0];
    for index in 0..1500 {
        let record = training_record(3, mixture, index);
        let text = decode(&record.tokens);
        let text = text.strip_suffix(" <eos>").unwrap();
        let (body, rest) = halves(text);
        let (chain, answer) = read(body).solve();
        if text.starts_with("solve") {
            assert_eq!(rest, chain);
            continue;
        }
        let (shown, verdict) = rest.split_once(" verdict ").unwrap();
        let is_right = parse_answer(shown).map(u32::from) == Some(answer);
        assert_eq!(verdict, if is_right { "yes" } else { "no" }, "{text}");
        assert_eq!(is_right, shown == chain, "{text}");
        *(if is_right { &mut right } else { &mut wrong }) += 1;
    }
    assert!(right > 300 && wrong > 300, "{right} right and {wrong} wrong ones");
}

#[test]
fn lengths_span_what_is_documented() {
    let mut of_level = Vec::new();
    for level in LEVELS {
        let lengths = (0..200).map(|index| {
            let problem = problem(3, level, index);
            let wording = WORDINGS[usize::try_from(index).unwrap() % WORDINGS.len()];
            let count = |text: &str| text.split(' ').count();
            [count(&problem.prompt(wording, HINTS[1])), count(&problem.solution(wording))]
        });
        let lengths: Vec<[usize; 2]> = lengths.collect();
        let most = |part: usize| lengths.iter().map(|length| length[part]).max().unwrap();
        let mean = |part: usize| lengths.iter().map(|length| length[part]).sum::<usize>() / lengths.len();
        // The longest text and its verdict fit the embedded model's context.
        assert!(most(0) + most(1) + 2 <= 1280, "{}: {} + {}", level.id, most(0), most(1));
        of_level.push([mean(0), mean(1)]);
    }
    assert!(of_level.is_sorted(), "levels grow: {of_level:?}");
    let [first, last] = [of_level[0], of_level[LEVELS.len() - 1]];
    assert!((40..80).contains(&first[0]) && (60..80).contains(&first[1]), "{first:?}");
    assert!((360..570).contains(&last[0]) && (540..620).contains(&last[1]), "{last:?}");
}

/// Every level with every wording, hint and flaw: the first bytes of a digest, and the answers.
///
/// Trained weights and reported figures belong to these texts.
#[test]
fn texts_did_not_move() {
    let mut lines = Vec::new();
    for level in LEVELS {
        let mut digest = Sha256::new();
        let mut answers = String::new();
        for (split, index) in [(Split::Evaluation, 0), (Split::Evaluation, 1), (Split::Training, 0)] {
            let problem = Problem::of(ProblemId { seed: 11, level, split, index });
            answers += &problem.answer.to_string();
            for wording in WORDINGS {
                for hint in HINTS {
                    digest.update(problem.prompt(wording, hint));
                }
                digest.update(problem.solution(wording));
                digest.update(problem.flawed_solution(wording, 1));
                for flaw in FLAWS {
                    digest.update(problem.solution_with(flaw, wording, 1).unwrap_or_default());
                }
            }
        }
        let digest: String = digest.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        lines.push(format!("{} {answers} {digest}", level.id));
    }
    let pinned = [
        "easy 172 a43c4c97b712",
        "light 357 e85b47e2fafa",
        "default 097 65907dbedff2",
        "hard 845 d8151ca6ab6e",
        "extreme 014 85216d84330b",
        "marathon 966 7b443eb88d38",
    ];
    assert_eq!(lines, pinned);
}
