//! What can happen next: which actions are possible in a state.
//!
//! One action is one atomic step of one part. Whatever takes time in the real thing (a handler between stamp and
//! append, a commit, an answer, a read between proof and answer) is an action of its own, so that everything else may
//! come between.

use crate::machine::Command;
use crate::model::Protocol;
use crate::state::{Asker, NODES, Operation, SUFFIX, State};
use crate::variants::Stamps;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A unit of time passes; on the nodes two, if `double`.
    Pass {
        /// The nodes' clocks run at twice the rate.
        double: bool,
    },
    /// No quorum follows the leader any more.
    LoseQuorum,
    /// A quorum follows it again.
    FindQuorum,
    /// `node` becomes leader of the next term and keeps the first `keep` uncommitted entries.
    Elect {
        /// The node.
        node: u8,
        /// How many.
        keep: usize,
    },
    /// `client` sends a command to `node`, which believes that it leads and stamps it.
    Send {
        /// The client.
        client: u8,
        /// The node.
        node: u8,
        /// The command.
        command: Command,
    },
    /// `client` reads; the leader proves that it leads, and takes its clock.
    Read {
        /// The client.
        client: u8,
    },
    /// A read looks at the state: it answers, or has a tick stamped.
    Look(Asker),
    /// A handler wakes up and hands its stamped entry to the log, which may refuse.
    Append(Asker),
    /// The leader stamps and appends a tick for a timer that is due.
    TickForTimer,
    /// The first uncommitted entry is committed and applied.
    Commit,
    /// The client hears that it holds.
    Hear(Asker),
}

/// All that can happen in `state`.
pub fn possible(protocol: &Protocol, state: &State, actions: &mut Vec<Action>) {
    time(protocol, state, actions);
    replication(protocol, state, actions);
    sending(protocol, state, actions);
    for (asker, operation) in state.operations() {
        match operation {
            Operation::Stalls(_) | Operation::Ticks(..) => {
                if state.suffix.len() < SUFFIX {
                    actions.push(Action::Append(asker));
                }
            }
            Operation::Answered { .. } => actions.push(Action::Hear(asker)),
            Operation::Reads(_) => actions.push(Action::Look(asker)),
            Operation::Ahead | Operation::Logged | Operation::TickLogged(..) | Operation::Over => {}
        }
    }
}

fn time(protocol: &Protocol, state: &State, actions: &mut Vec<Action>) {
    if state.now < protocol.bounds.horizon {
        actions.push(Action::Pass { double: false });
        if protocol.rules.may_run_double {
            actions.push(Action::Pass { double: true });
        }
    }
    if !state.has_quorum {
        actions.push(Action::FindQuorum);
    } else if state.outages < protocol.bounds.outages {
        actions.push(Action::LoseQuorum);
    }
}

fn replication(protocol: &Protocol, state: &State, actions: &mut Vec<Action>) {
    let uncommitted = state.suffix.len();
    if state.has_quorum && uncommitted > 0 {
        actions.push(Action::Commit);
    }
    if state.has_quorum && state.term < protocol.bounds.terms {
        let choices = (0..NODES).flat_map(|node| (0..=uncommitted).map(move |keep| Action::Elect { node, keep }));
        actions.extend(choices);
    }
    let is_due = state.machine.grant.is_some_and(|grant| protocol.clock(state, state.leader) >= Some(grant.deadline));
    if is_due && uncommitted < SUFFIX && state.suffix.iter().all(|(entry, _)| entry.asker.is_some()) {
        actions.push(Action::TickForTimer);
    }
}

fn sending(protocol: &Protocol, state: &State, actions: &mut Vec<Action>) {
    for (client, it) in (0..protocol.bounds.clients).zip(&state.clients) {
        let is_left = it.operations.contains(&Operation::Ahead);
        // The clients are alike: which of them begins makes no difference.
        let may_begin = client == 0 || state.clients[0].operations[0] != Operation::Ahead;
        if !is_left || !may_begin {
            continue;
        }
        for node in (0..NODES).filter(|node| state.lead(*node).is_some()) {
            if it.held.until <= state.now {
                actions.push(Action::Send { client, node, command: Command::Acquire });
            }
            if it.held.fence > 0 {
                actions.push(Action::Send { client, node, command: Command::Renew { fence: it.held.fence } });
            }
        }
        if state.has_quorum {
            actions.push(Action::Read { client });
        }
    }
}

impl Protocol {
    /// The clock that `node` stamps by; `None` while it has never led.
    pub fn clock(&self, state: &State, node: u8) -> Option<u8> {
        let lead = state.lead(node)?;
        Some(match self.rules.stamps {
            Stamps::Anchored => lead.clock,
            Stamps::Wall { ahead } if node == 1 => state.now + ahead,
            Stamps::Wall { .. } => state.now,
        })
    }
}
