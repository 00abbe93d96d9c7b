//! Signals as an event, with respect for those that the caller chose to ignore (`nohup`, background jobs of a script).

use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Several signals, handled as one stream.
pub struct Signals {
    each: Vec<(SignalKind, Signal)>,
    told: bool,
}

impl Signals {
    /// Handles those of `kinds` that are not ignored at this moment: handling one would undo the caller's wish.
    pub fn unless_ignored(kinds: &[SignalKind]) -> io::Result<Self> {
        let ignored = ignored();
        let wanted = kinds.iter().filter(|kind| ignored >> (kind.as_raw_value() - 1) & 1 == 0);
        let each = wanted.map(|kind| Ok((*kind, signal(*kind)?))).collect::<io::Result<_>>()?;
        Ok(Self { each, told: false })
    }

    /// Waits for the next one; for ever if none is handled. Nothing is lost if it is cancelled.
    pub async fn next(&mut self) -> SignalKind {
        let kind = std::future::poll_fn(|context| {
            let ready = self.each.iter_mut().find_map(|(kind, one)| one.poll_recv(context).is_ready().then_some(*kind));
            ready.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        self.told = true;
        kind
    }

    /// Whether one was taken from [`Signals::next`] already: whoever sent it will not send it again.
    pub fn told(&self) -> bool {
        self.told
    }
}

/// The mask of ignored signals, bit 0 for signal 1; none where it cannot be read.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
