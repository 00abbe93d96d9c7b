//! Programs that use a pool while nodes fail, more of them than it has ids, and a judge of what they were told.
//!
//! Each loops: ACQUIRE with its identity and a new token, hold over some RENEWs, then RELEASE, or fall silent, or crash and
//! begin again. It believes in its grant from the answer on, by its own clock: until the ttl after it last asked with
//! success, or until it let go. So no two may ever believe in one id at one instant, whatever nodes do meanwhile; no
//! fence is of two grants; and what was given on has a later fence.
//!
//! The judge knows no log: that an id is kept back, and whose it is next, is shown elsewhere.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Cluster, ms};
use crate::http::Http;
use crate::process::{STAMP, pass};
use checker::Dice;

const POOL: &str = "tenants";
const PROGRAMS: u64 = 6;
const IDS: u64 = 4;
const TTL: Duration = Duration::from_secs(1);
/// Longer than a node takes to say that it cannot serve.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Apart from the dice of a load and of its faults.
const STREAM: u64 = 2 << 32;

/// A grant as its holder saw it.
#[derive(Clone, Debug)]
struct Use {
    id: u64,
    fence: u64,
    from: Instant,
    until: Instant,
}

/// Those who run.
pub struct Tenants {
    stop: Arc<AtomicBool>,
    programs: Vec<JoinHandle<Vec<Use>>>,
}

impl Tenants {
    /// Makes the pool and starts the programs. Without quarantine, so that ids are given on at the first instant.
    pub fn start(cluster: &Cluster, seed: u64) -> Self {
        let options = json!({"size": IDS, "quarantine_ms": 0, "ttl_ms_min": 1});
        let create = json!({"key": POOL, "type": "pool", "options": options});
        assert_eq!(cluster.call(cluster.leader(), "CREATE", &create)["result"], true);
        let (stop, nodes) = (Arc::new(AtomicBool::new(false)), cluster.endpoints());
        let nodes: Vec<SocketAddr> = nodes.into_iter().map(|(_, addr)| addr).collect();
        let start = |identity: u64| {
            let (dice, stop) = (Dice::new(seed, STREAM + identity), Arc::clone(&stop));
            let program =
                Program { identity, nodes: nodes.clone(), lives: 0, dice, uses: Vec::new(), in_doubt: false, stop };
            thread::spawn(move || program.run())
        };
        Self { programs: (0..PROGRAMS).map(start).collect(), stop }
    }

    /// Ends them and judges. How many grants there were.
    pub fn judge(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let uses: Vec<Use> = self.programs.drain(..).flat_map(|program| program.join().unwrap()).collect();
        let mut by_id: BTreeMap<u64, BTreeMap<u64, &Use>> = BTreeMap::new();
        for one in &uses {
            assert!(one.id < IDS, "{one:?}");
            let before = by_id.entry(one.id).or_default().insert(one.fence, one);
            assert!(before.is_none(), "a fence of two grants: {before:?}, {one:?}");
        }
        for in_turn in by_id.values().map(|by_fence| by_fence.values().collect::<Vec<_>>()) {
            for two in in_turn.windows(2) {
                assert!(two[0].until < two[1].from + STAMP, "an id of two at once: {two:?}");
            }
        }
        eprintln!("{} grants of {} ids to {PROGRAMS} programs", uses.len(), by_id.len());
        uses.len()
    }
}

impl Drop for Tenants {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Program {
    identity: u64,
    nodes: Vec<SocketAddr>,
    lives: u64,
    dice: Dice,
    uses: Vec<Use>,
    /// An ACQUIRE got no answer: it may come late, and take over from a later life of the program, which has another token.
    in_doubt: bool,
    stop: Arc<AtomicBool>,
}

impl Program {
    fn run(mut self) -> Vec<Use> {
        while !self.is_over() {
            self.lives += 1;
            match self.acquire() {
                Some(grant) => {
                    self.uses.push(grant);
                    self.hold();
                }
                None => self.pause(10..=60),
            }
        }
        self.uses
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn pause(&mut self, ms: std::ops::RangeInclusive<u64>) {
        pass(Duration::from_millis(self.dice.in_range(ms)));
    }

    fn token(&self) -> String {
        format!("{}-{}", self.identity, self.lives)
    }

    /// One try at any node: when it was sent, and the answer.
    fn call(&mut self, operation: &str, args: &Value) -> (Instant, Option<Value>) {
        let node = self.nodes[usize::try_from(self.dice.in_range(0..=1000)).unwrap() % self.nodes.len()];
        let body = json!({"key": POOL, "operation": operation, "args": args}).to_string();
        let sent = Instant::now();
        let response = Http::connect_within(node, ANSWER_WITHIN).and_then(|mut http| http.post("OP", &body));
        let answer = response.ok().and_then(|response| match response.status {
            200 => Some(response.json()),
            429 | 500.. => None,
            _ => panic!("{body}: {response:?}"),
        });
        (sent, answer)
    }

    /// Without an answer, again with the same token.
    fn acquire(&mut self) -> Option<Use> {
        let identity = format!("program-{}", self.identity);
        let args = json!({"identity": identity, "token": self.token(), "ttl_ms": ms(TTL)});
        while !self.is_over() {
            let (sent, answer) = self.call("ACQUIRE", &args);
            if let Some(answer) = answer {
                let told = |field: &str| answer["result"][field].as_u64();
                let (id, fence) = (told("id")?, told("fence")?);
                return Some(Use { id, fence, from: Instant::now(), until: sent + TTL });
            }
            self.in_doubt = true;
            self.pause(5..=40);
        }
        None
    }

    fn hold(&mut self) {
        let token = self.token();
        for _ in 0..self.dice.in_range(0..=4) {
            self.pause(1..=200);
            let until = self.last().until;
            if self.is_over() || Instant::now() >= until {
                return;
            }
            match self.call("RENEW", &json!({"token": token, "ttl_ms": ms(TTL)})) {
                (sent, Some(answer)) if answer["result"]["status"] == "renewed" => self.last().until = sent + TTL,
                (_, Some(answer)) => {
                    let by_itself = self.in_doubt && answer["reason"] == "taken_over";
                    assert!(by_itself || Instant::now() + STAMP >= until, "lost before its time: {answer}");
                    self.let_go();
                    return;
                }
                (_, None) => {}
            }
        }
        match self.dice.in_range(1..=100) {
            1..=70 => {
                self.let_go();
                self.call("RELEASE", &json!({"token": token}));
            }
            // It crashes and comes again at once, with another token.
            71..=80 => self.let_go(),
            // It is silent until its grant is over.
            _ => pass(self.last().until.saturating_duration_since(Instant::now())),
        }
    }

    fn last(&mut self) -> &mut Use {
        self.uses.last_mut().unwrap()
    }

    /// From now on it uses its id no more.
    fn let_go(&mut self) {
        let now = Instant::now();
        self.last().until = self.last().until.min(now);
    }
}
