//! What can go wrong with texts.

use std::path::{Path, PathBuf};

use crate::gguf::GgufError;

/// Why a text cannot become tokens, or tokens a text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The GGUF container.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model has no tokenizer.
    #[error("failed to read a text: the model {model} has no tokenizer")]
    NoTokenizer {
        /// The model.
        model: String,
    },
    /// The model has no chat template.
    #[error("failed to format a chat: the model {model} has no chat template")]
    NoTemplate {
        /// The model.
        model: String,
    },
    /// A kind of tokenizer that is not done.
    #[error("failed to load the tokenizer of {}: {key} is {found:?}; supported are {supported}", path.display())]
    Unsupported {
        /// The model file.
        path: PathBuf,
        /// The metadata key that says so.
        key: &'static str,
        /// Its value.
        found: String,
        /// The values that work.
        supported: &'static str,
    },
    /// Token lists that do not fit together.
    #[error("failed to load the tokenizer of {}: {what} {index} is {found}", path.display())]
    BadList {
        /// The model file.
        path: PathBuf,
        /// Which list.
        what: &'static str,
        /// Index in it.
        index: usize,
        /// What is wrong with the item.
        found: String,
    },
    /// A file that is no tokenizer.
    #[error("failed to read the tokenizer {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The tokenizer library refused.
    #[error("failed to {action}: {why}")]
    Tokenizer {
        /// What was tried.
        action: &'static str,
        /// The library's reason.
        why: String,
    },
    /// The chat template is wrong, or refuses the chat.
    #[error("failed to format a chat: {0}")]
    Template(#[from] minijinja::Error),
    /// A token that the model does not have.
    #[error("failed to use token {token}: the vocabulary has {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
}

impl TextError {
    pub(crate) fn file(path: &Path, why: impl ToString) -> Self {
        Self::File { path: path.to_owned(), why: why.to_string() }
    }

    pub(crate) fn tokenizer(action: &'static str) -> impl FnOnce(tokenizers::Error) -> Self {
        move |error| Self::Tokenizer { action, why: error.to_string() }
    }
}
