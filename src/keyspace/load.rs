//! How a keyspace is read: the inverse of [`super::save`], to the last byte.
//!
//! Whatever the bytes are, this ends with a keyspace or a [`LoadError`]: no panic, and no allocation that a length in
//! the bytes could drive beyond [`TEXT_BYTES_MAX`] at a time. Accepted is only the one form that `save` writes: numbers
//! of least length, known flags, keys in strict order, fences within the counter, tickets in strict order in each line,
//! the edges that have waiters and no others, version 2 only for what needs it.

mod pools;

use std::io::{BufReader, Read};
use std::sync::Arc;

use tenure_cluster::planted::{self, Bug};
use tenure_cluster::{LoadError, Position, Stamp};

use super::edges::Edges;
use super::grants::FENCE_END;
use super::lease::{End, Grant, Last, Lease, SlotTerms, Terms, Waiting};
use super::queue::{Post, Queue, Waiter};
use super::record::Record;
use super::save::{MAGIC, VERSION_MAX, end, flag, kind, waiter_flag};
use super::table::Table;
use super::{Attach, EdgeId, Key, Keyspace, LeaseOptions, TokenHash};

/// No string is longer: each came in a log entry, and an entry is at most 1 MiB.
const TEXT_BYTES_MAX: u64 = 1024 * 1024;

/// Tickets stay below this: no counter of them ever overflows.
const TICKET_END: u64 = 1 << 63;

const BUFFER_BYTES: usize = 64 * 1024;

/// Reads the whole state.
pub(super) fn load(source: &mut dyn Read) -> Result<Keyspace, LoadError> {
    let source = BufReader::with_capacity(BUFFER_BYTES, source);
    let mut form = Form { source, version: VERSION_MAX, fence: FENCE_END, tickets: 0 };
    if form.bytes::<{ MAGIC.len() }>()? != MAGIC {
        return Err(wrong("this is no keyspace"));
    }
    form.version = form.number()?;
    if !(1..=VERSION_MAX).contains(&form.version) {
        let version = form.version;
        return Err(LoadError::Form(format!("keyspace of version {version}, this build reads up to {VERSION_MAX}")));
    }
    let fence = form.fence()?;
    form.fence = fence;
    let longest_ttl_ms = form.number()?;
    let listed = if form.version > 1 { form.edges()? } else { Vec::new() };
    let keys = form.number()?;
    let mut before: Option<Key> = None;
    let table = Table::of((0..keys).map(|_| {
        let key: Key = form.text()?;
        if before.replace(Key::clone(&key)).is_some_and(|before| before >= key) {
            return Err(wrong("keys out of order"));
        }
        Ok((key, form.record()?))
    }))?;
    form.nothing_more()?;
    if form.version != u64::from(table.form()) || (form.tickets > 0) != (table.waiters() > 0) {
        return Err(wrong("a version that is not needed"));
    }
    let (table, listed) = match planted::has(Bug::WaitersForgottenBySnapshot) {
        true => (without_waiters(table), Vec::new()),
        false => (table, listed),
    };
    let edges = known(&listed, &table)?;
    let fence = if planted::has(Bug::FenceResetBySnapshot) { 0 } else { fence };
    Ok(Keyspace { table, fence, longest_ttl_ms, tickets: form.tickets, edges, ..Keyspace::default() })
}

/// For a planted bug.
fn without_waiters(mut table: Table) -> Table {
    let keys: Vec<Key> = table.iter().map(|(key, _)| Key::clone(key)).collect();
    for key in keys {
        table.edit(&key, |record| {
            record.edit_queue(|queue| *queue = Queue::default());
        });
    }
    table
}

/// The edges of the waiters: exactly those that are listed.
fn known(listed: &[(EdgeId, Stamp)], table: &Table) -> Result<Edges, LoadError> {
    let mut edges = Edges::default();
    for (key, record) in table.iter() {
        for waiter in record.queue().into_iter().flat_map(Queue::iter) {
            let Some(attach) = waiter.attach() else { continue };
            let at = listed.binary_search_by_key(&attach.edge, |(edge, _)| *edge);
            let (_, seen) = at.ok().and_then(|at| listed.get(at)).ok_or_else(|| wrong("a waiter of no edge"))?;
            edges.attach(attach, waiter.ticket, key, *seen);
        }
    }
    if edges.len() == listed.len() { Ok(edges) } else { Err(wrong("an edge without waiters")) }
}

fn wrong(what: &str) -> LoadError {
    LoadError::Form(what.to_owned())
}

struct Form<'a> {
    source: BufReader<&'a mut dyn Read>,
    version: u64,
    /// No fence is greater.
    fence: u64,
    /// No ticket is greater.
    tickets: u64,
}

impl Form<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn nothing_more(&mut self) -> Result<(), LoadError> {
        match self.source.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(wrong("bytes after the last key")),
        }
    }

    fn number(&mut self) -> Result<u64, LoadError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.bytes()?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits || (byte == 0 && shift > 0) {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(wrong("a number that is too long"))
    }

    fn signed(&mut self) -> Result<i64, LoadError> {
        let number = self.number()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn stamp(&mut self) -> Result<Stamp, LoadError> {
        self.number().map(Stamp)
    }

    fn fence(&mut self) -> Result<u64, LoadError> {
        self.number().and_then(|fence| match fence {
            fence if fence > self.fence || fence >= FENCE_END => Err(wrong("a fence beyond the counter")),
            fence => Ok(fence),
        })
    }

    fn position(&mut self) -> Result<Position, LoadError> {
        let index = self.number()?;
        let ordinal = u32::try_from(self.number()?).map_err(|_| wrong("an ordinal that is too large"))?;
        Ok(Position { index, ordinal })
    }

    fn text(&mut self) -> Result<Arc<str>, LoadError> {
        let length = self.number()?;
        if length > TEXT_BYTES_MAX {
            return Err(wrong("a text that is too long"));
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| wrong("a text that is too long"))?];
        self.source.read_exact(&mut bytes)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| wrong("a text that is not UTF-8"))?;
        Ok(Arc::from(text))
    }

    fn text_if(&mut self, there: bool) -> Result<Option<Arc<str>>, LoadError> {
        if there { self.text().map(Some) } else { Ok(None) }
    }

    fn token(&mut self) -> Result<TokenHash, LoadError> {
        self.bytes().map(TokenHash)
    }

    fn record(&mut self) -> Result<Record, LoadError> {
        match self.number()? {
            kind::LEASE => {}
            kind::POOL if self.version > 2 => return self.pool(),
            _ => return Err(wrong("a key of unknown type")),
        }
        let flags = self.number()?;
        let has = |flag| flags & flag != 0;
        let all = if self.version > 1 { flag::ALL } else { flag::ALL_OF_1 };
        if flags > all || (!has(flag::GRANT) && has(flag::NOTE | flag::BROKEN | flag::UNCONFIRMED)) {
            return Err(wrong("unknown flags"));
        }
        let version = self.position()?;
        let ends = if has(flag::ENDS) { Some(self.stamp()?) } else { None };
        let options = self.options(has(flag::TTL_MS_MAX))?;
        let grant = if has(flag::GRANT) { Some(self.grant(has(flag::NOTE), has(flag::BROKEN))?) } else { None };
        let unconfirmed = if has(flag::UNCONFIRMED) { Some(self.attach()?) } else { None };
        let last = if has(flag::LAST) { Some(Box::new(self.last(grant.as_ref())?)) } else { None };
        let queue = if has(flag::QUEUE) { self.queue(waiter_flag::ALL_OF_LEASE)? } else { Queue::default() };
        let waiting = (unconfirmed.is_some() || !queue.is_empty()).then(|| Box::new(Waiting { queue, unconfirmed }));
        let lease = Lease { options, grant, last, waiting };
        let mut record = Record::of_lease(version, has(flag::AUTO_CREATED), lease);
        record.ends = ends;
        Ok(record)
    }

    fn edge(&mut self) -> Result<EdgeId, LoadError> {
        Ok(EdgeId { node: self.number()?, incarnation: self.number()? })
    }

    fn attach(&mut self) -> Result<Attach, LoadError> {
        Ok(Attach { edge: self.edge()?, request: self.number()? })
    }

    /// The last ticket, and the edges with when each was seen.
    fn edges(&mut self) -> Result<Vec<(EdgeId, Stamp)>, LoadError> {
        self.tickets = self.number()?;
        if self.tickets >= TICKET_END {
            return Err(wrong("too many tickets"));
        }
        let mut edges: Vec<(EdgeId, Stamp)> = Vec::new();
        for _ in 0..self.number()? {
            let edge = self.edge()?;
            if edges.last().is_some_and(|(before, _)| *before >= edge) {
                return Err(wrong("edges out of order"));
            }
            edges.push((edge, self.stamp()?));
        }
        Ok(edges)
    }

    fn end(&mut self, end: u64) -> Result<End, LoadError> {
        Ok(match end {
            end::RELEASED => End::Released,
            end::EXPIRED => End::Expired,
            end::BROKEN => End::Broken(self.text()?),
            end::UNDELIVERED if self.version > 1 => End::Undelivered,
            _ => return Err(wrong("a grant that ended in an unknown way")),
        })
    }

    fn queue(&mut self, flags: u64) -> Result<Queue, LoadError> {
        let mut queue = Queue::default();
        let mut before = 0;
        let waiters = self.number()?;
        for _ in 0..waiters {
            let waiter = self.waiter(flags)?;
            if waiter.ticket <= before || waiter.ticket > self.tickets {
                return Err(wrong("tickets out of order"));
            }
            if queue.of_token(waiter.terms.token).is_some() {
                return Err(wrong("a token that waits twice"));
            }
            before = waiter.ticket;
            queue.put(waiter);
        }
        if waiters > 0 { Ok(queue) } else { Err(wrong("a line of nobody")) }
    }

    /// A waiter that has no other flags than `known`.
    fn waiter(&mut self, known: u64) -> Result<Waiter, LoadError> {
        let flags = self.number()?;
        if flags > known {
            return Err(wrong("unknown flags of a waiter"));
        }
        let has = |flag| flags & flag != 0;
        let ticket = self.number()?;
        let mut terms = Terms {
            token: self.token()?,
            owner: self.text()?,
            ttl_ms: self.number()?,
            note: self.text_if(has(waiter_flag::NOTE))?,
            min_hold_ms: if has(waiter_flag::MIN_HOLD) { Some(self.number()?) } else { None },
            delay_ms: if has(waiter_flag::DELAY) { Some(self.number()?) } else { None },
            slot: None,
        };
        if known == waiter_flag::ALL {
            let identity = has(waiter_flag::IDENTIFIED).then(|| Arc::clone(&terms.owner));
            let clock = if has(waiter_flag::CLOCK) { Some(self.signed()?) } else { None };
            let ttl_raised = has(waiter_flag::TTL_RAISED);
            terms.slot = Some(Box::new(SlotTerms { identity, clock, ttl_raised }));
        }
        let ends = self.stamp()?;
        let post = if has(waiter_flag::ATTACHED) { Post::Attached(self.attach()?) } else { Post::Kept(self.stamp()?) };
        Ok(Waiter { ticket, terms, ends, post })
    }

    fn options(&mut self, has_ttl_ms_max: bool) -> Result<LeaseOptions, LoadError> {
        Ok(LeaseOptions {
            delay_ms: self.number()?,
            min_hold_ms: self.number()?,
            ttl_ms_max: if has_ttl_ms_max { Some(self.number()?) } else { None },
        })
    }

    fn grant(&mut self, has_note: bool, is_broken: bool) -> Result<Grant, LoadError> {
        Ok(Grant {
            fence: self.fence()?,
            owner: self.text()?,
            token: self.token()?,
            deadline: self.stamp()?,
            granted_at: self.stamp()?,
            renewed_at: self.stamp()?,
            granted_wall_ms: self.number()?,
            min_hold_ms: self.number()?,
            delay_ms: self.number()?,
            note: self.text_if(has_note)?,
            broken: self.text_if(is_broken)?,
        })
    }

    fn last(&mut self, grant: Option<&Grant>) -> Result<Last, LoadError> {
        let fence = self.fence()?;
        let owner = self.text()?;
        let owner = match grant {
            Some(grant) if grant.owner == owner => Arc::clone(&grant.owner),
            _ => owner,
        };
        let token = self.token()?;
        let end = self.number()?;
        let end = self.end(end)?;
        Ok(Last { fence, owner, token, end, at: self.stamp()?, opens_at: self.stamp()? })
    }
}
