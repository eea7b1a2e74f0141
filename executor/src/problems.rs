//! Problem files: one JSON object a line.
//!
//! Responsible for reading problems and for turning one into a chat. Not responsible for running anything.

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

/// Reads a problem file.
///
/// # Errors
/// When it cannot be read or [`parse_problems`] refuses it.
pub fn read_problems(path: &Path) -> Result<Vec<Problem>, ProblemError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ProblemError::Io { path: path.to_owned(), source })?;
    parse_problems(&text, path)
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
/// When a line is no problem, an id comes twice, or there is no problem at all.
pub fn parse_problems(text: &str, path: &Path) -> Result<Vec<Problem>, ProblemError> {
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
        let problems = parse_problems(GSM8K_SAMPLE, Path::new("sample")).unwrap();
        assert_eq!(problems.len(), 24);
        assert!(problems.iter().all(|p| p.answer.as_ref().is_some_and(|a| a.parse::<f64>().is_ok())));
    }

    #[test]
    fn a_cut_line_is_named_with_line_and_byte() {
        let text = "{\"id\": \"a\", \"question\": \"b\"}\n{\"id\": \"c\", \"quest";
        let error = parse_problems(text, Path::new("p.jsonl")).unwrap_err().to_string();
        assert!(error.contains("p.jsonl: line 2 (byte 29)"), "{error}");
        let twice = "{\"id\": \"a\", \"question\": \"b\"}\n\n{\"id\": \"a\", \"question\": \"c\"}\n";
        let error = parse_problems(twice, Path::new("p.jsonl")).unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("line 1"), "{error}");
    }
}
