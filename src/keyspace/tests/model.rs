//! A naive keyspace, written from the contract and from nothing else: a list of everything that ever happened, never
//! cleaned up, in which each question looks for its answer anew. No timers, no table, no settling: at any time `t`
//! a grant is live if nobody ended it and `t < deadline`, and a key exists if nobody deleted it and time has not. Who
//! waits stands in `line`.

use std::sync::Arc;

use tenure_cluster::{Moment, Position, Stamp};

use super::held::Held;
use super::line::{InLine, Line};
use crate::keyspace::{
    Acquire, Attach, Command, Ended, Event, EventKind, GrantView, LeaseOptions, OpReply, Reason, Refusal, Reply,
    TokenHash, View, Wait,
};

const DAY_MS: u64 = 86_400_000;

/// All keys that ever were, the youngest last.
#[derive(Clone, Default)]
pub struct Model {
    pub(super) keys: Vec<Life>,
    fence: u64,
    pub longest_ttl_ms: u64,
    pub keys_max: Option<u64>,
    pub line: Line,
}

/// One life of a key, from its creation to its end.
#[derive(Clone)]
pub(super) struct Life {
    pub key: Arc<str>,
    pub options: LeaseOptions,
    ends: Option<u64>,
    idles: bool,
    deleted: bool,
    pub grants: Vec<Held>,
    pub waiters: Vec<InLine>,
    pub changed: Position,
}

impl Life {
    pub fn live(&self, t: u64) -> Option<&Held> {
        self.grants.last().filter(|grant| grant.live(t))
    }

    fn last_ended(&self, t: u64) -> Option<&Held> {
        self.grants.iter().rev().find(|grant| !grant.live(t))
    }

    pub fn over(&self, t: u64) -> bool {
        self.ends.is_some_and(|ends| ends <= t)
    }

    pub fn lifetime(&self) -> Option<u64> {
        self.ends
    }

    /// When time ends the key, if nothing else happens, and if it is free by then.
    pub fn end(&self) -> Option<u64> {
        let free_since = self.grants.last().map_or(0, Held::end);
        let open_since = self.grants.last().map_or(0, |grant| grant.end().max(grant.opens(&self.options)));
        let idle = (self.idles && !self.grants.is_empty()).then_some(open_since + DAY_MS);
        [self.ends, idle].into_iter().flatten().min().map(|end| end.max(free_since))
    }

    pub fn exists(&self, t: u64) -> bool {
        !self.deleted && (self.live(t).is_some() || self.end().is_none_or(|end| t < end))
    }

    pub fn shut_until(&self, t: u64) -> Option<u64> {
        if self.live(t).is_some() {
            return None;
        }
        self.grants.last().map(|grant| grant.opens(&self.options)).filter(|opens| *opens > t)
    }

    /// What a reader could notice of time at `t`; `None`: no key.
    fn looks(&self, t: u64) -> Option<(bool, bool, bool, usize)> {
        let looks = (self.live(t).is_some(), self.over(t), self.shut_until(t).is_some(), self.standing(t).count());
        self.exists(t).then_some(looks)
    }

    pub fn refuse(&self, reason: Reason, t: u64) -> OpReply {
        OpReply { reason: Some(reason), ..self.live(t).map(|grant| grant.extras(t)).unwrap_or_default() }
    }

    /// Who asks with a token or fence that is not the live grant's: what became of its grant?
    fn lost(&self, token: Option<TokenHash>, fence: Option<u64>, t: u64) -> OpReply {
        let mine = |grant: &&Held| {
            (token.is_some() || fence.is_some())
                && token.is_none_or(|token| token == grant.ask.token)
                && fence.is_none_or(|fence| fence == grant.fence)
        };
        match self.last_ended(t).filter(mine) {
            Some(grant) if grant.returned.is_none() || grant.undelivered => {
                let detail = grant.broken.clone().filter(|_| !grant.undelivered);
                OpReply { detail, ..self.refuse(grant.reason(), t) }
            }
            _ => self.refuse(Reason::NotHeld, t),
        }
    }

    pub fn holds(&self, token: Option<TokenHash>, fence: Option<u64>, t: u64) -> OpReply {
        match self.live(t) {
            Some(grant)
                if token.is_none_or(|token| token == grant.ask.token)
                    && fence.is_none_or(|fence| fence == grant.fence) =>
            {
                OpReply { result: true, detail: grant.broken.clone(), ..grant.extras(t) }
            }
            _ => self.lost(token, fence, t),
        }
    }

    fn view(&self, t: u64) -> View {
        let live = self.live(t);
        let acquirable = match live {
            Some(grant) if self.over(t) => grant.deadline,
            Some(grant) => grant.deadline + grant.ask.delay_ms.unwrap_or(self.options.delay_ms),
            None => self.shut_until(t).unwrap_or(t),
        };
        View {
            key: self.key.clone(),
            grant: live.map(|grant| GrantView {
                owner: grant.ask.owner.clone(),
                fence: grant.fence,
                ttl_ms: grant.deadline - t,
                held_for_ms: t - grant.since,
                acquired_wall_ms: grant.wall_ms,
                note: grant.ask.note.clone(),
                broken: grant.broken.clone(),
            }),
            waiters: self.standing(t).count() as u64,
            acquirable_in_ms: acquirable - t,
            options: self.options,
            version: self.changed,
            key_ttl_ms: self.ttl_ms(t),
            auto_created: self.idles,
            last: self.last_ended(t).map(|grant| Ended {
                fence: grant.fence,
                owner: grant.ask.owner.clone(),
                reason: grant.reason(),
                at: Stamp(grant.end()),
                detail: grant.broken.clone().filter(|_| grant.returned.is_none()),
            }),
        }
    }

    /// `None`: no end.
    fn ttl_ms(&self, t: u64) -> Option<u64> {
        let end = if self.live(t).is_some() { self.ends } else { self.end() };
        end.map(|end| end.saturating_sub(t))
    }
}

impl Model {
    pub fn new(keys_max: Option<u64>) -> Self {
        Self { keys_max, ..Self::default() }
    }

    pub(super) fn find(&mut self, key: &str, t: u64) -> Option<&mut Life> {
        self.keys.iter_mut().rev().find(|life| &*life.key == key).filter(|life| life.exists(t))
    }

    fn alive(&self, t: u64) -> u64 {
        self.keys.iter().filter(|life| life.exists(t)).count() as u64
    }

    fn room(&self, t: u64) -> Result<(), Refusal> {
        match self.keys_max {
            Some(max) if self.alive(t) >= max => Err(Refusal::KeysMax { max }),
            _ => Ok(()),
        }
    }

    /// Does an answer about this key change by time alone in `(from, to]`?
    pub fn changes(&self, key: &str, from: u64, to: u64) -> bool {
        self.keys.iter().rev().find(|life| &*life.key == key).is_some_and(|life| life.looks(from) != life.looks(to))
    }

    /// Did time change anything about this key after its last command? Then `version` depends on cleaning.
    pub fn aged(&mut self, key: &str, t: u64) -> bool {
        self.find(key, t).is_some_and(|life| life.grants.last().is_some_and(|g| g.returned.is_none() && !g.live(t)))
    }

    pub fn get(&mut self, key: &str, t: u64) -> Option<View> {
        self.find(key, t).map(|life| life.view(t))
    }

    pub fn holds(
        &mut self,
        key: &str,
        token: Option<TokenHash>,
        fence: Option<u64>,
        t: u64,
    ) -> Result<OpReply, Refusal> {
        self.find(key, t).map(|life| life.holds(token, fence, t)).ok_or(Refusal::NoSuchKey)
    }

    pub fn names(&self, t: u64) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.keys.iter().filter(|life| life.exists(t)).map(|life| life.key.clone()).collect();
        names.sort();
        names
    }

    pub fn held(&self, t: u64) -> usize {
        self.keys.iter().filter(|life| life.exists(t) && life.live(t).is_some()).count()
    }

    pub fn apply(&mut self, at: &Moment, command: &Command, events: &mut Vec<Event>) -> Reply {
        match command {
            Command::Batch(items) => Reply::Batch(items.iter().map(|item| self.apply(at, item, events)).collect()),
            Command::AllOrNothing(items) => self.all(at, items, events),
            item => self.item(at, item, events).unwrap_or_else(Reply::Refused),
        }
    }

    fn item(&mut self, at: &Moment, command: &Command, events: &mut Vec<Event>) -> Result<Reply, Refusal> {
        let t = at.stamp.0;
        let done = |result, reason| Ok(Reply::Done { result, reason });
        match command {
            Command::Create { key, options } => {
                if self.find(key, t).is_some() {
                    return Err(Refusal::AlreadyExists);
                }
                self.room(t)?;
                self.make(at, key, *options, false, events);
                done(true, None)
            }
            Command::Acquire(ask) => self.acquire(at, ask, None, events),
            Command::Wait(Wait { ask, wait_ms, attach }) => self.acquire(at, ask, Some((*wait_ms, *attach)), events),
            Command::Renew { key, token, ttl_ms, fence } => {
                let renewed = self.renew(at, key, *token, *ttl_ms, *fence, events)?;
                Ok(Reply::Op(renewed))
            }
            Command::Release { key, token, fence } => {
                let life = self.find(key, t).ok_or(Refusal::NoSuchKey)?;
                if !life.holds(Some(*token), *fence, t).result {
                    let left = fence.is_none() && life.leave(at, *token, Reason::CancelledWait, events);
                    let lost = life.lost(Some(*token), *fence, t);
                    let reason = if left { Some(Reason::CancelledWait) } else { lost.reason };
                    return Ok(Reply::Op(OpReply { reason, detail: lost.detail.filter(|_| !left), ..lost }));
                }
                life.end_by(at, EventKind::Released, |grant| grant.returned = Some(t), events);
                life.close_period(at, events);
                self.follow(at, key, events);
                Ok(Reply::Op(OpReply { result: true, ..OpReply::default() }))
            }
            Command::Break { key, reason, grace_ms, fence } => {
                let life = self.find(key, t).ok_or(Refusal::NoSuchKey)?;
                if !life.holds(None, *fence, t).result {
                    return Ok(Reply::Op(life.refuse(Reason::NotHeld, t)));
                }
                life.break_it(at, reason, t + grace_ms, events);
                let told = life.live(t).map(|g| OpReply { detail: g.broken.clone(), ..g.extras(t) });
                self.follow(at, key, events);
                Ok(Reply::Op(OpReply { result: true, ..told.unwrap_or_default() }))
            }
            Command::Expire { key, ttl_ms } => self.outlive(at, key, |life| life.ends = Some(t + ttl_ms)),
            Command::Persist { key } => self.outlive(at, key, |life| (life.ends, life.idles) = (None, false)),
            Command::Del { keys, fence } => {
                Ok(Reply::Deleted(keys.iter().map(|key| self.delete(t, key, *fence, events)).sum()))
            }
            Command::Get { key } => Ok(Reply::View(self.get(key, t).map(Box::new))),
            Command::Held { key, token } => self.holds_or_waits(key, *token, t),
            Command::Check { key, fence } => self.holds(key, None, Some(*fence), t).map(Reply::Op),
            Command::Detach { key, token, attach } => done(self.detach(at, key, *token, *attach, events), None),
            Command::Cancel { key, token, attach } => done(self.cancel(at, key, *token, *attach, events), None),
            // Pools have a model of their own.
            Command::CreatePool { .. }
            | Command::AcquireSlot(_)
            | Command::WaitSlot(_)
            | Command::RenewSlot { .. }
            | Command::BreakSlot { .. }
            | Command::Resize { .. } => Err(Refusal::WrongType),
            Command::Presence { edge } => done(self.presence(at, *edge, events), None),
            Command::Away { edge } => done(self.away(at, *edge, events), None),
            Command::Batch(_) | Command::AllOrNothing(_) => unreachable!("batches are not nested"),
        }
    }

    fn make(&mut self, at: &Moment, key: &Arc<str>, options: LeaseOptions, idles: bool, events: &mut Vec<Event>) {
        let (key, changed) = (key.clone(), at.position);
        events.push(event(&key, EventKind::Created, None));
        let (grants, waiters) = (Vec::new(), Vec::new());
        self.keys.push(Life { key, options, ends: None, idles, deleted: false, grants, waiters, changed });
    }

    fn acquire(
        &mut self,
        at: &Moment,
        ask: &Acquire,
        wait: Option<(u64, Attach)>,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let t = at.stamp.0;
        let attach = wait.map(|(_, attach)| attach);
        let no = |reason| Ok(Reply::Op(OpReply { reason: Some(reason), ..OpReply::default() }));
        let Some(life) = self.find(&ask.key, t) else {
            if !ask.create {
                return Err(Refusal::NoSuchKey);
            }
            if ask.ttl_ms <= 0 {
                return no(Reason::TtlNotPositive);
            }
            self.room(t)?;
            self.make(at, &ask.key, LeaseOptions::default(), true, events);
            return Ok(Reply::Op(self.grant(at, ask, attach, events)));
        };
        if ask.ttl_ms <= 0 {
            return no(Reason::TtlNotPositive);
        }
        within_max(&life.options, ask.ttl_ms)?;
        let used = life.last_ended(t).is_some_and(|last| last.ask.token == ask.token && !last.undelivered);
        if let Some(grant) = life.live(t) {
            if grant.ask.token == ask.token {
                let reason = grant.broken.as_ref().map(|_| Reason::Broken);
                let yours = OpReply { yours: true, reason, detail: grant.broken.clone(), ..grant.extras(t) };
                life.confirm();
                return Ok(Reply::Op(yours));
            }
            let retry_after_ms = Some(life.view(t).acquirable_in_ms);
            if life.over(t) {
                return Ok(Reply::Op(OpReply { retry_after_ms, ..life.refuse(Reason::KeyExpired, t) }));
            }
            if used && ask.once && wait.is_some() {
                return no(Reason::TokenUsed);
            }
            let held = OpReply { retry_after_ms, ..life.refuse(Reason::Held, t) };
            return Ok(self.stand(at, ask, wait, held, events));
        }
        if ask.once && used {
            return no(Reason::TokenUsed);
        }
        if let Some(opens) = life.shut_until(t) {
            let released = life.grants.last().is_some_and(|last| last.returned.is_some());
            let reason = Some(if released { Reason::MinHold } else { Reason::Delay });
            let shut = OpReply { reason, retry_after_ms: Some(opens - t), ..OpReply::default() };
            return Ok(self.stand(at, ask, wait, shut, events));
        }
        Ok(Reply::Op(self.grant(at, ask, attach, events)))
    }

    pub(super) fn grant(
        &mut self,
        at: &Moment,
        ask: &Acquire,
        attach: Option<Attach>,
        events: &mut Vec<Event>,
    ) -> OpReply {
        let t = at.stamp.0;
        let ttl_ms = ask.ttl_ms.unsigned_abs();
        self.fence += 1;
        self.longest_ttl_ms = self.longest_ttl_ms.max(ttl_ms);
        let grant = Held {
            ask: ask.clone(),
            fence: self.fence,
            since: t,
            wall_ms: at.wall_ms,
            renewed: t,
            deadline: t + ttl_ms,
            broken: None,
            returned: None,
            untold: attach,
            undelivered: false,
        };
        events.push(Event { ttl_ms: Some(ttl_ms), attach, ..event(&ask.key, EventKind::Granted, Some(&grant)) });
        let reply = OpReply { result: true, ..grant.extras(t) };
        let life = self.find(&ask.key, t).unwrap();
        life.changed = at.position;
        life.waiters.retain(|waiter| waiter.ask.token != ask.token);
        life.grants.push(grant);
        reply
    }

    fn renew(
        &mut self,
        at: &Moment,
        key: &str,
        token: TokenHash,
        ttl_ms: i64,
        fence: Option<u64>,
        events: &mut Vec<Event>,
    ) -> Result<OpReply, Refusal> {
        let t = at.stamp.0;
        let life = self.find(key, t).ok_or(Refusal::NoSuchKey)?;
        if ttl_ms <= 0 {
            return Ok(OpReply { reason: Some(Reason::TtlNotPositive), ..OpReply::default() });
        }
        within_max(&life.options, ttl_ms)?;
        let held = life.holds(Some(token), fence, t);
        if !held.result {
            return Ok(held);
        }
        life.confirm();
        if held.detail.is_some() {
            return Ok(OpReply { result: false, reason: Some(Reason::Broken), ..held });
        }
        if life.over(t) {
            return Ok(life.refuse(Reason::KeyExpired, t));
        }
        life.changed = at.position;
        let grant = life.grants.last_mut().unwrap();
        grant.renewed = t;
        grant.deadline = grant.deadline.max(t + ttl_ms.unsigned_abs());
        let renewed = OpReply { result: true, ..grant.extras(t) };
        events.push(Event { ttl_ms: renewed.ttl_ms, ..event(&life.key, EventKind::Renewed, life.grants.last()) });
        self.longest_ttl_ms = self.longest_ttl_ms.max(ttl_ms.unsigned_abs());
        Ok(renewed)
    }

    fn outlive(&mut self, at: &Moment, key: &str, change: impl FnOnce(&mut Life)) -> Result<Reply, Refusal> {
        let t = at.stamp.0;
        Ok(match self.find(key, t) {
            None => Reply::Done { result: false, reason: None },
            Some(life) if life.over(t) => Reply::Done { result: false, reason: Some(Reason::KeyExpired) },
            Some(life) => {
                life.changed = at.position;
                change(life);
                Reply::Done { result: true, reason: None }
            }
        })
    }

    fn delete(&mut self, t: u64, key: &str, fence: Option<u64>, events: &mut Vec<Event>) -> u64 {
        let Some(life) = self.find(key, t) else { return 0 };
        if fence.is_some() && life.live(t).map(|grant| grant.fence) != fence {
            return 0;
        }
        life.leave_all(Reason::Deleted, events);
        events.push(event(&life.key, EventKind::Deleted, life.live(t)));
        life.deleted = true;
        1
    }
}

impl Life {
    /// Ends the live grant by command; a key whose lifetime is over goes with it.
    pub fn end_by(&mut self, at: &Moment, kind: EventKind, end: impl FnOnce(&mut Held), events: &mut Vec<Event>) {
        self.changed = at.position;
        events.push(event(&self.key, kind, self.grants.last()));
        self.grants.last_mut().map(end);
        if !self.exists(at.stamp.0) {
            events.push(event(&self.key, EventKind::Deleted, None));
        }
    }

    fn break_it(&mut self, at: &Moment, text: &Arc<str>, until: u64, events: &mut Vec<Event>) {
        let grant = self.grants.last_mut().unwrap();
        let again = grant.broken.replace(text.clone()).is_some();
        let mut told = Vec::new();
        self.end_by(at, EventKind::Broken, |grant| grant.deadline = grant.deadline.min(until), &mut told);
        told[0].detail = Some(text.clone());
        events.extend(told.into_iter().skip(usize::from(again)));
    }
}

fn within_max(options: &LeaseOptions, ttl_ms: i64) -> Result<(), Refusal> {
    match options.ttl_ms_max {
        Some(max) if ttl_ms.unsigned_abs() > max => Err(Refusal::TtlAboveMax { max }),
        _ => Ok(()),
    }
}

pub(super) fn event(key: &Arc<str>, kind: EventKind, grant: Option<&Held>) -> Event {
    let (fence, owner) = (grant.map(|grant| grant.fence), grant.map(|grant| grant.ask.owner.clone()));
    Event {
        key: key.clone(),
        kind,
        fence,
        owner,
        last_renewed: None,
        detail: None,
        ttl_ms: None,
        attach: None,
        reason: None,
        slot: None,
    }
}
