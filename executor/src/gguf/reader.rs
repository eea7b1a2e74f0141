//! A reader that knows how much is left, and never allocates more than that.

use std::{
    fs::File,
    io::{BufReader, Read},
};

use super::error::GgufErrorKind;

/// Reads little-endian values from the front of a file.
#[derive(Debug)]
pub(super) struct Reader {
    input: BufReader<File>,
    offset: u64,
    length: u64,
}

impl Reader {
    pub(super) fn new(file: File) -> Result<Self, GgufErrorKind> {
        let length = file.metadata()?.len();
        Ok(Self { input: BufReader::with_capacity(1 << 20, file), offset: 0, length })
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    fn left(&self) -> u64 {
        self.length - self.offset
    }

    fn need(&self, place: &str, needed: u64) -> Result<(), GgufErrorKind> {
        if needed <= self.left() {
            return Ok(());
        }
        let (offset, available) = (self.offset, self.left());
        Err(GgufErrorKind::Truncated { place: place.to_owned(), offset, needed, available })
    }

    /// A count of things of at least `element_bytes` each must fit into what is left.
    pub(super) fn check_count(
        &self,
        place: &str,
        count: u64,
        element_bytes: u64,
    ) -> Result<(), GgufErrorKind> {
        if count.checked_mul(element_bytes).is_some_and(|bytes| bytes <= self.left()) {
            return Ok(());
        }
        Err(GgufErrorKind::AbsurdCount { place: place.to_owned(), count, available: self.left() })
    }

    pub(super) fn bytes<const N: usize>(&mut self, place: &str) -> Result<[u8; N], GgufErrorKind> {
        self.need(place, N as u64)?;
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        self.offset += N as u64;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, place: &str) -> Result<u32, GgufErrorKind> {
        Ok(u32::from_le_bytes(self.bytes(place)?))
    }

    pub(super) fn u64(&mut self, place: &str) -> Result<u64, GgufErrorKind> {
        Ok(u64::from_le_bytes(self.bytes(place)?))
    }

    pub(super) fn text(&mut self, place: &str) -> Result<String, GgufErrorKind> {
        let length = self.u64(place)?;
        self.need(place, length)?;
        let offset = self.offset;
        let size = usize::try_from(length).map_err(|_| GgufErrorKind::AbsurdCount {
            place: place.to_owned(),
            count: length,
            available: self.length - offset,
        })?;
        let mut bytes = vec![0; size];
        self.input.read_exact(&mut bytes)?;
        self.offset += length;
        String::from_utf8(bytes).map_err(|_| GgufErrorKind::NotUtf8 { place: place.to_owned(), offset })
    }
}
