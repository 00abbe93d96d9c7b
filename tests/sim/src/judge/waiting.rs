//! The contract's rules on waiting, from the log alone: who stands in line, and what must come of it.
//!
//! Model: of each key a [`Line`](super::line), of each edge when it was last heard of. A command's outcomes for waiters are
//! reckoned beforehand and compared with the events that it gave. What time alone does is judged by its events: each must be
//! due, and nothing that is due may be left.
//!
//! Laws: `FirstComeFirst` (what becomes free is granted to the first in line that is attached, in the same step, for the time
//! it asked for, and to nobody who is not there), `NobodyWaitsForFree` (no attached waiter stands before a lease that can be
//! acquired), `WaitsEndOnce` (each attached request ends once, for a reason that holds, or is taken for gone with its edge),
//! `PlacesStand` (what is told of places; a repeat keeps its place, a kept one lasts its time), `UndeliveredIsUnheard` (a
//! grant is returned as undelivered when its own request went before its token was heard of, and not otherwise),
//! `EdgesLapse` (waiters are detached with the life of their edge: after its silence, or on word of it, and not before).

use std::collections::BTreeMap;

use tenure::keyspace::Wait;
use tenure::keyspace::{
    Acquire, Attach, Command, EdgeId, Event, EventKind, Key, OpReply, Place, Reason, Reply, TokenHash,
};
use tenure_cluster::Moment;

use super::Verdict;
use super::grants::{At, Grants};
use super::line::{KEPT_MS, SILENT_MS, Standing, Waiter};

/// The longest line, by the contract.
const LINE_MAX: usize = 10_000;

/// Was the token of a grant heard of since it was granted to a waiting request?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unheard {
    /// It was, or the grant was not waited for.
    No,
    /// Not since this request was granted it.
    Since(Attach),
    /// A command of it was refused for its form: either may be.
    Perhaps(Attach),
}

/// What a step tells of waiting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    /// A waiting request was granted the key.
    Granted(Key, Attach, u64),
    /// It ended without.
    Ended(Attach, Reason),
    /// It is taken for gone.
    Detached(Attach),
    /// A grant was returned.
    Undelivered(Key, u64),
}

/// How much was judged.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits(pub BTreeMap<&'static str, u64>);

impl Waits {
    fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

/// What is told of waiting by an event, if anything.
pub(super) fn told(event: &Event) -> Option<Told> {
    let attach = event.attach;
    match event.kind {
        EventKind::Granted => Some(Told::Granted(Key::clone(&event.key), attach?, event.fence?)),
        EventKind::WaitEnded => Some(Told::Ended(attach?, event.reason?)),
        EventKind::Detached => Some(Told::Detached(attach?)),
        EventKind::Released if event.reason == Some(Reason::Undelivered) => {
            Some(Told::Undelivered(Key::clone(&event.key), event.fence?))
        }
        _ => None,
    }
}

impl Grants {
    /// The commands of waiting, and answers that tell of it.
    pub(super) fn of_waiting(&mut self, at: &mut At<'_>) {
        match (at.command, at.reply) {
            (Command::Wait(wait), Reply::Op(reply)) => self.waited(at, wait, reply),
            (Command::Wait(wait), Reply::Queued { op, place }) => self.queued(at, wait, op, *place),
            (Command::Acquire(Acquire { key, token, .. }), Reply::Queued { op, place })
            | (Command::Held { key, token: Some(token) }, Reply::Queued { op, place }) => {
                self.stands(at, key, *token, op, *place);
            }
            (Command::Detach { key, token, attach }, Reply::Done { result, .. }) => {
                self.detached(at, key, *token, *attach, *result);
            }
            (Command::Cancel { key, token, attach }, Reply::Done { result, .. }) => {
                self.cancelled(at, key, *token, *attach, *result);
            }
            (Command::Presence { edge }, Reply::Done { .. }) => self.present(at, *edge),
            (Command::Away { edge }, Reply::Done { .. }) => self.lapse(at.now_ms(), |other| other == *edge),
            _ => {}
        }
    }

    pub(super) fn is_over(&self, key: &Key, now_ms: u64) -> bool {
        self.ends.get(key).is_some_and(|ends_ms| *ends_ms <= now_ms)
    }

    /// Can it be acquired now?
    fn is_acquirable(&self, at: &At<'_>, key: &Key) -> bool {
        self.live(at, key).is_none() && self.opens_ms(key) <= at.now_ms()
    }

    /// Is the token in line?
    fn is_in_line(&self, key: &Key, token: TokenHash) -> bool {
        self.lines.get(key).is_some_and(|line| line.place(token).is_some())
    }

    /// A command of the token was applied; `surely` as the contract counts it.
    pub(super) fn heard(&mut self, key: &Key, token: TokenHash, surely: bool) {
        if let Some(grant) = self.by_key.get_mut(key).filter(|grant| grant.token == token) {
            grant.unheard = match grant.unheard {
                Unheard::Since(_) | Unheard::Perhaps(_) if surely => Unheard::No,
                Unheard::Since(attach) => Unheard::Perhaps(attach),
                other => other,
            };
        }
    }

    /// Answered at once.
    fn waited(&mut self, at: &mut At<'_>, wait: &Wait, reply: &OpReply) {
        if reply.result {
            self.waits.add("waits_granted_at_once");
        } else {
            let allowed = match reply.reason {
                None => reply.yours,
                Some(Reason::Broken) => reply.yours,
                Some(Reason::KeyExpired | Reason::TtlNotPositive | Reason::TokenUsed) => true,
                Some(Reason::MinHold) => wait.ask.min_hold_ms.is_some_and(|ms| ms > 0),
                Some(Reason::QueueFull) => self.lines.get(&wait.ask.key).is_some_and(|line| line.len() >= LINE_MAX),
                Some(_) => false,
            };
            if !allowed {
                at.violated("WaitsEndOnce", "refused, and it asks to wait", None);
            }
            if reply.reason == Some(Reason::MinHold) {
                self.waits.add("waits_min_hold");
            }
        }
        self.acquired(at, &wait.ask, Some(wait.attach), reply);
    }

    /// Put in line, or there already.
    fn queued(&mut self, at: &mut At<'_>, wait: &Wait, op: &OpReply, place: Place) {
        let (ask, now_ms) = (&wait.ask, at.now_ms());
        if self.is_acquirable(at, &ask.key) || self.is_over(&ask.key, now_ms) {
            at.violated("NobodyWaitsForFree", "put in line", None);
        }
        let waiter = Waiter {
            ask: ask.clone(),
            ends_ms: now_ms.saturating_add(wait.wait_ms),
            standing: Standing::Attached(wait.attach),
        };
        let line = self.lines.entry(Key::clone(&ask.key)).or_default();
        match line.of(ask.token) {
            Some(known) => {
                let before = known.attach().filter(|before| *before != wait.attach);
                self.waits.add(if before.is_some() { "waits_superseded" } else { "waits_taken_up_again" });
                self.expected.extend(before.map(|before| Told::Ended(before, Reason::Superseded)));
                *known = waiter;
            }
            None => {
                self.waits.add("waits_queued");
                line.push(waiter);
            }
        }
        self.waits_at(now_ms, wait.attach.edge);
        self.stands(at, &ask.key, ask.token, op, place);
    }

    /// It is told that it stands in line, and where.
    fn stands(&mut self, at: &mut At<'_>, key: &Key, token: TokenHash, op: &OpReply, place: Place) {
        let line = self.lines.get(key);
        let known = line.and_then(|line| Some((line.place(token)? as u64, line.len() as u64)));
        if known != Some((place.ahead, place.waiters)) {
            at.violated("PlacesStand", &format!("(ahead, waiters) is {known:?}"), None);
        }
        if op.result || op.reason != Some(Reason::Queued) {
            at.violated("PlacesStand", "in line, and answered otherwise", None);
        }
        self.told(at, key, op);
    }

    /// GET tells how many wait.
    pub(super) fn counted(&self, at: &mut At<'_>, key: &Key, waiters: Option<u64>) {
        let known = self.lines.get(key).map_or(0, |line| line.len() as u64);
        if waiters.unwrap_or_default() != known {
            at.violated("PlacesStand", &format!("{known} wait"), None);
        }
    }

    /// Granted without having waited: it leaves the line, where it was.
    pub(super) fn leaves(&mut self, ask: &Acquire, attach: Option<Attach>) {
        let waiter = self.lines.get_mut(&ask.key).and_then(|line| line.take(ask.token));
        let before = waiter.and_then(|waiter| waiter.attach()).filter(|before| Some(*before) != attach);
        self.expected.extend(before.map(|before| Told::Ended(before, Reason::Superseded)));
    }

    /// RELEASE was false: one in line leaves it.
    pub(super) fn gives_up(&mut self, at: &mut At<'_>, key: &Key, token: TokenHash, reply: &OpReply) {
        let stood = self.is_in_line(key, token);
        if stood != (reply.reason == Some(Reason::CancelledWait)) {
            at.violated("WaitsEndOnce", "RELEASE of a token that waits, and only of one, cancels", None);
        }
        if let Some(waiter) = self.lines.get_mut(key).and_then(|line| line.take(token)) {
            self.waits.add("waits_released");
            self.expected.extend(waiter.attach().map(|attach| Told::Ended(attach, Reason::CancelledWait)));
        }
    }

    /// A window of least hold opens: it is over for those who ask for one themselves.
    pub(super) fn window_opens(&mut self, key: &Key) {
        let Some(line) = self.lines.get_mut(key) else { return };
        for waiter in line.take_all(Waiter::asks_min_hold) {
            self.waits.add("waits_min_hold");
            self.expected.extend(waiter.attach().map(|attach| Told::Ended(attach, Reason::MinHold)));
        }
    }

    /// All leave the line.
    pub(super) fn all_leave(&mut self, key: &Key, reason: Reason) {
        for waiter in self.lines.remove(key).unwrap_or_default().take_all(|_| true) {
            self.waits.add("waits_deleted");
            self.expected.extend(waiter.attach().map(|attach| Told::Ended(attach, reason)));
        }
    }

    fn detached(&mut self, at: &mut At<'_>, key: &Key, token: TokenHash, attach: Attach, result: bool) {
        let until_ms = at.now_ms().saturating_add(KEPT_MS);
        let waiter = self.lines.get_mut(key).and_then(|line| line.of(token));
        if let Some(waiter) = waiter.filter(|waiter| waiter.attach() == Some(attach)) {
            waiter.standing = Standing::Kept(until_ms);
            self.waits.add("waits_detached");
            return Self::is_done(at, "WaitsEndOnce", result, true);
        }
        let live = self.live(at, key).filter(|grant| grant.token == token);
        let returned = match live.map(|grant| grant.unheard) {
            Some(Unheard::Since(own)) => own == attach,
            // As the event says.
            Some(Unheard::Perhaps(own)) => own == attach && result,
            Some(Unheard::No) | None => false,
        };
        if let Some(grant) = live.filter(|_| returned) {
            self.waits.add("waits_undelivered");
            self.expected.push(Told::Undelivered(Key::clone(key), grant.fence));
            self.by_key.remove(key);
            // It was nobody's: nothing is remembered of its token.
            self.shut.remove(key);
            self.hand_on(at, key);
        } else {
            self.waits.add("waits_detached_in_vain");
        }
        Self::is_done(at, "UndeliveredIsUnheard", result, returned);
    }

    fn cancelled(&mut self, at: &mut At<'_>, key: &Key, token: TokenHash, attach: Attach, result: bool) {
        let line = self.lines.get_mut(key);
        let is_its = |waiter: &Waiter| waiter.attach() == Some(attach) && waiter.ask.token == token;
        let known = line.is_some_and(|line| !line.take_all(is_its).is_empty());
        if known {
            self.waits.add("waits_cancelled");
            self.expected.push(Told::Ended(attach, Reason::WaitTimeout));
        }
        Self::is_done(at, "WaitsEndOnce", result, known);
    }

    fn is_done(at: &mut At<'_>, law: &str, result: bool, expected: bool) {
        if result != expected {
            at.violated(law, &format!("it has an effect: {expected}"), None);
        }
    }

    fn present(&mut self, at: &At<'_>, edge: EdgeId) {
        let waits = self.lines.values().any(|line| line.edges().any(|other| other == edge));
        if waits {
            self.edges.insert(edge, at.now_ms());
        }
        self.lapse(at.now_ms(), |other| other.node == edge.node && other != edge);
    }

    /// Somebody waits there, for a lease or a slot: it is there, and the node's other lives are gone.
    pub(super) fn waits_at(&mut self, now_ms: u64, edge: EdgeId) {
        self.edges.insert(edge, now_ms);
        self.lapse(now_ms, |other| other.node == edge.node && other != edge);
    }

    /// These edges are gone.
    fn lapse(&mut self, now_ms: u64, is_gone: impl Fn(EdgeId) -> bool) {
        for line in self.lines.values_mut() {
            let kept = line.keep(now_ms.saturating_add(KEPT_MS), &is_gone);
            kept.iter().for_each(|_| self.waits.add("waits_lapsed"));
            self.expected.extend(kept.into_iter().map(Told::Detached));
        }
    }

    /// What has become free goes to the first in line.
    pub(super) fn hand_on(&mut self, at: &At<'_>, key: &Key) {
        if self.live(at, key).is_some() {
            return;
        }
        if self.is_over(key, at.now_ms()) {
            return self.forget(key);
        }
        if self.opens_ms(key) > at.now_ms() {
            return;
        }
        let Some(waiter) = self.lines.get(key).and_then(|line| line.first()).cloned() else { return };
        let Some(attach) = waiter.attach() else { return };
        let fence = self.fence + 1;
        self.granted_on(at, &waiter, attach, fence);
        self.expected.push(Told::Granted(Key::clone(key), attach, fence));
    }

    fn granted_on(&mut self, at: &At<'_>, waiter: &Waiter, attach: Attach, fence: u64) {
        self.waits.add("waits_granted");
        if let Some(line) = self.lines.get_mut(&waiter.ask.key) {
            line.take(waiter.ask.token);
        }
        self.begin(at, &waiter.ask, fence, Some(attach));
    }

    /// Did the command tell what it must?
    pub(super) fn is_told(&mut self, at: &mut At<'_>, events: &[Event]) {
        let mut expected = std::mem::take(&mut self.expected);
        // A grant that was answered at once is its reply's.
        let own = if let Command::Wait(wait) = at.command { Some(wait.attach) } else { None };
        let is_own = |told: &Told| matches!(told, Told::Granted(_, attach, _) if Some(*attach) == own);
        let mut found: Vec<Told> = events.iter().filter_map(told).filter(|told| !is_own(told)).collect();
        for event in events.iter().filter(|event| event.kind == EventKind::Granted) {
            self.lasts(at, event);
            if event.fence > Some(self.fence) {
                at.violated("FirstComeFirst", &format!("granted to nobody who waits: {event:?}"), None);
            }
        }
        expected.sort();
        found.sort();
        if expected == found {
            return;
        }
        let granted = |told: &Vec<Told>| told.iter().any(|told| matches!(told, Told::Granted(..)));
        let undelivered = |told: &&Told| matches!(told, Told::Undelivered(..));
        let law = if expected.iter().find(undelivered) != found.iter().find(undelivered) {
            "UndeliveredIsUnheard"
        } else if granted(&found) {
            "FirstComeFirst"
        } else if granted(&expected) {
            "NobodyWaitsForFree"
        } else if matches!(at.command, Command::Presence { .. } | Command::Away { .. }) {
            "EdgesLapse"
        } else {
            "WaitsEndOnce"
        };
        at.violated(law, &format!("expected {expected:?}, found {found:?}"), None);
    }

    /// A grant is told to last as long as was asked for, whatever the same step does to it afterwards.
    fn lasts(&self, at: &mut At<'_>, event: &Event) {
        let asked_ms = event.fence.and_then(|fence| self.begun.get(&fence)).copied();
        if asked_ms.is_some() && event.ttl_ms != asked_ms {
            at.violated("DeadlinesStand", &format!("told {:?}, asked for {asked_ms:?}", event.ttl_ms), None);
        }
    }
}

/// What time alone does.
impl Grants {
    /// Time has passed up to `moment`, and `events` came of it.
    pub(super) fn passed(&mut self, moment: &Moment, events: &[Event], verdict: &mut Verdict) {
        self.begun.clear();
        let (command, reply) = (Command::Batch(Vec::new()), Reply::Batch(Vec::new()));
        let at = &mut At { moment, command: &command, reply: &reply, verdict };
        for event in events {
            if self.pools.is_pool(&event.key) {
                self.pools.passed(at, event, &mut self.fence);
                continue;
            }
            match told(event) {
                Some(Told::Granted(key, attach, fence)) => self.granted_by_time(at, event, &key, attach, fence),
                Some(Told::Ended(attach, reason)) => self.ended_by_time(at, &event.key, attach, reason),
                Some(Told::Detached(attach)) => self.detached_by_time(at, &event.key, attach),
                Some(Told::Undelivered(..)) => at.violated("UndeliveredIsUnheard", "by time", None),
                None if event.kind == EventKind::Granted => at.violated("FirstComeFirst", "to nobody who waits", None),
                None if event.kind == EventKind::Deleted => self.goes(at, &event.key),
                None => {}
            }
        }
        self.nothing_is_left(at);
        self.pools.nothing_is_left(at);
    }

    fn has_lapsed(edges: &BTreeMap<EdgeId, u64>, edge: EdgeId, now_ms: u64) -> bool {
        edges.get(&edge).is_none_or(|seen_ms| seen_ms.saturating_add(SILENT_MS) <= now_ms)
    }

    fn granted_by_time(&mut self, at: &mut At<'_>, event: &Event, key: &Key, attach: Attach, fence: u64) {
        let now_ms = at.now_ms();
        if !self.is_acquirable(at, key) || self.is_over(key, now_ms) {
            let known = self.by_key.get(key).copied();
            at.violated("NotEarly", &format!("granted by time to {attach:?} before it was free"), known);
        }
        if fence != self.fence + 1 {
            at.violated("FencesGrow", &format!("{fence} after {}", self.fence), None);
        }
        let lapsed = Self::has_lapsed(&self.edges, attach.edge, now_ms);
        let line = self.lines.entry(Key::clone(key)).or_default();
        let must = line.first().and_then(Waiter::attach);
        let Some(waiter) = line.attached(attach).cloned() else {
            return at.violated("FirstComeFirst", &format!("granted by time to {attach:?}, who is not there"), None);
        };
        if must != Some(attach) || lapsed || waiter.ends_ms <= now_ms {
            at.violated("FirstComeFirst", &format!("granted by time to {attach:?} before {must:?}"), None);
        }
        self.granted_on(at, &waiter, attach, fence);
        self.lasts(at, event);
    }

    fn ended_by_time(&mut self, at: &mut At<'_>, key: &Key, attach: Attach, reason: Reason) {
        let is_over = self.is_over(key, at.now_ms());
        let line = self.lines.entry(Key::clone(key)).or_default();
        let Some(waiter) = line.attached(attach).cloned() else {
            return at.violated("WaitsEndOnce", &format!("{attach:?} ends by time and is not there"), None);
        };
        let is_due = match reason {
            Reason::WaitTimeout => waiter.ends_ms <= at.now_ms(),
            Reason::KeyExpired => is_over,
            _ => false,
        };
        if !is_due {
            at.violated(
                "WaitsEndOnce",
                &format!("{attach:?} ends by time, {reason:?}; it ends {}", waiter.ends_ms),
                None,
            );
        }
        line.take(waiter.ask.token);
        self.waits.add(if reason == Reason::KeyExpired { "waits_key_expired" } else { "waits_timed_out" });
    }

    fn detached_by_time(&mut self, at: &mut At<'_>, key: &Key, attach: Attach) {
        let lapsed = Self::has_lapsed(&self.edges, attach.edge, at.now_ms());
        let until_ms = at.now_ms().saturating_add(KEPT_MS);
        let line = self.lines.entry(Key::clone(key)).or_default();
        let token = line.attached(attach).map(|waiter| waiter.ask.token);
        if token.is_none() || !lapsed {
            let seen_ms = self.edges.get(&attach.edge).copied();
            at.violated("EdgesLapse", &format!("{attach:?} is detached, its edge seen at {seen_ms:?}"), None);
        }
        if let Some(waiter) = token.and_then(|token| line.of(token)) {
            waiter.standing = Standing::Kept(until_ms);
        }
        self.waits.add("waits_lapsed_by_time");
    }

    /// The key goes with its lifetime.
    fn goes(&mut self, at: &mut At<'_>, key: &Key) {
        if let Some(waiter) = self.lines.get(key).and_then(|line| line.first()) {
            at.violated("WaitsEndOnce", &format!("its key goes, and nobody tells {:?}", waiter.attach()), None);
        }
        self.forget(key);
    }

    /// All that was due has happened.
    fn nothing_is_left(&mut self, at: &mut At<'_>) {
        let now_ms = at.now_ms();
        let mut left = Vec::new();
        for (key, line) in &mut self.lines {
            line.pass(now_ms);
            if self.ends.get(key).is_some_and(|ends_ms| *ends_ms <= now_ms) {
                // Kept places go with the key's lifetime.
                line.take_all(|waiter| waiter.attach().is_none());
            }
            if let Some(waiter) = line.overdue(now_ms) {
                left.push(("WaitsEndOnce", format!("{:?} waits on until {}", waiter.attach(), waiter.ends_ms)));
            }
            if let Some(edge) = line.edges().find(|edge| Self::has_lapsed(&self.edges, *edge, now_ms)) {
                left.push(("EdgesLapse", format!("{edge:?} is silent, and waits on for {key}")));
            }
        }
        self.lines.retain(|_, line| line.len() > 0);
        for (key, line) in &self.lines {
            let waits = line.first().map(|first| first.attach());
            if waits.is_some() && self.is_over(key, now_ms) {
                left.push(("WaitsEndOnce", format!("{waits:?} waits on for {key}, whose lifetime is over")));
            } else if waits.is_some() && self.is_acquirable(at, key) {
                left.push(("NobodyWaitsForFree", format!("{waits:?} waits for {key}, which is free")));
            }
        }
        for (law, what) in left {
            at.violated(law, &what, None);
        }
    }
}
