//! The contract between replication and the machine that is replicated.
//!
//! Model: a machine is a value that changes only by [`StateMachine::advance`] and [`StateMachine::apply`], which are
//! functions of their arguments alone: no clock, no I/O, no randomness, no iteration order that differs between
//! processes. Two machines that were given the same calls are equal, byte for byte in [`StateMachine::save`].
//!
//! Invariants kept by the cluster: stamps never decrease; `advance(moment)` is called once before the commands of each
//! entry; a clone is taken for each snapshot, so `Clone` must cost O(1) (persistent maps).
//!
//! Not promised: that a command is applied at most once per client intent (idempotence is the machine's own business).

use std::fmt;
use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A point on the cluster clock: milliseconds, carried by every entry, never decreasing. It starts near the founder's
/// wall time, and from then on no wall clock decides anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Stamp(pub u64);

impl Stamp {
    /// The stamp `ms` milliseconds later (saturating).
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` until this stamp, 0 if `earlier` is not earlier.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where a command stands in the log: the entry's index and the command's ordinal in that entry (from 0).
/// Written `index.n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Position {
    /// Log index of the entry.
    pub index: u64,
    /// Ordinal of the command in the entry, from 0.
    pub ordinal: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.ordinal)
    }
}

/// When and where a command is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// `max(last stamp, the entry's stamp)`: the only time that decides.
    pub stamp: Stamp,
    /// The command's place in the log.
    pub position: Position,
    /// The leader's wall clock when it made the entry, Unix milliseconds. For display only.
    pub wall_ms: u64,
}

/// What a read may lean on: the state reflects all time up to `applied`; the leader's clock stood at `now`
/// (`now >= applied`) when the read was ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAt {
    /// The last applied stamp.
    pub applied: Stamp,
    /// The leader's stamp for this read. Remaining times are counted from here.
    pub now: Stamp,
}

impl ReadAt {
    /// Has `deadline` passed, so far as a reader may see it? An expiry that is not in the log is never shown: between
    /// `applied` and `now` the answer is [`NeedsTick`], and the cluster commits a tick and reads again.
    ///
    /// # Errors
    /// [`NeedsTick`] when `applied < deadline <= now`.
    pub fn passed(&self, deadline: Stamp) -> Result<bool, NeedsTick> {
        if deadline <= self.applied {
            Ok(true)
        } else if deadline > self.now {
            Ok(false)
        } else {
            Err(NeedsTick)
        }
    }
}

/// The answer hangs on time that is not in the log yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsTick;

/// A snapshot's bytes are not what this machine writes.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Reading failed.
    #[error("reading the snapshot failed")]
    Io(#[from] io::Error),
    /// The bytes have another form than expected; the text says where.
    #[error("snapshot has an unexpected form: {0}")]
    Form(String),
}

/// A deterministic machine. See the module's head for its duties.
pub trait StateMachine: Clone + Default + Send + Sync + 'static {
    /// What is logged. A persisted format: one frozen type per version, variants only ever appended.
    type Command: Serialize + DeserializeOwned + Send + Sync + fmt::Debug + 'static;
    /// What a command answers.
    type Reply: Serialize + DeserializeOwned + Send + Sync + fmt::Debug + 'static;
    /// What happened, for whoever listens on any node. Not persisted.
    type Event: Clone + Send + Sync + fmt::Debug + 'static;

    /// The highest version of the formats of `Command`, `Reply` and `save` that this build reads. What needs less is
    /// written as less. A version is ordered only once the cluster's feature level has reached it.
    const FORMAT_VERSION: u16;

    /// The format that `command` needs.
    fn command_format(command: &Self::Command) -> u16 {
        let _ = command;
        1
    }

    /// The format that `reply` needs.
    fn reply_format(reply: &Self::Reply) -> u16 {
        let _ = reply;
        1
    }

    /// The format that [`StateMachine::save`] writes this state in.
    fn state_format(&self) -> u16 {
        1
    }

    /// Bytes that the reply to `command` may have beyond a few hundred: bounds what the replies of one entry, and of all
    /// commands that wait, can take.
    fn reply_bytes_max(command: &Self::Command) -> usize {
        let _ = command;
        0
    }

    /// Lets time pass: timers at or before `moment.stamp` fire, at most a bounded number a call.
    fn advance(&mut self, moment: &Moment, events: &mut Vec<Self::Event>);

    /// Applies one command. A refusal is a reply.
    fn apply(&mut self, moment: &Moment, command: Self::Command, events: &mut Vec<Self::Event>) -> Self::Reply;

    /// The earliest stamp at which `advance` has work; `None` when no timer is outstanding. May lie in the past while
    /// a backlog is worked off.
    fn wake(&self) -> Option<Stamp>;

    /// Writes the whole state. Equal states write equal bytes.
    ///
    /// # Errors
    /// Only those of `sink`.
    fn save(&self, sink: &mut dyn io::Write) -> io::Result<()>;

    /// Reads what [`StateMachine::save`] wrote, to its last byte.
    ///
    /// # Errors
    /// [`LoadError`] when the source fails or its bytes are of another form.
    fn load(source: &mut dyn io::Read) -> Result<Self, LoadError>;
}
