//! Random clients. Each loops: ACQUIRE a key, hold it over a few RENEWs, RELEASE it or let it expire; keys are shared by
//! all, or the client's own. Readers GET random keys at random nodes.
//!
//! The choices follow from a seed, which is printed, and taken from `TENURE_SEED` where given. What nodes do meanwhile
//! does not: a seed repeats the load, not the run.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::Cluster;
use crate::history::{History, now_ns};
use crate::process::pass;
use crate::session::Session;
use checker::{Answer, Dice, Operation, Outcome};

/// How often a call without an answer is made again with the same token.
const TRIES: usize = 40;
/// Longer than a node takes to say that it cannot serve (`--request-timeout` of [`Load::default`]'s clusters).
const ANSWER_WITHIN: Duration = Duration::from_secs(6);

/// What runs.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Clients that hold.
    pub holders: u32,
    /// Clients that read.
    pub readers: u32,
    /// Keys that all share.
    pub shared_keys: u64,
    /// Of every grant.
    pub ttl_ms: u64,
}

impl Default for Load {
    fn default() -> Self {
        Self { holders: 8, readers: 2, shared_keys: 4, ttl_ms: 2_000 }
    }
}

/// The seed of this run: `TENURE_SEED`, or a new one. Printed.
pub fn seed() -> u64 {
    let given = std::env::var("TENURE_SEED").ok();
    let seed = given.map_or_else(now_ns, |seed| seed.parse().expect("TENURE_SEED is a number"));
    eprintln!("TENURE_SEED={seed}");
    seed
}

/// A load that runs; `meanwhile` gets it.
pub struct Running<'a> {
    /// What is written.
    pub history: &'a History,
}

/// Ends the load, also when the scenario panics.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Running<'_> {
    /// Awaits that so many more calls are answered or given up.
    pub fn await_calls(&self, more: usize) {
        let until = self.history.len() + more;
        crate::process::eventually("the load goes on", || (self.history.len() >= until).then_some(()));
    }
}

impl Load {
    /// Runs on all nodes of `cluster` while `meanwhile` does; then reads every key once more at every node.
    pub fn run<R>(
        self,
        cluster: &mut Cluster,
        history: &History,
        meanwhile: impl FnOnce(&mut Cluster, &Running<'_>) -> R,
    ) -> R {
        self.run_seeded(seed(), cluster, history, meanwhile)
    }

    /// The same, its choices by this seed.
    pub fn run_seeded<R>(
        self,
        seed: u64,
        cluster: &mut Cluster,
        history: &History,
        meanwhile: impl FnOnce(&mut Cluster, &Running<'_>) -> R,
    ) -> R {
        let nodes = cluster.endpoints();
        let stop = AtomicBool::new(false);
        let result = thread::scope(|scope| {
            let ends = StopAtEnd(&stop);
            for n in 0..self.holders + self.readers {
                let (stop, nodes) = (&stop, nodes.clone());
                let dice = Dice::new(seed, u64::from(n));
                let session = Session::new(n + 1, nodes, ANSWER_WITHIN, history);
                let token = first_token(n);
                scope.spawn(move || match n < self.holders {
                    true => Holder { load: self, session, dice, number: n, token, stop }.run(),
                    false => self.read(session, dice, stop),
                });
            }
            let result = meanwhile(cluster, &Running { history });
            drop(ends);
            result
        });
        last_reads(&nodes, history);
        result
    }

    fn shared_key(self, dice: &mut Dice) -> String {
        format!("shared-{}", dice.in_range(1..=self.shared_keys))
    }

    fn read(self, mut session: Session, mut dice: Dice, stop: &AtomicBool) {
        while !(stop.load(Ordering::Relaxed) || session.is_full()) {
            session.go_to(usize::try_from(dice.in_range(0..=1000)).unwrap());
            session.call(&self.shared_key(&mut dice), Operation::Get);
            pass(Duration::from_millis(dice.in_range(1..=10)));
        }
    }
}

/// Tokens of a client, apart from those of the others and of an earlier load: room for 2^10 clients with 2^20 each.
pub fn first_token(client: u32) -> u64 {
    ((now_ns() / 1_000_000) << 30) | (u64::from(client) << 20)
}

/// Each key as every node shows it at the end: what was acknowledged must be in it.
pub fn last_reads(nodes: &[(u64, SocketAddr)], history: &History) {
    let keys = history.keys();
    for n in 0..nodes.len() {
        let mut session = Session::new(0, nodes.to_vec(), ANSWER_WITHIN, history);
        for key in &keys {
            session.go_to(n);
            let read = session.insist(key, Operation::Get, TRIES);
            assert!(read.is_some(), "no node reads {key} at the end");
        }
    }
}

/// A client that holds.
struct Holder<'a> {
    load: Load,
    session: Session,
    dice: Dice,
    number: u32,
    token: u64,
    stop: &'a AtomicBool,
}

impl Holder<'_> {
    fn run(mut self) {
        while !self.is_over() {
            let own = self.dice.percent(40);
            let key = if own { format!("own-{}", self.number) } else { self.load.shared_key(&mut self.dice) };
            self.token += 1;
            match self.acquire(&key) {
                Some(fence) => self.hold(&key, fence),
                None => pass(Duration::from_millis(self.dice.in_range(5..=30))),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.session.is_full()
    }

    /// Calls until somebody answers, the load is over, or often enough.
    fn insist(&mut self, key: &str, operation: Operation) -> Option<Answer> {
        for _ in 0..TRIES {
            match self.session.call(key, operation) {
                Outcome::Answered(_, answer) => return Some(answer),
                Outcome::Nothing | Outcome::Unknown if self.is_over() => return None,
                Outcome::Nothing | Outcome::Unknown => pass(Duration::from_millis(self.dice.in_range(1..=20))),
            }
        }
        None
    }

    /// The fence, once the grant is proved to be this client's.
    fn acquire(&mut self, key: &str) -> Option<u64> {
        let acquire = Operation::Acquire { token: self.token, ttl_ms: self.load.ttl_ms };
        match self.insist(key, acquire)? {
            Answer::Granted(live) => Some(live.fence),
            Answer::Refused { live: Some(live), yours: true, .. } => self.renew(key, live.fence).then_some(live.fence),
            _ => None,
        }
    }

    fn renew(&mut self, key: &str, fence: u64) -> bool {
        let renew = Operation::Renew { token: self.token, fence, ttl_ms: self.load.ttl_ms };
        matches!(self.insist(key, renew), Some(Answer::Granted(_)))
    }

    fn hold(&mut self, key: &str, fence: u64) {
        for _ in 0..self.dice.in_range(0..=4) {
            pass(Duration::from_millis(self.dice.in_range(1..=self.load.ttl_ms / 20)));
            if self.is_over() || !self.renew(key, fence) {
                return;
            }
        }
        if self.dice.percent(85) {
            self.insist(key, Operation::Release { token: self.token, fence });
        }
    }
}
