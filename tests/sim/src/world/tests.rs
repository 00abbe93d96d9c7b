//! Small runs of the world alone, with faults at known times.

use std::time::Duration;

use tenure::keyspace::{Command, LeaseOptions};

use super::*;
use crate::plan::Act;

fn plan(seed: u64) -> Plan {
    let shape = Shape {
        profile: "test".to_owned(),
        nodes: 3,
        fault_ms: 0,
        clients: 0,
        keys: 0,
        election_timeout_ms: 300,
        request_timeout_ms: 2_000,
        snapshot_log_bytes: 20_000,
        log_margin_bytes: 5_000,
        segment_bytes: 16 * 1024,
        sync_us: 500,
        hop_us: (100, 400),
        ttl_ms: (500, 3_000),
    };
    Plan { seed, shape, acts: Vec::new() }
}

fn create(key: &str) -> Command {
    Command::Create { key: key.into(), options: LeaseOptions::default() }
}

/// Submits to any node until it is answered.
async fn submit(world: &World, command: Command) -> u64 {
    for node in world.ids().into_iter().cycle().take(1_000) {
        if let Ok(applied) = world.submit(node, command.clone(), Duration::from_secs(2)).await {
            return applied.witness.position.index;
        }
        runtime::sleep(Duration::from_millis(10)).await;
    }
    panic!("no node answers");
}

/// A run of the world: what `test` returns, the hash, and what was violated.
fn simulated<T, F: Future<Output = T>>(seed: u64, test: impl FnOnce(World) -> F) -> (T, u64) {
    let (plan, ledger, coverage) = (plan(seed), Ledger::default(), Coverage::default());
    let _installed = ledger.install();
    runtime::simulate(seed, async {
        let world = World::new(&plan, &ledger, &coverage);
        world.found().await;
        let value = test(world).await;
        assert_eq!(ledger.violations(), [], "seed {seed}");
        (value, runtime::trace_hash())
    })
}

fn counted(world: &World, what: &str) -> u64 {
    world.0.coverage.counts().get(what).copied().unwrap_or_default()
}

#[test]
fn a_killed_leader_is_replaced_and_equal_seeds_give_equal_runs() {
    let run = |seed| {
        simulated(seed, |world| async move {
            let first = submit(&world, create("a")).await;
            let (leader, _) = world.leader().unwrap();
            let killed_ns = runtime::now_ns();
            world.act(&Act::Kill { node: leader }).await;
            let second = submit(&world, create("b")).await;
            assert!(second > first);
            let took_ms = (runtime::now_ns() - killed_ns) / 1_000_000;
            assert!(took_ms < 250, "the crash path was not taken: {took_ms} ms");
            assert!(counted(&world, "crash_path") > 0 && counted(&world, "killed") == 1);
            world.heal().await;
            assert_eq!(world.settle(Duration::from_secs(10)).await, Vec::<String>::new());
        })
    };
    let hashes: Vec<u64> = (1..=3).map(|seed| run(seed).1).collect();
    assert_eq!((1..=3).map(|seed| run(seed).1).collect::<Vec<_>>(), hashes);
    assert_ne!(hashes[0], hashes[1]);
}

/// A power cut looks out for a write: waits until it has come.
async fn cut_power(world: &World, node: u64) {
    let cuts = counted(world, "power_cut");
    world.act(&Act::PowerCut { node }).await;
    while counted(world, "power_cut") == cuts {
        runtime::sleep(Duration::from_millis(1)).await;
    }
}

/// Creates keys at once, some at each node, while `wrong` happens; returns how many were answered.
async fn under_load(world: &World, from: u64, count: u64, wrong: impl Future<Output = ()>) -> u64 {
    let answered = Coverage::default();
    for n in from..from + count {
        let (world, answered) = (world.clone(), answered.clone());
        runtime::spawn_on(WORLD, async move {
            runtime::sleep(Duration::from_millis(5 * (n - from))).await;
            if world
                .submit(
                    1 + n % 3,
                    create(&format!("key-{n}-{}", "of-several-sectors".repeat(50))),
                    Duration::from_secs(3),
                )
                .await
                .is_ok()
            {
                answered.fired("answered");
            }
        });
    }
    wrong.await;
    runtime::sleep(Duration::from_secs(5)).await;
    answered.counts().get("answered").copied().unwrap_or_default()
}

async fn well_again(world: &World) {
    world.heal().await;
    assert_eq!(world.settle(Duration::from_secs(20)).await, Vec::<String>::new());
}

#[test]
fn power_cuts_tear_writes_and_nodes_start_again() {
    let (mut torn, mut lost) = (0, 0);
    for seed in 0..6 {
        let (of_torn, of_lost) = simulated(seed, |world| async move {
            for round in 0..4 {
                under_load(&world, round * 40, 40, async {
                    runtime::sleep(Duration::from_millis(90 + seed)).await;
                    for node in world.ids() {
                        world.act(&Act::SlowDisk { node, sync_ms: 3 }).await;
                        runtime::sleep(Duration::from_millis(20)).await;
                        cut_power(&world, node).await;
                    }
                    for node in world.ids() {
                        world.act(&Act::Start { node }).await;
                    }
                })
                .await;
            }
            well_again(&world).await;
            assert_eq!(counted(&world, "power_cut"), 12);
            (counted(&world, "torn_write"), counted(&world, "write_lost"))
        })
        .0;
        (torn, lost) = (torn + of_torn, lost + of_lost);
    }
    assert!(torn > 0 && lost > 3, "{torn} torn, {lost} lost");
}

#[test]
fn a_node_that_fell_behind_gets_a_snapshot() {
    simulated(3, |world| async move {
        let split = Act::Split { left: vec![2] };
        world.act(&split).await;
        under_load(&world, 0, 600, runtime::sleep(Duration::from_secs(4))).await;
        assert!(counted(&world, "snapshot_taken") > 0 && counted(&world, "log_purged") > 0);
        well_again(&world).await;
        assert!(counted(&world, "snapshot_installed") > 0 && counted(&world, "way_cut") > 0);
    });
}

#[test]
fn a_failing_disk_stops_a_node_and_a_damaged_log_keeps_it_away() {
    simulated(4, |world| async move {
        let (leader, _) = world.leader().unwrap();
        under_load(&world, 0, 60, async {
            world.act(&Act::FailDisk { node: leader, after: 3 }).await;
            runtime::sleep(Duration::from_secs(1)).await;
        })
        .await;
        assert_eq!(counted(&world, "disk_failed"), 1);
        let damage = Act::Corrupt { node: leader, per_mille: 300 };
        world.act(&damage).await;
        well_again(&world).await;
        assert_eq!(counted(&world, "damage_refused"), 1);
        assert_eq!(world.nodes().len(), 2);
        world.act(&Act::Kill { node: 1 + leader % 3 }).await;
        world.act(&Act::Corrupt { node: 1 + leader % 3, per_mille: 300 }).await;
        well_again(&world).await;
        assert_eq!(world.nodes().len(), 2, "no more are damaged than leave a majority");
    });
}

#[test]
fn what_stands_still_answers_later_and_is_not_taken_for_dead() {
    simulated(5, |world| async move {
        let (leader, _) = world.leader().unwrap();
        world.act(&Act::Pause { node: leader }).await;
        let asked = world.submit(leader, create("a"), Duration::from_millis(200)).await;
        assert_eq!(asked.unwrap_err(), NoReply::Unknown);
        let taken = submit(&world, create("b")).await;
        assert_eq!(counted(&world, "crash_path"), 0);
        world.act(&Act::Resume { node: leader }).await;
        assert!(submit(&world, create("c")).await > taken);
        world.act(&Act::Kill { node: leader }).await;
        let refused = world.submit(leader, create("d"), Duration::from_millis(200)).await;
        assert_eq!(refused.unwrap_err(), NoReply::Nothing);
        well_again(&world).await;
    });
}

#[test]
fn a_full_disk_waits_for_room_and_leadership_is_handed_over() {
    simulated(6, |world| async move {
        let (leader, _) = world.leader().unwrap();
        world.act(&Act::HandOver { to: 1 + leader % 3 }).await;
        runtime::sleep(Duration::from_secs(2)).await;
        assert_eq!(world.leader().map(|(id, _)| id), Some(1 + leader % 3));
        assert_eq!(counted(&world, "handed_over"), 1);
        world.act(&Act::FullDisk { node: leader, left_bytes: 0 }).await;
        under_load(&world, 0, 600, runtime::sleep(Duration::from_secs(3))).await;
        assert!(counted(&world, "disk_full") > 0);
        well_again(&world).await;
    });
}

#[test]
fn a_bad_network_loses_delays_repeats_and_cuts() {
    simulated(7, |world| async move {
        let slow = Way { from: 1, to: 2 };
        for act in [
            Act::Loss { per_mille: 30 },
            Act::Duplicate { per_mille: 200 },
            Act::Delay { per_mille: 200, most_ms: 30 },
            Act::Slow { way: slow, bytes_per_second: 20_000 },
            Act::Cut { way: Way { from: 3, to: 1 } },
        ] {
            world.act(&act).await;
        }
        under_load(&world, 0, 300, async {
            runtime::sleep(Duration::from_millis(700)).await;
            world.act(&Act::Reset { one: 1, other: 2 }).await;
            world.act(&Act::Reset { one: 0, other: 3 }).await;
        })
        .await;
        well_again(&world).await;
        for what in ["message_lost", "message_duplicated", "message_delayed", "message_overtaken", "link_slow"] {
            assert!(counted(&world, what) > 0, "{what}");
        }
        assert!(counted(&world, "one_way_cut") > 0 && counted(&world, "reset") > 0);
    });
}

#[test]
fn plans_run_without_a_violation_and_alike() {
    for seed in [1, 2, 3, 8] {
        let mut plan = Plan::from_seed(seed);
        plan.shape.fault_ms = 6_000;
        plan.acts.retain(|timed| timed.at_ms < plan.shape.fault_ms);
        let run = || crate::run::run(&plan, &crate::run::Options::default());
        let first = run();
        assert_eq!(first.violations, [], "seed {seed}, {}: {:#?}", plan.shape.profile, first.trace);
        assert!(first.answered > 50, "seed {seed}: {} answered", first.answered);
        assert!(first.simulated_ms > plan.shape.fault_ms);
        if seed == 8 {
            assert_eq!(run().trace_hash, first.trace_hash);
        }
    }
}
