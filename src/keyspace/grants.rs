//! The operations that begin, extend and end grants: ACQUIRE (that waits too: see `waiting`), RENEW, RELEASE, BREAK.
//!
//! Each one: settle the key (what time ended has ended), judge the arguments, then the claim, then change the record;
//! what ends a grant settles again, so that the lease is handed on. A refusal changes nothing, but that a grant counts as
//! known to its holder once a command was applied that claims it by its token. Order of the verdicts, where several would fit: `no_such_key`; `ttl_not_positive`
//! and the key's `ttl_ms_max`; whose grant it is; what stands against it.

use std::sync::Arc;

use tenure_cluster::{Moment, Stamp};

use super::lease::{Claim, End, Grant, Lease, Terms};
use super::record::{Kind, Record};
use super::waiting::Patience;
use super::{
    Acquire, Attach, Event, EventKind, Key, Keyspace, LeaseOptions, OpReply, Reason, Refusal, Reply, Standing,
};

/// Fences stay below this: every JSON reader can hold them exactly.
pub(super) const FENCE_END: u64 = 1 << 53;

/// What an operation answers.
pub(super) type Outcome = Result<OpReply, Refusal>;

impl Keyspace {
    /// ACQUIRE, and how it waits if it does.
    pub(super) fn acquire(
        &mut self,
        at: &Moment,
        ask: Acquire,
        patience: Option<Patience>,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let attach = patience.map(|patience| patience.attach);
        let key = Key::clone(&ask.key);
        let ttl_ms = positive(ask.ttl_ms);
        let Some(record) = self.settled(at, &key, events) else {
            if !ask.create {
                return Err(Refusal::NoSuchKey);
            }
            let Some(ttl_ms) = ttl_ms else { return Ok(Reply::Op(refused(Reason::TtlNotPositive))) };
            return self.create_held(at, &key, &Terms::of(ask, ttl_ms), attach, events);
        };
        let lease = record.lease()?;
        let Some(ttl_ms) = ttl_ms else { return Ok(Reply::Op(refused(Reason::TtlNotPositive))) };
        check_max(&lease.options, ttl_ms)?;
        match against(record, lease, &ask, patience.is_some(), at.stamp) {
            None => {
                let options = lease.options;
                let grant = self.next_grant(at, &Terms::of(ask, ttl_ms), &options)?;
                Ok(Reply::Op(self.begin(at, &key, grant, attach, events)))
            }
            Some(Against::Yours(reply)) => {
                self.confirm(&key);
                Ok(Reply::Op(reply))
            }
            Some(Against::Refused(reply)) => Ok(Reply::Op(reply)),
            Some(Against::NotNow(reply)) => match patience {
                Some(patience) => Ok(self.stand(at, &key, Terms::of(ask, ttl_ms), patience, reply, events)),
                None => Ok(lease.queued(ask.token, at.stamp).map_or(Reply::Op(reply), Reply::from)),
            },
        }
    }

    /// ACQUIRE `create` of an absent key. Nothing is made unless it is granted.
    fn create_held(
        &mut self,
        at: &Moment,
        key: &Key,
        terms: &Terms,
        attach: Option<Attach>,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        self.check_room()?;
        let grant = self.next_grant(at, terms, &LeaseOptions::default())?;
        self.table.put(key, Record::of_lease(at.position, true, Lease::default()));
        events.push(Event::of_key(key, EventKind::Created));
        Ok(Reply::Op(self.begin(at, key, grant, attach, events)))
    }

    /// The grant of these terms, with the next fence.
    pub(super) fn next_grant(&self, at: &Moment, terms: &Terms, options: &LeaseOptions) -> Result<Grant, Refusal> {
        let fence = self.fence.saturating_add(1);
        if fence >= FENCE_END {
            return Err(Refusal::FenceExhausted);
        }
        Ok(Grant {
            fence,
            owner: Arc::clone(&terms.owner),
            token: terms.token,
            deadline: at.stamp.plus_ms(terms.ttl_ms),
            granted_at: at.stamp,
            renewed_at: at.stamp,
            granted_wall_ms: at.wall_ms,
            min_hold_ms: terms.min_hold_ms.unwrap_or(options.min_hold_ms),
            delay_ms: terms.delay_ms.unwrap_or(options.delay_ms),
            note: terms.note.clone(),
            broken: None,
        })
    }

    /// Begins a grant on a free lease: by the wait of the request `attach`, if by one. Who holds waits no more.
    pub(super) fn begin(
        &mut self,
        at: &Moment,
        key: &Key,
        mut grant: Grant,
        attach: Option<Attach>,
        events: &mut Vec<Event>,
    ) -> OpReply {
        self.fence = grant.fence;
        self.longest_ttl_ms = self.longest_ttl_ms.max(grant.deadline.ms_since(at.stamp));
        let reply = OpReply { result: true, ..grant.told(at.stamp) };
        let event = Event::of_grant(key, EventKind::Granted, &grant);
        events.push(Event { ttl_ms: reply.ttl_ms, attach, ..event });
        let mut waiter = None;
        self.edit_lease(at, key, |lease| {
            if let Some(last) = lease.last.as_ref().filter(|last| last.owner == grant.owner) {
                grant.owner = Arc::clone(&last.owner); // one allocation for an owner that comes back
            }
            let ticket = lease.waiter(grant.token).map(|waiter| waiter.ticket);
            if ticket.is_some() || attach.is_some() {
                lease.edit_waiting(|waiting| {
                    waiter = ticket.and_then(|ticket| waiting.queue.remove(ticket));
                    waiting.unconfirmed = attach;
                });
            }
            lease.grant = Some(grant);
        });
        if let Some((attach, ticket)) = waiter.and_then(|waiter| Some((waiter.attach()?, waiter.ticket))) {
            self.edges.leave(attach, ticket, key);
        }
        reply
    }

    /// RENEW: never shortens.
    pub(super) fn renew(
        &mut self,
        at: &Moment,
        key: &Key,
        claim: &Claim,
        ttl_ms: i64,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let now = at.stamp;
        let record = self.settled(at, key, events).ok_or(Refusal::NoSuchKey)?;
        let lease = record.lease()?;
        let Some(ttl_ms) = positive(ttl_ms) else { return Ok(refused(Reason::TtlNotPositive)) };
        check_max(&lease.options, ttl_ms)?;
        let Some(grant) = lease.claimed(claim) else { return Ok(lease.lost(claim, now)) };
        let refusal = if grant.broken.is_some() {
            Some(OpReply { reason: Some(Reason::Broken), ..grant.told(now) })
        } else if record.is_over(now) {
            Some(lease.refused(Reason::KeyExpired, now))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.confirm(key);
            return Ok(refusal);
        }
        let deadline = grant.deadline.max(now.plus_ms(ttl_ms));
        let reply = OpReply { result: true, ttl_ms: Some(deadline.ms_since(now).max(1)), ..grant.told(now) };
        let event = Event::of_grant(key, EventKind::Renewed, grant);
        events.push(Event { ttl_ms: reply.ttl_ms, ..event });
        self.longest_ttl_ms = self.longest_ttl_ms.max(ttl_ms);
        self.edit_lease(at, key, |lease| {
            lease.confirm();
            if let Some(grant) = &mut lease.grant {
                grant.deadline = deadline;
                grant.renewed_at = now;
            }
        });
        Ok(reply)
    }

    /// RELEASE: also in the grace of a BREAK. By a token that waits: it waits no more. What opens a minimum hold ends the
    /// wait of all who ask for one themselves: their period is done.
    pub(super) fn release(&mut self, at: &Moment, key: &Key, claim: &Claim, events: &mut Vec<Event>) -> Outcome {
        let now = at.stamp;
        let record = self.settled(at, key, events).ok_or(Refusal::NoSuchKey)?;
        let lease = record.lease()?;
        let Some(grant) = lease.claimed(claim) else {
            let waiter = claim.token.filter(|_| claim.fence.is_none()).and_then(|token| lease.waiter(token));
            let Some(ticket) = waiter.map(|waiter| waiter.ticket) else { return Ok(lease.lost(claim, now)) };
            let refusal = lease.refused(Reason::CancelledWait, now);
            self.end_wait(at, key, ticket, Reason::CancelledWait, events);
            return Ok(refusal);
        };
        events.push(Event::of_grant(key, EventKind::Released, grant));
        let mut is_shut = false;
        self.edit_lease(at, key, |lease| {
            lease.end(End::Released, now);
            is_shut = lease.shut(now).is_some();
        });
        if is_shut {
            self.end_waits(at, key, Reason::MinHold, |waiter| waiter.terms.asks_min_hold(), events);
        }
        self.settle_if_due(at, key, events);
        Ok(OpReply { result: true, ..OpReply::default() })
    }

    /// BREAK: the holder keeps the lease for `grace_ms` at most. Again: may shorten the grace, and the newest text
    /// counts; the event comes once.
    pub(super) fn break_grant(
        &mut self,
        at: &Moment,
        key: &Key,
        claim: &Claim,
        text: &Arc<str>,
        grace_ms: u64,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let now = at.stamp;
        let record = self.settled(at, key, events).ok_or(Refusal::NoSuchKey)?;
        let lease = record.lease()?;
        let Some(grant) = lease.claimed(claim) else { return Ok(lease.refused(Reason::NotHeld, now)) };
        if grant.broken.is_none() {
            let event = Event::of_grant(key, EventKind::Broken, grant);
            events.push(Event { detail: Some(Arc::clone(text)), ..event });
        }
        let (fence, deadline) = (grant.fence, grant.deadline.min(now.plus_ms(grace_ms)));
        self.edit_lease(at, key, |lease| {
            if let Some(grant) = &mut lease.grant {
                grant.deadline = deadline;
                grant.broken = Some(Arc::clone(text));
            }
            lease.expire(now);
        });
        self.settle_if_due(at, key, events);
        let live = self.table.get(key).and_then(|(_, record)| record.lease().ok()?.grant.as_ref());
        // Not one that a waiter was handed in this very step.
        let told = live.filter(|grant| grant.fence == fence).map(|grant| grant.told(now));
        Ok(OpReply { result: true, ..told.unwrap_or_default() })
    }

    /// HELD and CHECK inside a BATCH.
    pub(super) fn claimed(
        &mut self,
        at: &Moment,
        key: &Key,
        claim: &Claim,
        events: &mut Vec<Event>,
    ) -> Result<Standing, Refusal> {
        let record = self.settled(at, key, events).ok_or(Refusal::NoSuchKey)?;
        let standing = record.lease()?.standing(claim, at.stamp);
        if standing.op.result && claim.token.is_some() {
            self.confirm(key);
        }
        Ok(standing)
    }

    /// A command of the holder's token was applied. Nothing that GET shows: no change of the key.
    fn confirm(&mut self, key: &str) {
        let lease = self.table.get(key).and_then(|(_, record)| record.lease().ok());
        if lease.is_some_and(|lease| lease.unconfirmed().is_some()) {
            self.table.edit(key, |record| {
                if let Kind::Lease(lease) = &mut record.kind {
                    lease.confirm();
                }
            });
        }
    }

    /// Changes a lease, which must exist, and marks the change.
    pub(super) fn edit_lease(&mut self, at: &Moment, key: &str, change: impl FnOnce(&mut Lease)) {
        self.table.edit(key, |record| {
            record.mark(at.position);
            if let Kind::Lease(lease) = &mut record.kind {
                change(lease);
            }
        });
    }
}

/// What stands against an ACQUIRE.
enum Against {
    /// The token holds it.
    Yours(OpReply),
    /// No wait would help.
    Refused(OpReply),
    /// The lease is held or shut.
    NotNow(OpReply),
}

/// Why a lease that exists cannot be acquired now.
fn against(record: &Record, lease: &Lease, ask: &Acquire, waits: bool, now: Stamp) -> Option<Against> {
    // An undelivered grant was nobody's.
    let used = lease.last.as_ref().is_some_and(|last| last.token == ask.token && last.end != End::Undelivered);
    let token_used = (ask.once && used).then(|| Against::Refused(refused(Reason::TokenUsed)));
    if let Some(grant) = &lease.grant {
        if grant.token == ask.token {
            let reason = grant.broken.as_ref().map(|_| Reason::Broken);
            return Some(Against::Yours(OpReply { yours: true, reason, ..grant.told(now) }));
        }
        if record.is_over(now) {
            return Some(Against::Refused(retry(lease.refused(Reason::KeyExpired, now), grant.deadline, now)));
        }
        let held = retry(lease.refused(Reason::Held, now), lease.acquirable_at(), now);
        // By the time it were granted nobody would know any more that its token was used.
        return token_used.filter(|_| waits).or(Some(Against::NotNow(held)));
    }
    let shut = || lease.shut(now).map(|reason| Against::NotNow(retry(refused(reason), lease.acquirable_at(), now)));
    token_used.or_else(shut)
}

fn retry(reply: OpReply, again_at: Stamp, now: Stamp) -> OpReply {
    OpReply { retry_after_ms: Some(again_at.ms_since(now).max(1)), ..reply }
}

pub(super) fn refused(reason: Reason) -> OpReply {
    OpReply { reason: Some(reason), ..OpReply::default() }
}

/// The `ttl_ms` of an operation, `None` if it is not positive.
pub(super) fn positive(ttl_ms: i64) -> Option<u64> {
    u64::try_from(ttl_ms).ok().filter(|ttl_ms| *ttl_ms > 0)
}

fn check_max(options: &LeaseOptions, ttl_ms: u64) -> Result<(), Refusal> {
    match options.ttl_ms_max {
        Some(max) if ttl_ms > max => Err(Refusal::TtlAboveMax { max }),
        _ => Ok(()),
    }
}
