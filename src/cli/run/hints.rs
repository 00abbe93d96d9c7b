//! News of the grants from a watch: when to ask at once.
//!
//! A watch tells of a BREAK or a DEL within moments, a renewal only when its time has come. What it tells is a hint and
//! no more: it makes the run send a RENEW, and the answer to that counts. So a watch that fails, lags or lies ends no job;
//! it costs a RENEW, or the time until the next one.

use std::collections::BTreeMap;

use tenure_client::Client;
use tenure_client::watch::{Notice, Selection, Watch};

use super::grants::Grants;

/// Follows the keys of a run.
pub struct Hints {
    watch: Option<Watch>,
    fences: BTreeMap<String, u64>,
    /// The key is a pool: most of what happens to it happens to others' slots.
    of_slot: bool,
}

impl Hints {
    /// Of these grants. Connects when it is first asked.
    pub fn new(client: &Client, grants: &Grants) -> Self {
        let fences: BTreeMap<String, u64> = grants.iter().map(|grant| (grant.key.clone(), grant.fence)).collect();
        let selection = Selection { keys: fences.keys().cloned().collect(), list: true, ..Selection::default() };
        Self { watch: Some(Watch::new(client, selection)), fences, of_slot: grants.is_slot() }
    }

    /// Returns when a grant may have ended; never if it cannot be known. Nothing is lost if it is cancelled.
    pub async fn next(&mut self) {
        while let Some(watch) = &mut self.watch {
            match watch.next().await {
                Ok(notice) if is_news(&notice, &self.fences, self.of_slot) => return,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "no watch: a BREAK is seen at the next renewal");
                    self.watch = None;
                }
            }
        }
        std::future::pending().await
    }
}

/// Whether this tells, of any of these grants, anything but that it stands.
fn is_news(notice: &Notice, fences: &BTreeMap<String, u64>, of_slot: bool) -> bool {
    match notice {
        // A grant is known by its fence alone; the pool as a whole, when it is deleted, has none.
        Notice::Event(event) if of_slot => match event.kind.as_str() {
            "created" | "granted" | "renewed" => false,
            _ => event.fence.is_none_or(|fence| fences.get(&event.key) == Some(&fence)),
        },
        // It shows no single grant.
        Notice::Reset { .. } if of_slot => true,
        Notice::Event(event) => match (event.kind.as_str(), fences.get(&event.key)) {
            (_, None) | ("created" | "renewed", _) => false,
            ("deleted", _) => true,
            // Our own grant, told late, or one before it.
            ("granted", Some(own)) => event.fence.is_some_and(|fence| fence > *own),
            (_, own) => event.fence.as_ref() == own,
        },
        Notice::Reset { keys: None, .. } => true,
        Notice::Reset { keys: Some(keys), .. } => !fences.iter().all(|(key, fence)| {
            keys.iter().any(|one| one.key == *key && one.held && one.fence == Some(*fence) && one.broken.is_none())
        }),
    }
}

#[cfg(test)]
mod tests {
    use tenure_client::wire::{Event, Snapshot};

    use super::*;

    fn told(kind: &str, key: &str, fence: Option<u64>) -> bool {
        let event = Event { kind: kind.to_owned(), key: key.to_owned(), fence, ..Event::default() };
        is_news(&Notice::Event(event), &fences(), false)
    }

    fn told_of_pool(kind: &str, fence: Option<u64>) -> bool {
        let event = Event { kind: kind.to_owned(), key: "a".to_owned(), fence, ..Event::default() };
        is_news(&Notice::Event(event), &fences(), true)
    }

    fn fences() -> BTreeMap<String, u64> {
        [("a".to_owned(), 7), ("b".to_owned(), 8)].into()
    }

    fn listed(keys: Vec<Snapshot>) -> bool {
        is_news(
            &Notice::Reset { reason: "start".to_owned(), keys: Some(keys), id: "c-1.0".to_owned() },
            &fences(),
            false,
        )
    }

    fn held(key: &str, fence: u64) -> Snapshot {
        Snapshot { key: key.to_owned(), held: true, fence: Some(fence), ..Snapshot::default() }
    }

    #[test]
    fn what_ends_a_grant_of_ours_is_news() {
        for kind in ["broken", "released", "expired"] {
            assert!(told(kind, "a", Some(7)), "{kind}");
            assert!(!told(kind, "a", Some(6)), "{kind}: another's, before ours");
            assert!(!told(kind, "c", Some(7)), "{kind}: another key");
        }
        assert!(told("deleted", "b", None));
        assert!(told("granted", "b", Some(9)), "somebody else has it");
    }

    #[test]
    fn what_happens_to_other_slots_is_none() {
        for kind in ["broken", "released", "expired", "deleted"] {
            assert!(told_of_pool(kind, Some(7)), "{kind}");
            assert!(!told_of_pool(kind, Some(8)), "{kind}: another slot's");
        }
        assert!(!told_of_pool("granted", Some(9)), "another slot was given");
        assert!(told_of_pool("deleted", None), "the pool");
    }

    #[test]
    fn what_we_know_is_none() {
        assert!(!told("granted", "a", Some(7)));
        assert!(!told("renewed", "a", Some(7)));
        assert!(!told("created", "a", None));
    }

    #[test]
    fn a_list_with_all_of_them_is_none() {
        assert!(!listed(vec![held("a", 7), held("b", 8)]));
        assert!(listed(vec![held("a", 7)]), "deleted");
        assert!(listed(vec![held("a", 7), held("b", 9)]), "another's");
        let broken = Snapshot { broken: Some("why".to_owned()), ..held("b", 8) };
        assert!(listed(vec![held("a", 7), broken]), "in the grace of a BREAK");
        let free = Snapshot { held: false, fence: None, ..held("b", 8) };
        assert!(listed(vec![held("a", 7), free]));
    }
}
