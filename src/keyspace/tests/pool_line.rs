//! The naive pools' lines of waiters: as [`super::line`] for leases, with what differs: a slot is handed on to the first
//! in line as long as one can be given, and only who is told `exhausted` waits.

use tenure_cluster::Moment;

use super::pool_model::{Ask, Held, How, Pool, PoolModel, Verdict, event};
use crate::keyspace::{
    Attach, EdgeId, Event, EventKind, Key, OnConflict, OpReply, Place, Reason, Reply, SlotReply, TokenHash,
};

const KEPT_MS: u64 = 5_000;
const LAPSE_MS: u64 = 3_000;

/// Who waits.
#[derive(Clone)]
pub(super) struct InLine {
    pub ask: Ask,
    ends: u64,
    /// `None`: its request went away, and its place is kept until `kept_until`.
    pub attach: Option<Attach>,
    kept_until: u64,
}

impl InLine {
    fn goes_at(&self) -> u64 {
        if self.attach.is_some() { self.ends } else { self.ends.min(self.kept_until) }
    }

    fn told(&self, key: &Key, kind: EventKind, reason: Option<Reason>, events: &mut Vec<Event>) {
        if self.attach.is_some() {
            let owner = Some(self.ask.owner.clone());
            events.push(Event { owner, attach: self.attach, reason, ..event(key, kind) });
        }
    }
}

impl Pool {
    /// Does time do anything to it in `(from, to]`?
    fn due(&self, from: u64, to: u64) -> bool {
        let ends = self.live(from).map(|grant| grant.deadline);
        let times = ends.chain(self.openings(from)).chain(self.waiters.iter().map(InLine::goes_at)).chain(self.ends);
        times.into_iter().any(|time| from < time && time <= to)
    }

    /// Who stands in line at `t`, as a reader sees it.
    pub fn standing(&self, t: u64) -> impl Iterator<Item = &InLine> {
        self.waiters.iter().filter(move |waiter| !self.over(t) && waiter.goes_at() > t)
    }

    fn place(&self, token: TokenHash, t: u64) -> Option<Place> {
        let ahead = self.standing(t).position(|waiter| waiter.ask.token == token)?;
        Some(Place { ahead: ahead as u64, waiters: self.standing(t).count() as u64 })
    }

    /// Takes the token's waiter out; was there one?
    pub fn leave(&mut self, at: &Moment, token: TokenHash, reason: Reason, events: &mut Vec<Event>) -> bool {
        let Some(n) = self.waiters.iter().position(|waiter| waiter.ask.token == token) else { return false };
        self.waiters.remove(n).told(&self.key, EventKind::WaitEnded, Some(reason), events);
        self.changed = at.position;
        true
    }

    pub fn leave_all(&mut self, reason: Reason, events: &mut Vec<Event>) {
        for waiter in std::mem::take(&mut self.waiters) {
            waiter.told(&self.key, EventKind::WaitEnded, Some(reason), events);
        }
    }

    fn detach(&mut self, at: &Moment, attach: Attach) {
        self.changed = at.position;
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.attach == Some(attach)) {
            (waiter.attach, waiter.kept_until) = (None, at.stamp.0 + KEPT_MS);
        }
    }
}

impl PoolModel {
    /// What time brings by this entry: first it takes away edges that are silent, then it goes from key to key.
    pub fn passed(&mut self, from: u64, at: &Moment, events: &mut Vec<Event>) {
        let to = at.stamp.0;
        let mut silent: Vec<_> = self.seen.iter().filter(|(_, seen)| seen + LAPSE_MS <= to).copied().collect();
        silent.sort_by_key(|(edge, seen)| (*seen, *edge));
        for (edge, _) in silent {
            self.away(at, edge, events);
        }
        let keys: Vec<_> = self.pools.iter().filter(|pool| pool.exists(from)).map(|pool| pool.key.clone()).collect();
        for key in keys {
            self.pass_key(from, at, &key, events);
        }
    }

    fn pass_key(&mut self, from: u64, at: &Moment, key: &Key, events: &mut Vec<Event>) {
        let to = at.stamp.0;
        let Some(pool) = self.find(key, from) else { return };
        let due = pool.due(from, to);
        pool.expire(at, from, events);
        let mut over: Vec<_> = pool.waiters.iter().filter(|waiter| waiter.goes_at() <= to).cloned().collect();
        over.sort_by_key(InLine::goes_at);
        for waiter in over {
            pool.leave(at, waiter.ask.token, Reason::WaitTimeout, events);
        }
        if pool.over(to) {
            pool.leave_all(Reason::KeyExpired, events);
        }
        pool.go_if_over(to, events);
        if due {
            self.follow(at, key, events);
        }
    }

    /// Whoever is first in line of a pool that has a slot for it gets it, and so on.
    pub(super) fn follow(&mut self, at: &Moment, key: &Key, events: &mut Vec<Event>) {
        let t = at.stamp.0;
        while let Some(pool) = self.find(key, t).filter(|pool| !pool.over(t)) {
            let Some(first) = pool.waiters.iter().find(|waiter| waiter.attach.is_some()).cloned() else { return };
            match pool.judge(&Ask { once: false, ..first.ask.clone() }, t) {
                Verdict::Exhausted => return,
                Verdict::Give { id, from } => drop(self.give(at, key, &first.ask, (id, from), first.attach, events)),
                Verdict::Refused(reply) => drop(pool.leave(at, first.ask.token, reply.reason.unwrap(), events)),
                Verdict::Yours(_) => unreachable!("who holds does not wait"),
            }
        }
    }

    /// Who asks last for an identity has its slot.
    pub(super) fn end_older_waits(&mut self, at: &Moment, key: &Key, ask: &Ask, events: &mut Vec<Event>) {
        let Some(pool) = self.find(key, at.stamp.0) else { return };
        if ask.identity.is_none() || pool.options.on_conflict == OnConflict::Reject {
            return;
        }
        let is_older = |waiter: &&InLine| waiter.attach.is_some() && waiter.ask.identity == ask.identity;
        let older: Vec<_> = pool.waiters.iter().filter(is_older).map(|waiter| waiter.ask.token).collect();
        for token in older {
            pool.leave(at, token, Reason::TakenOver, events);
        }
    }

    /// ACQUIRE of an exhausted pool: whoever waits is told its place, whoever wants to comes into the line.
    pub(super) fn stand(
        &mut self,
        at: &Moment,
        key: &Key,
        ask: &Ask,
        wait: Option<(u64, Attach)>,
        why: SlotReply,
        events: &mut Vec<Event>,
    ) -> Reply {
        let t = at.stamp.0;
        let (all, max) = (self.waiters(), self.max);
        let pool = self.find(key, t).unwrap();
        let Some((wait_ms, attach)) = wait else {
            return pool.place(ask.token, t).map_or(Reply::Slot(Box::new(why)), Reply::SlotQueued);
        };
        let mine = pool.waiters.iter().position(|waiter| waiter.ask.token == ask.token);
        if mine.is_none() && (pool.waiters.len() >= max.0 || all >= max.1) {
            return Reply::Slot(Box::new(SlotReply::nothing(Reason::QueueFull)));
        }
        let waiter = InLine { ask: ask.clone(), ends: t + wait_ms, attach: Some(attach), kept_until: 0 };
        let old = mine.and_then(|n| pool.waiters[n].attach);
        if old != Some(attach) {
            if let Some(n) = mine {
                pool.waiters[n].told(&pool.key, EventKind::WaitEnded, Some(Reason::Superseded), events);
            }
            waiter.told(&pool.key, EventKind::Waiting, None, events);
        }
        match mine {
            Some(n) => pool.waiters[n] = waiter,
            None => pool.waiters.push(waiter),
        }
        pool.changed = at.position;
        self.seen.retain(|(edge, _)| *edge != attach.edge);
        self.seen.push((attach.edge, t));
        self.presence(at, attach.edge, events);
        Reply::SlotQueued(self.find(key, t).unwrap().place(ask.token, t).unwrap())
    }

    /// The answer to HELD by a token that waits.
    pub fn waits(&mut self, key: &str, token: Option<TokenHash>, t: u64) -> Option<Reply> {
        let place = self.find(key, t)?.place(token?, t)?;
        let op = OpReply { reason: Some(Reason::Queued), ..OpReply::default() };
        Some(Reply::Queued { op, place })
    }

    pub(super) fn detach(
        &mut self,
        at: &Moment,
        key: &Key,
        token: TokenHash,
        attach: Attach,
        events: &mut Vec<Event>,
    ) -> bool {
        let t = at.stamp.0;
        let Some(pool) = self.find(key, t) else { return false };
        if pool.waiters.iter().any(|waiter| waiter.ask.token == token && waiter.attach == Some(attach)) {
            pool.changed = at.position;
            let waiter = pool.waiters.iter_mut().find(|waiter| waiter.ask.token == token).unwrap();
            (waiter.attach, waiter.kept_until) = (None, t + KEPT_MS);
            return true;
        }
        let untold = |grant: &&Held| grant.token == token && grant.untold == Some(attach);
        let Some(fence) = pool.live(t).find(untold).map(|grant| grant.fence) else { return false };
        let first = events.len();
        pool.end_by(at, fence, How::Undelivered, Some(Reason::Undelivered), events);
        events[first].attach = Some(attach);
        pool.go_if_over(t, events);
        self.follow(at, key, events);
        true
    }

    pub(super) fn cancel(
        &mut self,
        at: &Moment,
        key: &Key,
        token: TokenHash,
        attach: Attach,
        events: &mut Vec<Event>,
    ) -> bool {
        let Some(pool) = self.find(key, at.stamp.0) else { return false };
        let mine = |waiter: &InLine| waiter.ask.token == token && waiter.attach == Some(attach);
        pool.waiters.iter().any(mine) && pool.leave(at, token, Reason::WaitTimeout, events)
    }

    /// Edges that somebody waits at.
    pub fn edges(&self) -> Vec<EdgeId> {
        let waiters = self.pools.iter().flat_map(|pool| &pool.waiters);
        let mut edges: Vec<_> = waiters.filter_map(|waiter| Some(waiter.attach?.edge)).collect();
        edges.sort();
        edges.dedup();
        edges
    }

    pub fn waiters(&self) -> usize {
        self.pools.iter().map(|pool| pool.waiters.len()).sum()
    }

    pub(super) fn presence(&mut self, at: &Moment, edge: EdgeId, events: &mut Vec<Event>) -> bool {
        let known = self.edges().contains(&edge);
        if known {
            self.seen.retain(|(other, _)| *other != edge);
            self.seen.push((edge, at.stamp.0));
        }
        for other in self.edges() {
            if other.node == edge.node && other != edge {
                self.away(at, other, events);
            }
        }
        known
    }

    pub(super) fn away(&mut self, at: &Moment, edge: EdgeId, events: &mut Vec<Event>) -> bool {
        let known = self.edges().contains(&edge);
        for pool in &mut self.pools {
            let here = |waiter: &&InLine| waiter.attach.is_some_and(|attach| attach.edge == edge);
            let there: Vec<_> = pool.waiters.iter().filter(here).cloned().collect();
            for waiter in there {
                waiter.told(&pool.key, EventKind::Detached, None, events);
                pool.detach(at, waiter.attach.unwrap());
            }
        }
        known
    }
}
