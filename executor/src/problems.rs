//! Problem files: one JSON object a line.
//!
//! Responsible for reading problems and for turning one into a chat. Not responsible for running anything.

use crate::grade::Checker;
use crate::record::{PromptForm, RecordItem};
use crate::text::ChatMessage;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The first 24 questions of the GSM8K test split (MIT, see `executor/assets/NOTICE.md`).
pub const GSM8K_SAMPLE: &str = include_str!("../assets/gsm8k-sample.jsonl");

/// One problem. Other keys of a line (`source`, `licence`, …) are passed over.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Problem {
    /// Its id, unique in the file.
    pub id: String,
    /// The question.
    pub question: String,
    /// The choices, for multiple choice.
    #[serde(default)]
    pub choices: Vec<String>,
    /// The final answer; for multiple choice the letter (A = first choice).
    #[serde(default)]
    pub answer: Option<String>,
}

/// A problem file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is no problem.
    #[error("{}: line {line} (byte {offset}): {source}; expected an object with `id`, `question` and maybe `answer`, `choices`", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Byte at which the line begins.
        offset: usize,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// Two problems share an id.
    #[error("{}: line {line}: the id `{id}` was on line {first} already", path.display())]
    DuplicateId {
        /// The file.
        path: PathBuf,
        /// The second line, from 1.
        line: usize,
        /// The first line.
        first: usize,
        /// The id.
        id: String,
    },
    /// An answer that no text can have.
    #[error("{}: line {line}: the answer of `{id}` is {found:?}, accepted is {accepted}", path.display())]
    Answer {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem.
        id: String,
        /// The answer.
        found: String,
        /// What is accepted.
        accepted: String,
    },
    /// More choices than there are letters.
    #[error("{}: line {line}: `{id}` has {found} choices, accepted are up to 26", path.display())]
    Choices {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem.
        id: String,
        /// Its choices.
        found: usize,
    },
    /// No built-in set has that name.
    #[error("failed to find built-in problems: {found:?} is unknown; known are {}", accepted.join(", "))]
    Unknown {
        /// The name asked for.
        found: String,
        /// The names that exist.
        accepted: Vec<&'static str>,
    },
    /// A built-in set whose problems have no other wordings.
    #[error("failed to make branch trees of {found:?}: it has one wording only; with branches: {}", accepted.join(", "))]
    NotBranched {
        /// The name asked for.
        found: String,
        /// The names that can be branched.
        accepted: Vec<&'static str>,
    },
    /// The file holds no problem.
    #[error("{}: no problem in the file", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Reads a problem file whose answers are checked by `checker`.
///
/// # Errors
/// When it cannot be read or [`parse_problems`] refuses it.
pub fn read_problems(path: &Path, checker: &Checker) -> Result<Vec<Problem>, ProblemError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ProblemError::Io { path: path.to_owned(), source })?;
    parse_problems(&text, path, checker)
}

/// SHA-256 (hex) of a problem file, for the trace's manifest.
///
/// # Errors
/// When it cannot be read.
pub fn problem_file_sha256(path: &Path) -> Result<String, ProblemError> {
    crate::setup::sha256_of_file(path).map_err(|source| ProblemError::Io { path: path.to_owned(), source })
}

/// The problems of `text`, in order; `path` is named in errors. Empty lines are passed over.
///
/// # Errors
/// When a line is no problem, an id comes twice, an answer is none of the choices or none that `checker` can find, or there is no
/// problem at all.
pub fn parse_problems(text: &str, path: &Path, checker: &Checker) -> Result<Vec<Problem>, ProblemError> {
    let mut problems: Vec<(usize, Problem)> = Vec::new();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut offset = 0;
    for (at, line) in text.split_inclusive('\n').enumerate() {
        if !line.trim().is_empty() {
            let problem: Problem = serde_json::from_str(line).map_err(|source| ProblemError::Line {
                path: path.to_owned(),
                line: at + 1,
                offset,
                source,
            })?;
            if let Some((first, _)) = problems.iter().find(|(_, known)| known.id == problem.id) {
                return Err(ProblemError::DuplicateId {
                    path: path.to_owned(),
                    line: at + 1,
                    first: *first,
                    id: problem.id,
                });
            }
            problem.check(path, at + 1, checker)?;
            problems.push((at + 1, problem));
        }
        offset += line.len();
    }
    if problems.is_empty() {
        return Err(ProblemError::Empty { path: path.to_owned() });
    }
    Ok(problems.into_iter().map(|(_, problem)| problem).collect())
}

impl Problem {
    /// Refuses what can only be answered wrongly.
    fn check(&self, path: &Path, line: usize, checker: &Checker) -> Result<(), ProblemError> {
        let (path, id) = (path.to_owned(), self.id.clone());
        let letters: Vec<char> = ('A'..='Z').take(self.choices.len()).collect();
        if letters.len() < self.choices.len() {
            return Err(ProblemError::Choices { path, line, id, found: self.choices.len() });
        }
        let Some(answer) = &self.answer else { return Ok(()) };
        let accepted = match (letters.first(), letters.last()) {
            (Some(first), Some(last)) => {
                let is_letter = letters.iter().any(|letter| *answer.trim() == *letter.to_string());
                (!is_letter).then(|| format!("the letter of a choice, {first} to {last}"))
            }
            _ => None,
        };
        let unfit = || {
            (!(checker.accepts)(answer))
                .then(|| format!("{} (checked by `{}`)", checker.accepted, checker.id))
        };
        match accepted.or_else(unfit) {
            None => Ok(()),
            Some(accepted) => Err(ProblemError::Answer { path, line, id, found: answer.clone(), accepted }),
        }
    }

    /// The question, with a line for each choice.
    #[must_use]
    pub fn with_choices(&self) -> String {
        let mut text = self.question.clone();
        for (letter, choice) in ('A'..='Z').zip(&self.choices) {
            text.push_str(&format!("\n{letter}. {choice}"));
        }
        text
    }

    /// The problem as a chat of one user turn that asks for reasoning step by step.
    #[must_use]
    pub fn as_chat(&self) -> RecordItem {
        let mut content = self.with_choices();
        content.push_str("\n\nReason step by step, then give the final answer.");
        RecordItem {
            item: self.id.clone(),
            prompt: PromptForm::Chat(vec![ChatMessage { role: "user".to_owned(), content }]),
            stops: Vec::new(),
            expected_answer: self.answer.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_reads_and_has_numbers_for_answers() {
        let problems = parse(GSM8K_SAMPLE, "number").unwrap();
        assert_eq!(problems.len(), 24);
        assert!(problems.iter().all(|p| p.answer.as_ref().is_some_and(|a| a.parse::<f64>().is_ok())));
    }

    fn parse(text: &str, checker: &str) -> Result<Vec<Problem>, ProblemError> {
        parse_problems(text, Path::new("p.jsonl"), crate::grade::checker(checker).unwrap())
    }

    #[test]
    fn answers_that_no_text_can_have_are_refused_with_their_line() {
        let choice = |answer: &str| {
            let line =
                serde_json::json!({"id": "c", "question": "?", "choices": ["x", "y"], "answer": answer});
            format!("{{\"id\": \"a\", \"question\": \"b\", \"answer\": \"five\"}}\n{line}\n")
        };
        assert!(parse(&choice(" B "), "auto").is_ok());
        for (text, checker, expected) in [
            (
                choice("C"),
                "auto",
                "p.jsonl: line 2: the answer of `c` is \"C\", accepted is the letter of a choice, A to B",
            ),
            (choice("x"), "latex", "line 2: the answer of `c` is \"x\""),
            (
                choice("B"),
                "number",
                "line 1: the answer of `a` is \"five\", accepted is a number (checked by `number`)",
            ),
            (choice("B"), "choice", "line 1: the answer of `a` is \"five\", accepted is a capital letter"),
            (
                choice("B").replace("five", " "),
                "auto",
                "line 1: the answer of `a` is \" \", accepted is a text",
            ),
        ] {
            let error = parse(&text, checker).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let many = serde_json::json!({"id": "m", "question": "?", "choices": vec!["x"; 27]}).to_string();
        let error = parse(&many, "auto").unwrap_err().to_string();
        assert!(error.contains("line 1: `m` has 27 choices"), "{error}");
    }

    #[test]
    fn a_cut_line_is_named_with_line_and_byte() {
        let text = "{\"id\": \"a\", \"question\": \"b\"}\n{\"id\": \"c\", \"quest";
        let error = parse(text, "auto").unwrap_err().to_string();
        assert!(error.contains("p.jsonl: line 2 (byte 29)"), "{error}");
        let twice = "{\"id\": \"a\", \"question\": \"b\"}\n\n{\"id\": \"a\", \"question\": \"c\"}\n";
        let error = parse(twice, "auto").unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("line 1"), "{error}");
    }
}
