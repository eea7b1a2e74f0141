//! How many bytes cross between the host and where sessions run.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that crossed since the model was loaded: inputs that sessions took from the host, outputs that they gave to it, and copies. Under the
/// CPU provider both sides are the same memory, and the count is of what is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossed {
    /// From the host to where sessions run.
    pub to_device_bytes: u64,
    /// From there to the host.
    pub to_host_bytes: u64,
}

impl Crossed {
    /// What crossed after `before` was read.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            to_device_bytes: self.to_device_bytes - before.to_device_bytes,
            to_host_bytes: self.to_host_bytes - before.to_host_bytes,
        }
    }

    /// Both ways together.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.to_device_bytes + self.to_host_bytes
    }
}

/// The count, shared by all sessions of a model.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    to_device: AtomicU64,
    to_host: AtomicU64,
}

impl Traffic {
    pub(super) fn count_to_device(&self, bytes: usize) {
        self.to_device.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn count_to_host(&self, bytes: usize) {
        self.to_host.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn crossed(&self) -> Crossed {
        Crossed {
            to_device_bytes: self.to_device.load(Ordering::Relaxed),
            to_host_bytes: self.to_host.load(Ordering::Relaxed),
        }
    }
}
