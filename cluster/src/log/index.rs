//! What readers see: the state as submitted, the entries' places on disk, and the newest entries in memory.
//!
//! Two views of one log overlap here. `places` follows what was written and synced; `tail` and `state` follow what was
//! submitted, which runs ahead. An entry that is not synced is always in `tail`; an entry that is in neither does not
//! exist. So whoever looks into `tail` first and into `places` second never sees what a truncation has replaced.
//!
//! `end` counts log bytes since the log was opened, up to and with an entry: differences of it are sizes.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::record::{self, Change, Place};
use super::segment::Segment;
use super::state::{Hole, State};
use crate::persisted::EntryV2;

/// Where an entry's record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Low bits of the segment's sequence number: enough to tell live segments apart.
    pub segment: u32,
    /// Its offset there.
    pub offset: u32,
    /// See the module's head.
    pub end: u64,
}

/// An entry in memory.
struct Recent {
    entry: EntryV2,
    /// Number of the request that submitted it.
    number: u64,
    bytes: u64,
    end: u64,
}

/// Where to read an entry from.
pub enum Source {
    /// It is in memory.
    Memory(EntryV2),
    /// It is on disk.
    Disk {
        /// Its segment, kept open even if it is removed meanwhile.
        segment: Arc<Segment>,
        /// Its record's offset.
        offset: u64,
        /// Its record's length.
        length: usize,
        /// Its index.
        index: u64,
    },
}

/// See the module's head.
#[derive(Default)]
pub struct Index {
    /// The log as submitted.
    pub state: State,
    /// Live segments, oldest first; the last is being written.
    pub segments: VecDeque<Arc<Segment>>,
    places: VecDeque<Slot>,
    places_first: u64,
    /// `end` of the entry before `places_first`.
    places_origin: u64,
    tail: VecDeque<Recent>,
    tail_first: u64,
    tail_bytes: u64,
    /// `end` of the entry before the first.
    origin: u64,
}

impl Index {
    /// A log whose records add up to `state` so far, without entries on disk.
    pub fn new(state: State) -> Self {
        Self { tail_first: state.next(), state, ..Self::default() }
    }

    /// Submits a change; for an entry, `bytes` is its record's length and `number` its request's. Returns the `end` of
    /// the last entry after it.
    ///
    /// # Errors
    /// [`Hole`]; nothing changed.
    pub fn submit(&mut self, change: &Change, bytes: u64, number: u64) -> Result<u64, Hole> {
        let end = self.end_of(self.state.next().saturating_sub(1));
        let origin = match change {
            Change::Purge(upto) if self.state.purged.is_none_or(|purged| purged.index < upto.index) => {
                self.end_of(upto.index.min(self.state.next().saturating_sub(1)))
            }
            _ => self.origin,
        };
        self.state.apply(change)?;
        self.origin = origin;
        if let Change::Append(entry) = change {
            if self.tail.is_empty() {
                self.tail_first = entry.id.index;
            }
            self.tail_bytes += bytes;
            self.tail.push_back(Recent { entry: entry.clone(), number, bytes, end: end + bytes });
            return Ok(end + bytes);
        }
        while self.tail_first < self.state.first && self.drop_oldest() {}
        while self.tail_first + self.tail.len() as u64 > self.state.next() {
            let Some(recent) = self.tail.pop_back() else { break };
            self.tail_bytes -= recent.bytes;
        }
        if self.tail.is_empty() {
            self.tail_first = self.state.next();
        }
        Ok(self.end_of(self.state.next().saturating_sub(1)))
    }

    /// Submits, writes and syncs in one: what recovery does with each record it finds.
    ///
    /// # Errors
    /// [`Hole`]; nothing changed.
    pub fn replay(&mut self, change: &Change, place: Place, bytes: u64) -> Result<(), Hole> {
        self.state.apply(change)?;
        match change {
            Change::Append(entry) => {
                let end = self.places.back().map_or(self.places_origin, |slot| slot.end) + bytes;
                self.written(entry.id.index, place, bytes, end);
            }
            Change::Truncate(_) | Change::Purge(_) => {
                let state = self.state;
                self.shrunk(&state);
            }
            Change::Vote(_) | Change::Committed(_) | Change::Roll(_) => {}
        }
        self.tail_first = self.state.next();
        self.origin = self.places_origin;
        Ok(())
    }

    /// The first index that is part of the log but was not found on disk, after a replay.
    pub fn missing(&self) -> Option<u64> {
        let next = self.places_first + self.places.len() as u64;
        if self.state.is_empty() || (self.places_first <= self.state.first && next >= self.state.next()) {
            return None;
        }
        Some(if self.places.is_empty() || self.places_first > self.state.first { self.state.first } else { next })
    }

    /// An entry was written and synced at `place`.
    pub fn written(&mut self, index: u64, place: Place, bytes: u64, end: u64) {
        if self.places.is_empty() {
            self.places_first = index;
            self.places_origin = end - bytes;
        }
        // Segments are shorter than 4 GiB: see `LogOptions`.
        self.places.push_back(Slot { segment: place.sequence as u32, offset: place.offset as u32, end });
    }

    /// A truncation or purge was written: the log on disk is now `state`.
    pub fn shrunk(&mut self, state: &State) {
        while self.places_first < state.first {
            let Some(slot) = self.places.pop_front() else { break };
            self.places_first += 1;
            self.places_origin = slot.end;
        }
        self.places.truncate(state.next().saturating_sub(self.places_first) as usize);
    }

    /// Forgets the oldest entries in memory that are synced (their request's number is at most `synced`), down to
    /// `keep_bytes`.
    pub fn evict(&mut self, synced: u64, keep_bytes: u64) {
        while self.tail_bytes > keep_bytes && self.tail.front().is_some_and(|oldest| oldest.number <= synced) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(recent) = self.tail.pop_front() else { return false };
        self.tail_bytes -= recent.bytes;
        self.tail_first += 1;
        true
    }

    /// Sequence number of the oldest segment that holds an entry on disk; `None` when none does.
    pub fn oldest_needed(&self) -> Option<u64> {
        let slot = self.places.front()?;
        self.segment(slot.segment).map(|segment| segment.sequence)
    }

    fn segment(&self, low: u32) -> Option<&Arc<Segment>> {
        let front = self.segments.front()?;
        self.segments.get(low.wrapping_sub(front.sequence as u32) as usize)
    }

    /// `end` of an entry as submitted; of what precedes the first for those before it.
    fn end_of(&self, index: u64) -> u64 {
        if index < self.state.first || self.state.is_empty() {
            return self.origin;
        }
        if let Some(recent) = index.checked_sub(self.tail_first).and_then(|at| self.tail.get(at as usize)) {
            return recent.end;
        }
        let slot = index.checked_sub(self.places_first).and_then(|at| self.places.get(at as usize));
        slot.map_or(self.origin, |slot| slot.end)
    }

    /// Log bytes of the entries with a greater index.
    pub fn bytes_after(&self, index: u64) -> u64 {
        self.end_of(self.state.next().saturating_sub(1)).saturating_sub(self.end_of(index))
    }

    /// The greatest index whose purge leaves at least `bytes` of entries; `None` when there are fewer.
    pub fn index_with_tail_of(&self, bytes: u64) -> Option<u64> {
        let (mut low, mut high) = (self.state.first, self.state.next());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.bytes_after(middle) >= bytes { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1).filter(|index| *index >= self.state.first && low > self.state.first)
    }

    /// Where the entries of `range` are that exist: at least one, and no further once they make `limit` bytes.
    ///
    /// # Errors
    /// When an entry that exists is nowhere: an error in this file.
    pub fn sources(&self, range: Range<u64>, limit: u64) -> io::Result<Vec<Source>> {
        let range = range.start.max(self.state.first)..range.end.min(self.state.next());
        let mut sources = Vec::new();
        let mut bytes = 0;
        for index in range {
            let (source, length) = self
                .source(index)
                .ok_or_else(|| io::Error::other(format!("log entry {index} is neither in memory nor on disk")))?;
            bytes += length;
            if bytes > limit && !sources.is_empty() {
                break;
            }
            sources.push(source);
        }
        Ok(sources)
    }

    fn source(&self, index: u64) -> Option<(Source, u64)> {
        if let Some(recent) = index.checked_sub(self.tail_first).and_then(|at| self.tail.get(at as usize)) {
            return Some((Source::Memory(recent.entry.clone()), recent.bytes));
        }
        let at = index.checked_sub(self.places_first)? as usize;
        let slot = self.places.get(at)?;
        let before = if at == 0 { self.places_origin } else { self.places.get(at - 1)?.end };
        let length = slot.end.checked_sub(before)?;
        let segment = Arc::clone(self.segment(slot.segment)?);
        Some((Source::Disk { segment, offset: u64::from(slot.offset), length: length as usize, index }, length))
    }
}

impl Source {
    /// The entry.
    ///
    /// # Errors
    /// As of the disk; `InvalidData` when the record does not check out any more.
    pub fn load(self) -> io::Result<EntryV2> {
        let (segment, offset, length, index) = match self {
            Self::Memory(entry) => return Ok(entry),
            Self::Disk { segment, offset, length, index } => (segment, offset, length, index),
        };
        let mut bytes = vec![0; length];
        segment.file.read_at(&mut bytes, offset)?;
        let place = Place { sequence: segment.sequence, offset };
        let damaged = |why: &str| {
            let name = super::segment::file_name(segment.sequence);
            io::Error::new(io::ErrorKind::InvalidData, format!("log segment {name}, byte {offset}: {why}"))
        };
        let found = record::parse(&bytes, place).ok_or_else(|| damaged("the record does not check out"))?;
        match Change::decode(found.kind, found.index, found.payload).map_err(|error| damaged(&error.to_string()))? {
            Change::Append(entry) if entry.id.index == index => Ok(entry),
            _ => Err(damaged("the record is not the entry that was written there")),
        }
    }
}
