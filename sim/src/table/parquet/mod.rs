//! A table as a Parquet file: flat, every column optional, one spelling for each kind.
//!
//! | kind | physical type | logical type |
//! |------|---------------|--------------|
//! | text | BYTE_ARRAY    | STRING       |
//! | int  | INT64         |              |
//! | real | DOUBLE        |              |
//! | bool | BOOLEAN       |              |
//!
//! Pages are compressed with snappy. No clock, no statistics and no name of a machine go into the file: equal
//! tables give equal bytes. Files of other writers are read too as long as they are flat and either plain or snappy.

mod read;
mod write;

pub(crate) use read::TableFile;
pub use read::{parquet_from_bytes, read_parquet};
pub(crate) use write::GroupWriter;
pub use write::{parquet_to_bytes, write_parquet};
