//! What can no longer matter is forgotten: states that differ in nothing else are one, and there are far fewer of
//! them.
//!
//! Invariant (`tests/reduction.rs` checks it on the first states of each variant's search): a state and what
//! is left of it have the same properties; each action leaves the same of both; and an action that is possible in
//! only one of them changes nothing that is left. So whatever can go wrong from one can go wrong from the other.

use crate::machine::{Command, Machine, Sent};
use crate::model::Protocol;
use crate::state::{Client, Entry, Held, Lead, Operation, State};
use crate::variants::{Check, T};

impl Protocol {
    /// What is left of `state`.
    #[must_use]
    pub fn reduced(&self, mut state: State) -> State {
        for lead in state.leads.iter_mut().flatten().filter(|lead| self.is_stale(lead.term, state.term)) {
            // It can stamp nothing that is taken.
            *lead = Lead { term: lead.term, clock: 0, silence: T };
        }
        for (entry, appended) in state.suffix.iter_mut() {
            self.reduce_entry(entry, state.now, &state.machine);
            if self.rules.check != Check::AtApply {
                (entry.node, entry.term, *appended) = (0, 0, 0);
            }
        }
        for client in &mut state.clients {
            if client.held.until <= state.now {
                client.held = Held { until: 0, ..client.held };
            }
            let Client { operations, held } = client;
            for operation in operations {
                self.reduce_operation(operation, *held, state.now, state.term, &state.machine);
            }
        }
        if state.machine.grant.is_none_or(|grant| grant.fence > state.seen_over) {
            // What was seen is over indeed.
            state.seen_over = 0;
        }
        if let Some(grant) = state.machine.grant.as_mut().filter(|_| self.bounds.outages == 0) {
            // Asked only about an outage; and so is the verdict.
            grant.extended = Sent::default();
        }
        state
    }

    fn reduce_operation(&self, operation: &mut Operation, held: Held, now: u8, term: u8, machine: &Machine) {
        match operation {
            Operation::Stalls(entry) | Operation::Ticks(entry, ..) if self.is_stale(entry.term, term) => {
                // It can only be refused.
                *operation = Operation::Over;
            }
            Operation::Stalls(entry) => self.reduce_entry(entry, now, machine),
            Operation::Answered { fence, sent_at }
                if !self.rules.from_answer && *sent_at + self.rules.acts_for <= now =>
            {
                // It tells a fence at most.
                *operation = if *fence > held.fence {
                    Operation::Answered { fence: *fence, sent_at: 0 }
                } else {
                    Operation::Over
                };
            }
            _ => {}
        }
    }

    fn reduce_entry(&self, entry: &mut Entry, now: u8, machine: &Machine) {
        if matches!(entry.command, Command::Renew { fence } if !machine.may_live(fence)) {
            entry.command = Command::Tick;
            entry.sent = Sent::default();
        }
        if self.bounds.outages == 0 && entry.sent.at + self.rules.acts_for <= now {
            // Nobody will act on it.
            entry.sent = Sent::default();
        }
    }

    /// Surely refused, whatever comes.
    fn is_stale(&self, stamped: u8, term: u8) -> bool {
        self.rules.check == Check::AtAppend && stamped < term
    }
}

impl Machine {
    /// Can the grant of `fence` still be renewed?
    fn may_live(&self, fence: u8) -> bool {
        self.grant.is_some_and(|grant| grant.fence == fence)
    }
}
