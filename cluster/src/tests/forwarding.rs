//! Commands go through any node: once, in order, and whatever happens to the leader each is answered for what it is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use openraft::type_config::TypeConfigExt;

use super::{C, Fate, Filter, Node, World, config, ms_since, now, simulated, sleep};
use crate::cluster::Role;
use crate::counter::{Command, Counter};
use crate::entry;
use crate::error::SubmitError;
use crate::level::FEATURE_LEVEL;
use crate::proposal::NoAnswer;

async fn submit_all(node: &Node, count: usize) -> Vec<u64> {
    let one = || {
        let node = node.clone();
        C::spawn(async move { node.submit(Command::Add(1)).await.unwrap().reply })
    };
    let all: Vec<_> = (0..count).map(|_| one()).collect();
    let mut replies = Vec::new();
    for reply in all {
        replies.push(reply.await.unwrap());
    }
    replies
}

#[test]
fn every_node_takes_commands_and_batches_them() {
    simulated(11, async {
        let world = World::of(3).await;
        world.leader().await;
        let nodes = world.nodes();
        let (a, b, c) =
            tokio::join!(submit_all(&nodes[0].1, 500), submit_all(&nodes[1].1, 500), submit_all(&nodes[2].1, 500));
        let mut replies = [a, b, c].concat();
        replies.sort_unstable();
        assert_eq!(replies, (1..=1_500).collect::<Vec<_>>(), "each once, none lost");
        let forwards = world.net().delivered["forward"];
        assert!(forwards <= 10, "what waits goes together: {forwards} requests for 1 000 commands");
        assert_eq!(world.settled().await, 1_500);
    });
}

#[test]
fn a_lone_command_through_a_follower_goes_at_once() {
    simulated(12, async {
        let world = World::of(3).await;
        let (_, follower) = world.follower().await;
        // The entry that raises the feature level is past.
        follower.submit(Command::Times(1)).await.unwrap();
        let before = now();
        let first = follower.submit(Command::Add(3)).await.unwrap();
        assert!(ms_since(before) <= 5, "one way to the leader, one round of replication, one way back");
        assert_eq!(first.reply, 3);
        let next = follower.submit(Command::Add(3)).await.unwrap();
        assert!(next.witness.position > first.witness.position && next.witness.clock >= first.witness.clock);
        assert_eq!(next.witness.term, world.leader().await.1.status().term);
    });
}

/// How often each amount was ordered, by the log of one node.
fn ordered(world: &World) -> BTreeMap<u64, usize> {
    let mut found = BTreeMap::new();
    for batch in world.net().hosts[&1].log.batches() {
        for command in entry::decode(&batch.0).unwrap().commands {
            if let Command::Add(amount) = entry::decode_command::<Counter>(command).unwrap() {
                *found.entry(amount).or_default() += 1;
            }
        }
    }
    found
}

#[test]
fn over_failovers_the_acknowledged_are_there_once_and_the_unknown_at_most_once() {
    for seed in 20..24 {
        simulated(seed, async {
            // The whole log is looked at in the end.
            let mut config = config();
            config.snapshot_log_bytes = 1 << 30;
            let world = World::with(3, config).await;
            world.leader().await;
            let over = Arc::new(AtomicBool::new(false));
            let submitters: Vec<_> = (0..12)
                .map(|at| {
                    let (world, over) = (world.clone(), Arc::clone(&over));
                    C::spawn(async move { submit_until(&world, at, &over).await })
                })
                .collect();
            let mut terms = Vec::new();
            for round in 0..6 {
                let (id, leader) = world.leader().await;
                terms.push(leader.status().term);
                drop(leader);
                sleep(400).await;
                if round % 2 == 0 {
                    world.kill(id);
                    sleep(2_500).await;
                    world.start(id).await;
                } else {
                    world.net().cut.insert(id);
                    sleep(2_500).await;
                    world.net().cut.clear();
                }
            }
            over.store(true, Ordering::Relaxed);
            let mut acknowledged = 0;
            let mut outcomes = BTreeMap::new();
            for submitter in submitters {
                for (amount, outcome) in submitter.await.unwrap() {
                    acknowledged += usize::from(outcome.is_ok());
                    outcomes.insert(amount, outcome);
                }
            }
            world.settled().await;
            let ordered = ordered(&world);
            assert!(terms.windows(2).all(|pair| pair[0] < pair[1]), "each round had its own leader: {terms:?}");
            assert!(acknowledged > 1_000, "{acknowledged}");
            for (amount, outcome) in &outcomes {
                let times = ordered.get(amount).copied().unwrap_or(0);
                match outcome {
                    Ok(()) => assert_eq!(times, 1, "acknowledged: {amount}"),
                    Err(SubmitError::OutcomeUnknown) => assert!(times <= 1, "unknown: {amount} stands {times} times"),
                    Err(SubmitError::Unavailable(why)) => assert_eq!(times, 0, "unavailable: {amount}: {why}"),
                    Err(other) => panic!("{other}"),
                }
            }
            assert!(ordered.keys().all(|amount| outcomes.contains_key(amount)));
        });
    }
}

/// Submits amounts that nobody else does, through one node after the other, and says what became of each.
async fn submit_until(world: &World, at: u64, over: &AtomicBool) -> Vec<(u64, Result<(), SubmitError>)> {
    let mut outcomes = Vec::new();
    for number in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let amount = at * 1_000_000 + number;
        let id = (at + number) % 3 + 1;
        let node = world.net().hosts[&id].node.clone();
        match node {
            Some(node) => outcomes.push((amount, node.submit(Command::Add(amount)).await.map(drop))),
            None => sleep(20).await,
        }
        sleep(5).await;
    }
    outcomes
}

#[test]
fn without_a_leader_a_command_is_unavailable_and_never_ordered() {
    simulated(13, async {
        let world = World::of(3).await;
        let (id, follower) = world.follower().await;
        for other in (1..=3).filter(|other| *other != id) {
            world.kill(other);
        }
        let before = now();
        let refused = follower.submit(Command::Add(1_000)).await.unwrap_err();
        assert!(matches!(refused, SubmitError::Unavailable(_)), "{refused}");
        assert!((4_990..=5_000).contains(&ms_since(before)), "tried until its time was up: {}", ms_since(before));
        for other in (1..=3).filter(|other| *other != id) {
            world.start(other).await;
        }
        assert_eq!(follower.submit(Command::Add(1)).await.unwrap().reply, 1);
        assert_eq!(world.settled().await, 1);
    });
}

#[test]
fn a_lost_answer_is_unknown_and_the_command_is_not_sent_again() {
    simulated(14, async {
        let world = World::of(3).await;
        let (_, follower) = world.follower().await;
        let lose: Filter = Box::new(|_, _, what| if what == "forward" { Fate::AnswerLost } else { Fate::Arrives });
        world.net().filter = Some(lose);
        assert_eq!(follower.submit(Command::Add(1)).await.unwrap_err(), SubmitError::OutcomeUnknown);
        assert_eq!(world.net().delivered["forward"], 1);
        let refuse: Filter = Box::new(|_, _, what| if what == "forward" { Fate::Refused } else { Fate::Arrives });
        world.net().filter = Some(refuse);
        let waiting = C::spawn(async move { follower.submit(Command::Add(10)).await });
        sleep(1_000).await;
        world.net().filter = None;
        assert_eq!(waiting.await.unwrap().unwrap().reply, 11, "not delivered: sent again until it was");
        assert_eq!(world.settled().await, 11);
    });
}

#[test]
fn what_is_queued_at_a_leader_that_is_deposed_finds_the_next_one() {
    simulated(15, async {
        let world = World::of(3).await;
        let (old, _) = world.leader().await;
        let (_, follower) = world.follower().await;
        // The old leader hears no answer to what it sends and learns nothing of the others, but takes commands.
        let deaf: Filter = Box::new(move |from, to, what| match what {
            "forward" => Fate::Arrives,
            _ if from == old || to == old => Fate::Refused,
            _ => Fate::Arrives,
        });
        world.net().filter = Some(deaf);
        let submit = |amount| {
            let follower = follower.clone();
            C::spawn(async move { (follower.submit(Command::Add(amount)).await, now()) })
        };
        let in_flight = submit(1_000);
        sleep(20).await;
        let queued = submit(1);
        sleep(20).await;
        world.net().cut.insert(old);
        let (new, _) = world.leader().await;
        assert_ne!(new, old);
        // The old leader hears of the new one; only its answers to forwards are still under way.
        let healed = now();
        world.net().cut.clear();
        let forwards = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&forwards);
        let listen: Filter = Box::new(move |from, to, what| {
            if what == "forward" {
                heard.lock().unwrap().push((from, to));
            }
            Fate::Arrives
        });
        world.net().filter = Some(listen);
        let (outcome, at) = queued.await.unwrap();
        assert_eq!(outcome.unwrap().reply, 1, "it came back, and went to the new leader");
        assert!(ms_since(healed) - ms_since(at) < 1_000, "soon, not when its time was up");
        let (outcome, _) = in_flight.await.unwrap();
        assert_eq!(outcome.unwrap_err(), SubmitError::OutcomeUnknown, "it stood in the old leader's log");
        let forwards = forwards.lock().unwrap().clone();
        assert!(forwards.iter().all(|(from, to)| *from != old && *to == new), "forwarded once: {forwards:?}");
        assert_eq!(world.settled().await, 1);
    });
}

#[test]
fn what_no_node_could_apply_goes_no_further_than_the_leader() {
    simulated(17, async {
        let world = World::of(3).await;
        let (_, leader) = world.leader().await;
        // The level is there first: until then the leader could not say so.
        assert_eq!(leader.submit(Command::Times(2)).await.unwrap().reply, 0);
        let (_, follower) = world.follower().await;
        let before = now();
        let refused =
            follower.node().intake.propose(Some(Bytes::from_static(b"junk")), 0, Duration::from_secs(5)).await;
        let NoAnswer::Refused(why) = refused.unwrap_err() else { panic!("not refused") };
        assert!(why.contains("expected Command") && ms_since(before) < 100, "at once, not when its time is up: {why}");
        assert_eq!(follower.submit(Command::Times(2)).await.unwrap().reply, 0);
        assert_eq!(submit_all(&follower, 100).await.len(), 100);
        assert_eq!(world.settled().await, 100);
        assert_eq!(world.nodes().len(), 3);
        assert!(world.nodes().iter().all(|(_, node)| node.status().role != Role::Stopped), "no node took it in");
    });
}

#[test]
fn a_new_cluster_reaches_this_builds_level_by_itself_at_once() {
    for size in [1, 3] {
        simulated(18, async {
            let world = World::of(size).await;
            world.leader().await;
            let before = now();
            for (id, node) in world.nodes() {
                assert_eq!(node.submit(Command::Times(2)).await.unwrap().reply, 0, "node {id} of {size}");
                assert_eq!(node.status().feature_level, FEATURE_LEVEL);
            }
            assert!(ms_since(before) < 200, "{} ms", ms_since(before));
        });
    }
}

#[test]
fn a_follower_that_shuts_down_answers_what_is_on_its_way() {
    simulated(16, async {
        let world = World::of(3).await;
        let (_, follower) = world.follower().await;
        let submit = || {
            let follower = follower.clone();
            C::spawn(async move { follower.submit(Command::Add(1)).await })
        };
        let on_its_way = submit();
        sleep(1).await;
        follower.shutdown().await;
        assert_eq!(on_its_way.await.unwrap().unwrap().reply, 1);
        let refused = submit().await.unwrap().unwrap_err();
        assert!(matches!(&refused, SubmitError::Unavailable(why) if why.contains("stopping")), "{refused}");
    });
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_found() {
    use crate::planted::{Bug, is_found};
    assert!(is_found(Bug::UnknownRetried, a_lost_answer_is_unknown_and_the_command_is_not_sent_again));
}
