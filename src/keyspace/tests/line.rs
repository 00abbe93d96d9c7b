//! The naive keyspace's lines of waiters: a list a key in order of arrival, and a list of edges. Every entry begins with
//! [`Model::passed`], which does what time brings by then; every command ends with [`Model::follow`] on the key that may
//! have become free. Nothing is indexed: each question looks through the lists.

use tenure_cluster::{Moment, Stamp};

use super::held::Held;
use super::model::{Life, Model, event};
use crate::keyspace::{
    Acquire, Attach, Command, EdgeId, Event, EventKind, OpReply, Place, Reason, Refusal, Reply, TokenHash,
};

const KEPT_MS: u64 = 5_000;
const LAPSE_MS: u64 = 3_000;

/// Who waits.
#[derive(Clone)]
pub struct InLine {
    pub ask: Acquire,
    ends: u64,
    /// `None`: its request went away, and its place is kept until `kept_until`.
    pub attach: Option<Attach>,
    kept_until: u64,
}

/// What concerns all lines.
#[derive(Clone)]
pub struct Line {
    /// Of one key, and in all.
    pub max: (usize, usize),
    /// When each edge was seen last.
    seen: Vec<(EdgeId, u64)>,
}

impl Default for Line {
    fn default() -> Self {
        Self { max: (usize::MAX, usize::MAX), seen: Vec::new() }
    }
}

impl InLine {
    fn goes_at(&self) -> u64 {
        if self.attach.is_some() { self.ends } else { self.ends.min(self.kept_until) }
    }

    fn told(&self, key: &std::sync::Arc<str>, kind: EventKind, reason: Option<Reason>, events: &mut Vec<Event>) {
        if self.attach.is_some() {
            let owner = Some(self.ask.owner.clone());
            events.push(Event { owner, attach: self.attach, reason, ..event(key, kind, None) });
        }
    }
}

impl Life {
    /// Who stands in line at `t`, as a reader sees it.
    pub fn standing(&self, t: u64) -> impl Iterator<Item = &InLine> {
        self.waiters.iter().filter(move |waiter| !self.over(t) && waiter.goes_at() > t)
    }

    fn place(&self, token: TokenHash, t: u64) -> Option<(OpReply, Place)> {
        let ahead = self.standing(t).position(|waiter| waiter.ask.token == token)?;
        let place = Place { ahead: ahead as u64, waiters: self.standing(t).count() as u64 };
        Some((self.refuse(Reason::Queued, t), place))
    }

    pub fn confirm(&mut self) {
        self.grants.last_mut().unwrap().untold = None;
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

    /// After a RELEASE: in a minimum hold nobody waits who asks for one.
    pub fn close_period(&mut self, at: &Moment, events: &mut Vec<Event>) {
        if self.shut_until(at.stamp.0).is_some() {
            let asks = |waiter: &InLine| waiter.ask.min_hold_ms.is_some_and(|ms| ms > 0);
            let done: Vec<_> = self.waiters.iter().filter(|waiter| asks(waiter)).map(|w| w.ask.token).collect();
            for token in done {
                self.leave(at, token, Reason::MinHold, events);
            }
        }
    }

    /// The first thing that time does to it in `(from, to]`, and how such things are ordered among keys.
    fn due(&self, from: u64, to: u64) -> Option<(u64, u64, std::sync::Arc<str>)> {
        if !self.exists(from) {
            return None;
        }
        let waits = !self.waiters.is_empty();
        let attached = self.waiters.iter().any(|waiter| waiter.attach.is_some());
        let times = [
            self.live(from).map(|grant| grant.deadline),
            self.end(),
            self.lifetime().filter(|_| waits),
            self.shut_until(from).filter(|_| attached),
        ];
        let times = times.into_iter().flatten().chain(self.waiters.iter().map(InLine::goes_at));
        let first = times.filter(|time| from < *time && *time <= to).min()?;
        Some((first, self.grants.last().map_or(0, |grant| grant.fence), self.key.clone()))
    }

    fn detach(&mut self, at: &Moment, attach: Attach) {
        self.changed = at.position;
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.attach == Some(attach)) {
            (waiter.attach, waiter.kept_until) = (None, at.stamp.0 + KEPT_MS);
        }
    }
}

impl Model {
    /// What time brings by this entry: first it takes away edges that are silent, then it goes from key to key.
    pub fn passed(&mut self, from: u64, at: &Moment, events: &mut Vec<Event>) {
        let to = at.stamp.0;
        let mut silent: Vec<_> = self.line.seen.iter().filter(|(_, seen)| seen + LAPSE_MS <= to).copied().collect();
        silent.sort_by_key(|(edge, seen)| (*seen, *edge));
        for (edge, _) in silent {
            self.away(at, edge, events);
        }
        let mut due: Vec<_> = self.keys.iter().filter_map(|life| life.due(from, to)).collect();
        due.sort();
        for (_, _, key) in due {
            self.pass_key(from, at, &key, events);
        }
    }

    fn pass_key(&mut self, from: u64, at: &Moment, key: &str, events: &mut Vec<Event>) {
        let to = at.stamp.0;
        let Some(life) = self.find(key, from) else { return };
        life.changed = at.position;
        if let Some(grant) = life.live(from).filter(|grant| grant.deadline <= to && !grant.is_broken()) {
            let last_renewed = Some(Stamp(grant.renewed));
            events.push(Event { last_renewed, ..event(&life.key, EventKind::Expired, Some(grant)) });
        }
        let mut over: Vec<_> = life.waiters.iter().filter(|waiter| waiter.goes_at() <= to).cloned().collect();
        over.sort_by_key(InLine::goes_at);
        for waiter in over {
            life.leave(at, waiter.ask.token, Reason::WaitTimeout, events);
        }
        if life.over(to) || !life.exists(to) {
            life.leave_all(Reason::KeyExpired, events);
        }
        if !life.exists(to) {
            events.push(event(&life.key, EventKind::Deleted, None));
        }
        self.follow(at, key, events);
    }

    /// Whoever is first in line of a lease that can be acquired gets it.
    pub fn follow(&mut self, at: &Moment, key: &str, events: &mut Vec<Event>) {
        let t = at.stamp.0;
        let Some(life) = self.find(key, t) else { return };
        if life.live(t).is_some() || life.shut_until(t).is_some() {
            return;
        }
        if let Some(first) = life.waiters.iter().find(|waiter| waiter.attach.is_some()).cloned() {
            self.grant(at, &first.ask, first.attach, events);
        }
    }

    /// ACQUIRE that cannot be granted now: whoever waits is told its place, whoever wants to comes into the line.
    pub(super) fn stand(
        &mut self,
        at: &Moment,
        ask: &Acquire,
        wait: Option<(u64, Attach)>,
        why: OpReply,
        events: &mut Vec<Event>,
    ) -> Reply {
        let t = at.stamp.0;
        let (all, max) = (self.keys.iter().map(|life| life.waiters.len()).sum::<usize>(), self.line.max);
        let life = self.find(&ask.key, t).unwrap();
        let Some((wait_ms, attach)) = wait else {
            let place = life.place(ask.token, t);
            return place.map_or(Reply::Op(why), |(op, place)| Reply::Queued { op, place });
        };
        if why.reason == Some(Reason::MinHold) && ask.min_hold_ms.is_some_and(|ms| ms > 0) {
            return Reply::Op(why);
        }
        let mine = life.waiters.iter().position(|waiter| waiter.ask.token == ask.token);
        if mine.is_none() && (life.waiters.len() >= max.0 || all >= max.1) {
            return Reply::Op(life.refuse(Reason::QueueFull, t));
        }
        let waiter = InLine { ask: ask.clone(), ends: t + wait_ms, attach: Some(attach), kept_until: 0 };
        let old = mine.and_then(|n| life.waiters[n].attach);
        if old != Some(attach) {
            if let Some(n) = mine {
                life.waiters[n].told(&life.key, EventKind::WaitEnded, Some(Reason::Superseded), events);
            }
            waiter.told(&life.key, EventKind::Waiting, None, events);
        }
        match mine {
            Some(n) => life.waiters[n] = waiter,
            None => life.waiters.push(waiter),
        }
        life.changed = at.position;
        self.line.seen.retain(|(edge, _)| *edge != attach.edge);
        self.line.seen.push((attach.edge, t));
        self.presence(at, attach.edge, events);
        let (op, place) = self.find(&ask.key, t).unwrap().place(ask.token, t).unwrap();
        Reply::Queued { op, place }
    }

    pub(super) fn holds_or_waits(&mut self, key: &str, token: Option<TokenHash>, t: u64) -> Result<Reply, Refusal> {
        if let Some((op, place)) = self.waits(key, token, t) {
            return Ok(Reply::Queued { op, place });
        }
        let op = self.holds(key, token, None, t)?;
        if op.result && token.is_some() {
            self.find(key, t).unwrap().confirm();
        }
        Ok(Reply::Op(op))
    }

    /// The place of a token that waits.
    pub fn waits(&mut self, key: &str, token: Option<TokenHash>, t: u64) -> Option<(OpReply, Place)> {
        self.find(key, t)?.place(token?, t)
    }

    pub(super) fn detach(
        &mut self,
        at: &Moment,
        key: &str,
        token: TokenHash,
        attach: Attach,
        events: &mut Vec<Event>,
    ) -> bool {
        let t = at.stamp.0;
        let Some(life) = self.find(key, t) else { return false };
        if life.waiters.iter().any(|waiter| waiter.ask.token == token && waiter.attach == Some(attach)) {
            life.changed = at.position;
            let waiter = life.waiters.iter_mut().find(|waiter| waiter.ask.token == token).unwrap();
            (waiter.attach, waiter.kept_until) = (None, t + KEPT_MS);
            return true;
        }
        let untold = |grant: &Held| grant.ask.token == token && grant.untold == Some(attach);
        if !life.live(t).is_some_and(untold) {
            return false;
        }
        let first = events.len();
        let back = |grant: &mut Held| (grant.returned, grant.undelivered) = (Some(t), true);
        life.end_by(at, EventKind::Released, back, events);
        (events[first].reason, events[first].attach) = (Some(Reason::Undelivered), Some(attach));
        self.follow(at, key, events);
        true
    }

    pub(super) fn cancel(
        &mut self,
        at: &Moment,
        key: &str,
        token: TokenHash,
        attach: Attach,
        events: &mut Vec<Event>,
    ) -> bool {
        let Some(life) = self.find(key, at.stamp.0) else { return false };
        let mine = |waiter: &InLine| waiter.ask.token == token && waiter.attach == Some(attach);
        life.waiters.iter().any(mine) && life.leave(at, token, Reason::WaitTimeout, events)
    }

    /// Edges that somebody waits at.
    pub fn edges(&self) -> Vec<EdgeId> {
        let waiters = self.keys.iter().flat_map(|life| &life.waiters);
        let mut edges: Vec<_> = waiters.filter_map(|waiter| Some(waiter.attach?.edge)).collect();
        edges.sort();
        edges.dedup();
        edges
    }

    pub fn waiters(&self) -> usize {
        self.keys.iter().map(|life| life.waiters.len()).sum()
    }

    pub(super) fn presence(&mut self, at: &Moment, edge: EdgeId, events: &mut Vec<Event>) -> bool {
        let known = self.edges().contains(&edge);
        if known {
            self.line.seen.retain(|(other, _)| *other != edge);
            self.line.seen.push((edge, at.stamp.0));
        }
        for other in self.edges() {
            if other.node == edge.node && other != edge {
                self.away(at, other, events);
            }
        }
        known
    }

    /// Events of all keys come in the order of arrival, which within a key is that of its line.
    pub(super) fn away(&mut self, at: &Moment, edge: EdgeId, events: &mut Vec<Event>) -> bool {
        let known = self.edges().contains(&edge);
        for life in &mut self.keys {
            let there: Vec<_> =
                life.waiters.iter().filter(|waiter| waiter.attach.is_some_and(|a| a.edge == edge)).cloned().collect();
            for waiter in there {
                waiter.told(&life.key, EventKind::Detached, None, events);
                life.detach(at, waiter.attach.unwrap());
            }
        }
        known
    }

    /// All or nothing: on a copy.
    pub(super) fn all(&mut self, at: &Moment, items: &[Command], events: &mut Vec<Event>) -> Reply {
        let (mut copy, mut told, mut replies) = (self.clone(), Vec::new(), Vec::new());
        for (index, item) in (0..).zip(items) {
            let fits = matches!(item, Command::Acquire(_) | Command::Renew { .. } | Command::Release { .. });
            let reply = if fits { copy.apply(at, item, &mut told) } else { Reply::Op(OpReply::default()) };
            match reply {
                Reply::Op(op) if op.result || (op.yours && op.reason.is_none()) => replies.push(Reply::Op(op)),
                Reply::Op(op) | Reply::Queued { op, .. } => return Reply::NotAll { index, why: Ok(op) },
                Reply::Refused(refusal) => return Reply::NotAll { index, why: Err(refusal) },
                other => panic!("{other:?}"),
            }
        }
        *self = copy;
        events.extend(told);
        Reply::Batch(replies)
    }
}
