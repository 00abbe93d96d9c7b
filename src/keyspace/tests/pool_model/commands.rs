//! What commands do to naive pools.

use std::sync::Arc;

use tenure_cluster::Moment;

use super::*;

impl PoolModel {
    pub fn apply(&mut self, at: &Moment, command: &Command, events: &mut Vec<Event>) -> Reply {
        match command {
            Command::Batch(items) => Reply::Batch(items.iter().map(|item| self.apply(at, item, events)).collect()),
            item => self.item(at, item, events).unwrap_or_else(Reply::Refused),
        }
    }

    pub(in crate::keyspace::tests) fn item(
        &mut self,
        at: &Moment,
        command: &Command,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let t = at.stamp.0;
        let done = |result| Ok(Reply::Done { result, reason: None });
        match command {
            Command::Create { key, .. } if self.find(key, t).is_some() => Err(Refusal::AlreadyExists),
            Command::CreatePool { key, options, uuid } => {
                if self.find(key, t).is_some() {
                    return Err(Refusal::AlreadyExists);
                }
                events.push(event(key, EventKind::Created));
                self.pools.push(Pool {
                    key: key.clone(),
                    uuid: *uuid,
                    options: *options,
                    ends: None,
                    deleted: false,
                    grants: Vec::new(),
                    avoided: Vec::new(),
                    waiters: Vec::new(),
                    changed: at.position,
                });
                done(true)
            }
            Command::AcquireSlot(ask) => self.acquire(at, &ask.key, &Ask::of_slot(ask, t), None, events),
            Command::WaitSlot(WaitSlot { ask, wait_ms, attach }) => {
                self.acquire(at, &ask.key, &Ask::of_slot(ask, t), Some((*wait_ms, *attach)), events)
            }
            Command::Acquire(ask) => {
                self.fit(ask, t)?;
                self.acquire(at, &ask.key, &Ask::anonymous(ask), None, events)
            }
            Command::Wait(Wait { ask, wait_ms, attach }) => {
                self.fit(ask, t)?;
                self.acquire(at, &ask.key, &Ask::anonymous(ask), Some((*wait_ms, *attach)), events)
            }
            Command::Renew { key, token, ttl_ms, fence } => {
                self.renew(at, key, (*token, *fence), (*ttl_ms, None), events)
            }
            Command::RenewSlot { key, token, ttl_ms, fence, unix_ms } => {
                self.renew(at, key, (*token, *fence), (*ttl_ms, Some(*unix_ms)), events)
            }
            Command::Release { key, token, fence } => self.release(at, key, *token, *fence, events),
            Command::Break { key, .. } => {
                self.find(key, t).ok_or(Refusal::NoSuchKey)?;
                Err(Refusal::IdMissing)
            }
            Command::BreakSlot { key, id, reason, grace_ms, fence } => {
                self.break_slot(at, key, (*id, *fence), reason, t + grace_ms, events)
            }
            Command::Resize { key, size } => {
                let pool = self.find(key, t).ok_or(Refusal::NoSuchKey)?;
                let over = pool.over(t);
                let max = (1_u64 << 32) - u64::from(pool.options.first);
                if u64::from(*size) > max {
                    return Err(Refusal::SizeAboveMax { max: max as u32 });
                }
                if over {
                    return Ok(Reply::Done { result: false, reason: Some(Reason::KeyExpired) });
                }
                (pool.options.size, pool.changed) = (*size, at.position);
                self.follow(at, key, events);
                done(true)
            }
            Command::Expire { key, ttl_ms } => self.outlive(at, key, Some(t + ttl_ms)),
            Command::Persist { key } => self.outlive(at, key, None),
            Command::Del { keys, fence } => {
                Ok(Reply::Deleted(keys.iter().map(|key| self.delete(t, key, *fence, events)).sum()))
            }
            Command::Get { key } => {
                Ok(self.get(key, t).map_or(Reply::View(None), |view| Reply::PoolView(Box::new(view))))
            }
            Command::Held { key, token } => {
                if let Some(reply) = self.waits(key, *token, t) {
                    return Ok(reply);
                }
                let held = self.held(key, *token, t)?;
                if let Some(token) = token {
                    self.confirm(key, *token, t);
                }
                Ok(of_slot(held))
            }
            Command::Check { key, fence } => self.check(key, *fence, t).map(of_slot),
            Command::Detach { key, token, attach } => done(self.detach(at, key, *token, *attach, events)),
            Command::Cancel { key, token, attach } => done(self.cancel(at, key, *token, *attach, events)),
            Command::Presence { edge } => done(self.presence(at, *edge, events)),
            Command::Away { edge } => done(self.away(at, *edge, events)),
            other => unreachable!("{other:?}"),
        }
    }

    /// An anonymous slot has no arguments of a lease.
    pub(in crate::keyspace::tests) fn fit(&mut self, ask: &Acquire, t: u64) -> Result<(), Refusal> {
        self.find(&ask.key, t).ok_or(Refusal::NoSuchKey)?;
        match (ask.min_hold_ms, ask.delay_ms) {
            (Some(_), _) => Err(Refusal::NotForPool(LeaseArgument::MinHoldMs)),
            (None, Some(_)) => Err(Refusal::NotForPool(LeaseArgument::DelayMs)),
            (None, None) => Ok(()),
        }
    }

    pub(in crate::keyspace::tests) fn confirm(&mut self, key: &str, token: TokenHash, t: u64) {
        let Some(pool) = self.find(key, t) else { return };
        if let Some(fence) = pool.of_token(token, t).map(|grant| grant.fence) {
            pool.grant_mut(fence).untold = None;
        }
    }

    pub(in crate::keyspace::tests) fn acquire(
        &mut self,
        at: &Moment,
        key: &Key,
        ask: &Ask,
        wait: Option<(u64, Attach)>,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let t = at.stamp.0;
        let pool = self.find(key, t).ok_or(Refusal::NoSuchKey)?;
        let told = |reply: SlotReply| Ok(Reply::Slot(Box::new(reply)));
        if ask.ttl_ms <= 0 {
            return told(no(Reason::TtlNotPositive));
        }
        within_max(&pool.options, ask.ttl_ms)?;
        let ask = &Ask { avoid: ask.avoid.filter(|id| pool.within(*id)), ..ask.clone() };
        match pool.judge(ask, t) {
            Verdict::Refused(reply) => {
                self.confirm(key, ask.token, t);
                told(reply)
            }
            Verdict::Yours(fence) => {
                let (former, over) = (pool.own_floor(fence, t), pool.over(t));
                let id = pool.grant_mut(fence).id;
                let taken = pool.last_ended(id, t).filter(|last| last.how() == Some(How::TakenOver));
                let taken = taken.map(|last| last.fence);
                let prior = pool.believed(id, t).map(|ttl_ms| PriorGrant { fence: taken, ttl_ms });
                let mut reply = self.extend(at, key, fence, (ask.ttl_ms, ask.ahead, !over), events);
                if let SlotOutcome::Granted(grant) = &mut reply.outcome {
                    grant.floor_unix_ms = former;
                }
                told(SlotReply { yours: true, prior, ..reply })
            }
            Verdict::Give { id, from } => {
                let reply = self.give(at, key, ask, (id, from), wait.map(|(_, attach)| attach), events);
                self.end_older_waits(at, key, ask, events);
                self.follow(at, key, events);
                told(reply)
            }
            Verdict::Exhausted => {
                let retry_at = pool.opens_next(ask.avoid);
                self.confirm(key, ask.token, t);
                let retry_after_ms = retry_at.map(|opens| opens - t);
                let why = SlotReply { retry_after_ms, ..no(Reason::Exhausted) };
                // With `avoid` nobody waits.
                if wait.is_some() && ask.avoid.is_some() {
                    return told(why);
                }
                Ok(self.stand(at, key, ask, wait, why, events))
            }
        }
    }

    /// Gives a slot, after the end of the grant that the identity has, and in quarantine what it avoids.
    pub(in crate::keyspace::tests) fn give(
        &mut self,
        at: &Moment,
        key: &Key,
        ask: &Ask,
        (id, from): (u32, Option<Held>),
        attach: Option<Attach>,
        events: &mut Vec<Event>,
    ) -> SlotReply {
        let (t, after) = (at.stamp.0, self.fence);
        let pool = self.find(key, t).unwrap();
        let own = from.as_ref().map(|from| from.id).or(ask.identity.as_ref().and_then(|identity| pool.claim(identity)));
        let shifts = own.and_then(|own| pool.last(own)).map(|last| last.shifts.clone()).unwrap_or_default();
        let (mut prior, mut shifted) = (None, own.is_some() && own == ask.avoid);
        if let Some(from) = from {
            let is_own = from.token == ask.token;
            let (how, reason) = if is_own { (How::Released, None) } else { (How::TakenOver, Some(Reason::TakenOver)) };
            pool.end_by(at, from.fence, how, reason, events);
            shifted |= !is_own;
            let is_here = !is_own && from.id == id;
            prior = is_here.then(|| PriorGrant { fence: Some(from.fence), ttl_ms: from.deadline - t });
        }
        if let Some(id) = ask.avoid.filter(|id| pool.holder(*id, t).is_none()) {
            pool.avoided.push(Avoided { id, at: t, after, until: t + pool.options.quarantine_ms });
        }
        let shifts = shifted.then(|| [shifts, vec![t]].concat());
        self.grant(at, key, ask, id, (attach, prior, shifts), events)
    }

    /// Gives a slot that nobody holds.
    pub(in crate::keyspace::tests) fn grant(
        &mut self,
        at: &Moment,
        key: &Key,
        ask: &Ask,
        id: u32,
        (attach, took_over, shifts): (Option<Attach>, Option<PriorGrant>, Option<Vec<u64>>),
        events: &mut Vec<Event>,
    ) -> SlotReply {
        let t = at.stamp.0;
        self.fence += 1;
        let fence = self.fence;
        let pool = self.find(key, t).unwrap();
        let asked = ask.ttl_ms.unsigned_abs();
        let ttl_ms = asked.max(pool.options.ttl_ms_min);
        pool.changed = at.position;
        let waits = pool.waiters.iter().find(|waiter| waiter.ask.token == ask.token);
        if waits.is_some_and(|waiter| waiter.attach != attach) {
            pool.leave(at, ask.token, Reason::Superseded, events);
        }
        pool.waiters.retain(|waiter| waiter.ask.token != ask.token);
        let Ask { token, owner, identity, ahead, note, .. } = ask.clone();
        let again = pool.last(id).filter(|last| identity.is_some() && last.identity == identity);
        let shifts = shifts.or(again.map(|last| last.shifts.clone())).unwrap_or_default();
        let earlier = pool.believed(id, t).map(|ttl_ms| PriorGrant { fence: None, ttl_ms });
        let longest =
            |prior: PriorGrant| PriorGrant { ttl_ms: earlier.map_or(0, |one| one.ttl_ms).max(prior.ttl_ms), ..prior };
        let prior = took_over.map(longest).or(earlier);
        let held = Held {
            id,
            fence,
            token,
            owner,
            identity,
            since: t,
            wall_ms: at.wall_ms,
            renewed: t,
            deadline: t + ttl_ms,
            note,
            ahead,
            shifts,
            broken: None,
            ended: None,
            untold: attach,
        };
        pool.grants.push(held.clone());
        let outcome = SlotOutcome::Granted(pool.told(&held, t));
        let reply = SlotReply {
            outcome,
            reason: None,
            yours: false,
            ttl_raised: asked < ttl_ms,
            prior,
            retry_after_ms: None,
            detail: None,
        };
        let (answer, held_now) = (Some(Arc::new(reply.clone())), Some(pool.live(t).count() as u32));
        let slot = Slotted { id, identity: held.identity.clone(), answer, held: held_now };
        let granted = pool.event(EventKind::Granted, &held);
        events.push(Event { slot: Some(slot), ttl_ms: Some(ttl_ms), attach, ..granted });
        self.longest_ttl_ms = self.longest_ttl_ms.max(ttl_ms);
        reply
    }

    /// RENEW, or ACQUIRE by the token that holds.
    pub(in crate::keyspace::tests) fn extend(
        &mut self,
        at: &Moment,
        key: &str,
        fence: u64,
        (ttl_ms, ahead, prolongs): (i64, Option<i128>, bool),
        events: &mut Vec<Event>,
    ) -> SlotReply {
        let t = at.stamp.0;
        let asked = ttl_ms.unsigned_abs();
        let pool = self.find(key, t).unwrap();
        let ttl_ms = asked.max(pool.options.ttl_ms_min);
        let grant = pool.grant_mut(fence);
        grant.untold = None;
        if prolongs {
            (grant.renewed, grant.deadline) = (t, grant.deadline.max(t + ttl_ms));
            grant.ahead = grant.ahead.max(ahead);
            let grant = grant.clone();
            pool.changed = at.position;
            events.push(Event { ttl_ms: Some(grant.deadline - t), ..pool.event(EventKind::Renewed, &grant) });
        }
        let grant = pool.grant_mut(fence).clone();
        let told = pool.told(&grant, t);
        if prolongs {
            self.longest_ttl_ms = self.longest_ttl_ms.max(ttl_ms);
        }
        SlotReply {
            outcome: SlotOutcome::Granted(told),
            reason: None,
            ttl_raised: asked < ttl_ms,
            ..SlotReply::nothing(Reason::Held)
        }
    }

    pub(in crate::keyspace::tests) fn renew(
        &mut self,
        at: &Moment,
        key: &str,
        (token, fence): (TokenHash, Option<u64>),
        (ttl_ms, unix_ms): (i64, Option<u64>),
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let t = at.stamp.0;
        let pool = self.find(key, t).ok_or(Refusal::NoSuchKey)?;
        let told = |reply: SlotReply| Ok(Reply::Slot(Box::new(reply)));
        if ttl_ms <= 0 {
            return told(no(Reason::TtlNotPositive));
        }
        within_max(&pool.options, ttl_ms)?;
        let own = pool.of_token(token, t).filter(|grant| fence.is_none_or(|fence| fence == grant.fence)).cloned();
        let Some(own) = own else {
            let (reason, detail) = pool.lost(token, fence, t);
            return told(SlotReply { outcome: SlotOutcome::Lost, detail, ..no(reason) });
        };
        pool.grant_mut(own.fence).untold = None;
        if own.broken.is_some() {
            return told(SlotReply { outcome: SlotOutcome::Lost, detail: own.broken, ..no(Reason::Broken) });
        }
        if pool.over(t) {
            return told(no(Reason::KeyExpired));
        }
        let ahead = unix_ms.map(|unix_ms| i128::from(unix_ms) - i128::from(t));
        let reply = self.extend(at, key, own.fence, (ttl_ms, ahead, true), events);
        let SlotOutcome::Granted(grant) = reply.outcome.clone() else { unreachable!() };
        told(SlotReply { outcome: SlotOutcome::Renewed(grant), ..reply })
    }

    pub(in crate::keyspace::tests) fn release(
        &mut self,
        at: &Moment,
        key: &Key,
        token: TokenHash,
        fence: Option<u64>,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let t = at.stamp.0;
        let pool = self.find(key, t).ok_or(Refusal::NoSuchKey)?;
        let own = pool.of_token(token, t).filter(|grant| fence.is_none_or(|fence| fence == grant.fence)).cloned();
        let Some(own) = own else {
            let left = fence.is_none() && pool.leave(at, token, Reason::CancelledWait, events);
            let (reason, detail) = pool.lost(token, fence, t);
            let (reason, detail) = if left { (Reason::CancelledWait, None) } else { (reason, detail) };
            return Ok(Reply::Op(OpReply { reason: Some(reason), detail, ..OpReply::default() }));
        };
        pool.end_by(at, own.fence, How::Released, None, events);
        pool.go_if_over(t, events);
        self.follow(at, key, events);
        Ok(Reply::OfSlot { op: OpReply { result: true, ..OpReply::default() }, id: own.id })
    }

    pub(in crate::keyspace::tests) fn break_slot(
        &mut self,
        at: &Moment,
        key: &Key,
        (id, fence): (u32, Option<u64>),
        text: &Arc<str>,
        until: u64,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let t = at.stamp.0;
        let pool = self.find(key, t).ok_or(Refusal::NoSuchKey)?;
        let held = pool.holder(id, t).filter(|grant| fence.is_none_or(|fence| fence == grant.fence)).cloned();
        let Some(held) = held else {
            return Ok(Reply::Op(OpReply { reason: Some(Reason::NotHeld), ..OpReply::default() }));
        };
        pool.changed = at.position;
        let grant = pool.grant_mut(held.fence);
        grant.deadline = grant.deadline.min(until);
        let again = grant.broken.replace(text.clone()).is_some();
        let grant = grant.clone();
        if !again {
            events.push(Event { detail: Some(text.clone()), ..pool.event(EventKind::Broken, &grant) });
        }
        let op = if grant.live(t) { grant.extras(t) } else { OpReply::default() };
        pool.go_if_over(t, events);
        self.follow(at, key, events);
        Ok(Reply::OfSlot { op: OpReply { result: true, ..op }, id })
    }

    pub(in crate::keyspace::tests) fn outlive(
        &mut self,
        at: &Moment,
        key: &str,
        ends: Option<u64>,
    ) -> Result<Reply, Refusal> {
        let t = at.stamp.0;
        Ok(match self.find(key, t) {
            None => Reply::Done { result: false, reason: None },
            Some(pool) if pool.over(t) => Reply::Done { result: false, reason: Some(Reason::KeyExpired) },
            Some(pool) => {
                (pool.changed, pool.ends) = (at.position, ends);
                Reply::Done { result: true, reason: None }
            }
        })
    }

    pub(in crate::keyspace::tests) fn delete(
        &mut self,
        t: u64,
        key: &str,
        fence: Option<u64>,
        events: &mut Vec<Event>,
    ) -> u64 {
        let Some(pool) = self.find(key, t).filter(|_| fence.is_none()) else { return 0 };
        pool.leave_all(Reason::Deleted, events);
        let mut live: Vec<_> = pool.live(t).cloned().collect();
        live.sort_by_key(|grant| grant.id);
        events.extend(live.iter().map(|grant| pool.event(EventKind::Deleted, grant)));
        events.push(event(&pool.key, EventKind::Deleted));
        pool.deleted = true;
        1
    }
}
