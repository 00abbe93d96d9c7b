//! A second machine beside the product's own: a counter that can be armed to fall back to zero. It proves that nothing
//! in this crate knows what it replicates, and serves tests and examples.

use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use crate::codec::{self, Kind};
use crate::machine::{LoadError, Moment, NeedsTick, ReadAt, Stamp, StateMachine};

/// Most bytes a saved counter has.
const SAVED_BYTES_MAX: u64 = 256;

/// What a counter is told. Answered with the sum after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Adds to the sum (wrapping).
    Add(u64),
    /// The sum falls to zero in so many milliseconds; a later call moves the time.
    ResetIn(u64),
    /// Adds one and carries so many bytes along, for tests of the log's size.
    Padded(Vec<u8>),
}

/// The sum fell to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// What it was before.
    pub from: u64,
    /// When it was due.
    pub due: Stamp,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    sum: u64,
    commands: u64,
    reset_at: Option<Stamp>,
}

impl Counter {
    /// The sum as of `at`: zero once a reset is due.
    ///
    /// # Errors
    /// [`NeedsTick`] when a reset is due that is not in the log.
    pub fn sum(&self, at: ReadAt) -> Result<u64, NeedsTick> {
        match self.reset_at {
            Some(due) if at.passed(due)? => Ok(0),
            _ => Ok(self.sum),
        }
    }

    /// How many commands were applied.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.commands
    }
}

impl StateMachine for Counter {
    type Command = Command;
    type Reply = u64;
    type Event = Reset;
    const FORMAT_VERSION: u16 = 1;

    fn advance(&mut self, moment: &Moment, events: &mut Vec<Reset>) {
        if let Some(due) = self.reset_at.filter(|due| *due <= moment.stamp) {
            events.push(Reset { from: self.sum, due });
            self.sum = 0;
            self.reset_at = None;
        }
    }

    fn apply(&mut self, moment: &Moment, command: Command, _events: &mut Vec<Reset>) -> u64 {
        self.commands += 1;
        match command {
            Command::Add(amount) => self.sum = self.sum.wrapping_add(amount),
            Command::ResetIn(ms) => self.reset_at = Some(moment.stamp.plus_ms(ms)),
            Command::Padded(_) => self.sum = self.sum.wrapping_add(1),
        }
        self.sum
    }

    fn wake(&self) -> Option<Stamp> {
        self.reset_at
    }

    fn save(&self, sink: &mut dyn io::Write) -> io::Result<()> {
        let bytes = codec::encode(Kind::Machine, Self::FORMAT_VERSION, self).map_err(io::Error::other)?;
        sink.write_all(&bytes)
    }

    fn load(source: &mut dyn io::Read) -> Result<Self, LoadError> {
        let mut bytes = Vec::new();
        source.take(SAVED_BYTES_MAX).read_to_end(&mut bytes)?;
        codec::decode(Kind::Machine, Self::FORMAT_VERSION, &bytes).map_err(|error| LoadError::Form(error.to_string()))
    }
}
