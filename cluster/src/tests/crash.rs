//! A killed leader costs little, and nothing but a killed leader uses the fast path.

use super::{Fate, Filter, World, config, ms_since, now, simulated, sleep};
use crate::counter::Command;
use crate::raft::NodeId;

/// Kills the leader and returns how long it took until a command was answered again, and who leads then.
async fn failover(world: &World) -> (u64, NodeId) {
    let (old, leader) = world.leader().await;
    drop(leader);
    world.kill(old);
    let (_, node) = world.nodes().into_iter().next_back().unwrap();
    let before = now();
    node.submit(Command::Add(1)).await.unwrap();
    (ms_since(before), world.leader().await.0)
}

#[test]
fn a_killed_leader_is_followed_within_milliseconds() {
    for (size, seed) in [(3, 41), (3, 42), (5, 43), (5, 44)] {
        simulated(seed, async {
            let mut config = config();
            config.election_timeout = std::time::Duration::from_millis(750);
            let world = World::with(size, config).await;
            for round in 1..=6 {
                let (old, leader) = world.leader().await;
                leader.submit(Command::Add(1)).await.unwrap();
                drop(leader);
                let (ms, new) = failover(&world).await;
                assert!(ms < 100, "round {round} with {size} voters: {ms} ms");
                let lowest = (1..=size).find(|id| *id != old).unwrap();
                assert_eq!(new, lowest, "the lowest id that lacks nothing");
                world.start(old).await;
                world.settled().await;
            }
        });
    }
}

#[test]
fn who_lacks_entries_does_not_follow_the_killed_leader() {
    for (size, seed) in [(3, 45), (5, 46)] {
        simulated(seed, async {
            let world = World::of(size).await;
            let (old, leader) = world.leader().await;
            let lowest = (1..=size).find(|id| *id != old).unwrap();
            sleep(1_000).await;
            let behind: Filter = Box::new(
                move |_, to, what| {
                    if what == "append" && to == lowest { Fate::Refused } else { Fate::Arrives }
                },
            );
            world.net().filter = Some(behind);
            leader.submit(Command::Add(1)).await.unwrap();
            drop(leader);
            world.net().filter = None;
            let (ms, new) = failover(&world).await;
            assert!(ms < 300, "{size} voters: {ms} ms");
            assert!(new != lowest && new != old, "{new}");
            assert_eq!(world.settled().await, 2);
        });
    }
}

/// The term after `trouble`, which must not change it.
fn undisturbed(size: NodeId, seed: u64, trouble: impl AsyncFn(&World, NodeId)) {
    simulated(seed, async {
        let world = World::of(size).await;
        let (id, leader) = world.leader().await;
        leader.submit(Command::Add(1)).await.unwrap();
        let before = leader.status().term;
        trouble(&world, id).await;
        sleep(2_000).await;
        let (after, leader) = world.leader().await;
        assert_eq!((after, leader.status().term), (id, before), "the leader was deposed");
        assert_eq!(leader.submit(Command::Add(1)).await.unwrap().reply, 2);
    });
}

#[test]
fn what_one_node_sees_alone_deposes_nobody() {
    undisturbed(3, 47, async |world, leader| {
        let alone = if leader == 1 { 2 } else { 1 };
        world.set_gone(alone, leader, true);
        sleep(60_000).await;
    });
    undisturbed(5, 48, async |world, leader| {
        let mut others = (1..=5).filter(|id| *id != leader);
        for alone in [others.next().unwrap(), others.next().unwrap()] {
            world.set_gone(alone, leader, true);
        }
        sleep(60_000).await;
    });
}

#[test]
fn a_flapping_link_deposes_nobody() {
    // Each follower in turn sees the leader gone for moments, at no time a majority does.
    undisturbed(3, 49, async |world, leader| {
        for round in 0..200 {
            let id = (1..=3).filter(|id| *id != leader).nth(round % 2).unwrap();
            world.set_gone(id, leader, true);
            sleep(7 + (round as u64 * 13) % 90).await;
            world.set_gone(id, leader, false);
            sleep((round as u64 * 29) % 120).await;
        }
    });
}

#[test]
fn silence_deposes_nobody_faster_than_the_election_timeout() {
    simulated(50, async {
        let world = World::of(3).await;
        let (old, leader) = world.leader().await;
        let term = leader.status().term;
        sleep(1_000).await;
        world.net().cut.insert(old);
        sleep(550).await;
        for (id, node) in world.nodes() {
            assert_eq!(node.status().term, term, "node {id} moved within T of the last contact");
        }
        let (new, _) = world.leader().await;
        assert_ne!(new, old);
    });
}

#[test]
fn the_transport_knows_the_members_but_oneself() {
    simulated(51, async {
        let world = World::of(3).await;
        world.leader().await;
        world.settled().await;
        for (id, _) in world.nodes() {
            let known: Vec<_> = world.net().hosts[&id].known.clone().into_iter().collect();
            let expected: Vec<_> = (1..=3).filter(|other| *other != id).map(|id| (id, super::member(id))).collect();
            assert_eq!(known, expected);
        }
    });
}

#[test]
fn a_silent_leader_is_not_taken_for_dead() {
    undisturbed(3, 49, async |world, leader| {
        world.net().unlinked.insert(leader);
        sleep(5_000).await;
        world.net().unlinked.clear();
    });
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_found() {
    use crate::planted::{Bug, is_found};
    assert!(is_found(Bug::CrashPathOnSilence, a_silent_leader_is_not_taken_for_dead));
}
