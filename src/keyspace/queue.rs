//! A lease's line of waiters.
//!
//! Model: waiters stand in the order of their tickets, which one counter of the machine gives out. A waiter is attached
//! (a request waits for it at an edge) or its place is kept for a while (the request went away; whoever asks with the
//! same token takes the place again). Only attached ones are granted; the others are passed over.
//!
//! Invariants, kept here and nowhere else: one waiter a token; `tokens`, `identities`, `attached` and `times` say of
//! exactly the waiters in `line` what these say of themselves. A clone costs O(1), every change O(log n) for each waiter it touches.
//!
//! Not promised: that a place is found in O(log n). It is counted, from the nearer end: the last one's at once, one in
//! the middle of ten thousand in some microseconds.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use tenure_cluster::Stamp;

use super::lease::Terms;
use super::{Attach, Place, TokenHash};

/// How long the place of a waiter is kept whose request went away, milliseconds.
pub(super) const KEPT_MS: u64 = 5_000;

/// Who waits for a lease.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    /// Its place in line.
    pub ticket: u64,
    /// What it will be granted with.
    pub terms: Terms,
    /// The end of its wait.
    pub ends: Stamp,
    pub post: Post,
}

/// Does anybody wait for the waiter?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Post {
    /// This request.
    Attached(Attach),
    /// Nobody: its place is kept until then.
    Kept(Stamp),
}

impl Waiter {
    /// The request that waits for it.
    pub fn attach(&self) -> Option<Attach> {
        match self.post {
            Post::Attached(attach) => Some(attach),
            Post::Kept(_) => None,
        }
    }

    /// When time takes it from the line.
    fn goes_at(&self) -> Stamp {
        match self.post {
            Post::Attached(_) => self.ends,
            Post::Kept(gone_at) => gone_at.min(self.ends),
        }
    }
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    line: OrdMap<u64, Arc<Waiter>>,
    tokens: OrdMap<TokenHash, u64>,
    identities: OrdSet<(Arc<str>, u64)>,
    attached: OrdSet<u64>,
    times: OrdSet<(Stamp, u64)>,
}

impl Queue {
    /// Waiters, kept places included.
    pub fn len(&self) -> usize {
        self.line.len()
    }

    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.line.values()
    }

    pub fn get(&self, ticket: u64) -> Option<&Arc<Waiter>> {
        self.line.get(&ticket)
    }

    pub fn of_token(&self, token: TokenHash) -> Option<&Arc<Waiter>> {
        self.line.get(self.tokens.get(&token)?)
    }

    /// All that wait for an identity's slot, in order.
    pub fn of_identity(&self, identity: &Arc<str>) -> impl Iterator<Item = &Arc<Waiter>> {
        let all = (Arc::clone(identity), 0)..=(Arc::clone(identity), u64::MAX);
        self.identities.range(all).filter_map(|(_, ticket)| self.line.get(ticket))
    }

    /// Who is next to be granted.
    pub fn first_attached(&self) -> Option<&Arc<Waiter>> {
        self.line.get(self.attached.get_min()?)
    }

    /// When time next takes a waiter from the line.
    pub fn next_time(&self) -> Option<Stamp> {
        self.times.get_min().map(|(stamp, _)| *stamp)
    }

    /// The place of a waiter that stands here.
    pub fn place(&self, ticket: u64) -> Place {
        let waiters = self.len() as u64;
        let first = self.line.get_min().map_or(ticket, |(first, _)| *first);
        let last = self.line.get_max().map_or(ticket, |(last, _)| *last);
        // Tickets are given out in order: the shorter way is mostly that of fewer tickets.
        let ahead = if last.saturating_sub(ticket) < ticket.saturating_sub(first) {
            waiters.saturating_sub(self.line.range(ticket..).count() as u64)
        } else {
            self.line.range(..ticket).count() as u64
        };
        Place { ahead, waiters }
    }

    /// Puts a waiter where its ticket says, for the one that has the ticket.
    pub fn put(&mut self, waiter: Waiter) {
        let ticket = waiter.ticket;
        self.remove(ticket);
        self.tokens.insert(waiter.terms.token, ticket);
        self.identities.extend(waiter.terms.identity().map(|identity| (Arc::clone(identity), ticket)));
        self.times.insert((waiter.goes_at(), ticket));
        if waiter.attach().is_some() {
            self.attached.insert(ticket);
        }
        self.line.insert(ticket, Arc::new(waiter));
    }

    /// Nobody waits for it any more: keeps its place until `gone_at`.
    pub fn keep(&mut self, ticket: u64, gone_at: Stamp) {
        if let Some(waiter) = self.remove(ticket) {
            self.put(Waiter { post: Post::Kept(gone_at), ..Waiter::clone(&waiter) });
        }
    }

    pub fn remove(&mut self, ticket: u64) -> Option<Arc<Waiter>> {
        let waiter = self.line.remove(&ticket)?;
        self.tokens.remove(&waiter.terms.token);
        if let Some(identity) = waiter.terms.identity() {
            self.identities.remove(&(Arc::clone(identity), ticket));
        }
        self.times.remove(&(waiter.goes_at(), ticket));
        self.attached.remove(&ticket);
        Some(waiter)
    }

    /// Takes out whom time takes by `now`, the earliest first.
    pub fn take_due(&mut self, now: Stamp) -> Vec<Arc<Waiter>> {
        std::iter::from_fn(|| {
            let (stamp, ticket) = *self.times.get_min()?;
            if stamp <= now { self.remove(ticket) } else { None }
        })
        .collect()
    }
}
