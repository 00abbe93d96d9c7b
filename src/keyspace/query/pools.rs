//! What readers see of pools: HOLDERS, and GET's view.

use std::sync::Arc;

use tenure_cluster::Stamp;

use super::{SCAN_VISITS_MAX, key_ttl_ms};
use crate::keyspace::pool::Pool;
use crate::keyspace::record::Record;
use crate::keyspace::slot::{Past, Slot};
use crate::keyspace::{Ended, GrantView, Key, PoolView};

/// Which slots HOLDERS shows, in order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// This one alone, whatever its state.
    pub id: Option<u32>,
    /// Free ones that were given before too.
    pub all: bool,
    /// Ids strictly after it.
    pub cursor: Option<u32>,
    /// At most so many.
    pub limit: usize,
}

/// One page of HOLDERS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldersPage {
    /// Slots in order of their ids.
    pub slots: Vec<SlotView>,
    /// Where the next page starts; `None`: that was all.
    pub cursor: Option<u32>,
}

/// A slot as HOLDERS shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// The slot.
    pub id: u32,
    /// The live grant. Its owner is the identity, for an anonymous slot what its holder said.
    pub grant: Option<GrantView>,
    /// The identity of the live grant, or the one that a free slot is kept for while nobody else needs it.
    pub identity: Option<Arc<str>>,
    /// A free slot: until it may be given to others, milliseconds; 0: it may.
    pub free_in_ms: u64,
    /// The grant that ended last.
    pub last: Option<Ended>,
}

/// How much of a pool is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// Slots that are held.
    pub held: u32,
    /// Free ones that are not given yet.
    pub quarantined: u32,
    /// All.
    pub size: u32,
}

/// One page of HOLDERS.
pub(super) fn holders(pool: &Pool, which: &Holders, now: Stamp) -> HoldersPage {
    if let Some(id) = which.id {
        return HoldersPage {
            slots: pool.slot(id).map(|slot| slot_view(id, slot, now)).into_iter().collect(),
            cursor: None,
        };
    }
    let mut page = HoldersPage { slots: Vec::new(), cursor: None };
    let from = which.cursor.map_or(Some(0), |cursor| cursor.checked_add(1));
    let Some(from) = from else { return page };
    let mut last = None;
    for (visits, (id, slot)) in pool.slots(from).enumerate() {
        if page.slots.len() >= which.limit || visits >= SCAN_VISITS_MAX {
            page.cursor = last;
            return page;
        }
        if which.all || slot.held.is_some() {
            page.slots.push(slot_view(id, slot, now));
        }
        last = Some(id);
    }
    page
}

fn slot_view(id: u32, slot: &Slot, now: Stamp) -> SlotView {
    SlotView {
        id,
        grant: slot.held.as_ref().map(|held| held.grant.view(now)),
        identity: slot.identity().cloned(),
        free_in_ms: slot.opens_at.map_or(0, |opens_at| opens_at.ms_since(now)),
        last: slot.last.as_ref().map(Past::view),
    }
}

/// A pool as GET shows it.
pub(super) fn pool_view(key: &Key, record: &Record, pool: &Pool, now: Stamp) -> PoolView {
    let PoolUse { held, quarantined, .. } = pool.usage();
    let opens_at = if pool.next(None).is_some() { Some(Stamp(0)) } else { pool.opens_at(None) };
    let opens_at = if record.is_over(now) { pool.quiet_at() } else { opens_at };
    PoolView {
        key: Key::clone(key),
        uuid: pool.uuid,
        options: pool.options,
        held,
        quarantined,
        free: pool.free(),
        waiters: record.waiters() as u64,
        acquirable_in_ms: opens_at.map_or(0, |opens_at| opens_at.ms_since(now)),
        version: record.version(),
        key_ttl_ms: key_ttl_ms(record, now),
    }
}
