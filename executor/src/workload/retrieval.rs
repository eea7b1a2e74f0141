//! Retrieval: something is said once in a long text and asked for at its end.
//!
//! A model that does these with its full cache fails where an eviction dropped the one place that mattered. With the full cache
//! SmolLM2-135M solved 8 of 8 of facts, 7 of 8 of passkey and of passkey-2, and 1 of 8 of lookup
//! (8 problems each, seed 1): look at the row of `full` first. Answers are a few tokens long, so only policies that evict at the
//! end of the prompt, or whose period is short, act at all. A prompt ends where the answer begins: no chat template is needed.

use super::draw::Draw;

/// A kind of retrieval problem.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Name on the command line.
    pub id: &'static str,
    /// One line about it.
    pub summary: &'static str,
    make: fn(&mut Draw) -> Parts,
}

/// A favourite colour.
pub const FACTS: Kind =
    Kind { id: "facts", summary: "a favourite colour, said once in a long text", make: facts };
/// Eight names with numbers.
pub const LOOKUP: Kind =
    Kind { id: "lookup", summary: "eight names with numbers, one asked for", make: lookup };
/// One key.
pub const PASSKEY: Kind =
    Kind { id: "passkey", summary: "a five-digit key hidden in a long text", make: passkey };
/// Two keys.
pub const PASSKEY_2: Kind = Kind {
    id: "passkey-2",
    summary: "two five-digit keys hidden in a long text, one asked for",
    make: two_passkeys,
};

/// A problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retrieval {
    /// What the model reads; the answer comes next.
    pub prompt: String,
    /// The answer.
    pub answer: String,
}

/// Sentences to hide among the filler, and the question.
struct Parts {
    hidden: Vec<String>,
    question: String,
    answer: String,
    /// Filler sentences, least and most.
    filler: (u32, u32),
}

impl Kind {
    /// Problem `index` under `seed`.
    #[must_use]
    pub fn problem(self, seed: u64, index: u64) -> Retrieval {
        // The kind is part of the key: its id's bytes as a number.
        let word = self.id.bytes().fold(0_u64, |word, byte| word.rotate_left(7) ^ u64::from(byte));
        let mut draw = Draw::keyed([0x7265_7472_6965_7661, seed, word, index]);
        let parts = (self.make)(&mut draw);
        let count = draw.between(parts.filler.0, parts.filler.1) as usize;
        let mut sentences: Vec<String> =
            (0..count).map(|_| FILLER[draw.index(FILLER.len())].to_owned()).collect();
        for hidden in parts.hidden {
            // Never at the very end: the last sentences are what every policy keeps.
            let end = sentences.len() - sentences.len() / 8;
            let at = draw.index(end.max(1));
            sentences.insert(at, hidden);
        }
        Retrieval { prompt: format!("{}{}", sentences.join(" "), parts.question), answer: parts.answer }
    }
}

fn digits(draw: &mut Draw) -> String {
    // No leading zero: some tokenizers and readers drop it.
    draw.between(10_000, 99_999).to_string()
}

fn passkey(draw: &mut Draw) -> Parts {
    let key = digits(draw);
    Parts {
        hidden: vec![format!("The pass key is {key}. Remember it: {key} is the pass key.")],
        question: "\n\nWhat is the pass key? The pass key is".to_owned(),
        answer: key,
        filler: (20, 60),
    }
}

fn two_passkeys(draw: &mut Draw) -> Parts {
    let keys = [digits(draw), digits(draw)];
    let asked = draw.index(2);
    let colours = ["red", "blue"];
    let say = |at: usize| {
        let (colour, key) = (colours[at], &keys[at]);
        format!("The {colour} pass key is {key}. Remember it: {key} is the {colour} pass key.")
    };
    let colour = colours[asked];
    Parts {
        hidden: vec![say(0), say(1)],
        question: format!("\n\nWhat is the {colour} pass key? The {colour} pass key is"),
        answer: keys[asked].clone(),
        filler: (20, 50),
    }
}

fn facts(draw: &mut Draw) -> Parts {
    let mut names = NAMES;
    draw.shuffle(&mut names);
    let mut colours = COLOURS;
    draw.shuffle(&mut colours);
    let (name, colour) = (names[0], colours[0]);
    Parts {
        hidden: vec![format!("{name}'s favorite color is {colour}.")],
        question: format!(
            "\n\nQuestion: What is {name}'s favorite color?\nAnswer: {name}'s favorite color is"
        ),
        answer: colour.to_owned(),
        filler: (15, 40),
    }
}

fn lookup(draw: &mut Draw) -> Parts {
    let mut names = NAMES;
    draw.shuffle(&mut names);
    let numbers: Vec<u32> = (0..8).map(|_| draw.between(100, 999)).collect();
    let asked = draw.index(8);
    let lines: String =
        names.iter().zip(&numbers).map(|(name, number)| format!("\n{name} -> {number}")).collect();
    Parts {
        hidden: Vec::new(),
        question: format!("\n{lines}\n\nLook it up:\n{} ->", names[asked]),
        answer: numbers[asked].to_string(),
        filler: (0, 6),
    }
}

/// The answer in what was written: its first word, without the mark behind it. A number ends where its digits end.
#[must_use]
pub fn parse_answer(text: &str) -> Option<&str> {
    let word = text.split_whitespace().next()?;
    let end = word.find(|c: char| !c.is_alphanumeric()).unwrap_or(word.len());
    (end > 0).then(|| &word[..end])
}

const NAMES: [&str; 8] = ["Alice", "Brian", "Clara", "David", "Emma", "Frank", "Grace", "Henry"];

const COLOURS: [&str; 8] = ["red", "blue", "green", "yellow", "black", "white", "pink", "orange"];

const FILLER: [&str; 16] = [
    "The harbor was calm and the boats lay still.",
    "A dog slept in the shade of the old oak.",
    "The bus stopped twice before the bridge.",
    "Somebody had left a window open upstairs.",
    "The soup was warm and tasted of herbs.",
    "Rain fell on the roof for most of the night.",
    "The teacher wrote the date on the board.",
    "A letter lay unopened on the kitchen table.",
    "The garden needed water after the long summer.",
    "Two children ran along the fence and laughed.",
    "The shop on the corner sells paper and ink.",
    "Snow covered the path to the upper village.",
    "The clock in the station was a little slow.",
    "An old man fed the birds near the fountain.",
    "The road to the lake goes through a forest.",
    "Music came from a room at the end of the hall.",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_says_its_answer_before_it_asks() {
        for kind in [FACTS, LOOKUP, PASSKEY, PASSKEY_2] {
            for index in 0..200 {
                let problem = kind.problem(7, index);
                let at = problem.prompt.find(&problem.answer).expect("the answer is in the text");
                let asked = problem.prompt.rfind('\n').unwrap();
                assert!(at < asked, "{}", problem.prompt);
                let written = format!(" {}.\nAnd more", problem.answer);
                assert_eq!(parse_answer(&written), Some(problem.answer.as_str()));
            }
        }
    }

    #[test]
    fn seeds_and_indices_matter() {
        let first = PASSKEY.problem(1, 0);
        assert_eq!(first, PASSKEY.problem(1, 0));
        assert_ne!(first, PASSKEY.problem(2, 0));
        assert_ne!(first, PASSKEY.problem(1, 1));
    }

    #[test]
    fn answers_are_the_first_word_only() {
        assert_eq!(parse_answer("12345"), Some("12345"));
        assert_eq!(parse_answer(" 123456."), Some("123456"));
        assert_eq!(parse_answer("\n\nblue, I think"), Some("blue"));
        assert_eq!(parse_answer(" ."), None);
        assert_eq!(parse_answer(""), None);
    }
}
