//! Waiting in line: how waiters come, stay, go and are granted.
//!
//! Model: ACQUIRE that waits and cannot be granted joins the line of its lease (`queue`); a repeat by the same token
//! keeps the place and takes the request over. The edges (`edges`) say when a request went away (DETACH), when its wait
//! is over (CANCEL), and that they are still there (PRESENCE).
//!
//! Invariants:
//! - Handing on is a part of settling: a lease that is free, open and whose lifetime is not over has no attached waiter
//!   after any command or timer on it. The first in line was granted in that step, with a deadline that counts from it.
//! - By the time a lease is handed on, whoever's wait is over by then has left the line, and waiters of edges that have
//!   lapsed by then are detached: they are never granted.
//! - Every request that was told to wait is told one end of it: granted, `WaitEnded`, or `Detached`; none after its edge
//!   itself let it go (DETACH).
//! - A grant that came by waiting is returned (`undelivered`) only until a command of its token was applied.
//!
//! Not promised: an end of the wait to whoever is detached, or by whom a detached waiter is replaced.

use std::sync::Arc;

use tenure_cluster::Moment;
use tenure_cluster::planted::{self, Bug};

use super::keys::done;
use super::lease::{End, Terms};
use super::queue::{KEPT_MS, Post, Queue, Waiter};
use super::{Attach, EdgeId, Event, EventKind, Key, Keyspace, OpReply, Reason, Reply, TokenHash};

/// Waiters of one lease at most, unless told otherwise.
pub(super) const QUEUE_MAX: usize = 10_000;

/// Waiters of a keyspace at most, unless told otherwise.
pub(super) const WAITERS_MAX: usize = 100_000;

/// How an ACQUIRE waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub wait_ms: u64,
    pub attach: Attach,
}

impl Keyspace {
    /// Puts who cannot be granted now in line, or takes it over there. `why` it cannot.
    pub(super) fn stand(
        &mut self,
        at: &Moment,
        key: &Key,
        terms: Terms,
        patience: Patience,
        why: OpReply,
        events: &mut Vec<Event>,
    ) -> Reply {
        if why.reason == Some(Reason::MinHold) && terms.asks_min_hold() {
            return Reply::Op(why);
        }
        let token = terms.token;
        let is_in_line = self.line_up(at, key, terms, patience, events);
        let Some(lease) = self.table.get(key).and_then(|(_, record)| record.lease().ok()) else {
            return Reply::Op(why);
        };
        if !is_in_line {
            return Reply::Op(lease.refused(Reason::QueueFull, at.stamp));
        }
        lease.queued(token, at.stamp).map_or(Reply::Op(why), Reply::from)
    }

    /// Puts who cannot be granted now in line, or takes it over there; `false`: there is no room.
    pub(super) fn line_up(
        &mut self,
        at: &Moment,
        key: &Key,
        terms: Terms,
        patience: Patience,
        events: &mut Vec<Event>,
    ) -> bool {
        let Some((_, record)) = self.table.get(key) else { return false };
        let (now, attach) = (at.stamp, patience.attach);
        let old = record.waiter(terms.token).cloned();
        if old.is_none() && (self.table.waiters() >= self.waiters_max || record.waiters() >= self.queue_max) {
            return false;
        }
        let known = old.as_ref().map(|old| old.ticket);
        let ticket = known.filter(|_| !planted::has(Bug::PlaceLostByRepeat)).unwrap_or_else(|| self.next_ticket());
        let waiter = Waiter { ticket, terms, ends: now.plus_ms(patience.wait_ms), post: Post::Attached(attach) };
        let was = old.as_ref().and_then(|old| old.attach());
        if was != Some(attach) {
            if let (Some(was), Some(old)) = (was, &old) {
                self.edges.leave(was, old.ticket, key);
                events.push(Event::of_waiter(key, EventKind::WaitEnded, old, was, Some(Reason::Superseded)));
            }
            events.push(Event::of_waiter(key, EventKind::Waiting, &waiter, attach, None));
        }
        self.edit_line(at, key, |queue| {
            known.map(|known| queue.remove(known));
            queue.put(waiter);
        });
        self.edges.attach(attach, ticket, key, now);
        self.detach_other_lives(at, attach.edge, events);
        true
    }

    /// Changes a key's line, and marks the change.
    pub(super) fn edit_line(&mut self, at: &Moment, key: &str, change: impl FnOnce(&mut Queue)) {
        self.table.edit(key, |record| {
            record.mark(at.position);
            record.edit_queue(change);
        });
    }

    /// The counter starts anew when nobody waits, so that a state without waiters has none.
    fn next_ticket(&mut self) -> u64 {
        let last = if self.table.waiters() == 0 { 0 } else { self.tickets };
        self.tickets = last + 1;
        self.tickets
    }

    /// Grants a lease that can be acquired to the first attached waiter, slots that can to as many.
    pub(super) fn hand_on(&mut self, at: &Moment, key: &Key, events: &mut Vec<Event>) {
        let Some((_, record)) = self.table.get(key) else { return };
        let Ok(lease) = record.lease() else { return self.hand_on_slots(at, key, events) };
        if lease.grant.is_some() || lease.shut(at.stamp).is_some() {
            return;
        }
        let first = |queue: &Queue| match planted::has(Bug::GrantToDetached) {
            true => queue.iter().next().cloned(),
            false => queue.first_attached().cloned(),
        };
        let Some(first) = lease.queue().and_then(first) else { return };
        let (attach, options) = (first.attach(), lease.options);
        match self.next_grant(at, &first.terms, &options) {
            Ok(grant) => drop(self.begin(at, key, grant, attach, events)),
            // The last fence is granted: nobody will ever be.
            Err(_) => self.end_waits(at, key, Reason::Exhausted, |waiter| waiter.attach().is_some(), events),
        }
    }

    /// DETACH: the waiter's place is kept; a grant that its client was not told of is returned.
    pub(super) fn detach(
        &mut self,
        at: &Moment,
        key: &Key,
        token: TokenHash,
        attach: Attach,
        events: &mut Vec<Event>,
    ) -> Reply {
        let Some(record) = self.settled(at, key, events) else { return done(false, None) };
        if let Some(waiter) = record.waiter(token) {
            let stands = waiter.attach().filter(|own| *own == attach || planted::has(Bug::StaleDetach));
            let (ticket, own) = (waiter.ticket, stands.is_some());
            if let Some(attach) = stands {
                self.edges.leave(attach, ticket, key);
                self.keep_place(at, key, ticket);
            }
            return done(own, None);
        }
        let Ok(lease) = record.lease() else { return self.return_slot(at, key, token, attach, events) };
        let Some(grant) = lease.undelivered(token, attach) else { return done(false, None) };
        let event = Event::of_grant(key, EventKind::Released, grant);
        events.push(Event { reason: Some(Reason::Undelivered), attach: Some(attach), ..event });
        self.edit_lease(at, key, |lease| lease.end(End::Undelivered, at.stamp));
        self.settle_if_due(at, key, events);
        done(true, None)
    }

    /// CANCEL: the wait is over.
    pub(super) fn cancel(
        &mut self,
        at: &Moment,
        key: &Key,
        token: TokenHash,
        attach: Attach,
        events: &mut Vec<Event>,
    ) -> Reply {
        let waiter = self.settled(at, key, events).and_then(|record| record.waiter(token));
        let Some(ticket) = waiter.filter(|waiter| waiter.attach() == Some(attach)).map(|waiter| waiter.ticket) else {
            return done(false, None);
        };
        self.end_wait(at, key, ticket, Reason::WaitTimeout, events);
        done(true, None)
    }

    /// PRESENCE: is it known?
    pub(super) fn presence(&mut self, at: &Moment, edge: EdgeId, events: &mut Vec<Event>) -> Reply {
        let known = self.edges.see(edge, at.stamp);
        self.detach_other_lives(at, edge, events);
        done(known, None)
    }

    /// AWAY: was it known?
    pub(super) fn away(&mut self, at: &Moment, edge: EdgeId, events: &mut Vec<Event>) -> Reply {
        done(!planted::has(Bug::AwayIgnored) && self.detach_all(at, edge, events), None)
    }

    /// Detaches the waiters of edges that have lapsed. All of them, at once: no command of this time may find one.
    pub(super) fn lapse(&mut self, at: &Moment, events: &mut Vec<Event>) {
        while let Some(edge) = self.edges.lapsed(at.stamp) {
            self.detach_all(at, edge, events);
        }
    }

    fn detach_other_lives(&mut self, at: &Moment, edge: EdgeId, events: &mut Vec<Event>) {
        for other in self.edges.other_lives(edge) {
            self.detach_all(at, other, events);
        }
    }

    /// Are there any?
    fn detach_all(&mut self, at: &Moment, edge: EdgeId, events: &mut Vec<Event>) -> bool {
        let waiters = self.edges.take(edge);
        for (ticket, key) in &waiters {
            let waiter = self.table.get(key).and_then(|(_, record)| record.queue()?.get(*ticket).cloned());
            if let Some((waiter, attach)) = waiter.and_then(|waiter| Some((Arc::clone(&waiter), waiter.attach()?))) {
                events.push(Event::of_waiter(key, EventKind::Detached, &waiter, attach, None));
                self.keep_place(at, key, *ticket);
            }
        }
        !waiters.is_empty()
    }

    fn keep_place(&mut self, at: &Moment, key: &Key, ticket: u64) {
        let gone_at = at.stamp.plus_ms(KEPT_MS);
        self.edit_line(at, key, |queue| queue.keep(ticket, gone_at));
    }

    /// Ends one wait without a grant.
    pub(super) fn end_wait(&mut self, at: &Moment, key: &Key, ticket: u64, reason: Reason, events: &mut Vec<Event>) {
        let mut left = None;
        self.edit_line(at, key, |queue| left = queue.remove(ticket));
        self.tell_left(key, left.as_ref(), reason, events);
    }

    /// Ends the waits of `which`.
    pub(super) fn end_waits(
        &mut self,
        at: &Moment,
        key: &Key,
        reason: Reason,
        which: impl Fn(&Waiter) -> bool,
        events: &mut Vec<Event>,
    ) {
        let queue = self.table.get(key).and_then(|(_, record)| record.queue());
        let tickets: Vec<_> =
            queue.into_iter().flat_map(|queue| queue.iter()).filter(|one| which(one)).map(|one| one.ticket).collect();
        for ticket in tickets {
            self.end_wait(at, key, ticket, reason, events);
        }
    }

    /// Waiters have left the line without a grant: whoever waits for one is told.
    pub(super) fn tell_left<'a>(
        &mut self,
        key: &Key,
        left: impl IntoIterator<Item = &'a Arc<Waiter>>,
        reason: Reason,
        events: &mut Vec<Event>,
    ) {
        for waiter in left {
            if let Some(attach) = waiter.attach() {
                self.edges.leave(attach, waiter.ticket, key);
                events.push(Event::of_waiter(key, EventKind::WaitEnded, waiter, attach, Some(reason)));
            }
        }
    }
}
