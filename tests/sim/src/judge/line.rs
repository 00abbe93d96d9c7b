//! Who waits for one key, in order. Nothing of the keyspace is in it but its words.
//!
//! Model: a waiter keeps its place from its first Wait until it is granted, told no, or gone. It is attached (somebody waits
//! for it at an edge), or its place is kept for a while; then it is passed over.

use tenure::keyspace::{Acquire, Attach, EdgeId, TokenHash};

/// How long a place is kept, cluster milliseconds.
pub(super) const KEPT_MS: u64 = 5_000;
/// After so long without a word of it an edge is gone.
pub(super) const SILENT_MS: u64 = 3_000;

/// Is anybody there?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Attached(Attach),
    /// Until this stamp.
    Kept(u64),
}

/// One who waits.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub ask: Acquire,
    /// When the wait is over.
    pub ends_ms: u64,
    pub standing: Standing,
}

impl Waiter {
    pub(super) fn attach(&self) -> Option<Attach> {
        match self.standing {
            Standing::Attached(attach) => Some(attach),
            Standing::Kept(_) => None,
        }
    }

    /// Does it ask for a minimum hold itself?
    pub(super) fn asks_min_hold(&self) -> bool {
        self.ask.min_hold_ms.is_some_and(|ms| ms > 0)
    }

    fn is_over(&self, now_ms: u64) -> bool {
        self.ends_ms <= now_ms || matches!(self.standing, Standing::Kept(until_ms) if until_ms <= now_ms)
    }
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Line(Vec<Waiter>);

impl Line {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn place(&self, token: TokenHash) -> Option<usize> {
        self.0.iter().position(|waiter| waiter.ask.token == token)
    }

    pub(super) fn of(&mut self, token: TokenHash) -> Option<&mut Waiter> {
        self.0.iter_mut().find(|waiter| waiter.ask.token == token)
    }

    pub(super) fn attached(&self, attach: Attach) -> Option<&Waiter> {
        self.0.iter().find(|waiter| waiter.attach() == Some(attach))
    }

    pub(super) fn push(&mut self, waiter: Waiter) {
        self.0.push(waiter);
    }

    pub(super) fn take(&mut self, token: TokenHash) -> Option<Waiter> {
        self.place(token).map(|at| self.0.remove(at))
    }

    /// Takes out all that `goes` says of.
    pub(super) fn take_all(&mut self, goes: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let (gone, stay) = std::mem::take(&mut self.0).into_iter().partition(|waiter| goes(waiter));
        self.0 = stay;
        gone
    }

    /// The first that is attached.
    pub(super) fn first(&self) -> Option<&Waiter> {
        self.0.iter().find(|waiter| waiter.attach().is_some())
    }

    /// Those of which time alone makes an end, without a word to anybody.
    pub(super) fn pass(&mut self, now_ms: u64) {
        self.0.retain(|waiter| waiter.attach().is_some() || !waiter.is_over(now_ms));
    }

    /// Attached, and over all the same.
    pub(super) fn overdue(&self, now_ms: u64) -> Option<&Waiter> {
        self.0.iter().find(|waiter| waiter.attach().is_some() && waiter.is_over(now_ms))
    }

    /// Keeps the places of all who wait at the edges that `is_gone` says of; returns whom it concerns.
    pub(super) fn keep(&mut self, until_ms: u64, is_gone: impl Fn(EdgeId) -> bool) -> Vec<Attach> {
        let mut kept = Vec::new();
        for waiter in &mut self.0 {
            if let Some(attach) = waiter.attach().filter(|attach| is_gone(attach.edge)) {
                waiter.standing = Standing::Kept(until_ms);
                kept.push(attach);
            }
        }
        kept
    }

    /// The edges at which somebody waits.
    pub(super) fn edges(&self) -> impl Iterator<Item = EdgeId> {
        self.0.iter().filter_map(|waiter| Some(waiter.attach()?.edge))
    }
}
