//! The outlet for news about long work.
//!
//! Responsible for the trait only. Drawing is the caller's business: this crate prints nothing.

/// Receives news about long work. Calls come from the thread that does the work.
pub trait Progress: Sync {
    /// A new piece of work begins; `total` is its amount (bytes, tokens, layers) when it is known.
    fn start(&self, label: &str, total: Option<u64>);
    /// `amount` more of the current piece is done.
    fn advance(&self, amount: u64);
    /// A short remark about the current piece.
    fn message(&self, text: &str);
    /// How far the current piece is, for those who see no bar: said often, and shown now and then.
    fn reached(&self, _reached: Reached) {}
    /// The current piece is done.
    fn finish(&self);
}

/// How far a piece of work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// What is counted, in the plural.
    pub what: &'static str,
    /// How many were there when the piece began.
    pub before: u64,
    /// How many are there now.
    pub done: u64,
    /// How many there will be.
    pub total: u64,
}

/// Listens to nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn start(&self, _label: &str, _total: Option<u64>) {}
    fn advance(&self, _amount: u64) {}
    fn message(&self, _text: &str) {}
    fn finish(&self) {}
}
