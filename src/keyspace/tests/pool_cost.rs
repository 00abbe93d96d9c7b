//! What a pool costs does not hang on its size: room is taken by slots that were used, and an operation on a pool of which
//! 65 536 are takes about as long as on one of which 64 are. Times are the thread's own, and only held to be far from
//! linear; the rest is counted.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::against_model::saved;
use super::pool_log::Log;
use crate::keyspace::{AcquireSlot, Command, EventKind, PoolOptions, Reason, TokenHash};

const MANY: u32 = 65_536;
const ROUNDS: usize = 300;

fn pool(size: u32) -> Log {
    Log::new(PoolOptions { size, ..PoolOptions::default() })
}

/// Gives `count` slots.
fn give(log: &mut Log, count: u32) -> Vec<TokenHash> {
    (0..count)
        .map(|n| {
            let token = log.token();
            let id = log.take(&format!("pod-{n:05}"), token).id;
            assert_eq!(id, n);
            token
        })
        .collect()
}

/// Processor time of this thread, nanoseconds, from Linux: other load on the machine does not count.
fn thread_ns() -> u64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    schedstat.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn only_used_ids_take_room() {
    let [small, great] = [512, MANY].map(|size| {
        let mut log = pool(size);
        give(&mut log, 10);
        saved(&log.keyspace).len()
    });
    assert!(great - small <= 2, "but for the number: {small} {great}");
    let mut log = pool(MANY);
    let empty = saved(&log.keyspace).len();
    // One identity that restarts a thousand times, and one that comes back after each end.
    for n in 0..1_000 {
        let token = log.token();
        log.take("pod", token);
        if n % 2 == 0 {
            assert!(log.release(token));
        } else {
            log.pass(100_000);
        }
    }
    assert!(saved(&log.keyspace).len() - empty < 400, "one slot's");
}

#[test]
fn all_65_536_are_given_and_end() {
    let mut log = pool(MANY);
    let tokens = give(&mut log, MANY);
    let token = log.token();
    assert_eq!(log.acquire(log.ask("late", token)).reason, Some(Reason::Exhausted));
    assert!(log.release(tokens[40_000]));
    assert_eq!(log.take("late", token).id, 40_000);
    log.restart();
    log.now += 30_000;
    let mut ended = BTreeSet::new();
    let mut entries = 0;
    while log.keyspace.grants() > 0 {
        log.pass(0);
        let expired = log.events.iter().filter(|event| event.kind == EventKind::Expired);
        for slot in expired.filter_map(|event| event.slot.as_ref()) {
            assert!(ended.insert(slot.id), "{} ended twice", slot.id);
        }
        entries += 1;
        assert!(entries < 1_000, "each entry ends some");
    }
    assert_eq!(ended.len(), MANY as usize);
    println!("65 536 expired in {entries} entries");
}

/// The average of each operation, on a pool of which `used` are held.
fn costs(used: u32) -> Vec<(&'static str, u64)> {
    let mut log = pool(used);
    let tokens = give(&mut log, used);
    let mut costs = Vec::new();
    let mut each = |what, log: &mut Log, operation: &mut dyn FnMut(&mut Log, usize)| {
        let begun = thread_ns();
        for n in 0..ROUNDS {
            operation(log, n * 7 % used as usize);
        }
        costs.push((what, (thread_ns() - begun) / ROUNDS as u64));
    };
    let name = |n: usize| format!("pod-{n:05}");
    each("renew", &mut log, &mut |log, n| assert!(log.renew(tokens[n]).grant().is_some()));
    each("acquire, yours", &mut log, &mut |log, n| assert!(log.acquire(log.ask(&name(n), tokens[n])).yours));
    each("acquire, exhausted", &mut log, &mut |log, _| {
        let token = log.token();
        assert_eq!(log.acquire(log.ask("late", token)).reason, Some(Reason::Exhausted));
    });
    each("get", &mut log, &mut |log, _| assert_eq!(log.view().held, used));
    each("release, acquire", &mut log, &mut |log, n| {
        assert!(log.release(tokens[n]));
        assert!(log.acquire(AcquireSlot { once: false, ..log.ask(&name(n), tokens[n]) }).grant().is_some());
    });
    each("break", &mut log, &mut |log, n| {
        let reason = Arc::from("cost");
        log.apply(Command::BreakSlot { key: log.key(), id: n as u32, reason, grace_ms: 60_000, fence: None });
    });
    log.apply(Command::Resize { key: log.key(), size: 1 });
    each("acquire, exhausted, all beyond the end", &mut log, &mut |log, _| {
        let token = log.token();
        assert_eq!(log.acquire(log.ask("late", token)).reason, Some(Reason::Exhausted));
    });
    costs.extend(costs_beside_avoided(used));
    costs
}

/// The same where all but one of the ids that were never given are kept back, since they were avoided.
fn costs_beside_avoided(used: u32) -> Vec<(&'static str, u64)> {
    let mut log = pool(2 * used);
    for n in 0..used {
        let token = log.token();
        let avoid = Some(used + 1 + n).filter(|id| *id < 2 * used);
        let ask = AcquireSlot { avoid, ..log.ask(&format!("pod-{n:05}"), token) };
        assert_eq!(log.acquire(ask).grant().map(|grant| grant.id), Some(n));
    }
    let mut costs = Vec::new();
    let mut each = |what, log: &mut Log, operation: &mut dyn FnMut(&mut Log)| {
        let begun = thread_ns();
        (0..ROUNDS).for_each(|_| operation(log));
        costs.push((what, (thread_ns() - begun) / ROUNDS as u64));
    };
    each("acquire, avoiding the only free one", &mut log, &mut |log| {
        let token = log.token();
        let ask = AcquireSlot { avoid: Some(used), ..log.ask("late", token) };
        assert_eq!(log.acquire(ask).reason, Some(Reason::Exhausted));
    });
    each("get, with many kept back", &mut log, &mut |log| assert_eq!(log.view().free, 1));
    costs
}

#[test]
fn operations_cost_the_same_in_great_pools() {
    for ((what, small), (_, great)) in costs(64).into_iter().zip(costs(MANY)) {
        println!("{what:40} {small:8} ns of 64, {great:8} ns of 65 536");
        // Whatever went from slot to slot would take some milliseconds; the clock's steps are coarse.
        assert!(great < small.max(10_000) * 60, "{what}: {small} {great}");
    }
}
