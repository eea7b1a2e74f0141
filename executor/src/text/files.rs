//! Tokenizer and chat template of a model's files.

use std::{collections::BTreeSet, fmt, io, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Unexpected, Visitor},
};

use super::{ChatTemplate, TextCodec, TextError};
use crate::{error::ExecutorError, family::ModelError, gguf::GgufFile};

/// What belongs to texts.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    pub(crate) codec: Option<TextCodec>,
    pub(crate) template: Option<ChatTemplate>,
}

/// A token id, or a list of them.
#[derive(Debug)]
struct TokenIds(Vec<u32>);

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TokenIdsVisitor)
    }
}

struct TokenIdsVisitor;

impl<'de> Visitor<'de> for TokenIdsVisitor {
    type Value = TokenIds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token id, 0 to 4294967295, or a list of token ids")
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<TokenIds, E> {
        let id = u32::try_from(id).map_err(|_| E::invalid_value(Unexpected::Unsigned(id), &self))?;
        Ok(TokenIds(vec![id]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TokenIds, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = list.next_element()? {
            ids.push(id);
        }
        Ok(TokenIds(ids))
    }
}

#[derive(Debug, Default, Deserialize)]
struct RawEnds {
    eos_token_id: Option<TokenIds>,
    /// Where `genai_config.json` has them.
    model: Option<Box<RawEnds>>,
}

#[derive(Debug, Default, Deserialize)]
struct RawTokenizerConfig {
    chat_template: Option<serde_json::Value>,
    bos_token: Option<serde_json::Value>,
    eos_token: Option<serde_json::Value>,
}

/// Reads a JSON file that may be absent.
fn optional_json<T: Default + serde::de::DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            serde_json::from_str(&text).map_err(|source| ModelError::Json { path: path.to_owned(), source })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(ModelError::io("read", path)(error)),
    }
}

/// What a Hugging Face folder says about texts. Every file may be absent.
pub(crate) fn folder_texts(path: &Path) -> Result<Texts, ExecutorError> {
    let mut ends = BTreeSet::new();
    for name in ["config.json", "generation_config.json", "genai_config.json"] {
        let raw = optional_json::<RawEnds>(&path.join(name))?;
        let found = raw.model.and_then(|model| model.eos_token_id).or(raw.eos_token_id);
        ends.extend(found.into_iter().flat_map(|TokenIds(found)| found));
    }
    let tokenizer = path.join("tokenizer.json");
    let codec = tokenizer.is_file().then(|| TextCodec::from_json(&tokenizer, ends)).transpose()?;
    let raw: RawTokenizerConfig = optional_json(&path.join("tokenizer_config.json"))?;
    // A token is written as a text, or as an object with its text in "content".
    let text = |value: Option<serde_json::Value>| {
        let value = value.unwrap_or_default();
        value.as_str().or_else(|| value.get("content")?.as_str()).unwrap_or_default().to_owned()
    };
    let (begin, end) = (text(raw.bos_token), text(raw.eos_token));
    let source = raw.chat_template.as_ref().and_then(serde_json::Value::as_str);
    let template = source.map(|source| ChatTemplate::new(source.to_owned(), begin, end)).transpose()?;
    Ok(Texts { codec, template })
}

/// What a GGUF file says about texts.
pub(crate) fn gguf_texts(file: &GgufFile) -> Result<Texts, TextError> {
    let codec = TextCodec::from_gguf(file)?;
    let id_text = |key: &str| -> Result<String, TextError> {
        Ok(file.optional_id(key)?.and_then(|id| codec.token_text(id)).unwrap_or_default())
    };
    let (begin, end) = (id_text("tokenizer.ggml.bos_token_id")?, id_text("tokenizer.ggml.eos_token_id")?);
    let source = file.optional_text("tokenizer.chat_template")?;
    let template = source.map(|source| ChatTemplate::new(source.to_owned(), begin, end)).transpose()?;
    Ok(Texts { codec: Some(codec), template })
}
