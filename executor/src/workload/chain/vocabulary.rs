//! One token per word or symbol, and the `tokenizer.json` that says so.

use std::fmt::Write as _;

use super::problem::Name;

/// Ends a generation.
pub const END_TOKEN: &str = "<eos>";

/// All tokens; the position is the token id. The first two are special.
pub const TOKENS: [&str; 132] = [
    "<pad>",
    "<eos>", //
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "9", //
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "i",
    "j",
    "k",
    "l",
    "m",
    "n",
    "o",
    "p",
    "q",
    "r",
    "s",
    "t",
    "u",
    "v",
    "w",
    "x",
    "y",
    "z", //
    "A",
    "B",
    "C",
    "D",
    "E",
    "F",
    "G",
    "H",
    "I",
    "J",
    "K",
    "L",
    "M",
    "N",
    "O",
    "P",
    "Q",
    "R",
    "S",
    "T",
    "U",
    "V",
    "W",
    "X",
    "Y",
    "Z", //
    "α",
    "β",
    "γ",
    "δ",
    "ε",
    "ζ",
    "η",
    "θ",
    "ι",
    "κ",
    "λ",
    "μ",
    "ν",
    "ξ",
    "ο",
    "π",
    "ρ",
    "σ",
    "τ",
    "υ",
    "φ",
    "χ",
    "ψ",
    "ω", //
    "+",
    "-",
    "*",
    "=",
    ";",
    ":",
    ",",
    ".",
    "?", //
    "solve",
    "judge",
    "recall",
    "work",
    "answer",
    "verdict",
    "yes",
    "no", //
    "let",
    "set",
    "is",
    "gives",
    "take",
    "call",
    "given",
    "then",
    "plus",
    "minus",
    "times",
    "find",
    "what", //
    "think",
    "step",
    "by",
    "be",
    "careful",
    "go",
    "slowly",
    "show",
    "everything",
    "check",
    "each",
    "shown",
    "steps",
    "<unk>",
];

/// Id of the first name in [`TOKENS`]; the others follow.
const FIRST_NAME: usize = 12;

/// The text of a name.
pub(super) fn name_text(name: Name) -> &'static str {
    TOKENS[FIRST_NAME + usize::from(name.0)]
}

/// The id of a word, `None` if it is not in the vocabulary.
#[must_use]
pub fn token_id(word: &str) -> Option<u8> {
    let position = TOKENS.iter().position(|token| *token == word)?;
    u8::try_from(position).ok()
}

/// Ids of whitespace-separated text; `None` if a word is not in the vocabulary.
#[must_use]
pub fn encode(text: &str) -> Option<Vec<u8>> {
    text.split_whitespace().map(token_id).collect()
}

/// Text of ids, separated by single spaces; unknown ids are written `<unk>`.
#[must_use]
pub fn decode(ids: &[u8]) -> String {
    let words: Vec<&str> =
        ids.iter().map(|id| TOKENS.get(usize::from(*id)).copied().unwrap_or("<unk>")).collect();
    words.join(" ")
}

/// The vocabulary as a `tokenizer.json`: word level, split at whitespace, nothing added before or after.
#[must_use]
pub fn tokenizer_json() -> String {
    let mut vocab = String::new();
    for (id, token) in TOKENS.iter().enumerate() {
        let comma = if id == 0 { "" } else { ",\n" };
        // Writing to a String cannot fail.
        write!(vocab, "{comma}      \"{token}\": {id}").expect("a String accepts all text");
    }
    let special = |id: usize| {
        format!(
            "{{\"id\": {id}, \"content\": \"{}\", \"single_word\": false, \"lstrip\": false, \
             \"rstrip\": false, \"normalized\": false, \"special\": true}}",
            TOKENS[id]
        )
    };
    format!(
        "{{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \
         \"added_tokens\": [\n    {},\n    {}\n  ],\n  \"normalizer\": null,\n  \
         \"pre_tokenizer\": {{\"type\": \"WhitespaceSplit\"}},\n  \"post_processor\": null,\n  \
         \"decoder\": null,\n  \"model\": {{\n    \"type\": \"WordLevel\",\n    \"unk_token\": \"<unk>\",\n    \
         \"vocab\": {{\n{vocab}\n    }}\n  }}\n}}\n",
        special(0),
        special(1)
    )
}
