//! What goes to and comes from each peer, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Frames and bytes on all request connections with a peer, since it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames sent.
    pub sent_frames: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Frames received.
    pub received_frames: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

/// The counters behind [`Traffic`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    sent_frames: AtomicU64,
    sent_bytes: AtomicU64,
    received_frames: AtomicU64,
    received_bytes: AtomicU64,
}

impl Counters {
    pub(super) fn sent_frame(&self) {
        self.sent_frames.fetch_add(1, Relaxed);
    }

    pub(super) fn sent_bytes(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn received_frame(&self) {
        self.received_frames.fetch_add(1, Relaxed);
    }

    pub(super) fn received_bytes(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn read(&self) -> Traffic {
        Traffic {
            sent_frames: self.sent_frames.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
            received_frames: self.received_frames.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
        }
    }
}
