//! RENEW, RELEASE, HELD, CHECK and BREAK on a pool, and DETACH of a grant that came by waiting.
//!
//! Invariants: a deadline moves later only, but for BREAK. RENEW is `lost` only where the grant surely is not the token's any
//! more; where it could not be prolonged and stands, the answer is null. After a BREAK the slot keeps its quarantine, and
//! its identity has no claim on it, whoever ends the grant.

use std::sync::Arc;

use tenure_cluster::{Moment, Stamp};

use super::keys::done;
use super::lease::{Claim, End};
use super::pool::Pool;
use super::pools::Outcome;
use super::record::Kind;
use super::slot::{Stand, clock};
use super::slot_grants::{granted, not_positive, slot_reply};
use super::{
    Attach, Event, EventKind, Key, Keyspace, OpReply, Reason, Refusal, Reply, SlotGrant, SlotOutcome, SlotReply,
    Standing, TokenHash,
};

impl Keyspace {
    pub(super) fn renew_slot(
        &mut self,
        at: &Moment,
        key: &Key,
        claim: &Claim,
        ttl_ms: i64,
        unix_ms: Option<u64>,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let now = at.stamp;
        let Some((ttl_ms, ttl_raised)) = self.slot_ttl_ms(key, ttl_ms)? else { return Ok(not_positive()) };
        self.settle_slot(at, key, |pool| pool.of_token(claim.token?), events);
        let Some(pool) = self.pool(key) else { return Err(Refusal::NoSuchKey) };
        let Some((id, held)) = pool.claimed(claim) else {
            let (reason, detail) = pool.lost(claim);
            return Ok(lost(reason, detail));
        };
        if let Some(text) = held.grant.broken.clone() {
            self.confirm_slot(key, id);
            return Ok(lost(Reason::Broken, Some(text)));
        }
        if self.is_over(key, now) {
            self.confirm_slot(key, id);
            return Ok(slot_reply(SlotReply::nothing(Reason::KeyExpired)));
        }
        let clock = unix_ms.map(|unix_ms| clock(unix_ms, now));
        self.prolong(at, key, id, (ttl_ms, clock), events);
        let told = self.pool(key).and_then(|pool| pool.told(id, pool.slot(id)?.floor.at(now), now));
        let Some(grant) = told else { return Ok(lost(Reason::NotHeld, None)) };
        Ok(slot_reply(SlotReply { outcome: SlotOutcome::Renewed(grant), ttl_raised, ..granted() }))
    }

    /// Moves the deadline of a live grant: later only.
    pub(super) fn prolong(
        &mut self,
        at: &Moment,
        key: &Key,
        id: u32,
        (ttl_ms, clock): (u64, Option<i64>),
        events: &mut Vec<Event>,
    ) {
        let now = at.stamp;
        self.longest_ttl_ms = self.longest_ttl_ms.max(ttl_ms);
        self.edit_pool(at, key, |pool| {
            pool.edit_held(id, |held| {
                held.grant.deadline = held.grant.deadline.max(now.plus_ms(ttl_ms));
                held.grant.renewed_at = now;
                held.clock = held.clock.max(clock);
                held.unconfirmed = None;
            });
        });
        if let Some(held) = self.pool(key).and_then(|pool| pool.slot(id)?.held.as_ref()) {
            let event = Event::of_grant(key, EventKind::Renewed, &held.grant).of_slot(id, held);
            events.push(Event { ttl_ms: Some(held.grant.remaining_ms(now)), ..event });
        }
    }

    /// RELEASE: also in the grace of a BREAK. By a token that waits: it waits no more.
    pub(super) fn release_slot(&mut self, at: &Moment, key: &Key, claim: &Claim, events: &mut Vec<Event>) -> Reply {
        self.settle_slot(at, key, |pool| pool.of_token(claim.token?), events);
        let Some(pool) = self.pool(key) else { return Reply::Op(OpReply::default()) };
        let Some((id, held)) = pool.claimed(claim) else {
            let (reason, detail) = pool.lost(claim);
            let waiter = claim.token.filter(|_| claim.fence.is_none());
            let waiter = waiter.and_then(|token| self.table.get(key)?.1.waiter(token));
            let Some(ticket) = waiter.map(|waiter| waiter.ticket) else {
                return Reply::Op(OpReply { reason: Some(reason), detail, ..OpReply::default() });
            };
            self.end_wait(at, key, ticket, Reason::CancelledWait, events);
            return Reply::Op(OpReply { reason: Some(Reason::CancelledWait), ..OpReply::default() });
        };
        events.push(Event::of_grant(key, EventKind::Released, &held.grant).of_slot(id, held));
        // After a BREAK the slot keeps its quarantine, whoever ends the grant.
        let broken = held.grant.broken.clone();
        let end = broken.map_or(End::Released, End::Broken);
        self.edit_pool(at, key, |pool| drop(pool.end_grant(id, end, at.stamp)));
        self.slot_freed(at, key, events);
        Reply::OfSlot { op: OpReply { result: true, ..OpReply::default() }, id }
    }

    /// BREAK: the holder keeps the slot for `grace_ms` at most. Again: may shorten the grace, and the newest text counts.
    pub(super) fn break_slot(
        &mut self,
        at: &Moment,
        key: &Key,
        id: u32,
        (text, grace_ms): (&Arc<str>, u64),
        fence: Option<u64>,
        events: &mut Vec<Event>,
    ) -> Reply {
        let now = at.stamp;
        self.settle_slot(at, key, |_| Some(id), events);
        let held = self.pool(key).and_then(|pool| pool.slot(id)?.held.as_ref());
        let Some(held) = held.filter(|held| fence.is_none_or(|fence| held.grant.fence == fence)) else {
            return Reply::Op(OpReply { reason: Some(Reason::NotHeld), ..OpReply::default() });
        };
        if held.grant.broken.is_none() {
            let event = Event::of_grant(key, EventKind::Broken, &held.grant).of_slot(id, held);
            events.push(Event { detail: Some(Arc::clone(text)), ..event });
        }
        self.edit_pool(at, key, |pool| {
            pool.edit_held(id, |held| {
                held.grant.deadline = held.grant.deadline.min(now.plus_ms(grace_ms));
                held.grant.broken = Some(Arc::clone(text));
            });
            pool.end_if_over(id, now);
        });
        let live = self.pool(key).and_then(|pool| pool.slot(id)?.held.as_ref()).map(|held| held.grant.told(now));
        self.slot_freed(at, key, events);
        Reply::OfSlot { op: OpReply { result: true, ..live.unwrap_or_default() }, id }
    }

    /// HELD and CHECK inside a BATCH.
    pub(super) fn claimed_slot(&mut self, at: &Moment, key: &Key, claim: &Claim, events: &mut Vec<Event>) -> Reply {
        self.settle_slot(at, key, |pool| pool.of_token(claim.token?), events);
        self.settle_slot(at, key, |pool| pool.of_fence(claim.fence?), events);
        let Some((_, record)) = self.table.get(key) else { return Reply::Refused(Refusal::NoSuchKey) };
        let Ok(pool) = record.pool() else { return Reply::Refused(Refusal::WrongType) };
        let standing = pool.standing(claim, at.stamp);
        if let Some(id) = standing.slot.filter(|_| claim.token.is_some()) {
            self.confirm_slot(key, id);
        }
        standing.into()
    }

    /// DETACH of a request that was granted: if its client was not told, the slot is returned.
    pub(super) fn return_slot(
        &mut self,
        at: &Moment,
        key: &Key,
        token: TokenHash,
        attach: Attach,
        events: &mut Vec<Event>,
    ) -> Reply {
        self.settle_slot(at, key, |pool| pool.of_token(token), events);
        let held = self.pool(key).and_then(|pool| pool.claimed(&Claim { token: Some(token), fence: None }));
        let Some((id, held)) = held.filter(|(_, held)| held.unconfirmed == Some(attach)) else {
            return done(false, None);
        };
        let event = Event::of_grant(key, EventKind::Released, &held.grant).of_slot(id, held);
        events.push(Event { reason: Some(Reason::Undelivered), attach: Some(attach), ..event });
        self.edit_pool(at, key, |pool| drop(pool.end_grant(id, End::Undelivered, at.stamp)));
        self.slot_freed(at, key, events);
        done(true, None)
    }

    /// A slot got free: a pool whose lifetime is over goes with its last grant; else the slot is handed on.
    fn slot_freed(&mut self, at: &Moment, key: &Key, events: &mut Vec<Event>) {
        self.settle_if_due(at, key, events);
        self.hand_on(at, key, events);
    }

    /// A command of the holder's token was applied.
    pub(super) fn confirm_slot(&mut self, key: &str, id: u32) {
        let held = self.pool(key).and_then(|pool| pool.slot(id)?.held.as_ref());
        if held.is_some_and(|held| held.unconfirmed.is_some()) {
            self.table.edit(key, |record| {
                if let Kind::Pool(pool) = &mut record.kind {
                    pool.edit_held(id, |held| held.unconfirmed = None);
                }
            });
        }
    }
}

impl Pool {
    /// The live grant of a slot, as its holder is told of it.
    pub fn told(&self, id: u32, floor_unix_ms: Option<u64>, now: Stamp) -> Option<SlotGrant> {
        let held = self.slot(id)?.held.as_ref()?;
        Some(SlotGrant {
            id,
            fence: held.grant.fence,
            ttl_ms: held.grant.remaining_ms(now),
            identity: held.identity.clone(),
            uuid: self.uuid,
            first: self.options.first,
            size: self.options.size,
            floor_unix_ms,
        })
    }

    /// Why a claim that fits no live grant does not, and the text of a BREAK.
    fn lost(&self, claim: &Claim) -> (Reason, Option<Arc<str>>) {
        match claim.token.and_then(|token| self.stand(token)) {
            Some((_, Stand::Superseded)) => (Reason::TakenOver, None),
            Some((_, Stand::Past(past))) if claim.fence.is_none_or(|fence| fence == past.fence) => {
                (past.lost(), past.end.detail())
            }
            _ => (Reason::NotHeld, None),
        }
    }

    /// HELD and CHECK: does the claim fit a live grant? Without one: is any slot held?
    pub fn standing(&self, claim: &Claim, now: Stamp) -> Standing {
        if claim.token.is_none() && claim.fence.is_none() {
            let result = self.last_deadline().is_some_and(|deadline| deadline > now);
            let reason = (!result).then_some(Reason::NotHeld);
            return OpReply { result, reason, ..OpReply::default() }.into();
        }
        if let Some((id, held)) = self.claimed(claim) {
            let op = OpReply { result: true, ..held.grant.told(now) };
            return Standing { op, place: None, slot: Some(id) };
        }
        let place = claim.token.and_then(|token| {
            let queue = self.queue()?;
            Some(queue.place(queue.of_token(token)?.ticket))
        });
        let (reason, detail) = match place {
            Some(_) => (Reason::Queued, None),
            None => self.lost(claim),
        };
        Standing { op: OpReply { reason: Some(reason), detail, ..OpReply::default() }, place, slot: None }
    }
}

fn lost(reason: Reason, detail: Option<Arc<str>>) -> Reply {
    slot_reply(SlotReply { outcome: SlotOutcome::Lost, detail, ..SlotReply::nothing(reason) })
}
