//! The replicated machine: one lease, and the cluster clock.
//!
//! Invariants: the clock never goes back (`now = max(clock, stamp)`); a grant is over when `now >= deadline`, which
//! is judged before each command; fences grow with each grant; RENEW needs the live grant's fence and never shortens.

use crate::variants::TTL;

/// When something was sent, and what a judge of outages must know of that moment. No rule of the protocol reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sent {
    /// Real time.
    pub at: u8,
    /// How much time had passed without a quorum.
    pub outage: u8,
}

/// A live grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Its number.
    pub fence: u8,
    /// It is over from then on, cluster clock.
    pub deadline: u8,
    /// When the youngest command that extended it was sent.
    pub extended: Sent,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Granted if nothing is held.
    Acquire,
    /// Extends the grant of this fence.
    Renew {
        /// The fence.
        fence: u8,
    },
    /// Lets time pass.
    Tick,
}

/// The replicated machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Machine {
    /// The cluster clock.
    pub clock: u8,
    /// The last fence given.
    pub fence: u8,
    /// The live grant.
    pub grant: Option<Grant>,
}

/// What an entry did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Applied {
    /// The grant that expired.
    pub expired: Option<Grant>,
    /// The fence that was granted or extended: the answer `true`.
    pub granted: Option<u8>,
}

impl Machine {
    /// Applies `command`, which was sent at `sent` and stamped `stamp`.
    pub fn apply(&mut self, stamp: u8, command: Command, sent: Sent) -> Applied {
        self.clock = self.clock.max(stamp);
        let expired = self.grant.take_if(|grant| self.clock >= grant.deadline);
        let deadline = self.clock + TTL;
        let granted = match (command, &mut self.grant) {
            (Command::Acquire, held @ None) => {
                self.fence += 1;
                *held = Some(Grant { fence: self.fence, deadline, extended: sent });
                Some(self.fence)
            }
            (Command::Renew { fence }, Some(grant)) if grant.fence == fence => {
                grant.deadline = grant.deadline.max(deadline);
                grant.extended = grant.extended.max(sent);
                Some(fence)
            }
            (Command::Acquire | Command::Renew { .. } | Command::Tick, _) => None,
        };
        Applied { expired, granted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_over_at_its_deadline() {
        let mut machine = Machine::default();
        let mut apply = |stamp, command| machine.apply(stamp, command, Sent::default()).granted;
        assert_eq!(apply(1, Command::Acquire), Some(1));
        assert_eq!(apply(2, Command::Acquire), None, "held");
        assert_eq!(apply(2, Command::Renew { fence: 1 }), Some(1));
        assert_eq!(apply(1, Command::Renew { fence: 1 }), Some(1), "an old stamp does not take the clock back");
        assert_eq!(apply(3, Command::Renew { fence: 2 }), None, "another's");
        assert_eq!(apply(4, Command::Renew { fence: 1 }), None, "2 + TTL: over, though nobody took over");
        assert_eq!(apply(4, Command::Acquire), Some(2));
        assert_eq!(apply(4, Command::Renew { fence: 1 }), None);
    }

    #[test]
    fn a_tick_ends_what_is_over_and_grants_nothing() {
        let mut machine = Machine::default();
        machine.apply(0, Command::Acquire, Sent::default());
        assert!(machine.apply(TTL - 1, Command::Tick, Sent::default()).expired.is_none());
        let applied = machine.apply(TTL, Command::Tick, Sent::default());
        assert_eq!((applied.expired.map(|grant| grant.fence), applied.granted, machine.grant), (Some(1), None, None));
    }
}
