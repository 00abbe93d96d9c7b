//! Nodes of several that start and die, in every order that was thought of. What comes later: `sim_later_tests`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::type_config::TypeConfigExt;
use openraft_rt_sim::SimRuntime;

use super::sim_net::{C, Flags, Rt, World};
use crate::cluster::{Cluster, Role};
use crate::counter::{Command, Counter};
use crate::error::SubmitError;
use crate::identity::hex;
use crate::level::FEATURE_LEVEL;
use crate::peer_config::Startup;
use crate::raft::NodeId;

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A founding takes fewer steps.
pub const STEPS_MAX: usize = 1_000;
/// Virtual time after which what is awaited will not come.
const LOOKS_MAX: usize = 3_000;

pub fn in_simulation<T>(seed: u64, test: impl Future<Output = T>) -> T {
    SimRuntime::with_seed(seed).block_on(test)
}

/// Looks until there is what is looked for. Virtual time: a look costs nothing.
pub async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..LOOKS_MAX {
        if let Some(found) = look() {
            return found;
        }
        C::sleep(LOOK_EVERY).await;
    }
    panic!("in vain: {what}");
}

pub fn start_all(world: &World, flags: &Flags) {
    for (id, address) in &flags.peers {
        world.start(*id, address, flags);
    }
}

/// The node that leads and can commit.
pub async fn leader(world: &World, ids: &[NodeId]) -> Cluster<Counter, Rt> {
    let ready = |id: &NodeId| {
        let node = world.node(*id)?;
        let status = node.status();
        (status.role == Role::Leader && status.not_ready.is_none()).then_some(node)
    };
    until("a leader", || ids.iter().find_map(ready)).await
}

/// Adds one through the leader and waits until all `ids` have it; returns the sum.
pub async fn works(world: &World, ids: &[NodeId]) -> u64 {
    let sum = loop {
        if let Ok(applied) = leader(world, ids).await.submit(Command::Add(1)).await {
            break applied.reply;
        }
    };
    for id in ids {
        until("a node that has it", || {
            let node = world.node(*id)?;
            let seen = node.read_stale(|counter, at| counter.sum(at)).value.ok();
            seen.filter(|seen| *seen >= sum)
        })
        .await;
    }
    sum
}

/// All nodes are of one cluster, with the incarnations that they have.
pub fn agree(world: &World, ids: &[NodeId]) {
    let identities: Vec<_> = ids.iter().map(|id| world.stored(*id).unwrap().identity).collect();
    let cluster = identities[0].belonging.unwrap().cluster;
    for identity in &identities {
        assert_eq!(identity.belonging.unwrap().cluster, cluster);
        let node = world.node(identity.node_id).unwrap();
        assert_eq!(node.cluster_id(), hex(&cluster));
        let members = node.status().members;
        let member = &members.iter().find(|(id, _)| *id == identity.node_id).unwrap().1;
        assert_eq!(member.incarnation, identity.incarnation, "of node {}", identity.node_id);
    }
}

#[test]
fn three_empty_nodes_found_one_cluster_and_start_again_with_the_same_flags() {
    in_simulation(1, async {
        let (world, flags) = (World::default(), Flags::of(3));
        start_all(&world, &flags);
        for round in 1..=10 {
            assert_eq!(works(&world, &[1, 2, 3]).await, round);
            agree(&world, &[1, 2, 3]);
            assert_eq!(world.startup(2), Startup::Started);
            (1..=3).for_each(|id| world.kill(id));
            start_all(&world, &flags);
        }
        assert_eq!(world.written().len(), 1);
    });
}

#[test]
fn a_node_of_a_cluster_starts_without_any_peer() {
    in_simulation(2, async {
        let (world, flags) = (World::default(), Flags::of(3));
        start_all(&world, &flags);
        works(&world, &[1, 2, 3]).await;
        (1..=3).for_each(|id| world.kill(id));
        world.start(3, "peer-3", &flags);
        until("node 3", || world.node(3)).await;
        assert_eq!(world.startup(3), Startup::Started);
    });
}

#[test]
fn nothing_is_founded_while_a_peer_is_silent() {
    in_simulation(3, async {
        let (world, flags) = (World::default(), Flags::of(3));
        world.start(2, "peer-2", &flags);
        world.start(3, "peer-3", &flags);
        C::sleep(Duration::from_secs(60)).await;
        let mut told = world.startups(2);
        told.mark_unchanged();
        C::sleep(Duration::from_secs(540)).await;
        assert!(!told.has_changed().unwrap(), "the same is told once");
        assert!(world.written().is_empty());
        let Startup::WaitingForPeers(missing) = world.startup(2) else { panic!("{:?}", world.startup(2)) };
        assert_eq!(missing.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1]);
        world.start(1, "peer-1", &flags);
        works(&world, &[1, 2, 3]).await;
        agree(&world, &[1, 2, 3]);
    });
}

#[test]
fn a_majority_founds_when_it_may_and_the_late_one_is_recorded() {
    in_simulation(4, async {
        let (world, flags) = (World::default(), Flags { majority: true, ..Flags::of(3) });
        world.start(2, "peer-2", &flags);
        C::sleep(Duration::from_secs(60)).await;
        assert!(world.written().is_empty(), "one is no majority");
        world.start(3, "peer-3", &flags);
        works(&world, &[2, 3]).await;
        world.start(1, "peer-1", &flags);
        works(&world, &[1, 2, 3]).await;
        agree(&world, &[1, 2, 3]);
        assert_eq!(world.written().len(), 1);
    });
}

#[test]
fn a_majority_founds_one_cluster_however_the_nodes_come() {
    let orders: [[NodeId; 3]; 6] = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]];
    for (order, pause_ms) in orders.into_iter().flat_map(|order| (0..30).map(move |step| (order, step * 5))) {
        in_simulation(pause_ms, async {
            let (world, flags) = (World::default(), Flags { majority: true, ..Flags::of(3) });
            for id in order {
                world.start(id, &format!("peer-{id}"), &flags);
                C::sleep(Duration::from_millis(pause_ms)).await;
            }
            works(&world, &[1, 2, 3]).await;
            let recorded = || {
                let members = world.node(1)?.status().members;
                members.iter().all(|(_, member)| member.incarnation != 0).then_some(())
            };
            until("all incarnations", recorded).await;
            agree(&world, &[1, 2, 3]);
        });
    }
}

#[test]
fn one_node_alone_founds_at_once() {
    in_simulation(5, async {
        let (world, flags) = (World::default(), Flags::of(1));
        for round in 1..=3 {
            world.start(1, "peer-1", &flags);
            assert_eq!(works(&world, &[1]).await, round);
            world.kill(1);
        }
    });
}

/// Whoever takes step `step` dies of it, and comes back; `false`: there was none before all took part and could work.
async fn dies_and_comes_back(flags: &Flags, step: usize) -> bool {
    let (world, ids) = (World::default(), flags.peers.keys().copied().collect::<Vec<NodeId>>());
    let is_up = |id: &NodeId| world.node(*id).is_some_and(|node| node.status().not_ready.is_none());
    world.die_at(step);
    start_all(&world, flags);
    until("all to take part", || (world.has_died() || ids.iter().all(is_up)).then_some(())).await;
    let died = world.has_died();
    world.spare();
    world.revive(flags).await;
    for id in &ids {
        until(&format!("node {id} after step {step}"), || {
            assert_eq!(world.refusal(*id), None, "node {id}, step {step}");
            world.node(*id)
        })
        .await;
    }
    works(&world, &ids).await;
    until("all members", || {
        let members = world.node(ids[0])?.status().members;
        members.iter().all(|(_, member)| member.incarnation != 0).then_some(())
    })
    .await;
    agree(&world, &ids);
    if !flags.majority {
        assert_eq!(world.written().len(), 1, "step {step}");
    }
    died
}

/// The same for every step there is; returns their number.
fn converges_whatever_dies(flags: &Flags) -> usize {
    let mut steps = 0;
    while in_simulation(steps as u64, dies_and_comes_back(flags, steps + 1)) {
        steps += 1;
        assert!(steps < STEPS_MAX, "the founding has no end");
    }
    steps
}

#[test]
fn a_crash_at_any_step_of_the_founding_ends_in_the_same_cluster() {
    let steps = converges_whatever_dies(&Flags::of(3));
    assert!(steps > 20, "only {steps} steps were tried");
}

#[test]
fn a_crash_at_any_step_of_a_founding_by_majority_ends_in_one_cluster() {
    let steps = converges_whatever_dies(&Flags { majority: true, ..Flags::of(3) });
    assert!(steps > 20, "only {steps} steps were tried");
}

#[test]
fn one_that_is_no_member_is_refused_by_name() {
    in_simulation(8, async {
        let (world, flags) = (World::default(), Flags::of(3));
        start_all(&world, &flags);
        works(&world, &[1, 2, 3]).await;
        world.start(4, "peer-4", &Flags::of(4));
        let line = until("a refusal", || world.refusal(4)).await;
        assert!(line.contains("node 4 is not a member of cluster") && line.contains("1, 2, 3"), "{line}");
        works(&world, &[1, 2, 3]).await;
    });
}

#[test]
fn lists_that_differ_are_noticed_and_both_are_named() {
    in_simulation(9, async {
        let (world, flags) = (World::default(), Flags::of(3));
        let mut other = flags.clone();
        other.peers.insert(4, "peer-4".to_owned());
        world.start(1, "peer-1", &flags);
        world.start(2, "peer-2", &flags);
        world.start(3, "peer-3", &other);
        let line = until("a refusal", || world.refusal(1)).await;
        assert!(line.contains("1=peer-1,2=peer-2,3=peer-3 and"), "{line}");
        assert!(line.contains("1=peer-1,2=peer-2,3=peer-3,4=peer-4"), "{line}");
        world.kill(3);
        world.start(3, "peer-3", &flags);
        world.start(1, "peer-1", &flags);
        works(&world, &[1, 2, 3]).await;
        agree(&world, &[1, 2, 3]);
    });
}

async fn sum(world: &World, id: u64) -> u64 {
    world.node(id).unwrap().read(|counter, at| counter.sum(at)).await.unwrap().value
}

/// While an old build is a member, a command that it could not read is not ordered, and all others are.
async fn waits_for_the_level(world: &World, id: u64) {
    let node = world.node(id).unwrap();
    let before = sum(world, id).await;
    let started = C::now();
    let refused = node.submit_within(Command::Times(3), Duration::from_millis(700)).await.unwrap_err();
    let SubmitError::Unavailable(why) = refused else { panic!("{refused}") };
    assert!(why.contains("feature level 1") && why.contains("an older build"), "{why}");
    assert_eq!((C::now() - started).as_millis(), 700, "no longer than it was given");
    assert_eq!(node.submit(Command::Add(1)).await.unwrap().reply, before + 1);
}

#[test]
fn the_level_rises_once_every_build_supports_it_and_stays() {
    in_simulation(12, async {
        let (world, new) = (World::default(), Flags::of(3));
        let old = Flags { feature_level: 1, ..Flags::of(3) };
        world.start(1, "peer-1", &new);
        world.start(2, "peer-2", &new);
        world.start(3, "peer-3", &old);
        works(&world, &[1, 2, 3]).await;
        C::sleep(Duration::from_secs(60)).await;
        let level = |id| world.node(id).map(|node| node.status().feature_level);
        assert!((1..=3).all(|id| level(id) == Some(1)), "one node is of an old build");
        waits_for_the_level(&world, 1).await;
        waits_for_the_level(&world, 2).await;
        world.kill(3);
        C::sleep(Duration::from_secs(60)).await;
        assert!((1..=2).all(|id| level(id) == Some(1)), "a node that is away is waited for");
        let waiting = {
            let node = world.node(2).unwrap();
            C::spawn(async move { node.submit(Command::Times(3)).await.unwrap().reply })
        };
        let sum = sum(&world, 1).await;
        world.start(3, "peer-3", &new);
        assert_eq!(waiting.await.unwrap(), 3 * sum, "it is ordered once the level is reached");
        for id in 1..=3 {
            until("the level", || level(id).filter(|level| *level == FEATURE_LEVEL)).await;
        }
        for _ in 0..60 {
            leader(&world, &[1, 2, 3]).await.submit(Command::Padded(vec![1; 1_000])).await.unwrap();
        }
        works(&world, &[1, 2, 3]).await;
        until("a snapshot", || world.node(3)?.status().snapshot).await;
        world.kill(3);
        world.start(3, "peer-3", &old);
        let line = until("a refusal", || world.refusal(3)).await;
        assert!(line.contains(&format!("level {FEATURE_LEVEL}")) && line.contains("start a newer build"), "{line}");
        world.start(3, "peer-3", &new);
        works(&world, &[1, 2, 3]).await;
        assert!((1..=3).all(|id| level(id) == Some(FEATURE_LEVEL)));
    });
}
