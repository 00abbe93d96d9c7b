//! Linearizable reads on every node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use openraft::type_config::TypeConfigExt;

use super::{C, Fate, Filter, World, config, ms_since, now, simulated, sleep};
use crate::cluster::AGE_UNKNOWN;
use crate::counter::Command;

#[test]
fn a_read_elsewhere_sees_what_was_acknowledged_before() {
    simulated(31, async {
        let world = World::of(3).await;
        world.leader().await;
        let over = Arc::new(AtomicBool::new(false));
        let elections = {
            let (world, over) = (world.clone(), Arc::clone(&over));
            C::spawn(async move {
                let mut elections = 0;
                while !over.load(Ordering::Relaxed) {
                    let (id, leader) = world.leader().await;
                    drop(leader);
                    sleep(3_000).await;
                    world.net().cut.insert(id);
                    sleep(1_500).await;
                    world.net().cut.clear();
                    elections += 1;
                }
                elections
            })
        };
        let (mut acknowledged, mut most, mut reads, mut round) = (0, 0, 0, 0);
        while reads < 3_000 {
            round += 1;
            let node = |at: u64| world.node(at % 3 + 1);
            match node(round).submit(Command::Add(1)).await {
                Ok(applied) => {
                    most += 1;
                    acknowledged = applied.reply;
                }
                // It may have taken effect, or still do.
                Err(_) => most += 1,
            }
            for at in [round + 1, round + 2] {
                if let Ok(seen) = node(at).read(|counter, at| counter.sum(at)).await {
                    assert!((acknowledged..=most).contains(&seen.value), "{acknowledged}..={most}: {}", seen.value);
                    acknowledged = seen.value;
                    reads += 1;
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(elections.await.unwrap() >= 3);
    });
}

#[test]
fn reads_on_followers_share_rounds() {
    simulated(32, async {
        let world = World::of(3).await;
        let (_, follower) = world.follower().await;
        follower.submit(Command::Add(7)).await.unwrap();
        let reads: Vec<_> = (0..1_000)
            .map(|_| {
                let follower = follower.clone();
                C::spawn(async move { follower.read(|counter, at| counter.sum(at)).await.unwrap().value })
            })
            .collect();
        for read in reads {
            assert_eq!(read.await.unwrap(), 7);
        }
        let rounds = world.net().delivered["read-index"];
        assert!(rounds <= 3, "{rounds} rounds for 1 000 reads");
    });
}

#[test]
fn a_follower_shows_no_expiry_that_is_not_in_the_log() {
    for due_ms in [100, 7] {
        simulated(33, async {
            let world = World::of(3).await;
            let (_, follower) = world.follower().await;
            follower.submit(Command::Add(9)).await.unwrap();
            let armed = follower.submit(Command::ResetIn(due_ms)).await.unwrap().witness.clock;
            loop {
                let seen = follower.read(|counter, at| counter.sum(at)).await.unwrap();
                let is_due = seen.witness.clock.ms_since(armed) >= due_ms;
                assert_eq!(seen.value == 0, is_due, "at {:?}", seen.witness);
                if is_due {
                    let stale = follower.read_stale(|counter, at| counter.sum(at));
                    assert_eq!(stale.value, Ok(0), "it is in this node's own state");
                    break;
                }
            }
        });
    }
}

#[test]
fn a_read_that_waits_for_time_sees_what_was_ordered_before_it() {
    simulated(39, async {
        let world = World::of(3).await;
        let (id, leader) = world.leader().await;
        leader.submit(Command::Add(9)).await.unwrap();
        leader.submit(Command::ResetIn(50)).await.unwrap();
        // Nothing commits for a while: the reset is put off just before it is due, and the read's tick comes after that.
        let set_stuck = |stuck| {
            for (_, host) in world.net().hosts.iter().filter(|(other, _)| **other != id) {
                host.log.set_stuck(stuck);
            }
        };
        sleep(30).await;
        set_stuck(true);
        let other = leader.clone();
        let put_off = C::spawn(async move { other.submit(Command::ResetIn(60_000)).await });
        sleep(100).await;
        let reading = C::spawn(async move { leader.read(|counter, at| counter.sum(at)).await });
        sleep(100).await;
        set_stuck(false);
        put_off.await.unwrap().unwrap();
        assert_eq!(reading.await.unwrap().unwrap().value, 9);
    });
}

#[test]
fn reads_that_wait_for_time_ask_the_leader_once_and_survive_a_lost_tick() {
    simulated(34, async {
        let world = World::of(3).await;
        let (id, follower) = world.follower().await;
        follower.submit(Command::Add(9)).await.unwrap();
        follower.submit(Command::ResetIn(50)).await.unwrap();
        // The follower's state stands still, so that all its reads come to wait for the same time.
        let slow: Filter =
            Box::new(move |_, to, what| if what == "append" && to == id { Fate::Refused } else { Fate::Arrives });
        world.net().filter = Some(slow);
        sleep(60).await;
        let reads: Vec<_> = (0..100)
            .map(|_| {
                let follower = follower.clone();
                C::spawn(async move { follower.read(|counter, at| counter.sum(at)).await.unwrap().value })
            })
            .collect();
        sleep(20).await;
        world.net().filter = None;
        for read in reads {
            assert_eq!(read.await.unwrap(), 0);
        }
        let ticks = world.net().delivered.get("tick").copied().unwrap_or(0);
        assert!(ticks <= 3, "{ticks} ticks asked for by 100 reads");

        follower.submit(Command::Add(9)).await.unwrap();
        follower.submit(Command::ResetIn(5)).await.unwrap();
        let lose: Filter = Box::new(|_, _, what| if what == "tick" { Fate::Refused } else { Fate::Arrives });
        world.net().filter = Some(lose);
        let before = now();
        while follower.read(|counter, at| counter.sum(at)).await.unwrap().value != 0 {}
        assert!(ms_since(before) < 100, "the timer's own tick ends the wait");
    });
}

#[test]
fn a_follower_without_its_leader_answers_no_linearizable_read() {
    simulated(35, async {
        let mut config = config();
        config.request_timeout = std::time::Duration::from_millis(500);
        let world = World::with(3, config).await;
        let (id, follower) = world.follower().await;
        follower.submit(Command::Add(1)).await.unwrap();
        world.net().cut.insert(id);
        let before = now();
        follower.read(|counter, at| counter.sum(at)).await.unwrap_err();
        assert_eq!(ms_since(before), 500);
        world.net().cut.clear();
        let (_, leader) = world.leader().await;
        leader.submit(Command::Add(1)).await.unwrap();
        assert_eq!(follower.read(|counter, at| counter.sum(at)).await.unwrap().value, 2);
    });
}

/// The age a node gives for its state.
fn age(world: &World, id: u64) -> u64 {
    world.node(id).read_stale(|_, _| ()).age_ms
}

#[test]
fn a_stale_read_tells_how_old_it_may_be() {
    simulated(36, async {
        let world = World::of(5).await;
        let (leader, node) = world.leader().await;
        node.submit(Command::Add(1)).await.unwrap();
        sleep(10_000).await;
        let oldest = (1..=5).map(|id| age(&world, id)).max().unwrap();
        assert!(oldest <= 300, "a heartbeat each 100 ms keeps all of them fresh: {oldest}");

        // The leader and one follower on one side: they hear each other, and yet the others go on without them.
        let beside = if leader == 1 { 2 } else { 1 };
        let inside = move |id: u64| id == leader || id == beside;
        let parted: Filter =
            Box::new(move |from, to, _| if inside(from) == inside(to) { Fate::Arrives } else { Fate::Refused });
        world.net().filter = Some(parted);
        sleep(5_000).await;
        for id in [leader, beside] {
            let age = age(&world, id);
            assert!((5_000..5_500).contains(&age), "no quorum follows that leader: {age}");
        }
        let fresh = (1..=5).filter(|id| !inside(*id)).map(|id| age(&world, id)).max().unwrap();
        assert!(fresh <= 300, "{fresh}");
        world.net().filter = None;
        sleep(1_500).await;
        assert!((1..=5).all(|id| age(&world, id) <= 300));

        world.net().cut.insert(beside);
        world.kill(beside);
        world.start(beside).await;
        sleep(2_000).await;
        let unknown = u64::try_from(AGE_UNKNOWN.as_millis()).unwrap();
        assert_eq!(age(&world, beside), unknown, "it may have been down for any time");
        world.net().cut.clear();
        sleep(3_000).await;
        assert!(age(&world, beside) <= 300, "the leader was heard");
    });
}

#[test]
fn a_follower_that_hears_more_than_it_applies_says_so() {
    simulated(37, async {
        let world = World::of(3).await;
        let (id, follower) = world.follower().await;
        follower.submit(Command::Add(1)).await.unwrap();
        sleep(1_000).await;
        // It hears of entries but cannot store them: nothing more is applied.
        let log = world.net().hosts[&id].log.clone();
        log.set_stuck(true);
        let (_, leader) = world.leader().await;
        let mut acknowledged_at = Vec::new();
        let mut lagged = 0;
        for _ in 0..30 {
            leader.submit(Command::Add(1)).await.unwrap();
            acknowledged_at.push(now());
            sleep(100).await;
            let stale = follower.read_stale(|counter, at| counter.sum(at).unwrap());
            // What it lacks was acknowledged no longer ago than the age it gives.
            if let Some(missed) = acknowledged_at.get(usize::try_from(stale.value).unwrap() - 1) {
                assert!(stale.age_ms >= ms_since(*missed), "{} of {}", stale.age_ms, ms_since(*missed));
                lagged += 1;
            }
        }
        assert!(lagged > 20, "{lagged}");
        log.set_stuck(false);
        assert_eq!(world.settled().await, 31);
        sleep(300).await;
        let age_ms = follower.read_stale(|_, _| ()).age_ms;
        assert!(age_ms <= 300, "{age_ms}");
    });
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_found() {
    use crate::planted::{Bug, is_found};
    assert!(is_found(Bug::StaleFollowerRead, a_read_elsewhere_sees_what_was_acknowledged_before));
    assert!(is_found(Bug::NoTickBeforeExpiredRead, a_follower_shows_no_expiry_that_is_not_in_the_log));
    assert!(is_found(Bug::OldStateAfterTick, a_read_that_waits_for_time_sees_what_was_ordered_before_it));
}
