//! A state of the whole: the machine, the leader's log beyond it, two nodes, two clients, and what a judge keeps in
//! mind.
//!
//! A state is small and `Copy`: millions of them are kept and compared. What only the judge reads is named so; it
//! never makes two states differ that the protocol could not tell apart but for what a property needs.

use crate::machine::{Command, Machine, Sent};

/// Nodes; node 0 leads at first.
pub const NODES: u8 = 2;
/// Clients.
pub const CLIENTS: u8 = 2;
/// Operations of a client.
pub const OPERATIONS: u8 = 2;
/// Uncommitted entries at most.
pub const SUFFIX: usize = 2;

/// Which operation: the client's number, and the operation's among the client's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asker {
    /// The client.
    pub client: u8,
    /// The operation.
    pub operation: u8,
}

/// A leadership as its node believes in it, for as long as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lead {
    /// Its term.
    pub term: u8,
    /// The node's clock.
    pub clock: u8,
    /// Time since a quorum acknowledged it, at most T.
    pub silence: u8,
}

/// A stamped command: in a handler that stalls, or in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The command.
    pub command: Command,
    /// Its stamp.
    pub stamp: u8,
    /// The node that stamped it.
    pub node: u8,
    /// The term it was stamped in.
    pub term: u8,
    /// When its operation was sent.
    pub sent: Sent,
    /// Whom to answer; a timer's tick nobody.
    pub asker: Option<Asker>,
}

/// A linearizable read, after the proof that its node leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Read {
    /// The leader.
    pub node: u8,
    /// Its term.
    pub term: u8,
    /// Its clock after the proof.
    pub stamp: u8,
}

/// An operation of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Not begun.
    #[default]
    Ahead,
    /// Stamped; its handler stalls.
    Stalls(Entry),
    /// As `Stalls`, for the tick of a read that saw this fence as expired.
    Ticks(Entry, Read, u8),
    /// In the log.
    Logged,
    /// Its tick is in the log.
    TickLogged(Read, u8),
    /// Granted or renewed: the answer is on its way, and may not come.
    Answered {
        /// The fence.
        fence: u8,
        /// When it was sent.
        sent_at: u8,
    },
    /// A read before its answer.
    Reads(Read),
    /// Over, or lost.
    Over,
}

/// A grant, as its holder knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Held {
    /// Its fence; 0 is none.
    pub fence: u8,
    /// The holder acts until then, real time.
    pub until: u8,
}

/// A client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// Its operations, begun in this order. It may begin the next without an answer.
    pub operations: [Operation; OPERATIONS as usize],
    /// What it knows to hold.
    pub held: Held,
}

/// The leader's uncommitted entries, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Suffix {
    entries: [Option<(Entry, u8)>; SUFFIX],
}

impl Suffix {
    /// The entries, each with the term it was appended in.
    pub fn iter(&self) -> impl Iterator<Item = (Entry, u8)> {
        self.entries.into_iter().flatten()
    }

    /// The entries, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut (Entry, u8)> {
        self.entries.iter_mut().flatten()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Adds an entry, appended in `term`; false when there is no room.
    pub fn push(&mut self, entry: Entry, term: u8) -> bool {
        let room = self.entries.iter_mut().find(|place| place.is_none());
        room.map(|place| *place = Some((entry, term))).is_some()
    }

    /// Takes the first entry.
    pub fn pop(&mut self) -> Option<(Entry, u8)> {
        let first = self.entries[0].take();
        self.entries.rotate_left(1);
        first
    }

    /// Takes the last entry if there are more than `keep`.
    pub fn cut(&mut self, keep: usize) -> Option<(Entry, u8)> {
        self.entries.iter_mut().skip(keep).rev().find_map(Option::take)
    }
}

/// A state of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Real time, which is the clients' too.
    pub now: u8,
    /// A quorum follows the leader.
    pub has_quorum: bool,
    /// Outages so far.
    pub outages: u8,
    /// The last term.
    pub term: u8,
    /// Who leads in it.
    pub leader: u8,
    /// What each node believes of itself.
    pub leads: [Option<Lead>; NODES as usize],
    /// The last stamp in the committed log.
    pub log_stamp: u8,
    /// The state after the committed log.
    pub machine: Machine,
    /// The log after that.
    pub suffix: Suffix,
    /// The clients.
    pub clients: [Client; CLIENTS as usize],
    /// For the judge: time that passed without a quorum.
    pub outage: u8,
    /// For the judge: grants up to this fence were shown to be over.
    pub seen_over: u8,
    /// For the judge: one of them was renewed after that.
    pub came_back: bool,
    /// For the judge: a grant expired by time in which it could not be renewed.
    pub outage_counted: bool,
}

impl State {
    /// Node 0 leads, nothing is held, no time has passed.
    pub fn first() -> Self {
        Self {
            now: 0,
            has_quorum: true,
            outages: 0,
            term: 1,
            leader: 0,
            leads: [Some(Lead { term: 1, clock: 0, silence: 0 }), None],
            log_stamp: 0,
            machine: Machine::default(),
            suffix: Suffix::default(),
            clients: [Client::default(); CLIENTS as usize],
            outage: 0,
            seen_over: 0,
            came_back: false,
            outage_counted: false,
        }
    }

    /// The operation of `asker`.
    pub fn operation(&mut self, asker: Asker) -> &mut Operation {
        &mut self.clients[usize::from(asker.client)].operations[usize::from(asker.operation)]
    }

    /// What `node` believes of itself.
    pub fn lead(&self, node: u8) -> Option<Lead> {
        self.leads[usize::from(node)]
    }

    /// All operations.
    pub fn operations(&self) -> impl Iterator<Item = (Asker, Operation)> {
        (0..).zip(&self.clients).flat_map(|(client, it)| {
            let numbered = (0..).zip(&it.operations);
            numbered.map(move |(operation, it)| (Asker { client, operation }, *it))
        })
    }

    /// This moment, as a sender's.
    pub fn sent_now(&self) -> Sent {
        Sent { at: self.now, outage: self.outage }
    }
}
