//! The model: what each action does, under a variant's rules.
//!
//! The rules are asked at five places, each named after the design's sentence that it breaks: [`Protocol::pass`]
//! (does time count), [`Protocol::elect`] (where a clock starts), [`Protocol::append`] and [`Protocol::commit`] (what
//! a stamp is bound to), [`Protocol::look`] and [`Protocol::commit`] (what a read shows), [`Protocol::hear`] (what a
//! holder counts from).

use stateright::{Model, Property};

use crate::actions::{Action, possible};
use crate::machine::{Command, Sent};
use crate::properties;
use crate::state::{Asker, Entry, Held, Lead, Operation, Read, State};
use crate::variants::{Anchor, Bounds, Check, Reading, Rules, T};

/// The protocol of a variant.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Its rules.
    pub rules: Rules,
    /// How far it is searched.
    pub bounds: Bounds,
    /// What can no longer matter is forgotten (`reduction.rs`).
    pub forgets: bool,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        possible(self, state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Pass { double } => self.pass(&mut state, double),
            Action::LoseQuorum => {
                state.has_quorum = false;
                state.outages += 1;
            }
            Action::FindQuorum => state.has_quorum = true,
            Action::Elect { node, keep } => self.elect(&mut state, node, keep),
            Action::Send { client, node, command } => self.send(&mut state, client, node, command)?,
            Action::Read { client } => self.read(&mut state, client)?,
            Action::Look(asker) => self.look(&mut state, asker)?,
            Action::Append(asker) => self.append(&mut state, asker)?,
            Action::TickForTimer => {
                let node = state.leader;
                let entry = self.stamp(&state, node, Command::Tick, None)?;
                state.suffix.push(entry, state.term);
            }
            Action::Commit => self.commit(&mut state)?,
            Action::Hear(asker) => self.hear(&mut state, asker)?,
        }
        Some(if self.forgets { self.reduced(state) } else { state })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all(self)
    }
}

impl Protocol {
    /// Time passes. A leader's clock counts it while the last proof that a quorum follows is younger than T.
    fn pass(&self, state: &mut State, double: bool) {
        state.now += 1;
        state.outage += u8::from(!state.has_quorum);
        for lead in state.leads.iter_mut().flatten() {
            let is_acked = state.has_quorum && lead.term == state.term;
            if is_acked || lead.silence < T || self.rules.counts_gaps {
                lead.clock += if double { 2 } else { 1 };
            }
            lead.silence = if is_acked { 0 } else { T.min(lead.silence + 1) };
        }
    }

    /// A leadership begins: its clock starts at the anchor.
    fn elect(&self, state: &mut State, node: u8, keep: usize) {
        while let Some((lost, _)) = state.suffix.cut(keep) {
            if let Some(asker) = lost.asker {
                *state.operation(asker) = Operation::Over;
            }
        }
        state.term += 1;
        state.leader = node;
        let clock = match self.rules.anchor {
            Anchor::Log => state.suffix.iter().map(|(entry, _)| entry.stamp).fold(state.log_stamp, u8::max),
            Anchor::Applied => state.machine.clock,
        };
        state.leads[usize::from(node)] = Some(Lead { term: state.term, clock, silence: 0 });
    }

    /// An entry that `node` stamps now.
    fn stamp(&self, state: &State, node: u8, command: Command, asker: Option<Asker>) -> Option<Entry> {
        let sent = if command == Command::Tick { Sent::default() } else { state.sent_now() };
        let stamp = self.clock(state, node)?;
        Some(Entry { command, stamp, node, term: state.lead(node)?.term, sent, asker })
    }

    fn send(&self, state: &mut State, client: u8, node: u8, command: Command) -> Option<()> {
        let asker = next(state, client)?;
        *state.operation(asker) = Operation::Stalls(self.stamp(state, node, command, Some(asker))?);
        Some(())
    }

    fn read(&self, state: &mut State, client: u8) -> Option<()> {
        let asker = next(state, client)?;
        let stamp = self.clock(state, state.leader)?;
        *state.operation(asker) = Operation::Reads(Read { node: state.leader, term: state.term, stamp });
        Some(())
    }

    /// A read judges the state by its stamp. If that hangs on time that is not in the log, it has a tick made.
    fn look(&self, state: &mut State, asker: Asker) -> Option<()> {
        let Operation::Reads(read) = *state.operation(asker) else { return None };
        let now = read.stamp.max(state.machine.clock);
        let doubtful = state.machine.grant.filter(|grant| now >= grant.deadline);
        let next = match (doubtful, self.rules.reading) {
            (None, _) => {
                // All grants before the live one are shown to be over.
                let over = state.machine.fence - u8::from(state.machine.grant.is_some());
                show_over(state, over, now);
                Operation::Over
            }
            (Some(grant), Reading::ByClock) => {
                show_over(state, grant.fence, now);
                Operation::Over
            }
            (Some(grant), Reading::InLog | Reading::Remembered) => {
                let still_leads = state.lead(read.node).filter(|lead| lead.term == read.term);
                match still_leads {
                    Some(_) => {
                        let tick = self.stamp(state, read.node, Command::Tick, Some(asker))?;
                        Operation::Ticks(tick, read, grant.fence)
                    }
                    None => Operation::Over, // It would begin anew.
                }
            }
        };
        *state.operation(asker) = next;
        Some(())
    }

    /// The log takes an entry from a node that leads, under the leadership that stamped it; else it surely does not.
    fn append(&self, state: &mut State, asker: Asker) -> Option<()> {
        let (entry, then) = match *state.operation(asker) {
            Operation::Stalls(entry) => (entry, Operation::Logged),
            Operation::Ticks(entry, read, fence) => (entry, Operation::TickLogged(read, fence)),
            _ => return None,
        };
        let is_bound = entry.term == state.term || self.rules.check != Check::AtAppend;
        let is_taken = entry.node == state.leader && is_bound && state.suffix.push(entry, state.term);
        *state.operation(asker) = if is_taken { then } else { Operation::Over };
        Some(())
    }

    fn commit(&self, state: &mut State) -> Option<()> {
        let (entry, term) = state.suffix.pop()?;
        state.log_stamp = state.log_stamp.max(entry.stamp);
        if entry.term != term && self.rules.check == Check::AtApply {
            if let Some(asker) = entry.asker {
                *state.operation(asker) = Operation::Over;
            }
            return Some(());
        }
        let applied = state.machine.apply(entry.stamp, entry.command, entry.sent);
        if let Some(expired) = applied.expired.filter(|_| self.bounds.outages > 0) {
            let outage = state.outage - expired.extended.outage;
            let counts = state.now - expired.extended.at - outage + outage.min(T);
            state.outage_counted |= counts < self.rules.acts_for;
        }
        state.came_back |=
            matches!(entry.command, Command::Renew { .. }) && applied.granted.is_some_and(|it| it <= state.seen_over);
        let Some(asker) = entry.asker else { return Some(()) };
        let next = match (*state.operation(asker), applied.granted) {
            (Operation::TickLogged(read, fence), _) if self.rules.reading == Reading::Remembered => {
                show_over(state, fence, read.stamp);
                Operation::Over
            }
            (Operation::TickLogged(read, _), _) => Operation::Reads(read),
            (_, Some(fence)) => Operation::Answered { fence, sent_at: entry.sent.at },
            (_, None) => Operation::Over,
        };
        *state.operation(asker) = next;
        Some(())
    }

    /// A holder hears, and counts from before it sent. A late answer about an earlier grant changes nothing.
    fn hear(&self, state: &mut State, asker: Asker) -> Option<()> {
        let Operation::Answered { fence, sent_at } = *state.operation(asker) else { return None };
        *state.operation(asker) = Operation::Over;
        let from = if self.rules.from_answer { state.now } else { sent_at };
        let until = from + self.rules.acts_for;
        let held = &mut state.clients[usize::from(asker.client)].held;
        if fence > held.fence {
            *held = Held { fence, until };
        } else if fence == held.fence {
            held.until = held.until.max(until);
        }
        Some(())
    }
}

/// The next operation of `client`.
fn next(state: &State, client: u8) -> Option<Asker> {
    let mut operations = state.operations().filter(|(asker, _)| asker.client == client);
    operations.find(|(_, it)| *it == Operation::Ahead).map(|(asker, _)| asker)
}

/// Somebody is shown that grants up to `fence` were over at `stamp`. One that lives in a state after that was renewed.
fn show_over(state: &mut State, fence: u8, stamp: u8) {
    state.seen_over = state.seen_over.max(fence);
    let lives = state.machine.grant.is_some_and(|grant| grant.fence <= fence);
    state.came_back |= lives && state.machine.clock >= stamp;
}
