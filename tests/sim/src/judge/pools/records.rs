//! What was held when, for whoever was shown it or believed in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure::keyspace::{HoldersPage, Key, PoolView, SlotView};
use tenure_cluster::{Position, Witness};

/// A grant of a slot.
#[derive(Clone, Debug)]
pub(in crate::judge) struct Record {
    pub id: u32,
    pub identity: Option<Arc<str>>,
    began: Position,
    /// Its deadlines, and from where each holds.
    deadlines: Vec<(Position, u64)>,
    ended: Option<Position>,
    /// Where somebody else than its holder made an end of it.
    overridden: Option<Position>,
}

impl Record {
    /// What was left of it, if it was live.
    fn left_ms(&self, of: Witness) -> Option<u64> {
        let is_there = self.began <= of.position && self.ended.is_none_or(|ended| ended > of.position);
        let deadline = self.deadlines.iter().rev().find(|(since, _)| *since <= of.position);
        let left_ms = deadline.map_or(0, |(_, deadline_ms)| deadline_ms.saturating_sub(of.clock.0));
        Some(left_ms).filter(|left_ms| is_there && *left_ms > 0)
    }
}

/// What a reader of a pool was shown.
#[derive(Clone, Debug)]
pub enum Shown {
    /// There is no such pool.
    Nothing,
    /// GET.
    Pool(Box<PoolView>),
    /// HOLDERS, all that are held on one page.
    Holders(HoldersPage),
    /// HOLDERS of one slot.
    Slot(u32, Option<SlotView>),
}

/// See the module's head.
#[derive(Debug, Default)]
pub(in crate::judge) struct Records {
    by_fence: BTreeMap<u64, Record>,
    by_key: BTreeMap<Key, Vec<u64>>,
}

impl Records {
    pub(super) fn began(
        &mut self,
        key: &Key,
        fence: u64,
        id: u32,
        identity: Option<Arc<str>>,
        (began, deadline_ms): (Position, u64),
    ) {
        let deadlines = vec![(began, deadline_ms)];
        let record = Record { id, identity, began, deadlines, ended: None, overridden: None };
        self.by_fence.insert(fence, record);
        self.by_key.entry(Key::clone(key)).or_default().push(fence);
    }

    pub(super) fn moved(&mut self, fence: u64, at: Position, deadline_ms: u64) {
        if let Some(record) = self.by_fence.get_mut(&fence) {
            record.deadlines.push((at, deadline_ms));
        }
    }

    pub(super) fn ended(&mut self, fence: u64, at: Position) {
        if let Some(record) = self.by_fence.get_mut(&fence) {
            record.ended.get_or_insert(at);
        }
    }

    pub(super) fn overridden(&mut self, fence: u64, at: Position) {
        if let Some(record) = self.by_fence.get_mut(&fence) {
            record.overridden.get_or_insert(at);
        }
    }

    /// Grants of which somebody else than their holder made an end, and where.
    pub(in crate::judge) fn overrides(&self) -> impl Iterator<Item = (u64, Position)> {
        self.by_fence.iter().filter_map(|(fence, record)| Some((*fence, record.overridden?)))
    }

    /// What is wrong with what a reader of the pool was shown under that witness; `None`: nothing.
    pub(in crate::judge) fn contradicts(&self, key: &Key, shown: &Shown, of: Witness) -> Option<String> {
        let fences = self.by_key.get(key).map_or(&[][..], Vec::as_slice);
        let live: BTreeMap<u32, (u64, u64)> = fences
            .iter()
            .filter_map(|fence| {
                let record = self.by_fence.get(fence)?;
                Some((record.id, (*fence, record.left_ms(of)?)))
            })
            .collect();
        let right = match shown {
            Shown::Nothing => live.is_empty(),
            Shown::Pool(view) => {
                let within = live.keys().filter(|id| is_within(view, **id)).count() as u64;
                let all = within + u64::from(view.quarantined) + u64::from(view.free);
                live.len() as u64 == u64::from(view.held) && all == u64::from(view.options.size)
            }
            Shown::Holders(page) => {
                let told: BTreeMap<u32, (u64, u64)> = page.slots.iter().filter_map(told).collect();
                page.cursor.is_some() || told == live
            }
            Shown::Slot(id, view) => view.as_ref().and_then(told) == live.get(id).map(|it| (*id, *it)),
        };
        let identities = match shown {
            Shown::Nothing | Shown::Pool(_) => true,
            Shown::Holders(page) => page.slots.iter().all(|slot| self.is_whose(slot)),
            Shown::Slot(_, slot) => slot.as_ref().is_none_or(|slot| self.is_whose(slot)),
        };
        (!right || !identities).then(|| format!("of {key} at {of:?} is shown {shown:?}, and held is {live:?}"))
    }

    fn is_whose(&self, slot: &SlotView) -> bool {
        let Some(grant) = &slot.grant else { return true };
        self.by_fence.get(&grant.fence).is_some_and(|record| record.id == slot.id && record.identity == slot.identity)
    }
}

fn is_within(view: &PoolView, id: u32) -> bool {
    u64::from(id) < u64::from(view.options.first) + u64::from(view.options.size)
}

fn told(slot: &SlotView) -> Option<(u32, (u64, u64))> {
    slot.grant.as_ref().map(|grant| (slot.id, (grant.fence, grant.ttl_ms)))
}
