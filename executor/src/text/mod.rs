//! Texts to tokens and back, and chats to texts.
//!
//! Responsible for tokenizers and chat templates that come with a model. Never adds a token that the model's own files do
//! not ask for: a beginning-of-text token that a model was not trained with can ruin it.

mod calendar;
mod error;
mod files;
mod template;
mod tokenizer;

pub use error::TextError;
pub(crate) use files::{Texts, folder_texts, gguf_texts};
pub use template::{ChatMessage, ChatTemplate};
pub use tokenizer::TextCodec;
