//! What can stop a recording that the model could make.

/// A recording that cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// There is nothing to record.
    #[error("failed to record: no prompt was given")]
    NoPrompts,
    /// Not even the first problem fits into the bytes allowed.
    #[error("failed to record: the trace may take {max} bytes, and with {item} alone it may need {needed}")]
    TooLarge {
        /// The first problem.
        item: String,
        /// Bytes it may need.
        needed: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// A prompt without a token: there is nothing to go on from.
    #[error("failed to run {item}: its prompt has no tokens, accepted is at least one")]
    EmptyPrompt {
        /// The problem.
        item: String,
    },
    /// A prompt and its continuation do not fit into the model's context.
    #[error(
        "failed to run {item}: {prompt} prompt tokens and up to {new} new ones do not fit into a context of {context} tokens"
    )]
    TooLong {
        /// The problem.
        item: String,
        /// Prompt tokens.
        prompt: usize,
        /// Most new tokens.
        new: u32,
        /// Positions that the model was made for.
        context: usize,
    },
    /// A sequence is longer than the attention window of some layer.
    #[error(
        "failed to run {item}: {prompt} prompt tokens and up to {new} new ones are more than the {window} that layer {layer} attends to; policies take attention over all earlier tokens"
    )]
    BeyondWindow {
        /// The problem.
        item: String,
        /// Prompt tokens.
        prompt: usize,
        /// Most new tokens.
        new: u32,
        /// Tokens that the layer attends to.
        window: usize,
        /// The first layer with that window.
        layer: usize,
    },
    /// An interrupted recording was made of other prompts.
    #[error(
        "failed to continue the recording: its problem {seq} is {found}, now it would be {expected}; accepted are the problems that it was begun with (`--force` begins anew)"
    )]
    OtherPrompts {
        /// Its place, from 0.
        seq: usize,
        /// The item recorded.
        found: String,
        /// The item asked for now.
        expected: String,
    },
    /// An interrupted recording holds more problems than are asked for now.
    #[error(
        "failed to continue the recording: it holds {held} problems, {asked} are asked for (`--count`, `--limit`), accepted is {held} or more (`--force` begins anew)"
    )]
    FewerPrompts {
        /// Problems recorded.
        held: usize,
        /// Problems asked for now.
        asked: usize,
    },
    /// An interrupted recording was made of other branches.
    #[error(
        "failed to continue the recording: its {item} has {found} branches, now it would have {asked}; accepted is `--branches {found}` (`--force` begins anew)"
    )]
    OtherBranches {
        /// The problem.
        item: String,
        /// Branches recorded, without the root.
        found: usize,
        /// Branches asked for now.
        asked: usize,
    },
    /// An interrupted recording was made of branches in other words.
    #[error(
        "failed to continue the recording: the branches of its {item} have other prompts than now; accepted is `--one-wording` given or left out, as it was begun (`--force` begins anew)"
    )]
    OtherWordings {
        /// The problem.
        item: String,
    },
    /// An interrupted recording takes more than is allowed now.
    #[error(
        "failed to continue the recording: its {problems} problems take up to {held} bytes, {max} are allowed (`--max-bytes`), accepted is {held} or more (`--force` begins anew)"
    )]
    HoldsMore {
        /// Bytes that what is recorded may take.
        held: u64,
        /// Problems recorded.
        problems: usize,
        /// Bytes allowed.
        max: u64,
    },
}
