//! ACQUIRE on a pool: for an identity, or of an anonymous slot.
//!
//! Order of the verdicts: `ttl_not_positive` and the pool's `ttl_ms_max`; where the token stands (`yours`, `broken`,
//! `taken_over`, `token_used`); `key_expired`; whose the identity's slot is (`identity_in_use`, `identity_conflict`, or a
//! takeover); then the next slot, or `exhausted`.
//!
//! ACQUIRE by the token that holds renews: whoever lost an answer gets the whole ttl, and so does whoever starts again with
//! the token of its former life. It is told where its own clock stood before.
//!
//! Of one identity the newest ask counts, where takeovers are allowed: one that is given its slot ends those that wait since
//! before. (Those behind a waiter that is given one are newer, and take over when their turn comes.)
//!
//! Invariants: an identity has one live grant at most; a token that lost a slot to another never gets it back; a slot in
//! quarantine goes to nobody but the identity that claims it.
//!
//! Not promised: waiting with `avoid` (that is answered at once).

use std::sync::Arc;

use tenure_cluster::planted::{self, Bug};
use tenure_cluster::{Moment, Stamp};

use super::grants::{FENCE_END, positive};
use super::lease::{End, Grant, SlotTerms, Terms};
use super::pool::Pool;
use super::pools::Outcome;
use super::slot::{Stand, Tenancy, clock, unix_ms};
use super::waiting::Patience;
use super::{
    Acquire, AcquireSlot, Attach, Event, EventKind, Key, Keyspace, LeaseArgument, OnConflict, Reason, Refusal, Reply,
    SlotOutcome, SlotReply, Slotted, TokenHash,
};

/// An ACQUIRE of a slot.
pub(super) struct Wish {
    pub terms: Terms,
    pub avoid: Option<u32>,
    pub once: bool,
    pub patience: Option<Patience>,
}

/// What an ACQUIRE of a slot comes to.
pub(super) enum Verdict {
    /// The token holds this one.
    Yours(u32),
    /// This one can be given. Before that the grant of the same identity ends on the other, if it is live there.
    Give {
        id: u32,
        from: Option<u32>,
    },
    /// No slot can be given now.
    Exhausted,
    Refused(SlotReply),
}

impl Keyspace {
    pub(super) fn acquire_anonymous(
        &mut self,
        at: &Moment,
        ask: Acquire,
        patience: Option<Patience>,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let forbidden = [(ask.min_hold_ms, LeaseArgument::MinHoldMs), (ask.delay_ms, LeaseArgument::DelayMs)];
        if let Some((_, argument)) = forbidden.into_iter().find(|(given, _)| given.is_some()) {
            return Err(Refusal::NotForPool(argument));
        }
        let (key, once) = (Key::clone(&ask.key), ask.once);
        let Some((ttl_ms, ttl_raised)) = self.slot_ttl_ms(&key, ask.ttl_ms)? else { return Ok(not_positive()) };
        let slot = Box::new(SlotTerms { ttl_raised, ..SlotTerms::default() });
        let terms = Terms { slot: Some(slot), ..Terms::of(ask, ttl_ms) };
        Ok(self.acquire_slot(at, &key, Wish { terms, avoid: None, once, patience }, events))
    }

    pub(super) fn acquire_identified(
        &mut self,
        at: &Moment,
        ask: AcquireSlot,
        patience: Option<Patience>,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let AcquireSlot { key, identity, token, ttl_ms, avoid, unix_ms, note, once } = ask;
        let Some((ttl_ms, ttl_raised)) = self.slot_ttl_ms(&key, ttl_ms)? else { return Ok(not_positive()) };
        let clock = unix_ms.map(|unix_ms| clock(unix_ms, at.stamp));
        let slot = Some(Box::new(SlotTerms { identity: Some(Arc::clone(&identity)), clock, ttl_raised }));
        let terms = Terms { token, owner: identity, ttl_ms, note, min_hold_ms: None, delay_ms: None, slot };
        let avoid = avoid.filter(|id| self.pool(&key).is_some_and(|pool| pool.has(*id)));
        Ok(self.acquire_slot(at, &key, Wish { terms, avoid, once, patience }, events))
    }

    /// What a wanted lifetime comes to, and whether that is more; `None`: it is not positive.
    pub(super) fn slot_ttl_ms(&self, key: &str, ttl_ms: i64) -> Result<Option<(u64, bool)>, Refusal> {
        let Some(options) = self.pool(key).map(|pool| pool.options) else { return Ok(None) };
        let Some(ttl_ms) = positive(ttl_ms) else { return Ok(None) };
        if ttl_ms > options.ttl_ms_max {
            return Err(Refusal::TtlAboveMax { max: options.ttl_ms_max });
        }
        Ok(Some((ttl_ms.max(options.ttl_ms_min), ttl_ms < options.ttl_ms_min)))
    }

    fn acquire_slot(&mut self, at: &Moment, key: &Key, wish: Wish, events: &mut Vec<Event>) -> Reply {
        let (token, identity) = (wish.terms.token, wish.terms.identity().map(Arc::clone));
        self.settle_slot(at, key, |pool| pool.of_token(token), events);
        self.settle_slot(at, key, |pool| pool.of_identity(identity.as_deref()?), events);
        self.settle_slot(at, key, |_| wish.avoid, events);
        self.catch_up(at, key, wish.avoid, events);
        let verdict = self.judge(key, &wish, at.stamp);
        if let Some((id, Stand::Live(_))) = self.pool(key).and_then(|pool| pool.stand(token)) {
            self.confirm_slot(key, id);
        }
        match verdict {
            Verdict::Yours(id) => self.reacquire(at, key, id, &wish.terms, events),
            Verdict::Refused(reply) => slot_reply(reply),
            Verdict::Give { id, from } => {
                let attach = wish.patience.map(|patience| patience.attach);
                let given = self.give(at, key, (id, from), &wish, attach, events);
                if given.is_some() && !planted::has(Bug::OlderAskWaitsOn) {
                    self.end_older_waits(at, key, &wish.terms, events);
                }
                // Who held it before may have left another free.
                self.hand_on(at, key, events);
                given.map_or(Reply::Refused(Refusal::FenceExhausted), slot_reply)
            }
            Verdict::Exhausted => self.wait_for_slot(at, key, wish, events),
        }
    }

    /// Who asks last for an identity takes over: what waits for it was asked before, and would take the new grant over.
    fn end_older_waits(&mut self, at: &Moment, key: &Key, terms: &Terms, events: &mut Vec<Event>) {
        let Some(pool) = self.pool(key).filter(|pool| pool.options.on_conflict == OnConflict::Takeover) else { return };
        let older = terms.identity().zip(pool.queue()).map(|(identity, queue)| queue.of_identity(identity));
        let attached = older.into_iter().flatten().filter(|waiter| waiter.attach().is_some());
        for ticket in attached.map(|waiter| waiter.ticket).collect::<Vec<_>>() {
            self.end_wait(at, key, ticket, Reason::TakenOver, events);
        }
    }

    /// No slot can be given: stands in line, if the caller waits.
    fn wait_for_slot(&mut self, at: &Moment, key: &Key, wish: Wish, events: &mut Vec<Event>) -> Reply {
        let (now, token) = (at.stamp, wish.terms.token);
        let place = |keyspace: &Self| {
            let (_, record) = keyspace.table.get(key)?;
            let ticket = record.waiter(token)?.ticket;
            Some(Reply::SlotQueued(record.queue()?.place(ticket)))
        };
        let opens_at = self.pool(key).and_then(|pool| pool.opens_at(wish.avoid));
        let exhausted = SlotReply {
            retry_after_ms: opens_at.map(|opens_at| opens_at.ms_since(now).max(1)),
            ..SlotReply::nothing(Reason::Exhausted)
        };
        match wish.patience {
            // Answered at once, also to a token that stands in line by another request.
            Some(_) if wish.avoid.is_some() => slot_reply(exhausted),
            Some(patience) if !self.line_up(at, key, wish.terms, patience, events) => {
                slot_reply(SlotReply::nothing(Reason::QueueFull))
            }
            _ => place(self).unwrap_or_else(|| slot_reply(exhausted)),
        }
    }

    /// The state must be settled for the token's and the identity's slot.
    pub(super) fn judge(&self, key: &str, wish: &Wish, now: Stamp) -> Verdict {
        let Some(pool) = self.pool(key) else { return Verdict::Refused(SlotReply::nothing(Reason::NotHeld)) };
        match pool.stand(wish.terms.token) {
            Some((id, Stand::Live(held))) if Some(id) != wish.avoid => {
                return match &held.grant.broken {
                    Some(text) => refused(Reason::Broken, Some(held.grant.deadline), Some(text), now),
                    None => Verdict::Yours(id),
                };
            }
            // Whoever it is: not the one that asks, by what it says.
            Some((_, Stand::Live(held))) if held.identity.as_ref() != wish.terms.identity() => {
                return refused(Reason::IdentityInUse, Some(held.grant.deadline), None, now);
            }
            Some((_, Stand::Superseded)) => return refused(Reason::TakenOver, None, None, now),
            // An undelivered grant was nobody's.
            Some((_, Stand::Past(past))) if wish.once && past.end != End::Undelivered => {
                return refused(Reason::TokenUsed, None, None, now);
            }
            Some((_, Stand::Live(_) | Stand::Past(_))) | None => {}
        }
        if self.is_over(key, now) {
            return refused(Reason::KeyExpired, pool.quiet_at(), None, now);
        }
        let identity = wish.terms.identity().filter(|_| !planted::has(Bug::IdentityHoldsTwice));
        let own = identity.and_then(|identity| pool.of_identity(identity));
        let Some((own, slot)) = own.and_then(|own| Some((own, pool.slot(own)?))) else {
            return pool.next(wish.avoid).map_or(Verdict::Exhausted, |id| Verdict::Give { id, from: None });
        };
        let taken_over = slot.held.as_ref().filter(|held| held.grant.token != wish.terms.token);
        if let Some(held) = taken_over
            && (held.grant.broken.is_some() || pool.options.on_conflict == OnConflict::Reject)
        {
            return refused(Reason::IdentityInUse, Some(held.grant.deadline), None, now);
        }
        // Whoever goes from slot to slot uses them up, and counts as one that is fought over.
        let leaves = wish.avoid == Some(own);
        if let Some(opens_at) = slot.takeover_opens_at(now).filter(|_| leaves || taken_over.is_some()) {
            return refused(Reason::IdentityConflict, Some(opens_at), None, now);
        }
        let id = if pool.has(own) && !leaves { Some(own) } else { pool.next(wish.avoid) };
        let from = slot.held.is_some().then_some(own);
        id.map_or(Verdict::Exhausted, |id| Verdict::Give { id, from })
    }

    /// Gives a slot, and ends the identity's grant where that was live before. `None`: fences are used up.
    pub(super) fn give(
        &mut self,
        at: &Moment,
        key: &Key,
        (id, from): (u32, Option<u32>),
        wish: &Wish,
        attach: Option<Attach>,
        events: &mut Vec<Event>,
    ) -> Option<SlotReply> {
        let (now, terms) = (at.stamp, &wish.terms);
        let fence = self.fence.checked_add(1).filter(|fence| *fence < FENCE_END)?;
        let own = self.pool(key).and_then(|pool| pool.of_identity(terms.identity()?));
        let takeovers = self.pool(key).and_then(|pool| Some(pool.slot(own?)?.takeovers.clone())).unwrap_or_default();
        let leaves = own.is_some() && wish.avoid == own && !planted::has(Bug::AvoidNotCounted);
        let took_over = from.and_then(|from| self.end_former(at, key, from, terms.token, events));
        if let Some(avoid) = wish.avoid.filter(|_| !planted::has(Bug::AvoidedGivenAgain)) {
            let is_free = |pool: &Pool| pool.slot(avoid).is_none_or(|slot| slot.held.is_none());
            if self.pool(key).is_some_and(is_free) {
                self.edit_pool(at, key, |pool| pool.quarantine(avoid, now));
            }
        }
        let slot = terms.slot.clone().unwrap_or_default();
        let held = Tenancy {
            grant: Grant {
                fence,
                owner: Arc::clone(&terms.owner),
                token: terms.token,
                deadline: now.plus_ms(terms.ttl_ms),
                granted_at: now,
                renewed_at: now,
                granted_wall_ms: at.wall_ms,
                min_hold_ms: 0,
                delay_ms: 0,
                note: terms.note.clone(),
                broken: None,
            },
            identity: slot.identity,
            clock: slot.clock,
            unconfirmed: attach,
        };
        self.fence = fence;
        self.longest_ttl_ms = self.longest_ttl_ms.max(terms.ttl_ms);
        let event = Event::of_grant(key, EventKind::Granted, &held.grant).of_slot(id, &held);
        self.edit_pool(at, key, |pool| {
            pool.begin(id, held);
            if took_over.is_some() || leaves {
                pool.note_takeover(id, takeovers, now);
            }
        });
        self.leave_line(at, key, terms.token, attach, events);
        let given = self.pool(key)?.slot(id)?;
        // Whoever lost another slot by this is no danger on this one.
        let prior = given.prior(took_over.filter(|_| from == Some(id)), now);
        let outcome = SlotOutcome::Granted(self.pool(key)?.told(id, given.floor.at(now), now)?);
        let reply = SlotReply { outcome, reason: None, ttl_raised: slot.ttl_raised, prior, ..granted() };
        let held = self.pool(key).map(Pool::held);
        let told = event.slot.map(|slot| Slotted { answer: Some(Arc::new(reply.clone())), held, ..slot });
        events.push(Event { ttl_ms: Some(terms.ttl_ms), attach, slot: told, ..event });
        Some(reply)
    }

    /// Ends the grant that an identity has on `from`: taken over, unless it is the caller's own. Gives the fence of one that
    /// was taken over.
    fn end_former(
        &mut self,
        at: &Moment,
        key: &Key,
        from: u32,
        token: TokenHash,
        events: &mut Vec<Event>,
    ) -> Option<u64> {
        let held = self.pool(key)?.slot(from)?.held.clone()?;
        let is_own = held.grant.token == token;
        let (end, reason) = match (is_own, &held.grant.broken) {
            (true, Some(text)) => (End::Broken(Arc::clone(text)), None),
            (true, None) => (End::Released, None),
            (false, _) => (End::TakenOver, Some(Reason::TakenOver)),
        };
        let event = Event::of_grant(key, EventKind::Released, &held.grant).of_slot(from, &held);
        // A broken grant's end was told of at its BREAK.
        events.push(Event { reason, ..event });
        self.edit_pool(at, key, |pool| drop(pool.end_grant(from, end, at.stamp)));
        (!is_own).then_some(held.grant.fence)
    }

    /// Who holds waits no more. Another request that waited is told, for it is not told of the grant.
    fn leave_line(
        &mut self,
        at: &Moment,
        key: &Key,
        token: TokenHash,
        granted: Option<Attach>,
        events: &mut Vec<Event>,
    ) {
        let waiter = self.table.get(key).and_then(|(_, record)| record.waiter(token)).cloned();
        let Some(waiter) = waiter else { return };
        if waiter.attach() != granted {
            return self.end_wait(at, key, waiter.ticket, Reason::Superseded, events);
        }
        self.edit_line(at, key, |queue| drop(queue.remove(waiter.ticket)));
        if let Some(attach) = granted {
            self.edges.leave(attach, waiter.ticket, key);
        }
    }

    /// ACQUIRE by the token that holds: renews, but for a key whose lifetime is over.
    fn reacquire(&mut self, at: &Moment, key: &Key, id: u32, terms: &Terms, events: &mut Vec<Event>) -> Reply {
        let now = at.stamp;
        let slot = terms.slot.clone().unwrap_or_default();
        // Where its own clock stood in its former life counts as well.
        let former = self.pool(key).and_then(|pool| {
            let slot = pool.slot(id)?;
            let own = slot.held.as_ref()?.clock.map(|clock| unix_ms(clock, now));
            own.max(slot.floor.at(now))
        });
        if self.is_over(key, now) {
            self.confirm_slot(key, id);
        } else {
            self.prolong(at, key, id, (terms.ttl_ms, slot.clock), events);
        }
        let told = self.pool(key).and_then(|pool| Some((pool.told(id, former, now)?, pool.slot(id)?)));
        let Some((grant, given)) = told else { return slot_reply(SlotReply::nothing(Reason::NotHeld)) };
        // The answer to the takeover may have been lost.
        let taken_over = given.last.as_ref().filter(|last| last.end == End::TakenOver).map(|last| last.fence);
        let prior = given.prior(taken_over, now).filter(|_| !planted::has(Bug::PriorToldOnce));
        let outcome = SlotOutcome::Granted(grant);
        slot_reply(SlotReply { outcome, yours: true, ttl_raised: slot.ttl_raised, prior, ..granted() })
    }
}

pub(super) fn slot_reply(reply: SlotReply) -> Reply {
    Reply::Slot(Box::new(reply))
}

/// A reply whose outcome is to be filled in.
pub(super) fn granted() -> SlotReply {
    SlotReply { reason: None, ..SlotReply::nothing(Reason::NotHeld) }
}

pub(super) fn not_positive() -> Reply {
    slot_reply(SlotReply::nothing(Reason::TtlNotPositive))
}

fn refused(reason: Reason, again_at: Option<Stamp>, detail: Option<&Arc<str>>, now: Stamp) -> Verdict {
    let retry_after_ms = again_at.map(|again_at| again_at.ms_since(now).max(1));
    Verdict::Refused(SlotReply { retry_after_ms, detail: detail.cloned(), ..SlotReply::nothing(reason) })
}
