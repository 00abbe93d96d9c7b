//! What must hold of the nodes, looked at after every step of every machine; and of the whole run, at its end.
//!
//! # Model
//! [`Watched`] is the real machine. Each of its steps is told to the [`Ledger`] of the run: where it stands in the log, what
//! was ordered and answered, and a digest of the whole state after it. The first node to take a step writes it into the
//! ledger's log (`log`), and all others are compared with that. What is written is also judged by itself: the grants by
//! the contract's rules (`grants`), which know nothing of how the keyspace keeps them. Votes and leaders are told by the
//! world (`votes`).
//!
//! # Laws
//! - `LogsAgree`: one position holds one command under one stamp, on every node; no node knows more or less of an entry.
//! - `StatesAgree`: equal positions, equal replies and equal states, byte for byte; also after a snapshot was loaded.
//! - `PositionsGrow`: a node applies entries in order and skips none; only a restart, or a snapshot, sets it elsewhere.
//! - `ClockGrows`: stamps never fall along the log.
//! - `ClockKeepsPace`: since the first stamp the clock went on by at most the true time since the beginning, times 1 + rho.
//! - `AppliedOnce`: a client's try is in the log once. (Clients see to it that no two tries are the same bytes.)
//! - `NotEarly`, `EndedStaysEnded`, `DeadlinesStand`, `FencesGrow`, `TokensOnly`, `FreeIsGranted`,
//!   `StaysShut`: see `grants`.
//! - `FirstComeFirst`, `NobodyWaitsForFree`, `WaitsEndOnce`, `PlacesStand`, `UndeliveredIsUnheard`, `EdgesLapse`: see
//!   `waiting`.
//! - `OneGrantOfSlot`, `OneSlotOfIdentity`, `IdsInRange`, `IdsInOrder`, `QuarantineStands`, `SupersededStaysOut`,
//!   `TakeoversStand`, `LostIsLost`, `ExhaustedIsFull`, `FloorStands`, `EndsAreTold`, `ReadsAgree`: see `pools`.
//! - `AllOrNothing`: a BATCH that did not do all leaves the state as it was, and tells nothing.
//! - `EventsAgree`: see `events`.
//! - `VoteStands`: see `votes`.
//! - `OutagesGiveBack`, `StuckTimeStands`: see `outages`.
//! - `AckedIsLogged`: what a client was answered stands in the log, at its position, with that reply; what an edge answers
//!   a waiting request came of a request of that token, at that position.
//! - `SurelyNot`: what a client was told is surely without effect does not stand in the log, nor what an edge was.
//!
//! # Not promised
//! - A tight bound on the clock's pace: from when a stamp was taken to when it is applied nobody tells. The checker's rule
//!   of that name knows when the client asked, and is the tight one.
//! - `AppliedOnce` for CREATE.
//! - A reason why. The first violation is the one to look at: of all [`VIOLATIONS_MAX`] are kept.

mod acknowledged;
mod events;
mod grants;
mod ledger;
mod line;
mod log;
mod outages;
mod pools;
#[cfg(test)]
mod tests;
mod votes;
mod waiting;

use std::hash::{DefaultHasher, Hasher};
use std::io;

use serde::Serialize;
use tenure::edge::Ask;
use tenure::keyspace::{Command, Event, Keyspace, Reply};
use tenure_cluster::{LoadError, Moment, Stamp, StateMachine};

pub use ledger::{Installed, Ledger};
pub use pools::records::Shown;

use crate::runtime;
use log::{Passed, Place, Taken};

/// Kept of a run.
const VIOLATIONS_MAX: usize = 20;

/// A broken promise: the law's name (as docs/testing.md has it) and what was seen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// For example `NotEarly`.
    pub law: String,
    /// One line.
    pub detail: String,
}

/// Violations up to their greatest number. The first ones are kept.
#[derive(Debug, Default)]
struct Verdict(Vec<Violation>);

impl Verdict {
    fn violated(&mut self, law: &str, detail: impl FnOnce() -> String) {
        if self.0.len() < VIOLATIONS_MAX {
            self.0.push(Violation { law: law.to_owned(), detail: detail() });
        }
    }
}

/// The real machine, every step of which is told to the ledger that is installed on this thread. Without one it is just
/// the machine (and nothing that is answered counts as logged).
#[derive(Clone, Debug, Default)]
pub struct Watched {
    keyspace: Keyspace,
    place: Place,
}

impl Watched {
    /// What it watches.
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }
}

impl AsRef<Keyspace> for Watched {
    fn as_ref(&self) -> &Keyspace {
        &self.keyspace
    }
}

impl StateMachine for Watched {
    type Command = Command;
    type Reply = Reply;
    type Event = Event;
    const FORMAT_VERSION: u16 = Keyspace::FORMAT_VERSION;

    fn command_format(command: &Command) -> u16 {
        Keyspace::command_format(command)
    }

    fn reply_format(reply: &Reply) -> u16 {
        Keyspace::reply_format(reply)
    }

    fn state_format(&self) -> u16 {
        self.keyspace.state_format()
    }

    fn reply_bytes_max(command: &Command) -> usize {
        Keyspace::reply_bytes_max(command)
    }

    fn advance(&mut self, moment: &Moment, events: &mut Vec<Event>) {
        let before = events.len();
        self.keyspace.advance(moment, events);
        if let Some(ledger) = Ledger::installed() {
            let passed = Passed { moment, events: &events[before..], state: state_digest(&self.keyspace) };
            ledger.advanced(runtime::host(), runtime::now_ns(), &mut self.place, &passed);
        }
    }

    fn apply(&mut self, moment: &Moment, command: Command, events: &mut Vec<Event>) -> Reply {
        let Some(ledger) = Ledger::installed() else { return self.keyspace.apply(moment, command, events) };
        let before = events.len();
        let reply = self.keyspace.apply(moment, command.clone(), events);
        let (state, told) = (state_digest(&self.keyspace), &events[before..]);
        let taken = Taken { moment, command: &command, reply: &reply, events: told, state };
        ledger.applied(runtime::host(), &mut self.place, &taken);
        reply
    }

    fn wake(&self) -> Option<Stamp> {
        self.keyspace.wake()
    }

    fn save(&self, sink: &mut dyn io::Write) -> io::Result<()> {
        self.keyspace.save(sink)
    }

    fn load(source: &mut dyn io::Read) -> Result<Self, LoadError> {
        let keyspace = Keyspace::load(source)?;
        let state = state_digest(&keyspace);
        if let Some(ledger) = Ledger::installed() {
            ledger.loaded(runtime::host(), state);
        }
        Ok(Self { keyspace, place: Place::loaded(state) })
    }
}

/// Of bytes. Equal in every process.
fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Of the whole state.
fn state_digest(keyspace: &Keyspace) -> u64 {
    let mut bytes = Vec::with_capacity(4096);
    keyspace.save(&mut bytes).expect("a vector takes everything");
    digest(&bytes)
}

/// Of a command or reply.
fn value_digest(value: &impl Serialize) -> u64 {
    digest(&serde_json::to_vec(value).expect("commands and replies are plain values"))
}

/// Of what a request waits for.
fn ask_digest(ask: &Ask) -> u64 {
    match ask {
        Ask::Owner(ask) => value_digest(ask),
        Ask::Identity(ask) => value_digest(ask),
    }
}
