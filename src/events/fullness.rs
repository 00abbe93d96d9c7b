//! Which pools are nearly out of ids: said once when a pool comes to be so, and again only after it has had room. Said
//! when an identity gets a slot; a pool of slots without identities is a semaphore, and full as often as it is of use.
//!
//! Judged by what a grant tells: how many slots are held then, and how many there are. Slots that are given back are seen
//! with the next grant. Bounded: beyond [`POOLS_MAX`] full pools nothing is said of the rest.

use std::collections::BTreeSet;

use crate::keyspace::{Event, EventKind, Key};

/// Said from so many percent on.
const FULL_PERCENT: u64 = 80;
/// Said again after less than that.
const ROOM_PERCENT: u64 = 70;
/// Pools that are remembered as full.
const POOLS_MAX: usize = 1_000;

/// The pools that were said to be nearly full, and have had no room since.
#[derive(Debug, Default)]
pub struct Fullness {
    full: BTreeSet<Key>,
}

/// A pool came to be nearly full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearlyFull {
    /// The pool.
    pub pool: Key,
    /// Slots that are held.
    pub held: u32,
    /// All.
    pub size: u32,
}

impl Fullness {
    /// Takes in what happened; what there is to say about it.
    pub fn hear(&mut self, event: &Event) -> Option<NearlyFull> {
        match event.kind {
            EventKind::Granted => {}
            // Of the pool itself: a later one of the name is another.
            EventKind::Deleted if event.fence.is_none() => {
                self.full.remove(&event.key);
                return None;
            }
            _ => return None,
        }
        let slot = event.slot.as_ref()?;
        let (held, size) = (slot.held?, slot.answer.as_ref()?.grant()?.size);
        let percent = u64::from(held) * 100 / u64::from(size.max(1));
        if percent < ROOM_PERCENT {
            self.full.remove(&event.key);
        }
        let is_full = percent >= FULL_PERCENT && slot.identity.is_some();
        let is_new = is_full && self.full.len() < POOLS_MAX && self.full.insert(event.key.clone());
        is_new.then(|| NearlyFull { pool: event.key.clone(), held, size })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::keyspace::{PoolUuid, Reason, SlotGrant, SlotOutcome, SlotReply, Slotted};

    fn event(pool: &str, kind: EventKind, slot: Option<Slotted>) -> Event {
        Event {
            key: pool.into(),
            kind,
            fence: None,
            owner: None,
            last_renewed: None,
            detail: None,
            ttl_ms: None,
            attach: None,
            reason: None,
            slot,
        }
    }

    fn granted(pool: &str, held: u32, size: u32) -> Event {
        let grant = SlotGrant {
            id: 0,
            fence: 1,
            ttl_ms: 1,
            identity: Some("i".into()),
            uuid: PoolUuid::default(),
            first: 0,
            size,
            floor_unix_ms: None,
        };
        let answer = SlotReply { outcome: SlotOutcome::Granted(grant), ..SlotReply::nothing(Reason::Exhausted) };
        let slot = Slotted { id: 0, identity: Some("i".into()), answer: Some(Arc::new(answer)), held: Some(held) };
        event(pool, EventKind::Granted, Some(slot))
    }

    #[test]
    fn it_is_said_once_until_there_was_room() {
        let mut fullness = Fullness::default();
        let mut said = |held| fullness.hear(&granted("ids", held, 10)).map(|full| (full.held, full.size));
        assert_eq!(said(7), None);
        assert_eq!(said(8), Some((8, 10)));
        for held in [9, 10, 8, 7, 8, 10] {
            assert_eq!(said(held), None, "{held}");
        }
        assert_eq!(said(6), None);
        assert_eq!(said(7), None);
        assert_eq!(said(8), Some((8, 10)));
    }

    #[test]
    fn pools_are_told_apart_and_a_new_one_of_a_name_is_another() {
        let mut fullness = Fullness::default();
        assert!(fullness.hear(&granted("a", 1, 1)).is_some());
        assert!(fullness.hear(&granted("b", 1, 1)).is_some());
        assert!(fullness.hear(&granted("a", 1, 1)).is_none());
        let of_grant = Event { fence: Some(1), ..event("a", EventKind::Deleted, None) };
        assert_eq!(fullness.hear(&of_grant), None);
        assert!(fullness.hear(&granted("a", 1, 1)).is_none());
        assert_eq!(fullness.hear(&event("a", EventKind::Deleted, None)), None);
        assert!(fullness.hear(&granted("a", 1, 1)).is_some());
    }

    #[test]
    fn a_semaphore_may_be_full() {
        let mut fullness = Fullness::default();
        let mut anonymous = granted("p", 2, 2);
        anonymous.slot.iter_mut().for_each(|slot| slot.identity = None);
        assert_eq!(fullness.hear(&anonymous), None);
        assert!(fullness.hear(&granted("p", 2, 2)).is_some());
    }

    #[test]
    fn leases_are_nothing_to_it_and_memory_is_bounded() {
        let mut fullness = Fullness::default();
        assert_eq!(fullness.hear(&event("k", EventKind::Granted, None)), None);
        let said = (0..POOLS_MAX + 5).filter(|n| fullness.hear(&granted(&n.to_string(), 1, 1)).is_some()).count();
        assert_eq!(said, POOLS_MAX);
        // A small pool beyond its end after a RESIZE is full too.
        assert!(Fullness::default().hear(&granted("p", 9, 3)).is_some());
    }
}
