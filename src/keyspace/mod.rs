//! The pure deterministic machine of leases: what the log's commands mean.
//!
//! # Model
//! A key has a record (`record`); a lease's record holds its options, the live grant and the grant that ended last
//! (`lease`). The table (`table`) keeps the records in byte order with one ordered set of timers. Commands that end
//! or begin grants stand in `grants`, those on keys themselves in `keys`, reads in `query`, the snapshot's form
//! in `save` and `load`.
//!
//! Time comes in with every call ([`Moment`]): a grant has expired when `now >= deadline`, and not before. Whoever
//! looks at a key, command or reader, judges it by the time it was given; timers only see to it that what has ended is
//! told ([`Event`]) and cleaned up, a bounded number a call, so that a backlog of them never keeps a dead lease alive.
//!
//! # Invariants
//! - At most one live grant a key; fences grow by one with every grant and are never reset, by DEL and CREATE neither.
//! - Nothing ends a grant early but its holder, BREAK and DEL. What was seen to have ended never comes back.
//! - A refusal changes nothing but what time has done.
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
mod event;
mod grants;
mod keys;
mod lease;
mod load;
mod query;
mod record;
mod save;
mod table;
#[cfg(test)]
mod tests;
mod token;
mod unnested;

use std::io;

use tenure_cluster::planted::{self, Bug};
use tenure_cluster::{LoadError, Moment, Stamp, StateMachine};

pub use command::*;
pub use query::{KeyTtl, Page};
pub use token::token_hash;

use lease::Claim;
use table::Table;

/// Timers that fire in one call of `advance` at most.
const ADVANCE_MAX: usize = 10_000;

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
    /// A parameter, not state: not saved. It must be the same on all nodes.
    keys_max: usize,
}

impl Default for Keyspace {
    fn default() -> Self {
        Self { table: Table::default(), fence: 0, longest_ttl_ms: 0, keys_max: KEYS_MAX }
    }
}

impl Keyspace {
    /// The same keyspace with room for `keys_max` keys. The limit is a parameter and no part of a snapshot: nodes of a
    /// cluster must be given the same, after every load.
    #[must_use]
    pub fn with_keys_max(self, keys_max: usize) -> Self {
        Self { keys_max, ..self }
    }

    /// Fires timers, the earliest first, up to `limit`.
    fn advance_up_to(&mut self, limit: usize, at: &Moment, events: &mut Vec<Event>) {
        for _ in 0..limit {
            match self.table.first_timer() {
                Some((timer, key)) if timer.stamp <= at.stamp => {
                    let key = Key::clone(key);
                    self.settle(at, &key, events);
                }
                _ => break,
            }
        }
        self.table.pass(at.stamp);
    }

    /// Applies one command that is not a BATCH.
    fn apply_one(&mut self, at: &Moment, command: Command, events: &mut Vec<Event>) -> Result<Reply, Refusal> {
        match command {
            Command::Create { key, options } => self.create(at, &key, options, events),
            Command::Acquire(ask) => self.acquire(at, ask, events).map(Reply::Op),
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
            Command::Batch(_) => Ok(Reply::Batch(Vec::new())),
            Command::Get { key } => {
                self.settle_if_due(at, &key, events);
                Ok(Reply::View(
                    self.table.get(&key).and_then(|(key, record)| query::view(key, record, at.stamp)).map(Box::new),
                ))
            }
            Command::Held { key, token } => {
                self.claimed(at, &key, &Claim { token, fence: None }, events).map(Reply::Op)
            }
            Command::Check { key, fence } => {
                self.claimed(at, &key, &Claim { token: None, fence: Some(fence) }, events).map(Reply::Op)
            }
        }
    }
}

impl StateMachine for Keyspace {
    type Command = Command;
    type Reply = Reply;
    type Event = Event;
    const FORMAT_VERSION: u16 = 1;

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
        let reply = match command {
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
        self.table.wake()
    }

    fn save(&self, sink: &mut dyn io::Write) -> io::Result<()> {
        save::save(self, sink)
    }

    fn load(source: &mut dyn io::Read) -> Result<Self, LoadError> {
        load::load(source)
    }
}
