//! Answer checkers: what counts as the answer in a text, and whether it is the right one.
//!
//! A checker is a line in [`CHECKERS`]. All of them look at the text only; none of them knows the question.

use crate::record::{Graded, Grader};

/// A named checker.
#[derive(Debug, Clone, Copy)]
pub struct Checker {
    /// Name on the command line.
    pub id: &'static str,
    /// One line about it.
    pub summary: &'static str,
    /// The checker.
    pub grade: Grader,
    /// Whether an expected answer can be found at all.
    pub accepts: fn(&str) -> bool,
    /// What it accepts as expected answer.
    pub accepted: &'static str,
}

fn is_text(expected: &str) -> bool {
    !expected.trim().is_empty()
}

/// The checker of problems that ask for none.
pub const AUTO: Checker = Checker {
    id: "auto",
    summary: "by the form of the expected answer: letter, number, else LaTeX",
    grade: auto,
    accepts: is_text,
    accepted: TEXT,
};

/// Every checker, sorted by id.
pub const CHECKERS: &[Checker] = &[
    AUTO,
    Checker {
        id: "choice",
        summary: "the letter chosen: boxed, after `answer`, or the last one alone",
        grade: choice,
        accepts: |expected| is_choice(expected.trim()),
        accepted: "a capital letter",
    },
    Checker {
        id: "exact",
        summary: "the whole text, blanks around it passed over",
        grade: exact,
        accepts: is_text,
        accepted: TEXT,
    },
    Checker {
        id: "latex",
        summary: "the last boxed or stated formula, equal in form or value",
        grade: latex,
        accepts: is_text,
        accepted: TEXT,
    },
    Checker {
        id: "number",
        summary: "the last number",
        grade: number,
        accepts: |expected| number_expected(expected).is_some(),
        accepted: "a number",
    },
];

/// What most checkers accept.
const TEXT: &str = "a text, or no answer at all";

/// The checker called `id`, if there is one.
#[must_use]
pub fn checker(id: &str) -> Option<&'static Checker> {
    CHECKERS.iter().find(|checker| checker.id == id)
}

/// One letter means a choice, a plain number a number, everything else LaTeX.
#[must_use]
pub fn auto(text: &str, expected: &str) -> Graded {
    let plain = expected.trim().replace(',', "");
    if is_choice(expected.trim()) {
        choice(text, expected)
    } else if plain.parse::<f64>().is_ok() && !text.contains("\\boxed") {
        number(text, expected)
    } else {
        latex(text, expected)
    }
}

/// The whole text.
#[must_use]
pub fn exact(text: &str, expected: &str) -> Graded {
    let answer = text.trim();
    let correct = !answer.is_empty() && answer == expected.trim();
    Graded { correct, answer: (!answer.is_empty()).then(|| answer.to_owned()) }
}

/// The last number of the text: equal in value to the expected one. Thousands commas are passed over. An expected answer
/// that is no number is never found.
#[must_use]
pub fn number(text: &str, expected: &str) -> Graded {
    let answer = last_number(text);
    let correct = match (answer.as_deref().and_then(value), number_expected(expected)) {
        (Some(found), Some(expected)) => is_same(found, expected),
        _ => false,
    };
    Graded { answer, correct }
}

fn number_expected(expected: &str) -> Option<f64> {
    value(&expected.trim().replace(',', ""))
}

fn last_number(text: &str) -> Option<String> {
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '-');
    text.split(|c: char| !is_part(c))
        .map(|run| run.replace(',', ""))
        .map(|run| run.trim_end_matches(['.', '-']).to_owned())
        .rfind(|run| run.parse::<f64>().is_ok())
}

fn is_same(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-9 * expected.abs().max(1.0)
}

fn is_choice(word: &str) -> bool {
    let mut letters = word.chars();
    letters.next().is_some_and(|letter| letter.is_ascii_uppercase()) && letters.next().is_none()
}

/// The letter chosen. It must stand alone and be a capital, so that the article "a" is no answer.
#[must_use]
pub fn choice(text: &str, expected: &str) -> Graded {
    let boxed = boxed(text).map(|inner| bare(inner).to_owned()).filter(|inner| is_choice(inner));
    let answer = boxed.or_else(|| stated_choice(text)).or_else(|| lone_choice(text));
    Graded { correct: answer.as_deref() == Some(expected.trim()), answer }
}

/// The letter among the three words after the last `answer`.
fn stated_choice(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let after = lower.rfind("answer")? + "answer".len();
    text[after..].split_whitespace().take(4).map(bare).find(|word| is_choice(word)).map(str::to_owned)
}

/// The last letter that is a line or a bracket of its own, or the whole of the text.
fn lone_choice(text: &str) -> Option<String> {
    let in_brackets = text
        .split_whitespace()
        .filter(|word| word.starts_with('(') && word.contains(')'))
        .map(bare)
        .rfind(|word| is_choice(word));
    let own_line = || text.lines().map(|line| bare(line.trim())).rfind(|line| is_choice(line));
    in_brackets.or_else(own_line).map(str::to_owned)
}

/// A word without the marks around it.
fn bare(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_alphanumeric())
}

/// The last boxed or stated formula, equal to the expected one in its normal form or in value.
#[must_use]
pub fn latex(text: &str, expected: &str) -> Graded {
    let found = boxed(text).or_else(|| stated(text)).map(str::trim).filter(|found| !found.is_empty());
    let correct = found.is_some_and(|found| is_equal(found, expected));
    Graded { answer: found.map(str::to_owned), correct }
}

/// What the last `\boxed{…}` or `\fbox{…}` holds, braces balanced.
fn boxed(text: &str) -> Option<&str> {
    let begin = ["\\boxed", "\\fbox"].iter().filter_map(|word| text.rfind(word)).max()?;
    let rest = &text[begin..];
    let open = rest.find('{')?;
    let mut depth = 0_u32;
    for (at, c) in rest.char_indices().skip_while(|(at, _)| *at < open) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&rest[open + 1..at]);
        }
    }
    None
}

/// What follows the last `answer is`, to the end of the sentence; else the last formula between dollar signs.
fn stated(text: &str) -> Option<&str> {
    let lower = text.to_ascii_lowercase();
    if let Some(at) = lower.rfind("answer is").map(|at| at + "answer is".len()) {
        let line = text[at..].lines().next().unwrap_or_default();
        let line = line.split_once(". ").map_or(line, |(sentence, _)| sentence);
        return Some(line.trim_start_matches(':').trim().trim_end_matches('.'));
    }
    text.split('$').skip(1).step_by(2).filter(|formula| !formula.trim().is_empty()).last()
}

fn is_equal(found: &str, expected: &str) -> bool {
    let (found, expected) = (normal_form(found), normal_form(expected));
    if found == expected {
        return !found.is_empty();
    }
    match (value(&found), value(&expected)) {
        (Some(found), Some(expected)) => is_same(found, expected),
        _ => false,
    }
}

/// Without what changes looks only: blanks, sizes, dollar signs, units of degree and percent, and a name in front of `=`.
fn normal_form(formula: &str) -> String {
    let mut text = formula.trim().trim_end_matches('.').to_owned();
    for (from, to) in LOOKS {
        text = text.replace(from, to);
    }
    text = unwrap(&text, "\\text");
    text = unwrap(&text, "\\mbox");
    text.retain(|c| !c.is_whitespace() && c != '$');
    if let Some((name, value)) = text.split_once('=')
        && name.chars().count() == 1
    {
        text = value.to_owned();
    }
    text = braced_fractions(&text);
    // Thousands commas, in plain numbers only.
    let plain = text.replace(',', "");
    let groups: Vec<&str> = text.split(',').collect();
    let is_grouped = groups.len() > 1
        && groups[0].trim_start_matches('-').len() <= 3
        && groups
            .iter()
            .skip(1)
            .all(|group| group.get(..3).is_some_and(|d| d.bytes().all(|b| b.is_ascii_digit())));
    if is_grouped && plain.parse::<f64>().is_ok() { plain } else { text }
}

/// Longer patterns first.
const LOOKS: [(&str, &str); 16] = [
    ("\\left", ""),
    ("\\right", ""),
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\cfrac", "\\frac"),
    ("\\!", ""),
    ("\\,", ""),
    ("\\;", ""),
    ("\\ ", ""),
    ("\\quad", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\%", ""),
    ("%", ""),
    ("\\$", ""),
    ("\u{2212}", "-"),
];

/// `\text{metres}` becomes `metres`.
fn unwrap(text: &str, command: &str) -> String {
    let mut out = text.to_owned();
    while let Some(at) = out.find(&format!("{command}{{")) {
        let open = at + command.len();
        let Some(close) = out[open..].find('}').map(|length| open + length) else { break };
        out = format!("{}{}{}", &out[..at], &out[open + 1..close], &out[close + 1..]);
    }
    out
}

/// `\frac12` and `\frac{1}2` become `\frac{1}{2}`.
fn braced_fractions(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("\\frac") {
        let (before, after) = rest.split_at(at + "\\frac".len());
        out.push_str(before);
        rest = after;
        for _part in 0..2 {
            match rest.chars().next() {
                Some('{') => {
                    let end = closing(rest);
                    out.push_str(&braced_fractions(&rest[..end]));
                    rest = &rest[end..];
                }
                Some(c) if c.is_alphanumeric() => {
                    out.push('{');
                    out.push(c);
                    out.push('}');
                    rest = &rest[c.len_utf8()..];
                }
                _ => break,
            }
        }
    }
    out + rest
}

/// The byte behind the brace that closes the one at the start; the end of the text when nothing closes it.
fn closing(text: &str) -> usize {
    let mut depth = 0_u32;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + c.len_utf8();
        }
    }
    text.len()
}

/// The value of a number, `a/b` or `\frac{a}{b}`.
fn value(text: &str) -> Option<f64> {
    let finite = |value: f64| value.is_finite().then_some(value);
    if let Ok(value) = text.parse::<f64>() {
        return finite(value);
    }
    let (sign, body) = match text.strip_prefix('-') {
        Some(body) => (-1.0, body),
        None => (1.0, text),
    };
    let (above, below) = match body.strip_prefix("\\frac{") {
        Some(inner) => inner.strip_suffix('}')?.split_once("}{")?,
        None => body.split_once('/')?,
    };
    finite(sign * above.parse::<f64>().ok()? / below.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(grade: Grader, cases: &[(&str, &str, Option<&str>, bool)]) {
        for (text, expected, answer, correct) in cases {
            let expected_grade = Graded { answer: answer.map(str::to_owned), correct: *correct };
            assert_eq!(grade(text, expected), expected_grade, "{text:?} for {expected:?}");
        }
    }

    #[test]
    fn checkers_are_sorted_and_found_by_name() {
        assert!(CHECKERS.is_sorted_by(|a, b| a.id < b.id));
        assert!(CHECKERS.iter().all(|known| checker(known.id).is_some()));
        assert!(checker("regex").is_none());
    }

    #[test]
    fn the_last_number_decides() {
        check(
            number,
            &[
                ("16 - 3 - 4 = 9, so 9 * 2 = $18.", "18", Some("18"), true),
                ("It is 70,000 dollars.", "70000", Some("70000"), true),
                ("minus -3.50", "-3.5", Some("-3.50"), true),
                ("18 then 19", "18", Some("19"), false),
                ("no number here", "18", None, false),
                ("5", "five", Some("5"), false),
            ],
        );
    }

    #[test]
    fn a_choice_is_a_capital_that_stands_alone() {
        check(
            choice,
            &[
                ("The answer is (C).", "C", Some("C"), true),
                ("Answer: B", "B", Some("B"), true),
                ("**Answer: D**, because A is wrong", "D", Some("D"), true),
                ("so we get \\boxed{A}", "A", Some("A"), true),
                ("\\boxed{\\text{B}}", "B", None, false),
                ("It is a planet.", "A", None, false),
                ("A planet turns. I think (B) and then (D)", "D", Some("D"), true),
                ("C", "C", Some("C"), true),
                ("reasons\nB.\n", "B", Some("B"), true),
                ("The answer lies elsewhere", "A", None, false),
                ("", "A", None, false),
            ],
        );
    }

    #[test]
    fn formulas_are_equal_in_form_or_in_value() {
        check(
            latex,
            &[
                ("so \\boxed{\\dfrac{1}{2}}.", "\\frac12", Some("\\dfrac{1}{2}"), true),
                ("\\boxed{0.5}", "\\frac{1}{2}", Some("0.5"), true),
                ("\\boxed{-\\frac{3}{4}}", "-0.75", Some("-\\frac{3}{4}"), true),
                (
                    "\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}",
                    "(3,\\frac{\\pi}{2})",
                    Some("\\left( 3, \\frac{\\pi}{2} \\right)"),
                    true,
                ),
                ("The answer is $x = 5$.", "5", Some("$x = 5$"), true),
                ("we find $a+b$ and then $\\frac{a}{b}$", "\\frac{a}{b}", Some("\\frac{a}{b}"), true),
                ("\\boxed{10,000}", "10000", Some("10,000"), true),
                ("\\boxed{(1,234)}", "(1,234)", Some("(1,234)"), true),
                ("\\boxed{90^\\circ}", "90", Some("90^\\circ"), true),
                ("\\boxed{\\text{Evelyn}}", "Evelyn", Some("\\text{Evelyn}"), true),
                ("\\boxed{3} and later \\boxed{4}", "3", Some("4"), false),
                ("\\boxed{1/0}", "1", Some("1/0"), false),
                ("\\boxed{", "1", None, false),
                ("nothing", "1", None, false),
            ],
        );
    }

    #[test]
    fn the_form_of_the_expected_answer_chooses() {
        check(
            auto,
            &[
                ("The answer is (B), not 7", "B", Some("B"), true),
                ("that makes 7", "7", Some("7"), true),
                ("\\boxed{7} of 9", "7", Some("7"), true),
                ("The answer is \\sqrt{2}.", "\\sqrt{2}", Some("\\sqrt{2}"), true),
            ],
        );
        check(
            exact,
            &[
                (" yes\n", "yes", Some("yes"), true),
                ("yes.", "yes", Some("yes."), false),
                (" ", "", None, false),
            ],
        );
    }
}
