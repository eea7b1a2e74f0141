//! Problems as trees of prompts: the same problem in other words, with a hint behind it.

use std::{fmt, path::Path};

use crate::{
    grade::{self, AUTO, Checker},
    items::{chain_new_tokens, grade_chain},
    problems::{GSM8K_SAMPLE, Problem, ProblemError, parse_problems, read_problems},
    record::Grader,
    workload::chain::{self, HINTS, Level, WORDINGS, Wording},
};

/// One prompt: a prefix that says the problem, and a suffix that begins the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchWords {
    /// Number of the wording.
    pub wording: u32,
    /// How far it is from the root's: 0 identical, 1 minor rewording, 2 other structure, 3 other framing.
    pub wording_level: u32,
    /// Number of the hint in the suffix, if there is one.
    pub hint: Option<u32>,
    /// The problem.
    pub prefix: String,
    /// What follows it.
    pub suffix: String,
}

/// Gives the verifier's prompt for a wording of a problem and what was written for it.
pub type VerifierPrompt = Box<dyn Fn(u32, &str) -> String + Send + Sync>;

/// A problem with its branches.
pub struct TreeItem {
    /// Id of the problem.
    pub item: String,
    /// The right answer, where there is one.
    pub expected_answer: Option<String>,
    /// The root prompt.
    pub root: BranchWords,
    /// The branches.
    pub branches: Vec<BranchWords>,
    /// Texts that end a continuation when they appear in it.
    pub stops: Vec<String>,
    /// The verifier's prompt.
    pub verify: VerifierPrompt,
    /// The same without the problem: what the reference notebook showed. For [`super::Protocol::AsPublished`].
    pub blind: VerifierPrompt,
}

impl fmt::Debug for TreeItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeItem")
            .field("item", &self.item)
            .field("branches", &self.branches.len())
            .finish_non_exhaustive()
    }
}

/// Trees with what is needed to run and grade them.
#[derive(Debug)]
pub struct TreeSet {
    /// Name in tables and manifests.
    pub name: String,
    /// The trees.
    pub items: Vec<TreeItem>,
    /// How answers are graded.
    pub grader: Grader,
    /// The verifier's words for yes and no.
    pub verdict_words: (&'static str, &'static str),
    /// Enough new tokens for most answers.
    pub usual_new_tokens: u32,
}

/// Levels of the wordings of `chain`, as [`WORDINGS`] counts them.
const CHAIN_LEVELS: [u32; 8] = [0, 1, 2, 2, 2, 3, 3, 2];

impl TreeSet {
    /// The first `count` evaluation problems of the `chain` workload under `seed`, each with `branches` branches. Wordings
    /// and hints take turns; with `one_wording` all branches have the root's words and only hints differ.
    #[must_use]
    pub fn chain(level: Level, count: u32, seed: u64, branches: u32, one_wording: bool) -> Self {
        let items = (0..count).map(|index| chain_tree(level, index, seed, branches, one_wording)).collect();
        Self {
            name: format!("chain-{}", level.id),
            items,
            grader: grade_chain,
            verdict_words: ("yes", "no"),
            usual_new_tokens: chain_new_tokens(level),
        }
    }

    /// The built-in trees called `id`: `chain`, or `gsm8k`.
    ///
    /// # Errors
    /// When there are none of that name.
    pub fn built_in(
        id: &str,
        level: Level,
        count: u32,
        seed: u64,
        branches: u32,
        one_wording: bool,
    ) -> Result<Self, ProblemError> {
        match id {
            "chain" => Ok(Self::chain(level, count, seed, branches, one_wording)),
            "gsm8k" => {
                let problems = parse_problems(GSM8K_SAMPLE, Path::new("the built-in GSM8K sample"), &AUTO)?;
                Ok(Self::of_problems("gsm8k-sample", &problems, branches, one_wording))
            }
            _ => Err(ProblemError::NotBranched { found: id.to_owned(), accepted: vec!["chain", "gsm8k"] }),
        }
    }

    /// The problems of a file, their answers checked by `checker`; the set is named as the file is, without extension.
    ///
    /// # Errors
    /// As [`read_problems`].
    pub fn of_file(
        path: &Path,
        checker: &Checker,
        branches: u32,
        one_wording: bool,
    ) -> Result<Self, ProblemError> {
        let problems = read_problems(path, checker)?;
        let name = path.file_stem().map_or_else(|| "problems".into(), |stem| stem.to_string_lossy());
        Ok(Self { grader: checker.grade, ..Self::of_problems(&name, &problems, branches, one_wording) })
    }

    /// The given problems, each with `branches` branches: eight framings of the question and eight hints in turn.
    #[must_use]
    pub fn of_problems(name: &str, problems: &[Problem], branches: u32, one_wording: bool) -> Self {
        Self {
            name: name.to_owned(),
            items: problems.iter().map(|problem| question_tree(problem, branches, one_wording)).collect(),
            grader: grade::auto,
            verdict_words: (" YES", " NO"),
            usual_new_tokens: 128,
        }
    }
}

fn chain_tree(level: Level, index: u32, seed: u64, branches: u32, one_wording: bool) -> TreeItem {
    let problem = chain::problem(seed, level, u64::from(index));
    let words = |wording: u32, hint: u32| {
        let (at, hint_at) = (wording as usize % WORDINGS.len(), hint as usize % HINTS.len());
        // The prefix ends where the hint begins; tokens are split at blanks, so both parts are split alike.
        let whole = problem.prompt(WORDINGS[at], HINTS[0]);
        let prefix = whole.strip_suffix(" work :").unwrap_or(&whole).to_owned();
        let hinted = problem.prompt(WORDINGS[at], HINTS[hint_at]);
        let suffix = hinted.strip_prefix(&prefix).unwrap_or(" work :").to_owned();
        BranchWords {
            wording,
            wording_level: CHAIN_LEVELS[at],
            hint: (hint_at > 0).then_some(hint),
            prefix,
            suffix,
        }
    };
    let wording = |branch: u32| if one_wording { 0 } else { branch % 8 };
    let hints = u32::try_from(HINTS.len()).unwrap_or(1);
    let root = words(0, 0);
    TreeItem {
        item: format!("chain-{}-{seed}-{index}", level.id),
        expected_answer: Some(problem.answer.to_string()),
        branches: (0..branches).map(|branch| words(wording(branch), branch % hints)).collect(),
        root,
        stops: Vec::new(),
        verify: Box::new(move |wording, shown| {
            let wording: Wording = WORDINGS[wording as usize % WORDINGS.len()];
            chain::verify_prompt(&problem, wording, shown)
        }),
        blind: Box::new(move |wording, shown| {
            // The model knows no words but those of such problems: one that is always the same stands for a filler.
            let wording: Wording = WORDINGS[wording as usize % WORDINGS.len()];
            chain::verify_prompt(&chain::problem(0, level, u64::MAX), wording, shown)
        }),
    }
}

/// What stands for the filler that the notebook's prompts begin with; ASCII.
const FILLER: &str = "Please read the following carefully before you begin. ";

/// A framing of a question, its level, and what stands before and behind it.
type Framing = (u32, &'static str, &'static str);

const FRAMINGS: [Framing; 8] = [
    (0, "Solve the following problem.\n\nProblem: ", "\n\nSolution:"),
    (1, "Solve the following question.\n\nProblem: ", "\n\nSolution:"),
    (1, "Solve the problem below.\n\nProblem: ", "\n\nSolution:"),
    (2, "Question: ", "\n\nThink about it first, then answer.\n\nAnswer:"),
    (2, "Here is an exercise. Write down each step.\n\n", "\n\nSteps:"),
    (2, "A student asks you:\n\n\"", "\"\n\nYou explain:"),
    (3, "You are marking an exam. One of its questions is this.\n\n", "\n\nThe model solution begins here:"),
    (3, "Two friends talk about a puzzle. One reads it out: \"", "\" The other one works it out aloud:"),
];

const QUESTION_HINTS: [&str; 8] = [
    "from first principles",
    "by what stays the same",
    "backwards from the answer",
    "with equations for all that is known",
    "by the extreme cases first",
    "with a picture of the situation",
    "by an estimate first",
    "with the one rule that fits best",
];

fn question_tree(problem: &Problem, branches: u32, one_wording: bool) -> TreeItem {
    let question = problem.with_choices();
    let words = |wording: u32, hint: Option<u32>| {
        let (level, before, behind) = FRAMINGS[wording as usize % FRAMINGS.len()];
        let suffix = match hint {
            None => "\n".to_owned(),
            Some(hint) => {
                let hint = QUESTION_HINTS[hint as usize % QUESTION_HINTS.len()];
                format!("\nApproach: {hint}.\nStep 1:")
            }
        };
        BranchWords {
            wording,
            wording_level: level,
            hint,
            prefix: format!("{before}{question}{behind}"),
            suffix,
        }
    };
    let wording = |branch: u32| if one_wording { 0 } else { branch % 8 };
    let asked = question.clone();
    let verify = |asked: &str, shown: &str| {
        format!(
            "Problem: {asked}\n\nProposed answer: {}\n\nIs the proposed answer correct? Reply YES or NO.\nReply:",
            shown.trim()
        )
    };
    TreeItem {
        item: problem.id.clone(),
        expected_answer: problem.answer.clone(),
        root: words(0, None),
        branches: (0..branches).map(|branch| words(wording(branch), Some(branch % 8))).collect(),
        stops: vec!["\n\nProblem:".to_owned(), "\n\nQuestion:".to_owned()],
        verify: Box::new(move |_, shown| verify(&asked, shown)),
        blind: Box::new(move |_, shown| {
            // The first 2000 characters of a prompt that begins with its filler.
            verify(&FILLER.repeat(2000 / FILLER.len() + 1)[..2000], shown)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::chain::LEVELS;

    #[test]
    fn a_chain_branch_is_the_prompt_of_its_wording_and_hint() {
        let set = TreeSet::chain(LEVELS[0], 2, 7, 8, false);
        for (index, item) in (0_u64..).zip(&set.items) {
            let problem = chain::problem(7, LEVELS[0], index);
            assert_eq!(item.branches.len(), 8);
            for (at, branch) in item.branches.iter().enumerate() {
                let expected = problem.prompt(WORDINGS[at], HINTS[at % HINTS.len()]);
                assert_eq!(format!("{}{}", branch.prefix, branch.suffix), expected);
                assert!(branch.suffix.ends_with(" work :"));
            }
            assert_eq!(item.branches[0].prefix, item.root.prefix);
            assert!(item.branches[1..].iter().all(|branch| branch.prefix != item.root.prefix));
            let shown = problem.solution(WORDINGS[3]);
            assert_eq!((item.verify)(3, &shown), chain::verify_prompt(&problem, WORDINGS[3], &shown));
        }
        let same = TreeSet::chain(LEVELS[0], 1, 7, 8, true);
        assert!(same.items[0].branches.iter().all(|branch| branch.prefix == same.items[0].root.prefix));
    }

    #[test]
    fn framings_differ_and_say_the_question() {
        let problem = Problem {
            id: "a".to_owned(),
            question: "What is 2 + 3?".to_owned(),
            choices: vec!["4".to_owned(), "5".to_owned()],
            answer: Some("B".to_owned()),
        };
        let set = TreeSet::of_problems("p", &[problem], 8, false);
        let prefixes: std::collections::BTreeSet<_> =
            set.items[0].branches.iter().map(|branch| branch.prefix.as_str()).collect();
        assert_eq!(prefixes.len(), 8);
        assert!(prefixes.iter().all(|prefix| prefix.contains("What is 2 + 3?\nA. 4\nB. 5")));
        assert_eq!(FRAMINGS.map(|framing| framing.0), [0, 1, 1, 2, 2, 2, 3, 3]);
    }
}
