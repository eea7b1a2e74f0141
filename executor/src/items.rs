//! Where problems come from: a file, the built-in sample, or a generator, as items that can be run and graded.

use std::path::Path;

use crate::{
    problems::{GSM8K_SAMPLE, Problem, ProblemError, grade_last_number, parse_problems, read_problems},
    record::{Grader, RecordItem},
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

    fn of_problems(name: &str, problems: &[Problem]) -> Self {
        let items = problems.iter().map(Problem::as_chat).collect();
        Self { name: name.to_owned(), items, grader: grade_last_number }
    }

    /// Keeps the first `limit` items, at least one.
    pub fn truncate(&mut self, limit: usize) {
        self.items.truncate(limit.max(1));
    }
}
