//! What can be wrong with a GGUF file.

use std::{io, path::PathBuf};

/// An error with the file it is about.
#[derive(Debug, thiserror::Error)]
#[error("failed to read {}: {kind}", file.display())]
pub struct GgufError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    #[source]
    pub kind: GgufErrorKind,
}

/// What is wrong: place, value found, values accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufErrorKind {
    /// The system could not read it.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Not a GGUF file.
    #[error("it begins with bytes {found:02x?}, a GGUF file begins with 47 47 55 46 (\"GGUF\")")]
    NotGguf {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version of the container that is not read.
    #[error("its container version is {found}, accepted are 2 and 3")]
    Version {
        /// The version field.
        found: u32,
    },
    /// Written on a machine of the other byte order.
    #[error("it is big-endian, accepted is little-endian")]
    BigEndian,
    /// The file ends too early, or a length in it is wrong.
    #[error("{place} at byte {offset} needs {needed} bytes, the file has {available} left")]
    Truncated {
        /// What was being read.
        place: String,
        /// Where it begins.
        offset: u64,
        /// How much it needs.
        needed: u64,
        /// How much is left.
        available: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error("{place} counts {count}, the {available} bytes left cannot hold that many")]
    AbsurdCount {
        /// What is counted.
        place: String,
        /// The count.
        count: u64,
        /// How many bytes are left.
        available: u64,
    },
    /// A metadata type number that does not exist.
    #[error("metadata {key:?} has value type {found}, accepted are 0 to 12")]
    ValueType {
        /// The key.
        key: String,
        /// The type number.
        found: u32,
    },
    /// An array of arrays.
    #[error("metadata {key:?} is an array of arrays, accepted are arrays of numbers, booleans and strings")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A text that is not UTF-8.
    #[error("{place} at byte {offset} is not UTF-8")]
    NotUtf8 {
        /// What was being read.
        place: String,
        /// Where it begins.
        offset: u64,
    },
    /// A name that stands twice.
    #[error("{what} {name:?} stands twice")]
    Duplicate {
        /// Metadata key or tensor.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A tensor's shape is not one.
    #[error(
        "tensor {tensor:?} has dimensions {found:?}, accepted are 1 to 4 dimensions, none zero, of at most 2^40 elements"
    )]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// Its dimensions, innermost first, as far as they were read.
        found: Vec<u64>,
    },
    /// A tensor type that is not read.
    #[error("tensor {tensor:?} has type {found}, accepted are {accepted}")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// Its type number, with a name when it is a known one.
        found: String,
        /// The accepted types.
        accepted: String,
    },
    /// A row is not a whole number of blocks.
    #[error("tensor {tensor:?} has rows of {row} elements, its type needs a multiple of {block}")]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Elements per row.
        row: u64,
        /// Elements per block.
        block: u64,
    },
    /// A tensor lies outside the file.
    #[error("tensor {tensor:?} lies at bytes {begin} to {end}, the file has {length}")]
    OutsideFile {
        /// The tensor.
        tensor: String,
        /// First byte.
        begin: u64,
        /// One past the last byte.
        end: u64,
        /// Bytes in the file.
        length: u64,
    },
    /// The alignment is not one.
    #[error("metadata \"general.alignment\" is {found}, accepted is a power of two from 8 to 65536")]
    Alignment {
        /// The value.
        found: u64,
    },
    /// A needed metadata key is not there.
    #[error("metadata {key:?} is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata value has another type, or is out of range.
    #[error("metadata {key:?} is {found}, accepted is {accepted}")]
    WrongValue {
        /// The key.
        key: String,
        /// The value found, shortened.
        found: String,
        /// What is accepted.
        accepted: &'static str,
    },
}
