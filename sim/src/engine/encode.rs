//! The canonical bytes of a record: what log digests are computed over.
//!
//! A tag byte, then the fields in the order of their declaration, little-endian and of fixed width; a list has its
//! length (`u32`) in front. Two logs have equal bytes exactly when they are equal. A change here changes every digest.

use super::{PassKind, Record, Stamp};
use crate::types::{BranchId, Pos, ReqId, Tokens};

/// A value with a fixed-width encoding.
trait Encode {
    fn put(self, out: &mut Vec<u8>);
}

impl Encode for u32 {
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

impl Encode for u64 {
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

impl Encode for PassKind {
    fn put(self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Prefill => 0,
            Self::Decode => 1,
        });
    }
}

macro_rules! encode_u32 {
    ($($name:ty),*) => {$(
        impl Encode for $name {
            fn put(self, out: &mut Vec<u8>) {
                self.get().put(out);
            }
        }
    )*};
}

encode_u32!(ReqId, BranchId, Pos, Tokens);

macro_rules! put {
    ($out:ident, $tag:literal, $($field:expr),*) => {{
        $out.push($tag);
        $(Encode::put($field, $out);)*
    }};
}

impl Record<'_> {
    /// Appends the canonical bytes of the record to `out`.
    pub fn encode(&self, stamp: Stamp, out: &mut Vec<u8>) {
        stamp.time.get().put(out);
        out.push(stamp.phase as u8);
        match *self {
            Self::Arrived { req, prompt_len, len } => put!(out, 0, req, prompt_len, len),
            Self::Admitted { req, reserved_blocks } => put!(out, 1, req, reserved_blocks),
            Self::Waiting { req, needed_blocks, unreserved_blocks } => {
                put!(out, 2, req, needed_blocks, unreserved_blocks);
            }
            Self::Refused { req, needed_blocks, capacity_blocks } => {
                put!(out, 3, req, needed_blocks, capacity_blocks)
            }
            Self::Forked { req, branch, parent, seen } => put!(out, 4, req, branch, parent, seen),
            Self::PassDone { req, branch, kind, first, tokens } => {
                put!(out, 5, req, branch, kind, first, tokens)
            }
            Self::Stored { req, branch, kind, seen, live_entries, blocks } => {
                put!(out, 6, req, branch, kind, seen, live_entries, blocks);
            }
            Self::Evicted { req, branch, seen, live_entries, blocks, kept } => {
                put!(out, 7, req, branch, seen, live_entries, blocks);
                u32::try_from(kept.len()).expect("layers x KV heads, both u16").put(out);
                for set in kept {
                    set.count.put(out);
                    out.extend_from_slice(&set.digest);
                }
            }
            Self::Allocated { req, branch, blocks } => put!(out, 8, req, branch, blocks),
            Self::Copied { req, branch, blocks } => put!(out, 9, req, branch, blocks),
            Self::Shared { req, branch, blocks } => put!(out, 10, req, branch, blocks),
            Self::Freed { req, branch, blocks } => put!(out, 11, req, branch, blocks),
            Self::Released { req, branch } => put!(out, 12, req, branch),
            Self::Batched { rows, tokens, until } => put!(out, 14, rows, tokens, until.get()),
            Self::Preempted { req, branch, tokens } => put!(out, 15, req, branch, tokens),
            Self::Verifying { req, branches, layers } => put!(out, 16, req, branches, u32::from(layers)),
            Self::VerifySkipped { req } => put!(out, 17, req),
            Self::Selected { req, branch } => put!(out, 18, req, branch),
            Self::Ended { refused, allocated_blocks } => put!(out, 13, refused, allocated_blocks),
        }
    }
}
