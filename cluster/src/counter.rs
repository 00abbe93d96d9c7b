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
    // From here on format 2.
    /// The sum is taken so many times (wrapping). Zero times: it falls to zero at once.
    Times(u64),
}

/// The sum fell to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// What it was before.
    pub from: u64,
    /// When it was due, or was told to.
    pub due: Stamp,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    sum: u64,
    commands: u64,
    reset_at: Option<Stamp>,
    /// How many of the commands were of format 2.
    times: u64,
}

/// What is saved of a counter that was never told a command of format 2.
type SavedV1 = (u64, u64, Option<Stamp>);
/// What is saved of any other.
type SavedV2 = (u64, u64, Option<Stamp>, u64);

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
    const FORMAT_VERSION: u16 = 2;

    fn command_format(command: &Command) -> u16 {
        match command {
            Command::Add(_) | Command::ResetIn(_) | Command::Padded(_) => 1,
            Command::Times(_) => 2,
        }
    }

    fn state_format(&self) -> u16 {
        if self.times == 0 { 1 } else { 2 }
    }

    fn advance(&mut self, moment: &Moment, events: &mut Vec<Reset>) {
        if let Some(due) = self.reset_at.filter(|due| *due <= moment.stamp) {
            events.push(Reset { from: self.sum, due });
            self.sum = 0;
            self.reset_at = None;
        }
    }

    fn apply(&mut self, moment: &Moment, command: Command, events: &mut Vec<Reset>) -> u64 {
        self.commands += 1;
        match command {
            Command::Add(amount) => self.sum = self.sum.wrapping_add(amount),
            Command::ResetIn(ms) => self.reset_at = Some(moment.stamp.plus_ms(ms)),
            Command::Padded(_) => self.sum = self.sum.wrapping_add(1),
            Command::Times(times) => {
                if times == 0 {
                    events.push(Reset { from: self.sum, due: moment.stamp });
                }
                self.sum = self.sum.wrapping_mul(times);
                self.times += 1;
            }
        }
        self.sum
    }

    fn wake(&self) -> Option<Stamp> {
        self.reset_at
    }

    fn save(&self, sink: &mut dyn io::Write) -> io::Result<()> {
        let Self { sum, commands, reset_at, times } = *self;
        let bytes = match self.state_format() {
            1 => codec::encode::<SavedV1>(Kind::Machine, 1, &(sum, commands, reset_at)),
            format => codec::encode::<SavedV2>(Kind::Machine, format, &(sum, commands, reset_at, times)),
        };
        sink.write_all(&bytes.map_err(io::Error::other)?)
    }

    fn load(source: &mut dyn io::Read) -> Result<Self, LoadError> {
        let mut bytes = Vec::new();
        source.take(SAVED_BYTES_MAX).read_to_end(&mut bytes)?;
        let form = |error: codec::DecodeError| LoadError::Form(error.to_string());
        let (format, body) = codec::open(Kind::Machine, Self::FORMAT_VERSION, &bytes).map_err(form)?;
        let (sum, commands, reset_at, times) = if format == 1 {
            let (sum, commands, reset_at) = codec::decode_body::<SavedV1>(Kind::Machine, body).map_err(form)?;
            (sum, commands, reset_at, 0)
        } else {
            codec::decode_body::<SavedV2>(Kind::Machine, body).map_err(form)?
        };
        Ok(Self { sum, commands, reset_at, times })
    }
}
