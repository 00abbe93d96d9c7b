//! What went wrong for others who keep leases, replayed: those reports that no other file tells.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::json;
use tenure::keyspace::{self, Acquire, Event, Keyspace, OpReply, Reason, Reply, token_hash};
use tenure_client::wire::{AcquireArgs, Op, ReleaseArgs, RenewArgs, Token};
use tenure_client::{Client, HostClock, Options};
use tenure_cluster::{Moment, Position, Stamp, StateMachine};

use crate::harness::{Fresh, SOON};
use crate::line::Waiting;

/// A proxy before `node` that swallows every second answer: the request has had its effect, and its connection is closed.
fn forgetful(node: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answers = Arc::new(AtomicUsize::new(0));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (node, answers) = (TcpStream::connect_timeout(&node, SOON).unwrap(), Arc::clone(&answers));
            let (mut from, mut to) = (client.try_clone().unwrap(), node.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut from, &mut to));
            thread::spawn(move || pass_every_second(node, client, &answers));
        }
    });
    address
}

fn pass_every_second(mut node: TcpStream, mut client: TcpStream, answers: &AtomicUsize) {
    // An answer is small, and comes in one piece.
    let mut piece = [0; 64 * 1024];
    while let Ok(length @ 1..) = node.read(&mut piece) {
        if answers.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) || client.write_all(&piece[..length]).is_err() {
            let _ = client.shutdown(Shutdown::Both);
            let _ = node.shutdown(Shutdown::Both);
            return;
        }
    }
}

/// FR-19: the client repeats by itself what may have been done; each is done once.
#[test]
fn a_repeated_call_is_done_once() {
    let fresh = Fresh::start();
    let uri = format!("tenure://{}", forgetful(fresh.node.addr));
    let client = Client::with(&uri.parse().unwrap(), Options::default(), Arc::new(HostClock));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut repeated = 0;
    for round in 1..=10_u64 {
        let token = Token::from(format!("token {round}"));
        let acquire = Op::new(
            "k",
            AcquireArgs {
                owner: "o".to_owned(),
                token: token.clone(),
                ttl_ms: Some(60_000),
                wait_ms: None,
                create: Some(true),
                note: None,
                min_hold_ms: None,
                delay_ms: None,
                once: Some(true),
            },
        );
        let acquired = runtime.block_on(client.call(&acquire)).unwrap();
        assert!(acquired.answer.is_true() || acquired.answer.yours(), "{acquired:?}");
        let fence = acquired.answer.fence();
        assert_eq!(fence, Some(round), "the fence grew by one per real grant");
        let renew = Op::new("k", RenewArgs { token: token.clone(), ttl_ms: Some(60_000), fence });
        let renewed = runtime.block_on(client.call(&renew)).unwrap();
        assert!(renewed.answer.is_true() && renewed.answer.fence() == fence, "{renewed:?}");
        let released = runtime.block_on(client.call(&Op::new("k", ReleaseArgs { token, fence }))).unwrap();
        assert!(released.answer.is_true() || (released.repeated && released.answer.reason() == Some("not_held")));
        repeated += [acquired, renewed, released].iter().filter(|answered| answered.repeated).count();
        let seen = fresh.node.get("k");
        assert_eq!((&seen["held"], &seen["last"]["fence"]), (&json!(false), &json!(round)), "{seen}");
    }
    assert!(repeated >= 15, "the proxy swallowed next to nothing: {repeated}");
}

/// FR-27: whoever was cut off for longer than its lease is told that it lost, to whom, and by no secret.
#[test]
fn a_holder_that_was_away_is_told_who_took_over() {
    let Fresh { node, dir: _dir } = Fresh::start();
    let first = node.op("k", "ACQUIRE", &json!({"owner": "a", "token": "a's secret", "ttl_ms": 300, "create": true}));
    let second = Waiting::ask_with(node.addr, "k", "b's secret", &json!({"owner": "b"}), "").answer();
    assert_eq!(second["result"], true, "{second}");
    assert!(second["fence"].as_u64() > first["fence"].as_u64());
    for operation in ["RENEW", "RELEASE"] {
        let late = node.op("k", operation, &json!({"token": "a's secret", "fence": first["fence"]}));
        assert_eq!((&late["result"], &late["fence"]), (&json!(false), &second["fence"]), "{operation}: {late}");
        assert!(!late.to_string().contains("secret"), "{late}");
    }
    assert_eq!(node.op("k", "HELD", &json!({"token": "a's secret"}))["result"], false);
    assert_eq!(node.op("k", "HELD", &json!({"token": "b's secret"}))["result"], true);
}

/// The pure core, and a log of one.
#[derive(Default)]
struct Core {
    keyspace: Keyspace,
    events: Vec<Event>,
    index: u64,
}

impl Core {
    fn apply(&mut self, stamp: u64, command: keyspace::Command) -> OpReply {
        self.index += 1;
        let at = Moment { stamp: Stamp(stamp), position: Position { index: self.index, ordinal: 0 }, wall_ms: stamp };
        self.events.clear();
        self.keyspace.advance(&at, &mut self.events);
        match self.keyspace.apply(&at, command, &mut self.events) {
            Reply::Op(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn saved(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.keyspace.save(&mut bytes).unwrap();
        bytes
    }
}

fn acquire(token: u64) -> keyspace::Command {
    keyspace::Command::Acquire(Acquire {
        key: "k".into(),
        owner: format!("owner {token}").into(),
        token: token_hash("k", &token.to_string()),
        ttl_ms: 1_000,
        create: true,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: true,
    })
}

/// FR-18: however long a dead owner's lease is over, the first to ask has it.
#[test]
fn an_ended_lease_is_taken_at_the_first_try_however_late() {
    const HOUR_MS: u64 = 3_600_000;
    let mut core = Core::default();
    let (mut now, mut fence) = (1_000_000, 0);
    for (token, after_ms) in (0..).zip([0, 1, 1_000, HOUR_MS, 23 * HOUR_MS]) {
        now += after_ms;
        let reply = core.apply(now, acquire(token));
        assert!(reply.result && reply.fence > Some(fence), "{after_ms} ms after the end: {reply:?}");
        fence = reply.fence.unwrap();
        now += 1_000;
    }
}

/// What this process has allocated and touched, KiB. Not its program text, which comes and goes with the host's memory.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The process of the next test, which counts its own memory: nothing else may run in it.
#[test]
#[ignore = "run by the next test, in a process of its own"]
fn a_million_refusals() {
    let mut core = Core::default();
    assert!(core.apply(0, acquire(0)).result);
    let before = core.saved();
    let mut refuse = |tokens: std::ops::Range<u64>| {
        for token in tokens {
            // The lease lives on: time stands.
            let reply = core.apply(0, acquire(token));
            assert_eq!((reply.result, reply.reason), (false, Some(Reason::Held)));
        }
    };
    refuse(1..100_000);
    let warm_kib = resident_kib();
    refuse(100_000..1_100_000);
    let grown_kib = resident_kib().saturating_sub(warm_kib);
    // A million of them, at a byte each.
    assert!(grown_kib < 1_024, "{grown_kib} KiB more than {warm_kib} KiB");
    assert_eq!(core.saved(), before, "nothing of them is kept");
}

/// FR-49: a million refused ACQUIREs leave nothing behind, in the store and in memory. Over HTTP: `bounds`.
#[test]
fn a_million_refusals_leave_nothing_behind() {
    let args = ["--exact", "field_reports::a_million_refusals", "--ignored", "--test-threads", "1"];
    let own = std::env::current_exe().unwrap();
    let output = Command::new(own).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// FR-21, on the side of a client that has no limit of tries: a release after the end comes back, by itself, false.
#[test]
fn a_client_that_releases_late_is_not_held_up() {
    let fresh = Fresh::start();
    let acquired = fresh.node.op("k", "ACQUIRE", &json!({"owner": "o", "token": "t", "ttl_ms": 50, "create": true}));
    fresh.node.await_free("k");
    let cli = |fence: &str| fresh.node.cli(&["release", "k", "--token", "t", "--fence", fence]);
    for _ in 0..2 {
        let output = cli(&acquired["fence"].to_string());
        assert_eq!(output.status.code(), Some(1), "not held is a documented code: {output:?}");
    }
}
