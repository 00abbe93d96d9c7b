//! The pure deterministic machine of leases: what the log's commands mean.
//!
//! # Model
//! A key has a record (`record`); a lease's record holds its options, the live grant and the grant that ended last
//! (`lease`), and those who wait for it (`queue`); a pool's holds its slots (`pool`, `slot`). The table (`table`) keeps the records in byte order with one ordered set of timers. Commands that end
//! or begin grants stand in `grants`, for a pool's slots in `slot_grants` and `slot_claims` (and pools themselves in `pools`), those of waiting in `waiting` (and who holds the sockets in `edges`), those on keys
//! themselves in `keys`, BATCH `all_or_nothing` in `whole`, reads in `query`, the snapshot's form in `save` and `load`.
//!
//! Time comes in with every call ([`Moment`]): a grant has expired when `now >= deadline`, and not before. Whoever
//! looks at a key, command or reader, judges it by the time it was given; timers only see to it that what has ended is
//! told ([`Event`]) and cleaned up, a bounded number a call, so that a backlog of them never keeps a dead lease alive.
//!
//! # Invariants
//! - At most one live grant a lease or slot, and one an identity of a pool; fences grow by one with every grant and are never reset, by DEL and CREATE neither.
//! - Nothing ends a grant early but its holder, BREAK and DEL, and DETACH one that its client was never told of. What was seen to have ended never comes back.
//! - A refusal changes nothing but what time has done (and see `grants`).
//! - A lease that can be acquired has nobody who waits for it at an edge: see `waiting`.
//! - Every grant gives one `granted` event, and exactly one of `released`, `expired`, `broken`, `deleted`; only in the
//!   grace of a BREAK may `released` or `deleted` follow `broken`.
//! - Equal calls give equal states and equal bytes of [`StateMachine::save`], across save and load at any point.
//!
//! # Not promised
//! - That a command is applied once per intent: ACQUIRE is idempotent by its token (`yours`), RENEW by nature, and
//!   RELEASE, BREAK and DEL are exact by fence.
//! - Validation of lengths, characters and ranges: that stands at the edge. Here any value is safe, none is refused.
//! - Memory for how grants before the last one ended.
//! - That states are equal when the same commands come in other entries: `version` is a position in the log.

mod command;
mod edges;
mod event;
mod grants;
mod keys;
mod lease;
mod load;
mod pool;
mod pools;
mod query;
mod queue;
mod record;
mod save;
mod slot;
mod slot_claims;
mod slot_grants;
mod table;
#[cfg(test)]
mod tests;
mod token;
mod unnested;
mod waiting;
mod whole;

use std::io;

use tenure_cluster::planted::{self, Bug};
use tenure_cluster::{LoadError, Moment, Stamp, StateMachine};

pub use command::*;
pub use query::{Holders, HoldersPage, KeyTtl, KeyType, Page, PoolUse, Shown, SlotView, Standing};
pub use token::token_hash;

use edges::Edges;
use lease::Claim;
use table::Table;
use waiting::Patience;

/// Timers that fire in one call of `advance` at most.
const ADVANCE_MAX: usize = 10_000;

/// What a slot of a pool counts of [`ADVANCE_MAX`]: its end touches some five indexes.
const SLOT_COST: usize = 4;

/// Bytes of an encoded [`View`] at most: a key, two owners, a note and two texts of greatest length, and numbers.
const VIEW_BYTES_MAX: usize = 5 * 1024;

/// Keys a keyspace holds at most, unless told otherwise.
pub const KEYS_MAX: usize = 10_000_000;

/// The machine.
#[derive(Clone, Debug)]
pub struct Keyspace {
    table: Table,
    /// The last fence that was granted.
    fence: u64,
    longest_ttl_ms: u64,
    /// The last ticket that was given out; of no account while nobody waits.
    tickets: u64,
    edges: Edges,
    /// Parameters, not state: not saved. They must be the same on all nodes.
    keys_max: usize,
    queue_max: usize,
    waiters_max: usize,
}

impl Default for Keyspace {
    fn default() -> Self {
        Self {
            table: Table::default(),
            fence: 0,
            longest_ttl_ms: 0,
            tickets: 0,
            edges: Edges::default(),
            keys_max: KEYS_MAX,
            queue_max: waiting::QUEUE_MAX,
            waiters_max: waiting::WAITERS_MAX,
        }
    }
}

impl Keyspace {
    /// The same keyspace with room for `keys_max` keys. The limit is a parameter and no part of a snapshot: nodes of a
    /// cluster must be given the same, after every load.
    #[must_use]
    pub fn with_keys_max(self, keys_max: usize) -> Self {
        Self { keys_max, ..self }
    }

    /// The same keyspace with room for `queue_max` waiters of one lease, and `waiters_max` in all. Parameters as well.
    #[must_use]
    pub fn with_waiters_max(self, queue_max: usize, waiters_max: usize) -> Self {
        Self { queue_max, waiters_max, ..self }
    }

    /// Fires timers, the earliest first, up to `limit`. What has to do with edges comes first, and all of it.
    fn advance_up_to(&mut self, limit: usize, at: &Moment, events: &mut Vec<Event>) {
        self.lapse(at, events);
        let mut left = limit;
        while left > 0 {
            match self.table.first_timer() {
                Some((timer, key)) if timer.stamp <= at.stamp => {
                    let key = Key::clone(key);
                    let slots = self.settle(at, &key, events);
                    left = left.saturating_sub((slots * SLOT_COST).max(1));
                }
                _ => break,
            }
        }
        self.table.pass(at.stamp);
    }

    /// Applies one command that is not a BATCH.
    fn apply_one(&mut self, at: &Moment, command: Command, events: &mut Vec<Event>) -> Result<Reply, Refusal> {
        if self.is_of_pool(at, &command, events) {
            return self.apply_to_pool(at, command, events);
        }
        match command {
            Command::Create { key, options } => self.create(at, &key, options, events),
            Command::Acquire(ask) => self.acquire(at, ask, None, events),
            Command::Wait(Wait { ask, wait_ms, attach }) => {
                self.acquire(at, ask, Some(Patience { wait_ms, attach }), events)
            }
            Command::Renew { key, token, ttl_ms, fence } => {
                let token = (!planted::has(Bug::RenewByOwner)).then_some(token);
                let claim = Claim { token, fence };
                self.renew(at, &key, &claim, ttl_ms, events).map(Reply::Op)
            }
            Command::Release { key, token, fence } => {
                let claim = Claim { token: Some(token), fence };
                self.release(at, &key, &claim, events).map(Reply::Op)
            }
            Command::Break { key, reason, grace_ms, fence } => {
                let claim = Claim { token: None, fence };
                self.break_grant(at, &key, &claim, &reason, grace_ms, events).map(Reply::Op)
            }
            Command::Expire { key, ttl_ms } => Ok(self.expire(at, &key, ttl_ms, events)),
            Command::Persist { key } => Ok(self.persist(at, &key, events)),
            Command::Del { keys, fence } => Ok(Reply::Deleted(self.delete(at, &keys, fence, events))),
            // Nested: the edge lets none through. It does nothing, so that no input recurses.
            Command::Batch(_) | Command::AllOrNothing(_) => Ok(Reply::Batch(Vec::new())),
            Command::Get { key } => {
                self.settle_whole(at, &key, events);
                Ok(self.table.get(&key).map(|(key, record)| query::view(key, record, at.stamp)).into())
            }
            Command::Held { key, token } => {
                self.claimed(at, &key, &Claim { token, fence: None }, events).map(Reply::from)
            }
            Command::Check { key, fence } => {
                self.claimed(at, &key, &Claim { token: None, fence: Some(fence) }, events).map(Reply::from)
            }
            Command::Detach { key, token, attach } => Ok(self.detach(at, &key, token, attach, events)),
            Command::Cancel { key, token, attach } => Ok(self.cancel(at, &key, token, attach, events)),
            Command::Presence { edge } => Ok(self.presence(at, edge, events)),
            Command::Away { edge } => Ok(self.away(at, edge, events)),
            Command::CreatePool { key, options, uuid } => self.create_pool(at, &key, options, uuid, events),
            // On a key that is no pool.
            Command::AcquireSlot(AcquireSlot { key, .. })
            | Command::WaitSlot(WaitSlot { ask: AcquireSlot { key, .. }, .. })
            | Command::RenewSlot { key, .. }
            | Command::BreakSlot { key, .. }
            | Command::Resize { key, .. } => {
                let is_there = self.settled(at, &key, events).is_some();
                Err(if is_there { Refusal::WrongType } else { Refusal::NoSuchKey })
            }
        }
    }
}

impl AsRef<Self> for Keyspace {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl StateMachine for Keyspace {
    type Command = Command;
    type Reply = Reply;
    type Event = Event;
    const FORMAT_VERSION: u16 = 3;

    fn command_format(command: &Command) -> u16 {
        command.format()
    }

    fn reply_format(reply: &Reply) -> u16 {
        reply.format()
    }

    fn state_format(&self) -> u16 {
        save::form(self)
    }

    /// Only GET in a BATCH answers much more than it asks.
    fn reply_bytes_max(command: &Command) -> usize {
        match command {
            Command::Batch(commands) => {
                commands.iter().filter(|command| matches!(command, Command::Get { .. })).count() * VIEW_BYTES_MAX
            }
            _ => 0,
        }
    }

    fn advance(&mut self, moment: &Moment, events: &mut Vec<Event>) {
        self.advance_up_to(ADVANCE_MAX, moment, events);
    }

    fn apply(&mut self, moment: &Moment, command: Command, events: &mut Vec<Event>) -> Reply {
        self.lapse(moment, events);
        let reply = match command {
            Command::AllOrNothing(commands) => self.all_or_nothing(moment, commands, events),
            Command::Batch(commands) => Reply::Batch(
                commands
                    .into_iter()
                    .map(|command| self.apply_one(moment, command, events).unwrap_or_else(Reply::Refused))
                    .collect(),
            ),
            command => self.apply_one(moment, command, events).unwrap_or_else(Reply::Refused),
        };
        // A change to a record brings its opening up again, also one that has passed.
        self.table.pass(moment.stamp);
        reply
    }

    fn wake(&self) -> Option<Stamp> {
        self.table.wake().into_iter().chain(self.edges.wake()).min()
    }

    fn save(&self, sink: &mut dyn io::Write) -> io::Result<()> {
        save::save(self, sink)
    }

    fn load(source: &mut dyn io::Read) -> Result<Self, LoadError> {
        load::load(source)
    }
}
