//! How a keyspace is written: the snapshot's form, version 1 to 3. [`super::load`] reads all.
//!
//! Form: `"tenure keyspace"`, version, last fence, longest ttl, from version 2 on the last ticket and the edges, number of
//! keys, then the keys in byte order. Numbers are LEB128 varints of the least length, stamps in milliseconds, strings
//! their length and bytes, token hashes their 16 bytes. What may be absent is told by a flag before it. Timers, counts and
//! parameters are not written: they follow from the records or are given.
//!
//! Version 2 is written only where it is needed: while somebody waits, while a grant that came by waiting is not
//! confirmed, and while a grant is remembered that was not delivered; version 3 while there is a pool. All else a node of
//! the first version reads.
//!
//! Each state has one form, and each form one state: `save(load(bytes)) == bytes` for whatever `load` accepts. So the
//! bytes are the state's identity, and nodes can be compared by them. Written in a stream through one small buffer.
//!
//! Once shipped, a version is not edited: a new form is a new version, and `load` goes on to read the old.

mod pools;

use std::io::{self, Write};

use tenure_cluster::{Position, Stamp};

use super::lease::{End, Grant, Last, Lease};
use super::queue::{Post, Queue, Waiter};
use super::record::{Kind, Record};
use super::{Attach, EdgeId, Key, Keyspace, LeaseOptions, TokenHash};

pub(super) use pools::{on_conflict, slot_flag};

pub(super) const MAGIC: &[u8] = b"tenure keyspace";
pub(super) const VERSION_MAX: u64 = 3;

/// What a record has, as bits of its first byte.
pub(super) mod flag {
    pub const ENDS: u64 = 1;
    pub const AUTO_CREATED: u64 = 1 << 1;
    pub const TTL_MS_MAX: u64 = 1 << 2;
    pub const GRANT: u64 = 1 << 3;
    pub const NOTE: u64 = 1 << 4;
    pub const BROKEN: u64 = 1 << 5;
    pub const LAST: u64 = 1 << 6;
    pub const ALL_OF_1: u64 = (1 << 7) - 1;
    /// From here on version 2.
    pub const UNCONFIRMED: u64 = 1 << 7;
    pub const QUEUE: u64 = 1 << 8;
    pub const ALL: u64 = (1 << 9) - 1;
}

/// What a waiter has, as bits of its first byte.
pub(super) mod waiter_flag {
    pub const ATTACHED: u64 = 1;
    pub const NOTE: u64 = 1 << 1;
    pub const MIN_HOLD: u64 = 1 << 2;
    pub const DELAY: u64 = 1 << 3;
    pub const ALL_OF_LEASE: u64 = (1 << 4) - 1;
    /// From here on in the line of a pool. The owner is an identity.
    pub const IDENTIFIED: u64 = 1 << 4;
    pub const CLOCK: u64 = 1 << 5;
    pub const TTL_RAISED: u64 = 1 << 6;
    pub const ALL: u64 = (1 << 7) - 1;
}

/// Types of keys.
pub(super) mod kind {
    pub const LEASE: u64 = 1;
    /// Version 3.
    pub const POOL: u64 = 2;
}

/// How a grant ended.
pub(super) mod end {
    pub const RELEASED: u64 = 1;
    pub const EXPIRED: u64 = 2;
    pub const BROKEN: u64 = 3;
    /// Version 2.
    pub const UNDELIVERED: u64 = 4;
    /// Version 3, of a slot alone.
    pub const TAKEN_OVER: u64 = 5;
}

const BUFFER_BYTES: usize = 64 * 1024;

/// The version that a state needs.
pub(super) fn form(keyspace: &Keyspace) -> u16 {
    keyspace.table.form()
}

/// Writes the whole state.
pub(super) fn save(keyspace: &Keyspace, sink: &mut dyn Write) -> io::Result<()> {
    let mut buffer = Buffer(Vec::with_capacity(BUFFER_BYTES + 4096));
    buffer.0.extend_from_slice(MAGIC);
    let form = form(keyspace);
    buffer.number(u64::from(form));
    buffer.number(keyspace.fence);
    buffer.number(keyspace.longest_ttl_ms);
    if form > 1 {
        buffer.number(if keyspace.table.waiters() > 0 { keyspace.tickets } else { 0 });
        buffer.number(keyspace.edges.len() as u64);
        for (edge, seen) in keyspace.edges.iter() {
            buffer.edge(edge);
            buffer.stamp(seen);
        }
    }
    buffer.number(keyspace.table.len() as u64);
    for (key, record) in keyspace.table.iter() {
        buffer.record(key, record);
        if buffer.0.len() >= BUFFER_BYTES {
            sink.write_all(&buffer.0)?;
            buffer.0.clear();
        }
    }
    sink.write_all(&buffer.0)
}

struct Buffer(Vec<u8>);

impl Buffer {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Small ones of either sign are short.
    fn signed(&mut self, number: i64) {
        self.number((number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned());
    }

    fn stamp(&mut self, stamp: Stamp) {
        self.number(stamp.0);
    }

    fn position(&mut self, position: Position) {
        self.number(position.index);
        self.number(u64::from(position.ordinal));
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn token(&mut self, token: TokenHash) {
        self.0.extend_from_slice(&token.0);
    }

    fn record(&mut self, key: &Key, record: &Record) {
        let lease = match &record.kind {
            Kind::Lease(lease) => lease,
            Kind::Pool(pool) => return self.pool(key, record, pool),
        };
        self.text(key);
        self.number(kind::LEASE);
        self.number(flags(record, lease));
        self.position(record.version());
        if let Some(ends) = record.ends {
            self.stamp(ends);
        }
        self.options(&lease.options);
        if let Some(grant) = &lease.grant {
            self.grant(grant);
        }
        if let Some(attach) = lease.unconfirmed() {
            self.attach(attach);
        }
        if let Some(last) = &lease.last {
            self.last(last);
        }
        self.queue(lease.queue());
    }

    fn queue(&mut self, queue: Option<&Queue>) {
        if let Some(queue) = queue {
            self.number(queue.len() as u64);
            queue.iter().for_each(|waiter| self.waiter(waiter));
        }
    }

    fn edge(&mut self, edge: EdgeId) {
        self.number(edge.node);
        self.number(edge.incarnation);
    }

    fn attach(&mut self, attach: Attach) {
        self.edge(attach.edge);
        self.number(attach.request);
    }

    fn waiter(&mut self, waiter: &Waiter) {
        let terms = &waiter.terms;
        self.number(waiter_flags(waiter));
        self.number(waiter.ticket);
        self.token(terms.token);
        self.text(&terms.owner);
        self.number(terms.ttl_ms);
        if let Some(note) = &terms.note {
            self.text(note);
        }
        for ms in [terms.min_hold_ms, terms.delay_ms].into_iter().flatten() {
            self.number(ms);
        }
        if let Some(clock) = terms.slot.as_ref().and_then(|slot| slot.clock) {
            self.signed(clock);
        }
        self.stamp(waiter.ends);
        match waiter.post {
            Post::Attached(attach) => self.attach(attach),
            Post::Kept(gone_at) => self.stamp(gone_at),
        }
    }

    fn options(&mut self, options: &LeaseOptions) {
        self.number(options.delay_ms);
        self.number(options.min_hold_ms);
        if let Some(ttl_ms_max) = options.ttl_ms_max {
            self.number(ttl_ms_max);
        }
    }

    fn grant(&mut self, grant: &Grant) {
        self.number(grant.fence);
        self.text(&grant.owner);
        self.token(grant.token);
        self.stamp(grant.deadline);
        self.stamp(grant.granted_at);
        self.stamp(grant.renewed_at);
        self.number(grant.granted_wall_ms);
        self.number(grant.min_hold_ms);
        self.number(grant.delay_ms);
        for text in [&grant.note, &grant.broken].into_iter().flatten() {
            self.text(text);
        }
    }

    fn last(&mut self, last: &Last) {
        self.number(last.fence);
        self.text(&last.owner);
        self.token(last.token);
        self.end(&last.end);
        self.stamp(last.at);
        self.stamp(last.opens_at);
    }

    fn end(&mut self, end: &End) {
        match end {
            End::Released => self.number(end::RELEASED),
            End::Expired => self.number(end::EXPIRED),
            End::Undelivered => self.number(end::UNDELIVERED),
            End::TakenOver => self.number(end::TAKEN_OVER),
            End::Broken(text) => {
                self.number(end::BROKEN);
                self.text(text);
            }
        }
    }
}

fn flags(record: &Record, lease: &Lease) -> u64 {
    let grant = lease.grant.as_ref();
    sum([
        (record.ends.is_some(), flag::ENDS),
        (record.auto_created, flag::AUTO_CREATED),
        (lease.options.ttl_ms_max.is_some(), flag::TTL_MS_MAX),
        (grant.is_some(), flag::GRANT),
        (grant.is_some_and(|grant| grant.note.is_some()), flag::NOTE),
        (grant.is_some_and(|grant| grant.broken.is_some()), flag::BROKEN),
        (lease.last.is_some(), flag::LAST),
        (lease.unconfirmed().is_some(), flag::UNCONFIRMED),
        (lease.queue().is_some(), flag::QUEUE),
    ])
}

fn waiter_flags(waiter: &Waiter) -> u64 {
    let slot = waiter.terms.slot.as_ref();
    sum([
        (waiter.attach().is_some(), waiter_flag::ATTACHED),
        (waiter.terms.note.is_some(), waiter_flag::NOTE),
        (waiter.terms.min_hold_ms.is_some(), waiter_flag::MIN_HOLD),
        (waiter.terms.delay_ms.is_some(), waiter_flag::DELAY),
        (waiter.terms.identity().is_some(), waiter_flag::IDENTIFIED),
        (slot.is_some_and(|slot| slot.clock.is_some()), waiter_flag::CLOCK),
        (slot.is_some_and(|slot| slot.ttl_raised), waiter_flag::TTL_RAISED),
    ])
}

fn sum<const N: usize>(flags: [(bool, u64); N]) -> u64 {
    flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum()
}
