//! The operations that begin, extend and end grants: ACQUIRE, RENEW, RELEASE, BREAK.
//!
//! Each one: settle the key (what time ended has ended), judge the arguments, then the claim, then change the record
//! once. A refusal changes nothing. Order of the verdicts, where several would fit: `no_such_key`; `ttl_not_positive`
//! and the key's `ttl_ms_max`; whose grant it is; what stands against it.

use std::sync::Arc;

use tenure_cluster::{Moment, Stamp};

use super::lease::{Claim, End, Grant, Lease};
use super::record::{Kind, Record};
use super::{Acquire, Event, EventKind, Key, Keyspace, LeaseOptions, OpReply, Reason, Refusal};

/// Fences stay below this: every JSON reader can hold them exactly.
pub(super) const FENCE_END: u64 = 1 << 53;

/// What an operation answers.
pub(super) type Outcome = Result<OpReply, Refusal>;

impl Keyspace {
    /// ACQUIRE without waiting.
    pub(super) fn acquire(&mut self, at: &Moment, ask: Acquire, events: &mut Vec<Event>) -> Outcome {
        let now = at.stamp;
        let ttl_ms = positive(ask.ttl_ms);
        let Some(record) = self.settled(at, &ask.key, events) else {
            if !ask.create {
                return Err(Refusal::NoSuchKey);
            }
            let Some(ttl_ms) = ttl_ms else { return Ok(refused(Reason::TtlNotPositive)) };
            return self.create_held(at, ask, ttl_ms, events);
        };
        let lease = record.lease()?;
        let Some(ttl_ms) = ttl_ms else { return Ok(refused(Reason::TtlNotPositive)) };
        check_max(&lease.options, ttl_ms)?;
        if let Some(refusal) = refuse_acquire(record, lease, &ask, now) {
            return Ok(refusal);
        }
        let options = lease.options;
        let grant = self.next_grant(at, &ask, ttl_ms, &options)?;
        Ok(self.begin(at, &ask.key, grant, events))
    }

    /// ACQUIRE `create` of an absent key. Nothing is made unless it is granted.
    fn create_held(&mut self, at: &Moment, ask: Acquire, ttl_ms: u64, events: &mut Vec<Event>) -> Outcome {
        self.check_room()?;
        let options = LeaseOptions::default();
        let grant = self.next_grant(at, &ask, ttl_ms, &options)?;
        let kind = Kind::Lease(Lease { options, ..Lease::default() });
        self.table.put(&ask.key, Record { version: at.position, ends: None, auto_created: true, kind });
        events.push(Event::of_key(&ask.key, EventKind::Created));
        Ok(self.begin(at, &ask.key, grant, events))
    }

    /// The grant that an ACQUIRE would begin, with the next fence.
    fn next_grant(&self, at: &Moment, ask: &Acquire, ttl_ms: u64, options: &LeaseOptions) -> Result<Grant, Refusal> {
        let fence = self.fence.saturating_add(1);
        if fence >= FENCE_END {
            return Err(Refusal::FenceExhausted);
        }
        Ok(Grant {
            fence,
            owner: Arc::clone(&ask.owner),
            token: ask.token,
            deadline: at.stamp.plus_ms(ttl_ms),
            granted_at: at.stamp,
            renewed_at: at.stamp,
            granted_wall_ms: at.wall_ms,
            min_hold_ms: ask.min_hold_ms.unwrap_or(options.min_hold_ms),
            delay_ms: ask.delay_ms.unwrap_or(options.delay_ms),
            note: ask.note.clone(),
            broken: None,
        })
    }

    /// Begins a grant on a free lease.
    fn begin(&mut self, at: &Moment, key: &Key, mut grant: Grant, events: &mut Vec<Event>) -> OpReply {
        self.fence = grant.fence;
        self.longest_ttl_ms = self.longest_ttl_ms.max(grant.deadline.ms_since(at.stamp));
        let reply = OpReply { result: true, ..grant.told(at.stamp) };
        events.push(Event::of_grant(key, EventKind::Granted, &grant));
        self.edit_lease(at, key, |lease| {
            if let Some(last) = lease.last.as_ref().filter(|last| last.owner == grant.owner) {
                grant.owner = Arc::clone(&last.owner); // one allocation for an owner that comes back
            }
            lease.grant = Some(grant);
        });
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
        if grant.broken.is_some() {
            return Ok(OpReply { reason: Some(Reason::Broken), ..grant.told(now) });
        }
        if record.is_over(now) {
            return Ok(lease.refused(Reason::KeyExpired, now));
        }
        let deadline = grant.deadline.max(now.plus_ms(ttl_ms));
        let reply = OpReply { result: true, ttl_ms: Some(deadline.ms_since(now).max(1)), ..grant.told(now) };
        events.push(Event::of_grant(key, EventKind::Renewed, grant));
        self.longest_ttl_ms = self.longest_ttl_ms.max(ttl_ms);
        self.edit_lease(at, key, |lease| {
            if let Some(grant) = &mut lease.grant {
                grant.deadline = deadline;
                grant.renewed_at = now;
            }
        });
        Ok(reply)
    }

    /// RELEASE: also in the grace of a BREAK.
    pub(super) fn release(&mut self, at: &Moment, key: &Key, claim: &Claim, events: &mut Vec<Event>) -> Outcome {
        let record = self.settled(at, key, events).ok_or(Refusal::NoSuchKey)?;
        let lease = record.lease()?;
        let Some(grant) = lease.claimed(claim) else { return Ok(lease.lost(claim, at.stamp)) };
        events.push(Event::of_grant(key, EventKind::Released, grant));
        self.edit_lease(at, key, |lease| lease.end(End::Released, at.stamp));
        self.drop_if_gone(at, key, events);
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
        let deadline = grant.deadline.min(now.plus_ms(grace_ms));
        self.edit_lease(at, key, |lease| {
            if let Some(grant) = &mut lease.grant {
                grant.deadline = deadline;
                grant.broken = Some(Arc::clone(text));
            }
            lease.expire(now);
        });
        self.drop_if_gone(at, key, events);
        let told = self.table.get(key).and_then(|(_, record)| record.lease().ok()?.grant.as_ref().map(|g| g.told(now)));
        Ok(OpReply { result: true, ..told.unwrap_or_default() })
    }

    /// HELD and CHECK inside a BATCH.
    pub(super) fn claimed(&mut self, at: &Moment, key: &Key, claim: &Claim, events: &mut Vec<Event>) -> Outcome {
        let record = self.settled(at, key, events).ok_or(Refusal::NoSuchKey)?;
        Ok(record.lease()?.holds(claim, at.stamp))
    }

    /// Changes a lease, which must exist, and marks the change.
    fn edit_lease(&mut self, at: &Moment, key: &str, change: impl FnOnce(&mut Lease)) {
        self.table.edit(key, |record| {
            record.version = at.position;
            let Kind::Lease(lease) = &mut record.kind;
            change(lease);
        });
    }
}

/// Why a lease that exists cannot be acquired now.
fn refuse_acquire(record: &Record, lease: &Lease, ask: &Acquire, now: Stamp) -> Option<OpReply> {
    if let Some(grant) = &lease.grant {
        if grant.token == ask.token {
            let reason = grant.broken.as_ref().map(|_| Reason::Broken);
            return Some(OpReply { yours: true, reason, ..grant.told(now) });
        }
        let (reason, again_at) = if record.is_over(now) {
            (Reason::KeyExpired, grant.deadline)
        } else {
            (Reason::Held, lease.acquirable_at())
        };
        return Some(retry(lease.refused(reason, now), again_at, now));
    }
    if ask.once && lease.last.as_ref().is_some_and(|last| last.token == ask.token) {
        return Some(refused(Reason::TokenUsed));
    }
    lease.shut(now).map(|reason| retry(refused(reason), lease.acquirable_at(), now))
}

fn retry(reply: OpReply, again_at: Stamp, now: Stamp) -> OpReply {
    OpReply { retry_after_ms: Some(again_at.ms_since(now).max(1)), ..reply }
}

fn refused(reason: Reason) -> OpReply {
    OpReply { reason: Some(reason), ..OpReply::default() }
}

/// The `ttl_ms` of an operation, `None` if it is not positive.
fn positive(ttl_ms: i64) -> Option<u64> {
    u64::try_from(ttl_ms).ok().filter(|ttl_ms| *ttl_ms > 0)
}

fn check_max(options: &LeaseOptions, ttl_ms: u64) -> Result<(), Refusal> {
    match options.ttl_ms_max {
        Some(max) if ttl_ms > max => Err(Refusal::TtlAboveMax { max }),
        _ => Ok(()),
    }
}
