//! The order of tasks: from the seed, not from the order of wakes; and nobody starves.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use openraft::AsyncRuntime;
use tokio::sync::{Notify, watch};

use super::super::{C, Rt, simulate, sleep, spawn_on, stall, trace, trace_hash};
use openraft::type_config::TypeConfigExt;

/// Many waiters on what wakes in random order; what they did, as a number.
fn waiters(seed: u64) -> u64 {
    simulate(seed, async {
        let (sender, receiver) = watch::channel(0_u32);
        let notify = Arc::new(Notify::new());
        stall(3, 5, Duration::from_millis(3));
        for who in 0..60_u64 {
            let mut receiver = receiver.clone();
            let notify = notify.clone();
            spawn_on(1 + who % 3, async move {
                while receiver.changed().await.is_ok() {
                    let seen = *receiver.borrow_and_update();
                    trace(|| format!("{who} saw {seen}"));
                    let notified = notify.notified();
                    if !seen.is_multiple_of(3) {
                        notified.await;
                        trace(|| format!("{who} goes on"));
                    }
                    drop(Rt::spawn(async move { trace(|| format!("child of {who}")) }));
                }
            });
        }
        for round in 0..20 {
            sender.send_replace(round);
            sleep(Duration::from_millis(1)).await;
            notify.notify_waiters();
            C::sleep(Duration::from_millis(1)).await;
        }
        trace_hash()
    })
}

#[test]
fn random_order_of_wakes_changes_nothing() {
    let first = waiters(1);
    for _ in 0..50 {
        assert_eq!(waiters(1), first);
    }
    let threads: Vec<_> = (0..8).map(|_| thread::spawn(|| [waiters(2), waiters(1)])).collect();
    let second = waiters(2);
    for thread in threads {
        assert_eq!(thread.join().unwrap(), [second, first], "the same on another thread, and after another seed");
    }
    assert_ne!(first, second);
}

/// In which order three tasks run that become ready at once.
fn order(seed: u64) -> Vec<u32> {
    simulate(seed, async {
        let order = Arc::new(Mutex::new(Vec::new()));
        for who in 0..3 {
            let order = order.clone();
            spawn_on(1, async move {
                Rt::sleep(Duration::from_secs(1)).await;
                order.lock().unwrap().push(who);
            });
        }
        sleep(Duration::from_secs(2)).await;
        let order = order.lock().unwrap();
        order.clone()
    })
}

#[test]
fn seeds_reach_every_order() {
    let reached: BTreeSet<Vec<u32>> = (0..100).map(order).collect();
    assert_eq!(reached.len(), 6);
}

#[test]
fn nobody_starves_at_one_instant() {
    for seed in 0..20 {
        let turns = simulate(seed, async {
            let turns = Arc::new(Mutex::new([0_u32; 4]));
            for who in 0..4 {
                let turns = turns.clone();
                spawn_on(1, async move {
                    for _ in 0..100 {
                        turns.lock().unwrap()[who] += 1;
                        let all = *turns.lock().unwrap();
                        assert!(all[who] <= all.iter().min().unwrap() + 2, "one runs away: {all:?}");
                        tokio::task::yield_now().await;
                    }
                });
            }
            sleep(Duration::from_secs(1)).await;
            let turns = turns.lock().unwrap();
            *turns
        });
        assert_eq!(turns, [100; 4]);
    }
}
