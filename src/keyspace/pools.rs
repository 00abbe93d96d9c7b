//! Pools as keys: CREATE and RESIZE, which commands are theirs, how they are settled, and how slots are handed to those who
//! wait. What begins a slot's grant stands in `slot_grants`, what goes on with it and ends it in `slot_claims`.
//!
//! Each operation: settle the pool (what time ended has ended, a bounded number at once) and the slot it is about, judge,
//! then change. A refusal changes nothing, but that a grant counts as known to its holder once a command came by its token.
//!
//! Invariant: a slot that can be given has no attached waiter in line, once the pool is settled. Whatever frees a slot
//! hands on in the same step.
//!
//! Not promised: that a waiter whose identity got a slot meanwhile is served before its turn, though a fresh request of it
//! would be; that whoever was detached, and stands in line anew, is remembered to have asked before others of its identity.

use std::sync::Arc;

use tenure_cluster::planted::{self, Bug};
use tenure_cluster::{Moment, Stamp};

use super::keys::done;
use super::lease::{Claim, End};
use super::pool::Pool;
use super::record::{Kind, Record};
use super::slot_grants::{Verdict, Wish};
use super::waiting::Patience;
use super::{
    Acquire, AcquireSlot, Command, Event, EventKind, Key, Keyspace, PoolOptions, PoolUuid, Reason, Refusal, Reply,
    Wait, WaitSlot,
};

/// What an operation on a pool answers.
pub(super) type Outcome = Result<Reply, Refusal>;

impl Keyspace {
    /// CREATE of a pool.
    pub(super) fn create_pool(
        &mut self,
        at: &Moment,
        key: &Key,
        options: PoolOptions,
        uuid: PoolUuid,
        events: &mut Vec<Event>,
    ) -> Outcome {
        if self.settled(at, key, events).is_some() {
            return Err(Refusal::AlreadyExists);
        }
        self.check_room()?;
        self.table.put(key, Record::of_pool(at.position, Pool::new(options, uuid)));
        events.push(Event::of_key(key, EventKind::Created));
        Ok(done(true, None))
    }

    /// RESIZE.
    fn resize(&mut self, at: &Moment, key: &Key, size: u32, events: &mut Vec<Event>) -> Outcome {
        let Some(options) = self.pool(key).map(|pool| pool.options) else { return Err(Refusal::NoSuchKey) };
        let max = u32::MAX - options.first;
        if size > max.saturating_add(1) {
            return Err(Refusal::SizeAboveMax { max: max.saturating_add(1) });
        }
        if self.is_over(key, at.stamp) {
            return Ok(done(false, Some(Reason::KeyExpired)));
        }
        self.edit_pool(at, key, |pool| {
            pool.resize(size);
            if planted::has(Bug::ResizeCutsLive) {
                let beyond: Vec<u32> = pool.tenancies().map(|(id, _)| id).filter(|id| !pool.has(*id)).collect();
                beyond.into_iter().for_each(|id| drop(pool.end_grant(id, End::Released, at.stamp)));
            }
        });
        // A quarantine may have ended beyond the end.
        self.settle_if_due(at, key, events);
        self.hand_on(at, key, events);
        Ok(done(true, None))
    }

    /// Is its key a pool's, once time has done its work there, so that it means what it means for pools?
    pub(super) fn is_of_pool(&mut self, at: &Moment, command: &Command, events: &mut Vec<Event>) -> bool {
        let key = command.slot_key().filter(|key| self.pool(key).is_some());
        key.is_some_and(|key| self.settled(at, key, events).is_some())
    }

    /// Applies a command whose key is a pool, and settled.
    pub(super) fn apply_to_pool(&mut self, at: &Moment, command: Command, events: &mut Vec<Event>) -> Outcome {
        let Some(key) = command.slot_key().map(Key::clone) else { return Ok(done(false, None)) };
        match command {
            Command::Acquire(ask) => self.acquire_anonymous(at, ask, None, events),
            Command::Wait(Wait { ask, wait_ms, attach }) => {
                self.acquire_anonymous(at, ask, Some(Patience { wait_ms, attach }), events)
            }
            Command::AcquireSlot(ask) => self.acquire_identified(at, ask, None, events),
            Command::WaitSlot(WaitSlot { ask, wait_ms, attach }) => {
                self.acquire_identified(at, ask, Some(Patience { wait_ms, attach }), events)
            }
            Command::Renew { token, ttl_ms, fence, .. } => {
                self.renew_slot(at, &key, &Claim { token: Some(token), fence }, ttl_ms, None, events)
            }
            Command::RenewSlot { token, ttl_ms, fence, unix_ms, .. } => {
                self.renew_slot(at, &key, &Claim { token: Some(token), fence }, ttl_ms, Some(unix_ms), events)
            }
            Command::Release { token, fence, .. } => {
                Ok(self.release_slot(at, &key, &Claim { token: Some(token), fence }, events))
            }
            Command::BreakSlot { id, reason, grace_ms, fence, .. } => {
                Ok(self.break_slot(at, &key, id, (&reason, grace_ms), fence, events))
            }
            Command::Break { .. } => Err(Refusal::IdMissing),
            Command::Resize { size, .. } => self.resize(at, &key, size, events),
            Command::Held { token, .. } => Ok(self.claimed_slot(at, &key, &Claim { token, fence: None }, events)),
            Command::Check { fence, .. } => {
                Ok(self.claimed_slot(at, &key, &Claim { token: None, fence: Some(fence) }, events))
            }
            // `slot_key` names no other.
            _ => Ok(done(false, None)),
        }
    }

    pub(super) fn pool(&self, key: &str) -> Option<&Pool> {
        self.table.get(key).and_then(|(_, record)| record.pool().ok())
    }

    pub(super) fn is_over(&self, key: &str, now: Stamp) -> bool {
        self.table.get(key).is_some_and(|(_, record)| record.is_over(now))
    }

    /// Changes a pool, which must exist, and marks the change.
    pub(super) fn edit_pool(&mut self, at: &Moment, key: &str, change: impl FnOnce(&mut Pool)) {
        self.table.edit(key, |record| {
            record.mark(at.position);
            if let Kind::Pool(pool) = &mut record.kind {
                change(pool);
            }
        });
    }

    /// Ends a slot's grant if its time is over, though the pool's backlog has not got so far. Whoever waits is given it.
    pub(super) fn settle_slot(
        &mut self,
        at: &Moment,
        key: &Key,
        which: impl FnOnce(&Pool) -> Option<u32>,
        events: &mut Vec<Event>,
    ) {
        if self.end_slot_if_over(at, key, which, events) {
            self.hand_on(at, key, events);
        }
    }

    /// The same, but the slot is not handed on. True if it was one.
    fn end_slot_if_over(
        &mut self,
        at: &Moment,
        key: &Key,
        which: impl FnOnce(&Pool) -> Option<u32>,
        events: &mut Vec<Event>,
    ) -> bool {
        let is_over = |pool: &Pool, id: u32| {
            pool.slot(id).is_some_and(|slot| slot.held.as_ref().is_some_and(|held| held.grant.deadline <= at.stamp))
        };
        let Some(id) = self.pool(key).and_then(|pool| which(pool).filter(|id| is_over(pool, *id))) else {
            return false;
        };
        let mut ended = None;
        self.edit_pool(at, key, |pool| ended = pool.end_if_over(id, at.stamp));
        if let Some((id, held)) = ended {
            events.extend(Event::of_expiry(key, &held.grant).map(|event| event.of_slot(id, &held)));
        }
        true
    }

    /// Goes on settling while no slot can be given but for the backlog.
    pub(super) fn catch_up(&mut self, at: &Moment, key: &Key, avoid: Option<u32>, events: &mut Vec<Event>) {
        let is_over = |opens_at: Stamp| opens_at <= at.stamp;
        let is_behind = |pool: &Pool| pool.next(avoid).is_none() && pool.opens_at(avoid).is_some_and(is_over);
        while self.pool(key).is_some_and(is_behind) {
            self.settle(at, key, events);
        }
    }

    /// Gives slots that can be given to those who wait, in their order.
    pub(super) fn hand_on_slots(&mut self, at: &Moment, key: &Key, events: &mut Vec<Event>) {
        if self.is_over(key, at.stamp) {
            return;
        }
        while let Some(first) = self.pool(key).and_then(|pool| pool.queue()?.first_attached().cloned()) {
            let identity = first.terms.identity().map(Arc::clone);
            self.end_slot_if_over(at, key, |pool| pool.of_identity(identity.as_deref()?), events);
            let wish = Wish { terms: first.terms.clone(), avoid: None, once: false, patience: None };
            let given = match self.judge(key, &wish, at.stamp) {
                Verdict::Exhausted => return,
                Verdict::Give { id, from } => self
                    .give(at, key, (id, from), &wish, first.attach(), events)
                    .is_some()
                    .then_some(())
                    .ok_or(Reason::Exhausted),
                Verdict::Refused(reply) => Err(reply.reason.unwrap_or(Reason::Exhausted)),
                // Who holds does not wait.
                Verdict::Yours(_) => Err(Reason::Superseded),
            };
            if let Err(reason) = given {
                self.end_wait(at, key, first.ticket, reason, events);
            }
        }
    }
}

impl Command {
    /// The key, if it may be that of a pool and its type decides what the command means.
    fn slot_key(&self) -> Option<&Key> {
        match self {
            Self::Acquire(Acquire { key, .. })
            | Self::Wait(Wait { ask: Acquire { key, .. }, .. })
            | Self::AcquireSlot(AcquireSlot { key, .. })
            | Self::WaitSlot(WaitSlot { ask: AcquireSlot { key, .. }, .. })
            | Self::Renew { key, .. }
            | Self::RenewSlot { key, .. }
            | Self::Release { key, .. }
            | Self::Break { key, .. }
            | Self::BreakSlot { key, .. }
            | Self::Resize { key, .. }
            | Self::Held { key, .. }
            | Self::Check { key, .. } => Some(key),
            _ => None,
        }
    }
}
