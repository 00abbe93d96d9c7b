//! The table: every key's record, in byte order, and the one ordered set of timers.
//!
//! Invariants, kept here and nowhere else:
//! - The timers are exactly those of all records that have one. They hold nothing of their own and are no part of a
//!   snapshot. Those of one stamp fire in the order of their grants.
//! - The counts and the list of pools are those of all records (what has ended and nobody has touched yet included).
//! - One allocation per key: timers and map share the key's `Arc`.
//! - A clone costs O(1), and later changes copy only the path they touch.

use std::ops::Bound;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use super::Key;
use super::pool::Pool;
use super::record::{Record, Timer};
use tenure_cluster::Stamp;

/// When time has work to do on a key.
type Alarm = (Timer, Key);

#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    records: OrdMap<Key, Arc<Record>>,
    timers: OrdSet<Alarm>,
    counts: Counts,
    /// The keys of pools: of all that is looked up by type.
    pools: OrdSet<Key>,
    /// The latest end of a delay or minimum hold that was seen and has not passed: until then time matters.
    shut_until: Option<Stamp>,
}

/// What the records are, together.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Live grants.
    grants: usize,
    /// Those that wait.
    waiters: usize,
    /// Records that need the second form of a snapshot, and such that need the third.
    second: usize,
    third: usize,
}

impl Counts {
    fn of(record: &Record) -> Self {
        Self {
            grants: record.grants(),
            waiters: record.waiters(),
            second: usize::from(record.form() == 2),
            third: usize::from(record.form() == 3),
        }
    }

    fn add(&mut self, one: Self) {
        self.grants += one.grants;
        self.waiters += one.waiters;
        self.second += one.second;
        self.third += one.third;
    }

    /// Takes away what was added before.
    fn take(&mut self, one: Self) {
        self.grants -= one.grants;
        self.waiters -= one.waiters;
        self.second -= one.second;
        self.third -= one.third;
    }
}

impl Table {
    /// A table of `records`, whose keys must be in strict order.
    pub fn of<E>(records: impl Iterator<Item = Result<(Key, Record), E>>) -> Result<Self, E> {
        let mut table = Self::default();
        let mut timers = Vec::new();
        for entry in records {
            let (key, record) = entry?;
            table.counts.add(Counts::of(&record));
            table.shut_until = table.shut_until.max(record.shut_until());
            timers.extend(record.timer().map(|timer| (timer, Arc::clone(&key))));
            if record.pool().is_ok() {
                table.pools.insert(Arc::clone(&key));
            }
            table.records.insert(key, Arc::new(record));
        }
        timers.sort_unstable(); // in order, each goes next to the one before: far fewer cache misses
        table.timers = timers.into_iter().collect();
        Ok(table)
    }

    /// Keys.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Live grants.
    pub fn grants(&self) -> usize {
        self.counts.grants
    }

    /// Waiters of all keys.
    pub fn waiters(&self) -> usize {
        self.counts.waiters
    }

    /// The version of a snapshot that can tell it.
    pub fn form(&self) -> u16 {
        match self.counts {
            Counts { third: 1.., .. } => 3,
            Counts { second: 1.., .. } => 2,
            Counts { .. } => 1,
        }
    }

    /// All pools in byte order of their keys.
    pub fn pools(&self) -> impl Iterator<Item = (&Key, &Pool)> {
        self.pools.iter().filter_map(|key| {
            let (key, record) = self.get(key)?;
            Some((key, record.pool().ok()?))
        })
    }

    /// The earliest timer.
    pub fn first_timer(&self) -> Option<&Alarm> {
        self.timers.get_min()
    }

    /// When time next matters: the earliest timer, or while a lease is shut though free, its opening. Nothing is done
    /// then, but a log that did not get that far would give the wait again after a restart.
    pub fn wake(&self) -> Option<Stamp> {
        let timer = self.first_timer().map(|(timer, _)| timer.stamp);
        timer.into_iter().chain(self.shut_until).min()
    }

    /// Time got to `now`.
    pub fn pass(&mut self, now: Stamp) {
        self.shut_until = self.shut_until.filter(|shut_until| *shut_until > now);
    }

    /// The key's record, not settled, with the table's own copy of the key.
    pub fn get(&self, key: &str) -> Option<(&Key, &Record)> {
        self.records.get_key_value(key).map(|(key, record)| (key, record.as_ref()))
    }

    /// All records in byte order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Record)> {
        self.records.iter().map(|(key, record)| (key, record.as_ref()))
    }

    /// Records whose keys start with `prefix` and come strictly after `cursor`, in byte order.
    pub fn page<'a>(
        &'a self,
        prefix: &'a str,
        cursor: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a Key, &'a Record)> + 'a {
        let from = match cursor {
            Some(cursor) if cursor >= prefix => Bound::Excluded(cursor),
            _ => Bound::Included(prefix),
        };
        self.records
            .range::<_, str>((from, Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(key, record)| (key, record.as_ref()))
    }

    /// Adds a record, or replaces one.
    pub fn put(&mut self, key: &Key, record: Record) {
        let key = match self.records.get_key_value(key) {
            Some((own, old)) => {
                let own = Arc::clone(own);
                self.counts.take(Counts::of(old));
                if let Some(timer) = old.timer() {
                    self.timers.remove(&(timer, Arc::clone(&own)));
                }
                own
            }
            None => Arc::clone(key),
        };
        self.counts.add(Counts::of(&record));
        self.shut_until = self.shut_until.max(record.shut_until());
        if let Some(timer) = record.timer() {
            self.timers.insert((timer, Arc::clone(&key)));
        }
        if record.pool().is_ok() {
            self.pools.insert(Arc::clone(&key));
        }
        self.records.insert(key, Arc::new(record));
    }

    /// Changes a record in place; nothing happens if the key is absent.
    pub fn edit(&mut self, key: &str, change: impl FnOnce(&mut Record)) {
        let Some((key, slot)) = self.records.get_key_value_mut(key) else { return };
        let record = Arc::make_mut(slot);
        let (timer, counts) = (record.timer(), Counts::of(record));
        change(record);
        self.counts.take(counts);
        self.counts.add(Counts::of(record));
        self.shut_until = self.shut_until.max(record.shut_until());
        let next = record.timer();
        if next != timer {
            if let Some(timer) = timer {
                self.timers.remove(&(timer, Arc::clone(key)));
            }
            if let Some(next) = next {
                self.timers.insert((next, Arc::clone(key)));
            }
        }
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) {
        let Some((key, record)) = self.records.remove_with_key(key) else { return };
        self.counts.take(Counts::of(&record));
        self.pools.remove(&key);
        if let Some(timer) = record.timer() {
            self.timers.remove(&(timer, key));
        }
    }
}
