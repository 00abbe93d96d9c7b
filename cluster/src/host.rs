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

use crate::cluster::{EventAt, EventSink};
use crate::codec::{DecodeError, EncodeError};
use crate::entry::{self, BatchV1, Content, ControlV1};
use crate::machine::{LoadError, Moment, Position, Stamp, StateMachine};
use crate::persisted::LogIdV1;
use crate::raft::{Batch, PlainMembership, Replies};
use crate::replica::{Replica, State};
use crate::snapshot::{Head, SnapshotStore, Stored};
use crate::snapshotter::FEATURE_LEVEL;

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

/// See the module's head.
pub trait Host: Send + Sync {
    /// Entries up to `index` were committed before this start: their events are marked as replayed.
    fn committed_before(&self, index: u64);

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

    fn apply(&self, id: LogIdV1, batch: &Batch, is_awaited: bool) -> Result<Replies, HostError> {
        let batch = match entry::content(&batch.0)? {
            Content::Batch(batch) => Decoded::<M>::of(batch)?,
            Content::Control(control) => return self.control(id, control),
        };
        let mut heard = Vec::new();
        let (clock, replies) = self.replica.change(|state| batch.run(state, id, &mut heard));
        let replay = id.index <= self.replay_to.load(Ordering::Relaxed);
        for (position, event) in &heard {
            (self.events)(EventAt { position: *position, stamp: clock, replay }, event);
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
                format_version: M::FORMAT_VERSION,
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
        Ok(Box::new(self.replica.change(|state| {
            state.stamp = state.stamp.max(Stamp(stored.head.stamp_ms));
            state.last = Some(stored.head.last);
            state.ordinal = stored.head.ordinal;
            state.membership = membership;
            state.feature_level = state.feature_level.max(stored.head.feature_level);
            std::mem::replace(&mut state.machine, machine)
        })))
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
        (Arc::clone(&replica), Hosted::new(replica, Arc::new(|_, _| {})))
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
