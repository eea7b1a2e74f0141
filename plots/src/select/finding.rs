//! The words of the `lint` column, taken apart: which threshold a finding is about, and what kind it is.

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The entropy threshold θ.
    Theta,
    /// The limit ε on the change between layers.
    Epsilon,
    /// A policy that had nothing to evict.
    Idle,
    /// Anything else.
    Other,
}

/// One finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finding<'a> {
    pub(crate) subject: Subject,
    /// `theta is vacuous`.
    pub(crate) kind: &'a str,
    /// The numbers that show it; empty when the words have none.
    pub(crate) detail: &'a str,
}

/// The findings in one cell's `lint`. Words that name no threshold belong to the finding before them.
pub(crate) fn findings(lint: &str) -> Vec<Finding<'_>> {
    let names_threshold = |text: &str| text.starts_with("theta") || text.starts_with("epsilon");
    let mut starts: Vec<usize> = vec![0];
    starts.extend(lint.match_indices("; ").map(|(at, _)| at + 2).filter(|at| names_threshold(&lint[*at..])));
    let ends = starts.iter().skip(1).map(|start| start - 2).chain([lint.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(start, end)| one(lint[*start..end].trim()))
        .filter(|found| !found.kind.is_empty())
        .collect()
}

fn one(text: &str) -> Finding<'_> {
    let (kind, detail) = text.split_once(": ").unwrap_or((text, ""));
    let subject = if kind.starts_with("theta") {
        Subject::Theta
    } else if kind.starts_with("epsilon") {
        Subject::Epsilon
    } else if kind.contains("never triggered") {
        Subject::Idle
    } else {
        Subject::Other
    };
    Finding { subject, kind, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_thresholds_are_two_findings() {
        let found = findings("theta is unreachable: none below 0.1; epsilon is vacuous: 3 is above all");
        let parts: Vec<_> = found.iter().map(|f| (f.subject, f.kind, f.detail)).collect();
        assert_eq!(
            parts,
            [
                (Subject::Theta, "theta is unreachable", "none below 0.1"),
                (Subject::Epsilon, "epsilon is vacuous", "3 is above all")
            ]
        );
    }

    #[test]
    fn other_words_stay_whole() {
        let found =
            findings("the policy never triggered: budget 64 was not exceeded; results equal the full cache");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].subject, Subject::Idle);
        assert!(found[0].detail.ends_with("full cache"));
        assert_eq!(findings("odd")[0], Finding { subject: Subject::Other, kind: "odd", detail: "" });
        assert!(findings("").is_empty());
    }
}
