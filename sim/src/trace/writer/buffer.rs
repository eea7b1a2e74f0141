//! The tensors of the shard being filled. It holds at most `shard_tokens` positions.

use super::header::{Chunk, TraceHeader};
use crate::trace::manifest::ShardInfo;
use crate::trace::shard::{self, TensorField};
use crate::trace::{Dtype, TraceError};
use crate::types::ModelShape;
use ndarray::{ArrayView2, s};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Write;
use std::path::Path;

#[derive(Debug)]
pub(super) struct ShardBuffer {
    fields: Vec<TensorField>,
    shape: ModelShape,
    seq: u32,
    shard_tokens: u32,
    start: u32,
    filled: u32,
    /// Encoded rows, `[layer × field × head]` in file order, each `[position, width]`.
    rows: Vec<Vec<u8>>,
}

impl ShardBuffer {
    pub(super) fn new(header: &TraceHeader, seq: u32) -> Self {
        let fields = header.tensor_fields();
        let heads: usize =
            fields.iter().map(|field| usize::from(field.heads(&header.shape).unwrap_or(1))).sum();
        Self {
            fields,
            shape: header.shape,
            seq,
            shard_tokens: header.shard_tokens,
            start: 0,
            filled: 0,
            rows: vec![Vec::new(); heads * usize::from(header.shape.layers)],
        }
    }

    /// Positions until the shard is full.
    pub(super) fn room(&self) -> u32 {
        self.shard_tokens - self.filled
    }

    /// Appends `count` positions of a checked chunk, from its position `from`.
    pub(super) fn append(&mut self, chunk: &Chunk<'_>, from: u32, count: u32) {
        let range = from as usize..(from + count) as usize;
        let mut rows = self.rows.iter_mut();
        for layer in &chunk.layers {
            for field in &self.fields {
                let heads = layer.heads(field.name).unwrap_or_default();
                for (head, row) in heads.into_iter().zip(rows.by_ref()) {
                    encode(head.slice(s![range.clone(), ..]), field.dtype, row);
                }
            }
        }
        self.filled += count;
    }

    /// Writes and syncs the shard, if there is anything in it, and starts the next.
    pub(super) fn flush(&mut self, root: &Path) -> Result<Option<ShardInfo>, TraceError> {
        let (start, end) = (self.start, self.start + self.filled);
        self.start = end;
        self.filled = 0;
        if start == end || self.fields.is_empty() {
            return Ok(None);
        }
        let inside = format!("tensors/{:05}-{start:08}.safetensors", self.seq);
        let path = root.join(&inside);
        let header = shard::header(&self.fields, &self.shape, self.seq, start..end);
        let (mut hash, mut bytes) = (Sha256::new(), 0);
        let write = |file: &mut File| {
            for part in std::iter::once(&header).chain(&self.rows) {
                hash.update(part);
                bytes += part.len() as u64;
                file.write_all(part)?;
            }
            file.sync_all()
        };
        File::create(&path)
            .and_then(|mut file| {
                let mut write = write;
                write(&mut file)
            })
            .map_err(|error| TraceError::io(&path, error))?;
        self.rows.iter_mut().for_each(Vec::clear);
        let sha256 = crate::trace::folder::hex(hash.finalize());
        Ok(Some(ShardInfo { path: inside, seq: self.seq, start, end, bytes, sha256 }))
    }
}

fn encode(rows: ArrayView2<'_, f32>, dtype: Dtype, out: &mut Vec<u8>) {
    out.extend(shard::encode(rows.iter().copied(), dtype));
}
