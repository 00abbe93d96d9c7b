//! How a pool is written: its record's flags, version, uuid and options, then its slots in order of their ids, then its line.
//! As its parent says: once shipped, not edited.

use super::{Buffer, flag, kind, sum};
use crate::keyspace::pool::Pool;
use crate::keyspace::record::Record;
use crate::keyspace::slot::Slot;
use crate::keyspace::{Key, OnConflict, PoolOptions};

/// What a slot has, as bits of its first byte.
pub mod slot_flag {
    pub const HELD: u64 = 1;
    pub const NOTE: u64 = 1 << 1;
    pub const BROKEN: u64 = 1 << 2;
    /// The owner is an identity.
    pub const IDENTIFIED: u64 = 1 << 3;
    pub const CLOCK: u64 = 1 << 4;
    pub const UNCONFIRMED: u64 = 1 << 5;
    pub const ALL_OF_HELD: u64 = NOTE | BROKEN | IDENTIFIED | CLOCK | UNCONFIRMED | GUARDED;
    pub const LAST: u64 = 1 << 6;
    pub const LAST_TOKEN: u64 = 1 << 7;
    pub const CLAIM: u64 = 1 << 8;
    pub const OPENS: u64 = 1 << 9;
    pub const FLOOR: u64 = 1 << 10;
    pub const CLOCKS_RUN: u64 = 1 << 11;
    /// Of one that is held.
    pub const GUARDED: u64 = 1 << 12;
    pub const BELIEVED: u64 = 1 << 13;
    pub const ALL: u64 = (1 << 14) - 1;
}

/// What a pool does with a live identity that asks with another token.
pub mod on_conflict {
    pub const TAKEOVER: u64 = 1;
    pub const REJECT: u64 = 2;
}

impl Buffer {
    pub(super) fn pool(&mut self, key: &Key, record: &Record, pool: &Pool) {
        self.text(key);
        self.number(kind::POOL);
        self.number(sum([(record.ends.is_some(), flag::ENDS), (pool.queue().is_some(), flag::QUEUE)]));
        self.position(record.version());
        if let Some(ends) = record.ends {
            self.stamp(ends);
        }
        self.0.extend_from_slice(&pool.uuid.0);
        self.pool_options(&pool.options);
        self.number(pool.slots(0).count() as u64);
        pool.slots(0).for_each(|(id, slot)| self.slot(id, slot));
        self.queue(pool.queue());
    }

    fn pool_options(&mut self, options: &PoolOptions) {
        let PoolOptions { size, first, quarantine_ms, release_quarantine_ms, ttl_ms_min, ttl_ms_max, on_conflict } =
            *options;
        self.number(u64::from(size));
        self.number(u64::from(first));
        [quarantine_ms, release_quarantine_ms, ttl_ms_min, ttl_ms_max].into_iter().for_each(|ms| self.number(ms));
        self.number(match on_conflict {
            OnConflict::Takeover => on_conflict::TAKEOVER,
            OnConflict::Reject => on_conflict::REJECT,
        });
    }

    fn slot(&mut self, id: u32, slot: &Slot) {
        self.number(u64::from(id));
        self.number(slot_flags(slot));
        match &slot.held {
            Some(held) => {
                self.grant(&held.grant);
                held.clock.into_iter().for_each(|clock| self.signed(clock));
                held.unconfirmed.into_iter().for_each(|attach| self.attach(attach));
                slot.guarded.into_iter().for_each(|guarded| self.stamp(guarded));
            }
            None => self.stamp(slot.since),
        }
        if let Some(last) = &slot.last {
            self.number(last.fence);
            self.text(&last.owner);
            last.token.into_iter().for_each(|token| self.token(token));
            self.end(&last.end);
            self.stamp(last.at);
        }
        slot.claim.iter().for_each(|claim| self.text(claim));
        slot.opens_at.into_iter().for_each(|opens_at| self.stamp(opens_at));
        slot.floor.fixed.into_iter().for_each(|floor| self.number(floor));
        if !slot.floor.running.is_empty() {
            self.number(slot.floor.running.len() as u64);
        }
        for (clock, until) in &slot.floor.running {
            self.signed(*clock);
            self.stamp(*until);
        }
        self.number(slot.superseded.len() as u64);
        slot.superseded.iter().for_each(|token| self.token(*token));
        self.number(slot.takeovers.len() as u64);
        slot.takeovers.iter().for_each(|at| self.stamp(*at));
        slot.believed.into_iter().for_each(|believed| self.stamp(believed));
    }
}

fn slot_flags(slot: &Slot) -> u64 {
    let (held, last) = (slot.held.as_ref(), slot.last.as_ref());
    sum([
        (held.is_some(), slot_flag::HELD),
        (held.is_some_and(|held| held.grant.note.is_some()), slot_flag::NOTE),
        (held.is_some_and(|held| held.grant.broken.is_some()), slot_flag::BROKEN),
        (held.is_some_and(|held| held.identity.is_some()), slot_flag::IDENTIFIED),
        (held.is_some_and(|held| held.clock.is_some()), slot_flag::CLOCK),
        (held.is_some_and(|held| held.unconfirmed.is_some()), slot_flag::UNCONFIRMED),
        (last.is_some(), slot_flag::LAST),
        (last.is_some_and(|last| last.token.is_some()), slot_flag::LAST_TOKEN),
        (slot.claim.is_some(), slot_flag::CLAIM),
        (slot.opens_at.is_some(), slot_flag::OPENS),
        (slot.floor.fixed.is_some(), slot_flag::FLOOR),
        (!slot.floor.running.is_empty(), slot_flag::CLOCKS_RUN),
        (slot.guarded.is_some(), slot_flag::GUARDED),
        (slot.believed.is_some(), slot_flag::BELIEVED),
    ])
}
