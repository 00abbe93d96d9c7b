//! What a held lease costs: memory, and the processor time to acquire, renew, snapshot, load and expire.
//!
//! `cargo bench --bench keyspace_memory -- 1000000`: keys of 30 bytes, owners of 20, in random order.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use tenure::keyspace::{Acquire, Command, Keyspace, Reply, token_hash};
use tenure_cluster::{Moment, Position, Stamp, StateMachine};

/// Resident memory of this process, from Linux.
fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0
}

/// Processor time of this thread, from Linux: other load on the machine does not count.
struct Clock(Duration);

impl Clock {
    fn now() -> Self {
        let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Self(Duration::from_nanos(schedstat.split(' ').next().unwrap().parse().unwrap()))
    }

    fn elapsed(&self) -> Duration {
        Self::now().0 - self.0
    }
}

/// A different number for every `n`, in no order.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn acquire(n: u64) -> Acquire {
    let key = format!("jobs/region-7/{n:016x}");
    Acquire {
        token: token_hash(&key, "a token"),
        key: Arc::from(key),
        owner: Arc::from(format!("worker-{:013}", n % 5000)),
        ttl_ms: 30_000 + (n % 1000) as i64,
        create: true,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: true,
    }
}

struct Log {
    keyspace: Keyspace,
    events: Vec<tenure::keyspace::Event>,
    index: u64,
}

impl Log {
    fn apply(&mut self, stamp: u64, command: Command) -> Reply {
        self.index += 1;
        let at = Moment { stamp: Stamp(stamp), position: Position { index: self.index, ordinal: 0 }, wall_ms: stamp };
        self.events.clear();
        self.keyspace.advance(&at, &mut self.events);
        self.keyspace.apply(&at, command, &mut self.events)
    }
}

fn main() {
    let leases: u64 =
        std::env::args().skip(1).find(|argument| argument != "--bench").map_or(1_000_000, |n| n.parse().unwrap());
    let start_ms = 1_700_000_000_000;
    let per = |seconds: f64| seconds * 1e9 / leases as f64;
    let mut log = Log { keyspace: Keyspace::default(), events: Vec::new(), index: 0 };
    let before = resident_bytes();

    let clock = Clock::now();
    for n in 0..leases {
        log.apply(start_ms + n / 1000, Command::Acquire(acquire(scattered(n))));
    }
    println!("acquire        {:7.0} ns each", per(clock.elapsed().as_secs_f64()));
    println!("memory         {:7.0} bytes a lease", (resident_bytes() - before) / leases as f64);

    let renew = |n: u64| {
        let Acquire { key, token, ttl_ms, .. } = acquire(scattered(n.wrapping_mul(7919) % leases));
        Command::Renew { key, token, ttl_ms, fence: None }
    };
    let clock = Clock::now();
    for n in 0..leases {
        log.apply(start_ms + 1000 + n / 1000, renew(n));
    }
    println!("renew          {:7.0} ns each", per(clock.elapsed().as_secs_f64()));
    println!("memory         {:7.0} bytes a lease", (resident_bytes() - before) / leases as f64);

    let snapshot = log.keyspace.clone();
    let mut bytes = Vec::new();
    let clock = Clock::now();
    snapshot.save(&mut bytes).unwrap();
    println!(
        "save           {:7.0} ms, {} bytes a lease",
        clock.elapsed().as_secs_f64() * 1e3,
        bytes.len() as u64 / leases
    );

    let clock = Clock::now();
    for n in 0..leases {
        log.apply(start_ms + 2000 + n / 1000, renew(n));
    }
    println!("renew, cloned  {:7.0} ns each", per(clock.elapsed().as_secs_f64()));
    drop((log, snapshot));

    let before = resident_bytes();
    let clock = Clock::now();
    let mut loaded = Keyspace::load(&mut bytes.as_slice()).unwrap();
    println!("load           {:7.0} ms, {} leases", clock.elapsed().as_secs_f64() * 1e3, loaded.grants());
    println!(
        "memory         {:7.0} bytes a lease more (what was freed before is used first)",
        (resident_bytes() - before) / leases as f64
    );

    let clock = Clock::now();
    let (mut entries, mut events) = (0, Vec::new());
    let end = Moment { stamp: Stamp(start_ms + 3_600_000), ..Moment::default() };
    while loaded.grants() > 0 {
        loaded.advance(&end, &mut events);
        entries += 1;
        events.clear();
    }
    println!("expire         {:7.0} ns each, {entries} entries", per(clock.elapsed().as_secs_f64()));
}
