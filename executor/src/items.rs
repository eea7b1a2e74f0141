//! Where problems come from: a file, the built-in sample, or a generator, as items that can be run and graded.

use std::path::Path;

use crate::{
    problems::{GSM8K_SAMPLE, Problem, ProblemError, grade_last_number, parse_problems, read_problems},
    record::{Graded, Grader, PromptForm, RecordItem},
    workload::chain::{self, HINTS, Level, Verdict, WORDINGS},
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

impl ItemSet {
    /// The first questions of GSM8K, as chats.
    ///
    /// # Errors
    /// Never in practice: the sample is tested.
    pub fn gsm8k_sample() -> Result<Self, ProblemError> {
        let problems = parse_problems(GSM8K_SAMPLE, Path::new("the built-in GSM8K sample"))?;
        Ok(Self::of_problems("gsm8k-sample", &problems))
    }

    /// The problems of a file, as chats; the set is named as the file is, without extension.
    ///
    /// # Errors
    /// As [`read_problems`].
    pub fn of_file(path: &Path) -> Result<Self, ProblemError> {
        let problems = read_problems(path)?;
        let name = path.file_stem().map_or_else(|| "problems".into(), |stem| stem.to_string_lossy());
        Ok(Self::of_problems(&name, &problems))
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
            // About eleven tokens a statement, and the answer.
            usual_new_tokens: 16 * level.statements_max + 32,
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

    fn of_problems(name: &str, problems: &[Problem]) -> Self {
        let items = problems.iter().map(Problem::as_chat).collect();
        Self { name: name.to_owned(), items, grader: grade_last_number, usual_new_tokens: 160 }
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

/// Grades by the digit after the first `answer` and a name.
fn grade_chain(text: &str, expected: &str) -> Graded {
    let answer = chain::parse_answer(text).map(|digit| digit.to_string());
    let correct = answer.as_deref() == Some(expected);
    Graded { answer, correct }
}

#[cfg(test)]
mod tests {
    use super::*;

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
