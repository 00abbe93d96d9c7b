//! Leadership changes hands without anybody noticing, or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use openraft::type_config::TypeConfigExt;

use super::{C, World, ms_since, now, simulated, sleep};
use crate::counter::Command;
use crate::error::SubmitError;
use crate::log_gauge::LogGauge;
use crate::transfer::NoTarget;

#[test]
fn leadership_is_handed_over_under_load_and_no_submitter_notices() {
    simulated(61, async {
        let world = World::of(3).await;
        world.leader().await;
        let over = Arc::new(AtomicBool::new(false));
        let submitters: Vec<_> = (0..30)
            .map(|at| {
                let (node, over) = (world.node(at % 3 + 1), Arc::clone(&over));
                C::spawn(async move {
                    let mut slowest = 0;
                    let mut count = 0;
                    while !over.load(Ordering::Relaxed) {
                        let before = now();
                        node.submit(Command::Add(1)).await.unwrap();
                        slowest = slowest.max(ms_since(before));
                        count += 1;
                    }
                    (count, slowest)
                })
            })
            .collect();
        for round in 0..20 {
            sleep(200).await;
            let (id, leader) = world.leader().await;
            let before = now();
            let to = (round % 2 == 0).then_some(id % 3 + 1);
            let next = leader.hand_over(to).await.unwrap();
            assert!(ms_since(before) < 30, "{} ms", ms_since(before));
            assert_ne!(next, id);
            assert!(to.is_none_or(|to| to == next));
            assert_eq!(world.leader().await.0, next);
        }
        over.store(true, Ordering::Relaxed);
        let mut sum = 0;
        for submitter in submitters {
            let (count, slowest) = submitter.await.unwrap();
            sum += count;
            assert!(slowest < 200, "a command took {slowest} ms");
        }
        assert!(sum > 1_000, "{sum}");
        assert_eq!(world.settled().await, sum);
    });
}

#[test]
fn a_leader_without_a_fit_successor_leads_on() {
    simulated(62, async {
        let world = World::of(3).await;
        let (id, leader) = world.leader().await;
        let (other, follower) = world.follower().await;
        leader.submit(Command::Add(1)).await.unwrap();
        sleep(500).await;
        let term = leader.status().term;
        assert_eq!(follower.hand_over(None).await, Err(NoTarget::NotLeader));
        assert_eq!(leader.hand_over(Some(id)).await, Err(NoTarget::Itself(id)));
        assert_eq!(leader.hand_over(Some(9)).await, Err(NoTarget::NotAVoter(9)));

        world.net().cut.insert(other);
        assert_eq!(leader.hand_over(Some(other)).await, Err(NoTarget::NotConnected(other)));
        world.net().cut.clear();
        sleep(1_000).await;

        // Its disk stands still: it answers nothing, and would not be elected.
        let third = (1..=3).find(|third| ![id, other].contains(third)).unwrap();
        let log = world.net().hosts[&third].log.clone();
        log.set_stuck(true);
        for _ in 0..3 {
            leader.submit(Command::Add(1)).await.unwrap();
            sleep(100).await;
        }
        let refused = leader.hand_over(Some(third)).await.unwrap_err();
        assert!([NoTarget::Silent(third), NoTarget::Behind(third)].contains(&refused), "{refused}");
        log.set_stuck(false);

        world.net().unlinked = (1..=3).collect();
        assert_eq!(leader.hand_over(None).await, Err(NoTarget::NobodyFit));
        world.net().unlinked.clear();
        leader.submit(Command::Add(1)).await.unwrap();
        assert_eq!((world.leader().await.0, leader.status().term), (id, term), "nothing has happened");
    });
    simulated(63, async {
        let world = World::of(1).await;
        let (_, leader) = world.leader().await;
        assert_eq!(leader.hand_over(None).await, Err(NoTarget::Alone));
        leader.submit(Command::Add(1)).await.unwrap();
    });
}

#[test]
fn a_leader_whose_disk_is_full_hands_over() {
    simulated(64, async {
        let world = World::of(3).await;
        let (id, leader) = world.leader().await;
        leader.submit(Command::Add(1)).await.unwrap();
        let log = world.net().hosts[&id].log.clone();
        log.set_full(true);
        assert_eq!(leader.submit(Command::Add(1)).await.unwrap().reply, 2, "it commits through the others");
        sleep(1_500).await;
        let (next, _) = world.leader().await;
        assert_ne!(next, id);
        assert_eq!(leader.submit(Command::Add(1)).await.unwrap().reply, 3, "and forwards from then on");
        assert_eq!(leader.status().not_ready, Some("disk_full"));
        log.set_full(false);
        assert_eq!(world.settled().await, 3);
        assert_eq!(leader.status().not_ready, None);
    });
}

#[test]
fn a_full_disk_without_a_successor_bounds_memory_and_stops_the_clock() {
    simulated(65, async {
        let mut config = super::config();
        config.snapshot_log_bytes = 1 << 30;
        let world = World::with(3, config).await;
        let (id, leader) = world.leader().await;
        let clock = async || leader.read(|_, at| Ok(at.now.0)).await.unwrap().value;
        let (_, follower) = world.follower().await;
        leader.submit(Command::ResetIn(1_000_000)).await.unwrap();
        world.net().unlinked = (1..=3).collect();
        let log = world.net().hosts[&id].log.clone();
        log.set_full(true);
        let megabyte = || Command::Padded(vec![1; 1_000_000]);
        let mut taken = 0;
        while leader.submit(megabyte()).await.is_ok() {
            taken += 1;
        }
        assert_eq!(taken, 5, "up to 4 MiB are outstanding, and the entry that passes them");
        assert!(log.unsynced_bytes() < 5_100_000, "{}", log.unsynced_bytes());
        let before = clock().await;
        for _ in 0..3 {
            for node in [&follower, &leader] {
                let refused = node.submit(megabyte()).await.unwrap_err();
                assert!(matches!(refused, SubmitError::Unavailable(_)), "it was never handed off: {refused}");
            }
        }
        sleep(60_000).await;
        assert!(log.unsynced_bytes() < 5_100_000, "ticks are held as well: {}", log.unsynced_bytes());
        assert!(clock().await - before <= 600, "nobody could renew: {} ms", clock().await - before);
        log.set_full(false);
        leader.submit(Command::Add(1)).await.unwrap();
        let before = clock().await;
        sleep(10_000).await;
        let passed = clock().await - before;
        assert!((10_000..10_010).contains(&passed), "and it goes on: {passed}");
    });
}
