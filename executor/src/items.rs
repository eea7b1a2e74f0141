//! Where problems come from: a file, the built-in sample, or a generator, as items that can be run and graded.

use std::path::Path;

use crate::{
    grade::{self, AUTO, Checker},
    problems::{GSM8K_SAMPLE, Problem, ProblemError, parse_problems, read_problems},
    record::{Graded, Grader, PromptForm, RecordItem},
    workload::{
        chain::{self, HINTS, Level, Verdict, WORDINGS},
        retrieval::{self, Kind},
    },
};

/// Items with a name and a grader.
#[derive(Debug, Clone)]
pub struct ItemSet {
    /// Name in tables and manifests.
    pub name: String,
    /// What is run, in order.
    pub items: Vec<RecordItem>,
    /// How answers are graded.
    pub grader: Grader,
    /// Enough new tokens for most answers.
    pub usual_new_tokens: u32,
}

/// What can be chosen about problems that are generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemSetting {
    /// How difficult they are.
    Level,
    /// How many there are.
    Count,
    /// The seed they are drawn with.
    Seed,
}

/// Problems that need no file.
#[derive(Debug, Clone, Copy)]
pub struct BuiltIn {
    /// Name on the command line.
    pub id: &'static str,
    /// One line about it.
    pub summary: &'static str,
    /// What can be chosen about its problems.
    pub takes: &'static [ItemSetting],
    make: fn(Level, u32, u64) -> Result<ItemSet, ProblemError>,
}

/// Every built-in, sorted by id.
pub const BUILT_INS: &[BuiltIn] = &[
    BuiltIn {
        id: "chain",
        summary: "multi-step arithmetic over named variables, for the embedded model",
        takes: &[ItemSetting::Level, ItemSetting::Count, ItemSetting::Seed],
        make: |level, count, seed| Ok(ItemSet::chain(level, count, seed)),
    },
    BuiltIn {
        id: "chain-verify",
        summary: "the same problems with a shown solution, right and flawed ones in turn: is it right?",
        takes: &[ItemSetting::Level, ItemSetting::Count, ItemSetting::Seed],
        make: |level, count, seed| Ok(ItemSet::chain_verify(level, count, seed)),
    },
    retrieval_line(&retrieval::FACTS, |_, count, seed| Ok(ItemSet::retrieval(retrieval::FACTS, count, seed))),
    BuiltIn {
        id: "gsm8k",
        summary: "the first 24 questions of GSM8K, as chats",
        takes: &[],
        make: |_, _, _| ItemSet::gsm8k_sample(),
    },
    retrieval_line(&retrieval::LOOKUP, |_, count, seed| {
        Ok(ItemSet::retrieval(retrieval::LOOKUP, count, seed))
    }),
    retrieval_line(&retrieval::PASSKEY, |_, count, seed| {
        Ok(ItemSet::retrieval(retrieval::PASSKEY, count, seed))
    }),
    retrieval_line(&retrieval::PASSKEY_2, |_, count, seed| {
        Ok(ItemSet::retrieval(retrieval::PASSKEY_2, count, seed))
    }),
];

const fn retrieval_line(kind: &Kind, make: fn(Level, u32, u64) -> Result<ItemSet, ProblemError>) -> BuiltIn {
    BuiltIn { id: kind.id, summary: kind.summary, takes: &[ItemSetting::Count, ItemSetting::Seed], make }
}

impl ItemSet {
    /// The built-in set called `id`: `count` problems of `level` under `seed`, as far as it looks at these.
    ///
    /// # Errors
    /// When there is no such set.
    pub fn built_in(id: &str, level: Level, count: u32, seed: u64) -> Result<Self, ProblemError> {
        let known = BUILT_INS.iter().find(|known| known.id == id).ok_or_else(|| ProblemError::Unknown {
            found: id.to_owned(),
            accepted: BUILT_INS.iter().map(|known| known.id).collect(),
        })?;
        (known.make)(level, count, seed)
    }

    /// The first questions of GSM8K, as chats.
    ///
    /// # Errors
    /// Never in practice: the sample is tested.
    pub fn gsm8k_sample() -> Result<Self, ProblemError> {
        let problems = parse_problems(GSM8K_SAMPLE, Path::new("the built-in GSM8K sample"), &AUTO)?;
        Ok(Self::of_problems("gsm8k-sample", &problems))
    }

    /// The problems of a file, as chats, their answers checked by `checker`; the set is named as the file is, without extension.
    ///
    /// # Errors
    /// As [`read_problems`].
    pub fn of_file(path: &Path, checker: &Checker) -> Result<Self, ProblemError> {
        let problems = read_problems(path, checker)?;
        let name = path.file_stem().map_or_else(|| "problems".into(), |stem| stem.to_string_lossy());
        Ok(Self { grader: checker.grade, ..Self::of_problems(&name, &problems) })
    }

    /// The first `count` evaluation problems of the `chain` workload under `seed`; wordings and hints take turns.
    #[must_use]
    pub fn chain(level: Level, count: u32, seed: u64) -> Self {
        let item = |index: u32| {
            let problem = chain::problem(seed, level, u64::from(index));
            let wording = WORDINGS[index as usize % WORDINGS.len()];
            let hint = HINTS[index as usize % HINTS.len()];
            RecordItem {
                item: format!("chain-{}-{seed}-{index}", level.id),
                prompt: PromptForm::Text(problem.prompt(wording, hint)),
                stops: Vec::new(),
                expected_answer: Some(problem.answer.to_string()),
            }
        };
        Self {
            name: format!("chain-{}", level.id),
            items: (0..count).map(item).collect(),
            grader: grade_chain,
            usual_new_tokens: chain_new_tokens(level),
        }
    }

    /// Judging: `count` problems of the `chain` workload with a shown solution, right and flawed ones in turn.
    #[must_use]
    pub fn chain_verify(level: Level, count: u32, seed: u64) -> Self {
        let item = |index: u32| {
            let problem = chain::problem(seed, level, u64::from(index));
            let wording = WORDINGS[index as usize / 2 % WORDINGS.len()];
            let is_right = index.is_multiple_of(2);
            let shown = if is_right {
                problem.solution(wording)
            } else {
                problem.flawed_solution(wording, u64::from(index))
            };
            RecordItem {
                item: format!("chain-verify-{}-{seed}-{index}", level.id),
                prompt: PromptForm::Text(chain::verify_prompt(&problem, wording, &shown)),
                stops: Vec::new(),
                expected_answer: Some(if is_right { "yes" } else { "no" }.to_owned()),
            }
        };
        Self {
            name: format!("chain-verify-{}", level.id),
            items: (0..count).map(item).collect(),
            grader: grade_verdict,
            usual_new_tokens: 2,
        }
    }

    /// Retrieval: `count` problems of a kind under `seed`. The first word written is the answer.
    #[must_use]
    pub fn retrieval(kind: Kind, count: u32, seed: u64) -> Self {
        let item = |index: u32| {
            let problem = kind.problem(seed, u64::from(index));
            RecordItem {
                item: format!("{}-{seed}-{index}", kind.id),
                prompt: PromptForm::Text(problem.prompt),
                stops: vec!["\n".to_owned(), ".".to_owned()],
                expected_answer: Some(problem.answer),
            }
        };
        Self {
            name: kind.id.to_owned(),
            items: (0..count).map(item).collect(),
            grader: grade_retrieval,
            usual_new_tokens: 8,
        }
    }

    fn of_problems(name: &str, problems: &[Problem]) -> Self {
        let items = problems.iter().map(Problem::as_chat).collect();
        Self { name: name.to_owned(), items, grader: grade::auto, usual_new_tokens: 160 }
    }

    /// Keeps the first `limit` items, at least one.
    pub fn truncate(&mut self, limit: usize) {
        self.items.truncate(limit.max(1));
    }
}

/// Grades by the verdict that the text begins with.
fn grade_verdict(text: &str, expected: &str) -> Graded {
    let answer = chain::parse_verdict(text).map(|verdict| match verdict {
        Verdict::Yes => "yes".to_owned(),
        Verdict::No => "no".to_owned(),
    });
    let correct = answer.as_deref() == Some(expected);
    Graded { answer, correct }
}

/// Grades by the first word.
fn grade_retrieval(text: &str, expected: &str) -> Graded {
    let answer = retrieval::parse_answer(text).map(str::to_owned);
    Graded { correct: answer.as_deref() == Some(expected), answer }
}

/// About eleven tokens a statement, the answer, and room.
pub(crate) fn chain_new_tokens(level: Level) -> u32 {
    9 * level.statements_max + 32
}

/// Grades by the digit after the first `answer` and a name.
pub(crate) fn grade_chain(text: &str, expected: &str) -> Graded {
    let answer = chain::parse_answer(text).map(|digit| digit.to_string());
    let correct = answer.as_deref() == Some(expected);
    Graded { answer, correct }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::chain::LEVELS;

    #[test]
    fn built_in_sets_are_sorted_and_make_what_they_say() {
        assert!(BUILT_INS.is_sorted_by(|a, b| a.id < b.id));
        let level = LEVELS[0];
        for known in BUILT_INS {
            let set = ItemSet::built_in(known.id, level, 3, 7).unwrap();
            assert!(set.items.len() >= 3 && set.items.iter().all(|item| item.expected_answer.is_some()));
            let ids: std::collections::BTreeSet<_> = set.items.iter().map(|item| &item.item).collect();
            assert_eq!(ids.len(), set.items.len());
        }
        let error = ItemSet::built_in("riddles", level, 3, 7).unwrap_err().to_string();
        assert!(error.contains("\"riddles\"") && error.contains("passkey-2"), "{error}");
    }

    #[test]
    fn retrieval_grades_the_first_word() {
        let set = ItemSet::retrieval(retrieval::PASSKEY, 1, 7);
        let expected = set.items[0].expected_answer.as_deref().unwrap();
        assert!((set.grader)(&format!(" {expected}."), expected).correct);
        assert!(!(set.grader)(&format!(" {expected}1."), expected).correct);
    }

    #[test]
    fn generated_problems_are_told_apart_and_their_own_solutions_are_right() {
        let Some(level) = Level::named("easy") else { panic!("there is an easy level") };
        let set = ItemSet::chain(level, 24, 7);
        for (index, item) in (0_u32..).zip(&set.items) {
            assert_eq!(item.item, format!("chain-easy-7-{index}"));
            let wording = WORDINGS[index as usize % WORDINGS.len()];
            let solution = chain::problem(7, level, u64::from(index)).solution(wording);
            let expected = item.expected_answer.as_deref().unwrap();
            assert!((set.grader)(&solution, expected).correct, "{solution}");
            assert!(!(set.grader)("answer", expected).correct);
        }
        assert_ne!(set.items[0].prompt, ItemSet::chain(level, 1, 8).items[0].prompt, "the seed matters");
    }
}
