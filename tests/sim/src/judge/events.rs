//! What listeners are told, against what the machines did.
//!
//! Laws: `EventsAgree` (a listener hears, since it began or since its last jump, every event of the log in order, once, and
//! nothing else; a jump leads forward), on every node.

use std::collections::BTreeMap;
use std::ops::Bound;

use tenure::keyspace::{Attach, Command, Event, Key, Reason, TokenHash};
use tenure_cluster::{EventAt, Heard, Position};

use super::waiting::{Told, told};
use super::{Verdict, digest, value_digest};

/// Which event of the log: the position, and which of that.
type Nth = (Position, u32);

/// What came of a waiting request, and whose it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub key: Key,
    pub token: TokenHash,
    /// The fence and what is left of the grant; else why not.
    pub came: Result<(u64, u64), Reason>,
    /// Of a slot: what its caller is to be answered.
    pub answer: Option<u64>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Events {
    log: BTreeMap<Nth, u64>,
    /// Whose requests.
    asked: BTreeMap<Attach, (Key, TokenHash)>,
    outcomes: BTreeMap<Position, Vec<Outcome>>,
    /// Why waits of a token ended, and where.
    ended: BTreeMap<(Key, TokenHash), Vec<(Position, Reason)>>,
    /// The last event of the log that each listener knows of, in its life.
    heard: BTreeMap<u64, Nth>,
    /// How many were heard, and after how many jumps.
    pub count: u64,
    pub jumps: u64,
}

/// An event's bytes.
pub(super) fn event_digest(event: &Event) -> u64 {
    digest(format!("{event:?}").as_bytes())
}

impl Events {
    /// A waiting request is in the log.
    pub(super) fn ask(&mut self, command: &Command) {
        match command {
            Command::Wait(wait) => drop(self.asked.insert(wait.attach, (Key::clone(&wait.ask.key), wait.ask.token))),
            Command::WaitSlot(wait) => {
                drop(self.asked.insert(wait.attach, (Key::clone(&wait.ask.key), wait.ask.token)))
            }
            _ => {}
        }
    }

    /// The first node took a step that told these; a step of the same position may have told others before.
    pub(super) fn log(&mut self, position: Position, events: &[Event]) {
        let before = self.at(position).count();
        for (nth, event) in (before..).zip(events) {
            self.log.insert((position, u32::try_from(nth).unwrap_or(u32::MAX)), event_digest(event));
            let came = match told(event) {
                Some(Told::Granted(_, _, fence)) => Ok((fence, event.ttl_ms.unwrap_or_default())),
                Some(Told::Ended(_, reason)) => Err(reason),
                _ => continue,
            };
            let Some((key, token)) = event.attach.and_then(|attach| self.asked.get(&attach)).cloned() else { continue };
            if let Err(reason) = came {
                self.ended.entry((Key::clone(&key), token)).or_default().push((position, reason));
            }
            let answer = event.slot.as_ref().and_then(|slotted| slotted.answer.as_deref()).map(value_digest);
            self.outcomes.entry(position).or_default().push(Outcome { key, token, came, answer });
        }
    }

    /// Digests of what was told at a position.
    pub(super) fn at(&self, position: Position) -> impl Iterator<Item = u64> {
        self.log.range((position, 0)..=(position, u32::MAX)).map(|(_, digest)| *digest)
    }

    /// What became of waiting requests at a position.
    pub(super) fn outcomes(&self, position: Position) -> &[Outcome] {
        self.outcomes.get(&position).map_or(&[], Vec::as_slice)
    }

    /// Did a wait of this token end so by then?
    pub(super) fn ended(&self, key: &Key, token: TokenHash, reason: Reason, by: Position) -> bool {
        let ended = self.ended.get(&(Key::clone(key), token));
        ended.is_some_and(|ended| ended.iter().any(|(position, why)| *why == reason && *position <= by))
    }

    /// A listener begins.
    pub(super) fn started(&mut self, node: u64) {
        self.heard.remove(&node);
    }

    /// A listener hears.
    pub(super) fn hear(&mut self, node: u64, heard: &Heard<'_, Event>, verdict: &mut Verdict) {
        match heard {
            Heard::Event(at, event) => self.event(node, *at, event, verdict),
            Heard::Jump(to) => {
                self.jumps += 1;
                let to = (Position { index: to.index, ordinal: u32::MAX }, u32::MAX);
                if let Some(before) = self.heard.insert(node, to).filter(|before| *before > to) {
                    verdict.violated("EventsAgree", || format!("node {node} jumps back from {before:?} to {to:?}"));
                }
            }
        }
    }

    fn event(&mut self, node: u64, at: EventAt, event: &Event, verdict: &mut Verdict) {
        self.count += 1;
        let nth = (at.position, at.nth);
        let after = self.heard.get(&node).map_or(Bound::Unbounded, |before| Bound::Excluded(*before));
        let next = self.log.range((after, Bound::Unbounded)).next().map(|(nth, digest)| (*nth, *digest));
        if next != Some((nth, event_digest(event))) {
            let next = next.map(|(nth, _)| nth);
            verdict
                .violated("EventsAgree", || format!("node {node} hears {nth:?} {event:?}; the log's next is {next:?}"));
        }
        self.heard.insert(node, nth);
    }
}
