//! The machine as replication sees it: bytes in, bytes out, whatever its types.
//!
//! Why a trait object: openraft's core is large and generic over its state machine. With the machine's type hidden here
//! it is compiled once, in this crate, and not again in each crate that replicates a machine.
//!
//! For each entry of commands: the clock is clamped (`max(last stamp, the entry's stamp)`), the machine advances once,
//! then takes each command; readers see the new state, the listener hears the events, the submitter gets the replies, in
//! this order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::answer::Heard;
use crate::cluster::{EventAt, EventSink};
use crate::codec::{DecodeError, EncodeError};
use crate::entry::{self, BatchV1, Content, ControlV1};
use crate::level::{FEATURE_LEVEL, FIRST_FEATURE_LEVEL};
use crate::machine::{LoadError, Moment, Position, Stamp, StateMachine};
use crate::persisted::LogIdV1;
use crate::raft::{Batch, PlainMembership, Replies};
use crate::replica::{Replica, State};
use crate::snapshot::{Head, SnapshotStore, Stored};

/// Writes a frozen state to a snapshot. Dropping it may take long: off the apply path.
pub type Save = Box<dyn Fn(&mut dyn io::Write) -> io::Result<()> + Send + Sync>;

/// A state that a snapshot replaced. Dropping it may take long: off the apply path.
pub type Replaced = Box<dyn Send>;

/// An entry that cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// It does not decode.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A reply does not encode.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The cluster has gone beyond this build.
    #[error(
        "it raises the cluster's feature level to {level}, and this build supports up to {known}: start a newer build"
    )]
    Level {
        /// The level.
        level: u16,
        /// The highest this build supports.
        known: u16,
    },
}

/// A command that is not to be ordered: applying it would stop every node that does not read it.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// No node of this build reads it.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Not every member reads it yet.
    #[error("it needs feature level {needs}, and the cluster works at {level}")]
    Level {
        /// The level it needs.
        needs: u16,
        /// The level of this node's state.
        level: u16,
    },
}

/// See the module's head.
pub trait Host: Send + Sync {
    /// Entries up to `index` were committed before this start: their events are marked as replayed.
    fn committed_before(&self, index: u64);

    /// The highest feature level this build supports.
    fn supports(&self) -> u16;

    /// The cluster's feature level in this node's state.
    fn level(&self) -> u16;

    /// Would every node that is at the present feature level apply this encoded command?
    ///
    /// # Errors
    /// [`Unfit`]: it must not be ordered.
    fn accepts(&self, command: &[u8]) -> Result<(), Unfit>;

    /// Applies an entry of commands; encodes the replies if somebody waits for them.
    ///
    /// # Errors
    /// [`HostError`]; what does not decode has changed nothing.
    fn apply(&self, id: LogIdV1, batch: &Batch, is_awaited: bool) -> Result<Replies, HostError>;

    /// Takes in an entry of replication's own.
    fn pass(&self, id: LogIdV1, membership: Option<PlainMembership>) -> Replies;

    /// The last applied entry and the membership.
    fn applied(&self) -> (Option<LogIdV1>, PlainMembership);

    /// The last applied entry.
    fn last(&self) -> Option<LogIdV1>;

    /// The state now, as a snapshot; `None` before the first entry.
    fn freeze(&self) -> Option<(Head, Save)>;

    /// Replaces the state by a snapshot's.
    ///
    /// # Errors
    /// [`LoadError`]; the state is as it was.
    fn install(
        &self,
        snapshots: &dyn SnapshotStore,
        stored: &Stored,
        membership: PlainMembership,
    ) -> Result<Replaced, LoadError>;
}

/// A machine with its listener.
pub struct Hosted<M: StateMachine> {
    replica: Arc<Replica<M>>,
    events: EventSink<M::Event>,
    replay_to: AtomicU64,
    feature_level: u16,
}

impl<M: StateMachine> Hosted<M> {
    /// The machine of `replica`, heard by `events`.
    pub fn new(replica: Arc<Replica<M>>, events: EventSink<M::Event>) -> Self {
        const { assert!(M::FORMAT_VERSION <= FEATURE_LEVEL, "a format needs a feature level") };
        Self { replica, events, replay_to: AtomicU64::new(0), feature_level: FEATURE_LEVEL }
    }

    /// As a build does that supports feature levels up to this one.
    #[cfg(test)]
    pub fn supporting(self, feature_level: u16) -> Self {
        Self { feature_level, ..self }
    }

    fn control(&self, id: LogIdV1, control: ControlV1) -> Result<Replies, HostError> {
        let ControlV1::RaiseFeatureLevel(level) = control;
        if level > self.feature_level {
            return Err(HostError::Level { level, known: self.feature_level });
        }
        let clock = self.replica.change(|state| {
            state.last = Some(id);
            state.ordinal = 0;
            state.feature_level = state.feature_level.max(level);
            state.stamp
        });
        Ok(Replies { index: id.index, clock: clock.0, replies: Vec::new() })
    }
}

impl<M: StateMachine> Host for Hosted<M> {
    fn committed_before(&self, index: u64) {
        self.replay_to.store(index, Ordering::Relaxed);
    }

    fn supports(&self) -> u16 {
        self.feature_level
    }

    fn level(&self) -> u16 {
        self.replica.level().max(FIRST_FEATURE_LEVEL)
    }

    fn accepts(&self, command: &[u8]) -> Result<(), Unfit> {
        let needs = M::command_format(&entry::decode_command::<M>(command)?);
        let level = self.level();
        if needs <= level { Ok(()) } else { Err(Unfit::Level { needs, level }) }
    }

    fn apply(&self, id: LogIdV1, batch: &Batch, is_awaited: bool) -> Result<Replies, HostError> {
        let batch = match entry::content(&batch.0)? {
            Content::Batch(batch) => Decoded::<M>::of(batch)?,
            Content::Control(control) => return self.control(id, control),
        };
        let (mut heard, wall_ms) = (Vec::new(), batch.wall_ms);
        let (clock, replies) = self.replica.change(|state| batch.run(state, id, &mut heard));
        let replay = id.index <= self.replay_to.load(Ordering::Relaxed);
        let mut at = EventAt { position: Position::default(), nth: 0, stamp: clock, wall_ms, term: id.term, replay };
        for (position, event) in &heard {
            at.nth = if at.position == *position { at.nth + 1 } else { 0 };
            at.position = *position;
            (self.events)(Heard::Event(at, event));
        }
        let replies = if is_awaited { entry::encode_replies::<M>(&replies)? } else { Vec::new() };
        Ok(Replies { index: id.index, clock: clock.0, replies })
    }

    fn pass(&self, id: LogIdV1, membership: Option<PlainMembership>) -> Replies {
        let clock = self.replica.change(|state| {
            state.last = Some(id);
            state.ordinal = 0;
            if let Some(membership) = membership {
                state.membership = membership;
            }
            state.stamp
        });
        Replies { index: id.index, clock: clock.0, replies: Vec::new() }
    }

    fn applied(&self) -> (Option<LogIdV1>, PlainMembership) {
        self.replica.peek(|state| (state.last, state.membership.clone()))
    }

    fn last(&self) -> Option<LogIdV1> {
        self.replica.peek(|state| state.last)
    }

    fn freeze(&self) -> Option<(Head, Save)> {
        self.replica.peek(|state| {
            let head = Head {
                last: state.last?,
                ordinal: state.ordinal,
                membership_at: state.membership.log_id().as_ref().map(LogIdV1::from),
                membership: state.membership.membership().into(),
                stamp_ms: state.stamp.0,
                feature_level: state.feature_level,
                format_version: state.machine.state_format(),
            };
            let machine = state.machine.clone();
            let save: Save = Box::new(move |sink| machine.save(sink));
            Some((head, save))
        })
    }

    fn install(
        &self,
        snapshots: &dyn SnapshotStore,
        stored: &Stored,
        membership: PlainMembership,
    ) -> Result<Replaced, LoadError> {
        let machine = load::<M>(snapshots, stored, self.feature_level)?;
        let replaced = self.replica.change(|state| {
            state.stamp = state.stamp.max(Stamp(stored.head.stamp_ms));
            state.last = Some(stored.head.last);
            state.ordinal = stored.head.ordinal;
            state.membership = membership;
            state.feature_level = state.feature_level.max(stored.head.feature_level);
            std::mem::replace(&mut state.machine, machine)
        });
        (self.events)(Heard::Jump(Position { index: stored.head.last.index, ordinal: stored.head.ordinal }));
        Ok(Box::new(replaced))
    }
}

/// A batch whose commands are decoded: what can fail has been done before the state is touched.
struct Decoded<M: StateMachine> {
    stamp: Stamp,
    wall_ms: u64,
    commands: Vec<M::Command>,
}

impl<M: StateMachine> Decoded<M> {
    fn of(batch: BatchV1<'_>) -> Result<Self, DecodeError> {
        let commands = batch.commands.into_iter().map(entry::decode_command::<M>).collect::<Result<_, _>>()?;
        Ok(Self { stamp: batch.stamp, wall_ms: batch.wall_ms, commands })
    }

    fn run(self, state: &mut State<M>, id: LogIdV1, heard: &mut Vec<(Position, M::Event)>) -> (Stamp, Vec<M::Reply>) {
        state.stamp = state.stamp.max(self.stamp);
        state.last = Some(id);
        let position = Position { index: id.index, ordinal: 0 };
        let mut moment = Moment { stamp: state.stamp, position, wall_ms: self.wall_ms };
        let mut events = Vec::new();
        state.machine.advance(&moment, &mut events);
        heard.extend(events.drain(..).map(|event| (moment.position, event)));
        let mut replies = Vec::with_capacity(self.commands.len());
        for command in self.commands {
            replies.push(state.machine.apply(&moment, command, &mut events));
            heard.extend(events.drain(..).map(|event| (moment.position, event)));
            state.ordinal = moment.position.ordinal;
            moment.position.ordinal += 1;
        }
        if replies.is_empty() {
            state.ordinal = 0;
        }
        (state.stamp, replies)
    }
}

/// Reads a machine from a snapshot, to its last byte.
fn load<M: StateMachine>(snapshots: &dyn SnapshotStore, stored: &Stored, feature_level: u16) -> Result<M, LoadError> {
    let head = &stored.head;
    if head.feature_level > feature_level || head.format_version > M::FORMAT_VERSION {
        return Err(LoadError::Form(format!(
            "it was written at feature level {} in format {}; this build reads up to {feature_level} and {}: start a newer build",
            head.feature_level,
            head.format_version,
            M::FORMAT_VERSION
        )));
    }
    let mut source = snapshots.open(stored).map_err(|error| LoadError::Form(error.to_string()))?;
    let machine = M::load(&mut source)?;
    let mut left = [0; 1];
    match source.read(&mut left)? {
        0 => Ok(machine),
        _ => Err(LoadError::Form("bytes are left over".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::counter::{Command, Counter};
    use crate::snapshot::MemorySnapshots;

    fn hosted() -> (Arc<Replica<Counter>>, Hosted<Counter>) {
        let replica = Arc::new(Replica::default());
        (Arc::clone(&replica), Hosted::new(replica, Arc::new(|_| {})))
    }

    #[derive(Debug, PartialEq)]
    enum Told {
        Event(EventAt, u64),
        Jump(Position),
    }

    /// A host, and what it tells.
    fn heard() -> (Hosted<Counter>, Arc<std::sync::Mutex<Vec<Told>>>) {
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let sink = Arc::clone(&told);
        let events: EventSink<_> = Arc::new(move |heard: Heard<'_, crate::counter::Reset>| {
            sink.lock().unwrap().push(match heard {
                Heard::Event(at, event) => Told::Event(at, event.from),
                Heard::Jump(to) => Told::Jump(to),
            });
        });
        (Hosted::new(Arc::default(), events), told)
    }

    fn batch(stamp: u64, commands: &[Command]) -> Batch {
        let commands: Vec<_> = commands.iter().map(|one| entry::encode_command::<Counter>(one).unwrap()).collect();
        Batch(entry::encode(Stamp(stamp), stamp + 1_000, &commands).unwrap())
    }

    #[test]
    fn an_event_tells_where_it_stands_and_when_and_under_whom() {
        let (host, told) = heard();
        host.committed_before(7);
        let id = |index| LogIdV1 { term: 3, node: 1, index };
        let commands = [Command::Add(4), Command::Times(0), Command::Add(5), Command::ResetIn(10)];
        host.apply(id(7), &batch(100, &commands), false).unwrap();
        // What time did, and what the first command does, share its position.
        host.apply(id(8), &batch(150, &[Command::Times(0), Command::Times(0)]), false).unwrap();
        let at = |index, ordinal, nth, stamp, replay| EventAt {
            position: Position { index, ordinal },
            nth,
            stamp: Stamp(stamp),
            wall_ms: stamp + 1_000,
            term: 3,
            replay,
        };
        let expected = [
            Told::Event(at(7, 1, 0, 100, true), 4),
            Told::Event(at(8, 0, 0, 150, false), 5),
            Told::Event(at(8, 0, 1, 150, false), 0),
            Told::Event(at(8, 1, 0, 150, false), 0),
        ];
        assert_eq!(*told.lock().unwrap(), expected);
    }

    #[test]
    fn a_state_is_saved_in_the_format_it_needs_and_a_snapshot_taken_in_is_a_jump() {
        for (command, format) in [(Command::Add(3), 1), (Command::Times(3), 2)] {
            let (_, host) = hosted();
            host.apply(LogIdV1 { term: 1, node: 1, index: 4 }, &batch(5, &[Command::Add(2), command]), false).unwrap();
            let (head, save) = host.freeze().unwrap();
            assert_eq!(head.format_version, format);
            let snapshots = MemorySnapshots::default();
            let stored = snapshots.write(head, &mut |sink| save(sink)).unwrap();
            let mut bytes = Vec::new();
            snapshots.open(&stored).unwrap().read_to_end(&mut bytes).unwrap();
            assert_eq!(u16::from_le_bytes([bytes[1], bytes[2]]), format, "what is saved says so too");

            let (other, told) = heard();
            drop(other.install(&snapshots, &stored, PlainMembership::default()).unwrap());
            assert_eq!(*told.lock().unwrap(), [Told::Jump(Position { index: 4, ordinal: 1 })]);
            assert_eq!(other.freeze().unwrap().0, host.freeze().unwrap().0, "and it is the same state");
        }
    }

    #[test]
    fn a_state_from_a_snapshot_stands_where_it_stood() {
        let (replica, host) = hosted();
        let commands: Vec<_> = (0..3).map(|_| entry::encode_command::<Counter>(&Command::Add(1)).unwrap()).collect();
        let batch = Batch(entry::encode(Stamp(5), 0, &commands).unwrap());
        host.apply(LogIdV1 { term: 1, node: 1, index: 7 }, &batch, false).unwrap();
        let (head, save) = host.freeze().unwrap();
        let snapshots = MemorySnapshots::default();
        let stored = snapshots.write(head, &mut |sink| save(sink)).unwrap();

        let (other, host) = hosted();
        drop(host.install(&snapshots, &stored, PlainMembership::default()).unwrap());
        assert_eq!(other.view().position, Position { index: 7, ordinal: 2 });
        assert_eq!(other.view().position, replica.view().position);
    }
}
