//! The one log that all nodes must agree on, as the first node to take each step wrote it.
//!
//! Invariants: entries are written in order of their indexes; an entry's commands are written by the node that began it
//! and before anybody else takes a step (a machine takes an entry as a whole). Indexes that the machine never sees
//! (elections, memberships, orders of the cluster's own) leave holes, the same ones on every node.

use std::collections::{BTreeMap, BTreeSet};

use tenure::edge::Ask;
use tenure::keyspace::{Command, Event, Keyspace, Reply};
use tenure_cluster::{Moment, Position};

use super::acknowledged::Deed;
use super::events::{Events, event_digest};
use super::grants::Grants;
use super::{Verdict, ask_digest, state_digest, value_digest};

/// Of one run. Beyond it nothing is judged, which is a violation.
const ENTRIES_MAX: usize = 200_000;
/// `1 + rho`, in percent; and what whole milliseconds hide at either end.
const PACE_PERCENT: u128 = 101;
const ROUNDING_MS: u64 = 2;

/// How far a machine is, by its own account.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// The last entry; 0 before the first.
    index: u64,
    /// Commands taken of it.
    steps: usize,
    /// The digest of the snapshot it comes from, until its next entry.
    loaded: Option<u64>,
}

impl Place {
    pub(super) fn loaded(state: u64) -> Self {
        Self { loaded: Some(state), ..Self::default() }
    }
}

/// A command that was applied.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pub moment: &'a Moment,
    pub command: &'a Command,
    pub reply: &'a Reply,
    /// What it told.
    pub events: &'a [Event],
    /// Digest of the state after it.
    pub state: u64,
}

/// Time that has passed before an entry's commands.
pub(super) struct Passed<'a> {
    pub moment: &'a Moment,
    /// What it told.
    pub events: &'a [Event],
    /// Digest of the state after it.
    pub state: u64,
}

/// A command in the log.
#[derive(Debug)]
pub(super) struct Step {
    command: u64,
    reply: u64,
    state: u64,
    pub deed: Deed,
    /// How many events it told.
    events: usize,
}

impl Step {
    /// Is it this command?
    pub(super) fn is(&self, command: &Command) -> bool {
        self.command == value_digest(command)
    }

    /// Was this its reply?
    pub(super) fn replied(&self, reply: &Reply) -> bool {
        self.reply == value_digest(reply)
    }
}

/// An entry.
#[derive(Debug)]
pub(super) struct Entry {
    pub stamp_ms: u64,
    wall_ms: u64,
    /// True time at which the first node took it.
    pub first_ns: u64,
    /// The state when time has passed, before the first command.
    advanced: u64,
    /// How many events that told.
    passed: usize,
    pub steps: Vec<Step>,
}

impl Entry {
    /// The state after it.
    fn state(&self) -> u64 {
        self.steps.last().map_or(self.advanced, |step| step.state)
    }
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Log {
    entries: BTreeMap<u64, Entry>,
    /// The entry that may still be written.
    open: Option<u64>,
    /// Of a machine that has taken nothing.
    initial: u64,
    /// All digests that a state ever had.
    states: BTreeSet<u64>,
    /// Commands of clients, a try each, and where they stand.
    tries: BTreeMap<u64, Position>,
    /// What waiting requests asked for, and where the first of them stands.
    asks: BTreeMap<u64, Position>,
    pub grants: Grants,
    pub events: Events,
    /// Steps that were compared with another node's.
    pub compared: u64,
}

impl Default for Log {
    fn default() -> Self {
        let initial = state_digest(&Keyspace::default());
        let states = BTreeSet::from([initial]);
        let (entries, tries, asks) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (grants, events) = (Grants::default(), Events::default());
        Self { entries, open: None, initial, states, tries, asks, grants, events, compared: 0 }
    }
}

impl Log {
    pub(super) fn entry(&self, index: u64) -> Option<&Entry> {
        self.entries.get(&index)
    }

    /// All, in order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.entries.iter().map(|(index, entry)| (*index, entry))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Commands that can be in the log once only.
    pub(super) fn tries(&self) -> usize {
        self.tries.len()
    }

    /// Where a client's try stands, if it does.
    pub(super) fn position(&self, command: &Command) -> Option<Position> {
        self.tries.get(&value_digest(command)).copied()
    }

    /// Where a request to wait for this stands, if one does.
    pub(super) fn asked(&self, ask: &Ask) -> Option<Position> {
        self.asks.get(&ask_digest(ask)).copied()
    }

    /// A node loaded a snapshot.
    pub(super) fn loaded(&mut self, node: u64, state: u64, verdict: &mut Verdict) {
        self.open = None;
        if !self.states.contains(&state) {
            verdict.violated("StatesAgree", || format!("node {node} loads a state that no node ever had"));
        }
    }

    /// A machine begins an entry, and is in this state when time has passed.
    pub(super) fn advanced(
        &mut self,
        node: u64,
        now_ns: u64,
        place: &mut Place,
        passed: &Passed<'_>,
        verdict: &mut Verdict,
    ) {
        let Passed { moment, events, state } = *passed;
        let index = moment.position.index;
        self.followed(node, place, index, verdict);
        *place = Place { index, ..Place::default() };
        self.open = None;
        let Some(entry) = self.entries.get(&index) else {
            return self.begin(node, now_ns, passed, verdict);
        };
        self.compared += 1;
        let told = self.events.at(moment.position).take(entry.passed);
        if !told.eq(events.iter().map(event_digest)) {
            verdict
                .violated("EventsAgree", || format!("node {node} tells otherwise as entry {index} begins: {events:?}"));
        }
        let known = (entry.stamp_ms, entry.wall_ms);
        if known != (moment.stamp.0, moment.wall_ms) {
            verdict.violated("LogsAgree", || format!("node {node}: entry {index} is {known:?}, here {moment:?}"));
        } else if entry.advanced != state {
            verdict.violated("StatesAgree", || format!("node {node}: another state as entry {index} begins"));
        }
    }

    /// Was what the machine has taken so far all that stands before `index`?
    fn followed(&self, node: u64, place: &Place, index: u64, verdict: &mut Verdict) {
        let before = self.entries.range(..index).next_back();
        if let Some(loaded) = place.loaded {
            if before.map_or(self.initial, |(_, entry)| entry.state()) != loaded {
                let at = before.map_or(0, |(index, _)| *index);
                verdict.violated("StatesAgree", || {
                    format!("node {node} goes on from a snapshot that is not entry {at}'s")
                });
            }
            return;
        }
        if index <= place.index {
            verdict.violated("PositionsGrow", || format!("node {node} takes entry {index} after {}", place.index));
        }
        if let Some((skipped, _)) = before.filter(|(before, _)| **before > place.index) {
            verdict.violated("PositionsGrow", || format!("node {node} skips entry {skipped}"));
        }
        if let Some(entry) = self.entries.get(&place.index).filter(|entry| entry.steps.len() != place.steps) {
            let (taken, of, at) = (place.steps, entry.steps.len(), place.index);
            verdict.violated("LogsAgree", || format!("node {node} takes {taken} of {of} commands of entry {at}"));
        }
    }

    /// The first to take this entry.
    fn begin(&mut self, node: u64, now_ns: u64, passed: &Passed<'_>, verdict: &mut Verdict) {
        let Passed { moment, events, state } = *passed;
        let (index, stamp_ms) = (moment.position.index, moment.stamp.0);
        if self.entries.len() >= ENTRIES_MAX {
            return verdict.violated("LogsAgree", || format!("the log is too long to judge: entry {index}"));
        }
        if let Some((last, before)) = self.entries.last_key_value() {
            if *last > index {
                verdict.violated("LogsAgree", || {
                    format!("node {node} has an entry {index}, those that took {last} do not")
                });
            } else if before.stamp_ms > stamp_ms {
                verdict.violated("ClockGrows", || {
                    format!("{stamp_ms} of entry {index} after {} of {last}", before.stamp_ms)
                });
            }
        }
        if let Some((first, entry)) = self.entries.first_key_value() {
            let allowed_ms = u64::try_from(u128::from(now_ns) * PACE_PERCENT / 100 / 1_000_000).unwrap_or(u64::MAX);
            let passed_ms = stamp_ms.saturating_sub(entry.stamp_ms);
            if passed_ms > allowed_ms.saturating_add(ROUNDING_MS) {
                let real_ms = now_ns / 1_000_000;
                verdict.violated("ClockKeepsPace", || {
                    format!("{passed_ms} ms from entry {first} to {index}, {real_ms} ms from the beginning")
                });
            }
        }
        self.states.insert(state);
        let (wall_ms, steps, passed) = (moment.wall_ms, Vec::new(), events.len());
        self.entries.insert(index, Entry { stamp_ms, wall_ms, first_ns: now_ns, advanced: state, passed, steps });
        self.grants.passed(moment, events, verdict);
        self.events.log(moment.position, events);
        self.open = Some(index);
    }

    /// A machine took a command.
    pub(super) fn applied(&mut self, node: u64, place: &mut Place, taken: &Taken<'_>, verdict: &mut Verdict) {
        let position = taken.moment.position;
        let ordinal = usize::try_from(position.ordinal).unwrap_or(usize::MAX);
        if (position.index, ordinal) != (place.index, place.steps) {
            verdict.violated("PositionsGrow", || {
                format!("node {node} takes {position} after {} commands of {}", place.steps, place.index)
            });
        }
        place.steps += 1;
        let (command, reply) = (value_digest(taken.command), value_digest(taken.reply));
        let Some(entry) = self.entries.get_mut(&position.index) else { return };
        if let Some(known) = entry.steps.get(ordinal) {
            self.compared += 1;
            if known.command != command || entry.stamp_ms != taken.moment.stamp.0 {
                verdict.violated("LogsAgree", || {
                    format!("node {node} has another command at {position}: {:?}", taken.command)
                });
            } else if (known.reply, known.state) != (reply, taken.state) {
                verdict.violated("StatesAgree", || {
                    let what = if known.reply == reply { "is in another state after" } else { "answers otherwise at" };
                    format!("node {node} {what} {position}: {:?} -> {:?}", taken.command, taken.reply)
                });
            }
            let before = if ordinal == 0 { entry.passed } else { 0 };
            let told = self.events.at(position).skip(before);
            let agrees = (known.command, known.reply, known.state) == (command, reply, taken.state);
            let same = known.events == taken.events.len() && told.eq(taken.events.iter().map(event_digest));
            if agrees && !same {
                verdict.violated("EventsAgree", || {
                    format!("node {node} tells otherwise at {position}: {:?}", taken.events)
                });
            }
            return;
        }
        if self.open != Some(position.index) {
            return verdict
                .violated("LogsAgree", || format!("node {node} has a command at {position}, others have none"));
        }
        let before = entry.state();
        let (deed, events) = (Deed::of(taken.command, taken.reply), taken.events.len());
        entry.steps.push(Step { command, reply, state: taken.state, deed, events });
        if matches!(taken.reply, Reply::NotAll { .. }) && (before, events) != (taken.state, 0) {
            verdict.violated("AllOrNothing", || format!("{position} did not do all, and changed something: {taken:?}"));
        }
        self.states.insert(taken.state);
        self.once(position, taken.command, command, verdict);
        self.events.ask(taken.command);
        self.events.log(position, taken.events);
        self.grants.step(taken.moment, taken.command, taken.reply, taken.events, verdict);
    }

    /// Clients see to it that no two tries are the same bytes.
    fn once(&mut self, position: Position, command: &Command, digest: u64, verdict: &mut Verdict) {
        // Edges see to theirs, each in its life; they say that they are there again and again.
        if matches!(command, Command::Create { .. } | Command::Presence { .. } | Command::Away { .. }) {
            return;
        }
        // A request that goes is taken back as often as it takes.
        if matches!(command, Command::Detach { .. } | Command::Cancel { .. }) {
            return;
        }
        let ask = match command {
            Command::Wait(wait) => Some(value_digest(&wait.ask)),
            Command::WaitSlot(wait) => Some(value_digest(&wait.ask)),
            _ => None,
        };
        if let Some(ask) = ask {
            self.asks.entry(ask).or_insert(position);
        }
        if let Some(before) = self.tries.insert(digest, position) {
            verdict.violated("AppliedOnce", || format!("{before} and {position} are one: {command:?}"));
        }
    }
}
