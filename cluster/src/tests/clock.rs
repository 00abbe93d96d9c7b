//! The cluster clock over elections, lost quorums, and leaders with other wall clocks.

use super::{WALL_MS, World, config, ms_since, now, simulated, sleep};
use crate::counter::Command;
use crate::error::SubmitError;
use crate::machine::Stamp;
use crate::ordering::{Fate, Orderer};
use crate::standing::Standing;

/// T of the simulated clusters.
const LIMIT_MS: u64 = 600;
/// While a timer is outstanding the log's last stamp is at most so old, and the time until a tick is committed.
const UNLOGGED_MS: u64 = 1_000 + 10;

/// Has the counter fallen to zero on any node?
fn has_fired(world: &World) -> bool {
    world.nodes().iter().any(|(_, node)| node.read_stale(|counter, at| counter.sum(at)).value == Ok(0))
}

/// Waits until another node than `old` can commit, and returns how long that took.
async fn outage(world: &World, old: u64) -> u64 {
    let before = now();
    while world.leader().await.0 == old {
        sleep(1).await;
    }
    ms_since(before)
}

#[test]
fn an_election_gives_back_its_outage_and_at_most_a_second() {
    // What an election gives back: the outage, and what the last stamp in the log was old when it began.
    for (seed, by_kill) in [(71, true), (72, false)] {
        simulated(seed, async {
            let world = World::of(3).await;
            let (_, leader) = world.leader().await;
            leader.submit(Command::Add(9)).await.unwrap();
            leader.submit(Command::ResetIn(60_000)).await.unwrap();
            drop(leader);
            let armed = now();
            let (mut given_back, mut elections) = (0, 0);
            while !has_fired(&world) {
                for _ in 0..500 {
                    sleep(10).await;
                    if has_fired(&world) {
                        break;
                    }
                }
                let (old, leader) = world.leader().await;
                drop(leader);
                if by_kill {
                    world.kill(old);
                } else {
                    world.net().cut.insert(old);
                }
                given_back += outage(&world, old).await + UNLOGGED_MS;
                elections += 1;
                if by_kill {
                    world.start(old).await;
                }
                world.net().cut.clear();
            }
            let elapsed = ms_since(armed);
            assert!(elections >= 10, "{elections}");
            assert!(elapsed >= 60_000, "nothing ends early: {elapsed}");
            assert!(elapsed <= 60_000 + given_back + 100, "{elapsed} over {elections} elections: {given_back}");
            world.settled().await;
        });
    }
}

#[test]
fn a_lost_quorum_gives_back_all_but_one_election_timeout() {
    simulated(73, async {
        let world = World::of(3).await;
        let (id, leader) = world.leader().await;
        leader.submit(Command::Add(9)).await.unwrap();
        leader.submit(Command::ResetIn(10_000)).await.unwrap();
        let armed = now();
        sleep(3_000).await;
        world.net().cut = (1..=3).filter(|other| *other != id).collect();
        sleep(20_000).await;
        assert!(!has_fired(&world));
        world.net().cut.clear();
        let healed = now();
        world.leader().await;
        let outage = 20_000 + ms_since(healed);
        while !has_fired(&world) {
            sleep(10).await;
        }
        let elapsed = ms_since(armed);
        assert!(elapsed >= 10_000 + 20_000 - LIMIT_MS, "all but T is given back: {elapsed}");
        assert!(elapsed <= 10_000 + outage + UNLOGGED_MS + 100, "and no more than it took: {elapsed} of {outage}");
    });
}

#[test]
fn wall_clocks_that_are_hours_apart_change_nothing() {
    simulated(74, async {
        let hour_ms = 3_600_000;
        let world = World::with_walls(3, config(), |id| WALL_MS - 2 * hour_ms + id * hour_ms).await;
        let (first, leader) = world.leader().await;
        let founded = leader.submit(Command::Add(1)).await.unwrap().witness.clock;
        drop(leader);
        let wall_ms = WALL_MS - 2 * hour_ms + first * hour_ms;
        assert!((wall_ms..wall_ms + 2_000).contains(&founded.0), "a new cluster's clock starts at its leader's wall");
        let (started, mut clock, mut led) = (now(), founded, std::collections::BTreeSet::new());
        for round in 0..12 {
            let (id, leader) = world.leader().await;
            led.insert(id);
            for _ in 0..20 {
                leader.submit(Command::Add(1)).await.unwrap();
                leader.submit(Command::ResetIn(500)).await.unwrap();
                let stamp = leader.submit(Command::Add(1)).await.unwrap().witness.clock;
                assert!(stamp >= clock, "round {round}");
                clock = stamp;
            }
            if round % 3 == 0 {
                drop(leader);
                world.kill(id);
                outage(&world, id).await;
                world.start(id).await;
            } else {
                leader.hand_over(Some(id % 3 + 1)).await.unwrap();
            }
            // States are compared byte by byte.
            world.settled().await;
        }
        assert_eq!(led.len(), 3, "each of the clocks was a leader's: {led:?}");
        assert!(clock.ms_since(founded) <= ms_since(started), "no faster than real time");
    });
}

#[test]
fn an_entry_stamped_under_an_earlier_leadership_is_never_appended() {
    simulated(75, async {
        let world = World::of(3).await;
        let (id, node) = world.leader().await;
        node.submit(Command::Add(1)).await.unwrap();
        let orderer = Orderer::of(node.node());
        let Standing::Leads(lead) = node.node().standings.now() else { panic!("it leads") };
        let command = crate::entry::encode_command::<crate::counter::Counter>(&Command::Add(1_000)).unwrap();
        // The leader takes a stamp, and stalls. It loses the leadership, and gets it back.
        let entry = orderer.stamp(lead, vec![command]).unwrap();
        sleep(300).await;
        let other = node.hand_over(None).await.unwrap();
        let (_, next) = world.leader().await;
        next.submit(Command::Add(1)).await.unwrap();
        sleep(300).await;
        assert_eq!(world.node(other).hand_over(Some(id)).await, Ok(id));
        assert_eq!(world.leader().await.0, id);
        // It goes on where it stood.
        let fate = orderer.append(lead, entry).await;
        assert!(matches!(fate, Fate::NotAppended), "{fate:?}");
        assert_eq!(node.submit(Command::Add(1)).await.unwrap().reply, 3);
        assert_eq!(world.settled().await, 3);
    });
}

#[test]
fn a_leader_that_stands_still_over_a_leadership_of_another_moves_no_stamp() {
    simulated(76, async {
        let world = World::of(3).await;
        let (old, node) = world.leader().await;
        node.submit(Command::Add(1)).await.unwrap();
        // Its commands wait in its log, which nobody takes, while the others go on without it.
        world.net().cut.insert(old);
        let stalled = node.submit(Command::Add(1_000)).await;
        assert_eq!(stalled.unwrap_err(), SubmitError::OutcomeUnknown);
        let (_, new) = world.leader().await;
        let mut clock = Stamp(0);
        for _ in 0..50 {
            clock = new.submit(Command::Add(1)).await.unwrap().witness.clock;
            sleep(20).await;
        }
        world.net().cut.clear();
        let through_old = node.submit(Command::Add(1)).await.unwrap();
        assert!(through_old.witness.clock >= clock && through_old.witness.clock.ms_since(clock) <= 100);
        assert_eq!(through_old.reply, 52);
        assert_eq!(world.settled().await, 52);
    });
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_found() {
    use crate::planted::{Bug, is_found};
    assert!(is_found(Bug::WallClockStamps, wall_clocks_that_are_hours_apart_change_nothing));
    assert!(is_found(Bug::NoLeadershipAtAppend, an_entry_stamped_under_an_earlier_leadership_is_never_appended));
}
