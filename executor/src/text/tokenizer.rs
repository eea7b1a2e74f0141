//! Byte-pair tokenizers, from GGUF metadata or from a `tokenizer.json`.

use std::{collections::BTreeSet, path::Path};

use tokenizers::{
    AddedToken, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer,
    models::bpe::{BPE, Vocab},
    normalizers::NFC,
    pre_tokenizers::{
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::error::TextError;
use crate::{
    gguf::GgufFile,
    setup::{sha256_of_bytes, sha256_of_file},
};

/// Numbers of token kinds in GGUF files.
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;

/// Splits digits into threes.
const LLAMA3_PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Splits digits one by one.
const QWEN2_PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Turns texts into tokens and back.
#[derive(Debug)]
pub struct TextCodec {
    tokenizer: Tokenizer,
    /// A token the model's files put before every text.
    begin: Option<u32>,
    /// The post-processor of a `tokenizer.json` adds what its model wants.
    adds_own_specials: bool,
    ends: BTreeSet<u32>,
    digest: String,
}

/// Why the file `path` is no tokenizer. The library's own words are about its types.
fn why_not(path: &Path) -> String {
    let text = match std::fs::read_to_string(path) {
        Err(error) => return error.to_string(),
        Ok(text) => text,
    };
    let value: serde_json::Value = match serde_json::from_str(&text) {
        Err(error) => return format!("it is no JSON: {error}"),
        Ok(value) => value,
    };
    let kind = value["model"]["type"].as_str().map_or("absent".to_owned(), |kind| format!("{kind:?}"));
    format!(
        "`model.type` is {kind}; accepted are BPE, Unigram, WordLevel and WordPiece, each with its vocabulary and merges as Hugging Face tokenizers write them"
    )
}

impl TextCodec {
    /// From the metadata of a GGUF file.
    pub(crate) fn from_gguf(file: &GgufFile) -> Result<Self, TextError> {
        let unsupported = |key, found: &str, supported| TextError::Unsupported {
            path: file.path().to_owned(),
            key,
            found: found.to_owned(),
            supported,
        };
        let model = file.optional_text("tokenizer.ggml.model")?.unwrap_or("none");
        if model != "gpt2" {
            return Err(unsupported("tokenizer.ggml.model", model, "gpt2 (byte-level BPE)"));
        }
        let kind = file.optional_text("tokenizer.ggml.pre")?.unwrap_or("none");
        let splitting = Splitting::named(kind)
            .ok_or_else(|| unsupported("tokenizer.ggml.pre", kind, Splitting::NAMES))?;
        let tokens = file.texts("tokenizer.ggml.tokens")?;
        let bpe = BPE::builder()
            .vocab_and_merges(vocabulary(file, tokens)?, merges(file)?)
            .ignore_merges(splitting == Splitting::Llama3)
            .build()
            .map_err(TextError::tokenizer("build the byte-pair model"))?;
        let mut tokenizer = Tokenizer::new(bpe);
        tokenizer.with_pre_tokenizer(Some(splitting.pre_tokenizer()?));
        tokenizer.with_decoder(Some(ByteLevel::new(false, true, true)));
        if splitting == Splitting::Qwen2 {
            tokenizer
                .with_normalizer(Some(NormalizerWrapper::NFC(NFC)))
                .map_err(TextError::tokenizer("set the normalizer"))?;
        }
        add_named_tokens(file, tokens, &mut tokenizer)?;
        let ends = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
        let ends = ends
            .into_iter()
            .map(|key| file.optional_id(key))
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .flatten()
            .collect();
        let wants_begin = file.optional_flag("tokenizer.ggml.add_bos_token")?.unwrap_or(false);
        let begin = if wants_begin { file.optional_id("tokenizer.ggml.bos_token_id")? } else { None };
        let json = tokenizer.to_string(false).map_err(TextError::tokenizer("write the tokenizer down"))?;
        Ok(Self {
            tokenizer,
            begin,
            adds_own_specials: false,
            ends,
            digest: sha256_of_bytes(json.as_bytes()),
        })
    }

    /// From a `tokenizer.json`; `ends` are the tokens that end a text.
    pub(crate) fn from_json(path: &Path, ends: BTreeSet<u32>) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::from_file(path).map_err(|_| TextError::file(path, why_not(path)))?;
        let digest = sha256_of_file(path).map_err(|error| TextError::file(path, error))?;
        // What stands before nothing stands before everything.
        let marks = tokenizer.encode_fast("", true).map_err(|error| TextError::file(path, error))?;
        let begin = marks.get_ids().first().copied();
        Ok(Self { tokenizer, begin, adds_own_specials: true, ends, digest })
    }

    /// The tokens of a plain text, with what the model's files say belongs before it.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoding = self.tokenizer.encode_fast(text, self.adds_own_specials);
        let encoding = encoding.map_err(TextError::tokenizer("split a text into tokens"))?;
        let begin = self.begin.filter(|_| !self.adds_own_specials);
        Ok(begin.into_iter().chain(encoding.get_ids().iter().copied()).collect())
    }

    /// The tokens of a text that a chat template made; nothing is put before it.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn encode_formatted(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoding = self.tokenizer.encode_fast(text, false);
        let encoding = encoding.map_err(TextError::tokenizer("split a text into tokens"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, special ones included.
    ///
    /// # Errors
    /// The tokenizer refuses the tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        self.tokenizer.decode(tokens, false).map_err(TextError::tokenizer("join tokens to a text"))
    }

    /// Whether a token ends a text.
    #[must_use]
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// Whether tokens begin with the token that the model's files put before every text.
    #[must_use]
    pub fn begins_with_marker(&self, tokens: &[u32]) -> bool {
        self.begin.is_some() && tokens.first() == self.begin.as_ref()
    }

    /// Tokens known, added ones included.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// SHA-256 of the tokenizer's JSON form.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The text of one token as the vocabulary spells it.
    pub(crate) fn token_text(&self, token: u32) -> Option<String> {
        self.tokenizer.id_to_token(token)
    }
}

fn vocabulary(file: &GgufFile, tokens: &[String]) -> Result<Vocab, TextError> {
    let mut vocabulary = Vocab::with_capacity(tokens.len());
    for (index, token) in tokens.iter().enumerate() {
        let bad =
            |found: String| TextError::BadList { path: file.path().to_owned(), what: "token", index, found };
        let id = u32::try_from(index).map_err(|_| bad("beyond 2^32".to_owned()))?;
        if vocabulary.insert(token.clone(), id).is_some() {
            return Err(bad(format!("{token:?}, which stands twice")));
        }
    }
    Ok(vocabulary)
}

fn merges(file: &GgufFile) -> Result<Vec<(String, String)>, TextError> {
    let lines = file.texts("tokenizer.ggml.merges")?;
    let pair = |(index, line): (usize, &String)| {
        let pair = line.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty());
        pair.map(|(left, right)| (left.to_owned(), right.to_owned())).ok_or_else(|| TextError::BadList {
            path: file.path().to_owned(),
            what: "merge",
            index,
            found: format!("{line:?}, which is not two parts"),
        })
    };
    lines.iter().enumerate().map(pair).collect()
}

/// Control tokens become special ones; tokens of the user's are found in texts before anything is split.
fn add_named_tokens(file: &GgufFile, tokens: &[String], tokenizer: &mut Tokenizer) -> Result<(), TextError> {
    let Some(kinds) = file.optional_integers("tokenizer.ggml.token_type")? else { return Ok(()) };
    if kinds.len() != tokens.len() {
        return Err(TextError::BadList {
            path: file.path().to_owned(),
            what: "token type",
            index: kinds.len().min(tokens.len()),
            found: format!("without partner: {} types, {} tokens", kinds.len(), tokens.len()),
        });
    }
    let of_kind = |wanted: i128, special: bool| {
        let chosen = kinds.iter().zip(tokens).filter(move |(kind, _)| **kind == wanted);
        chosen.map(move |(_, token)| AddedToken::from(token.clone(), special).normalized(false))
    };
    let named: Vec<AddedToken> = of_kind(CONTROL, true).chain(of_kind(USER_DEFINED, false)).collect();
    tokenizer.add_tokens(named).map_err(TextError::tokenizer("add the named tokens"))?;
    Ok(())
}

/// How a text is split before the byte pairs are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Splitting {
    Gpt2,
    Smollm,
    Llama3,
    Qwen2,
}

impl Splitting {
    const NAMES: &str = "gpt-2, smollm, llama-bpe, qwen2, deepseek-r1-qwen";

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "gpt-2" => Self::Gpt2,
            "smollm" => Self::Smollm,
            "llama-bpe" => Self::Llama3,
            "qwen2" | "deepseek-r1-qwen" => Self::Qwen2,
            _ => return None,
        })
    }

    fn pre_tokenizer(self) -> Result<PreTokenizerWrapper, TextError> {
        let own_pattern = PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, true));
        let by_pattern = |pattern: &str| {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            let split = split.map_err(TextError::tokenizer("read the splitting pattern"))?;
            let bytes_only = PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false));
            let steps = vec![PreTokenizerWrapper::Split(split), bytes_only];
            Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
        };
        match self {
            Self::Gpt2 => Ok(own_pattern),
            Self::Smollm => {
                let steps = vec![PreTokenizerWrapper::Digits(Digits::new(true)), own_pattern];
                Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
            }
            Self::Llama3 => by_pattern(LLAMA3_PATTERN),
            Self::Qwen2 => by_pattern(QWEN2_PATTERN),
        }
    }
}
