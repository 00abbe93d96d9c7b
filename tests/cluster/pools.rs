//! Pools on clusters: an id has one user and a user one id, whichever node is asked, also while the leader dies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::asker::{Asker, given, refused};
use crate::harness::{Cluster, Plan, SOON, ms};
use crate::process::eventually;
use crate::sse::Stream;

/// The default pool's.
const SIZE: usize = 512;
const QUARANTINE_MS: u64 = 60_000;
/// Far longer than a test.
const TTL_MS: u64 = 600_000;

fn create(cluster: &Cluster, key: &str, options: &Value) {
    let created = cluster.call(cluster.leader(), "CREATE", &json!({"key": key, "type": "pool", "options": options}));
    assert_eq!(created["result"], true, "{created}");
}

fn args(n: usize) -> Value {
    json!({"identity": format!("pod-{n}"), "token": format!("secret-{n}"), "ttl_ms": TTL_MS})
}

/// All ask for an id: one half at once, the other as the leader is killed, which is when some of the first have theirs.
/// What each was told.
fn fill(cluster: &mut Cluster, leader: u64) -> Vec<Value> {
    const FIRST: usize = SIZE / 8;
    let (answered, answers) = mpsc::sync_channel(SIZE);
    let (beginning, killing) = (Barrier::new(SIZE / 2), Barrier::new(SIZE / 2 + 1));
    let askers: Vec<Asker> = (0..SIZE).map(|n| Asker::new(cluster, n / 2)).collect();
    thread::scope(|scope| {
        let clients: Vec<_> = askers
            .into_iter()
            .enumerate()
            .map(|(n, mut asker)| {
                let (answered, start) = (answered.clone(), if n % 2 == 0 { &beginning } else { &killing });
                scope.spawn(move || {
                    start.wait();
                    let answer = asker.insist("ids", "ACQUIRE", &args(n));
                    answered.send(()).unwrap();
                    answer
                })
            })
            .collect();
        (0..FIRST).for_each(|_| answers.recv_timeout(SOON).unwrap());
        killing.wait();
        cluster.kill(leader);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// All live slots as a node pages them: identity and fence by id.
fn holders(cluster: &Cluster, node: u64) -> BTreeMap<u64, (String, u64)> {
    let (mut all, mut cursor) = (BTreeMap::new(), Value::Null);
    loop {
        let mut args = json!({"limit": 200});
        if cursor != Value::Null {
            args["cursor"] = cursor;
        }
        let mut page = cluster.op(node, "ids", "HOLDERS", &args)["result"].take();
        let slots = page["holders"].as_array().unwrap();
        assert!(slots.len() <= 200 && slots.iter().all(|slot| slot["held"] == true), "{page}");
        all.extend(slots.iter().map(|slot| {
            let identity = slot["identity"].as_str().unwrap().to_owned();
            (slot["id"].as_u64().unwrap(), (identity, slot["fence"].as_u64().unwrap()))
        }));
        cursor = page["cursor"].take();
        if cursor == Value::Null {
            return all;
        }
    }
}

/// Who asks once more with its token is told the same, by every node.
fn all_stand(cluster: &Cluster, told: &[(u64, u64)]) {
    let ask = |n: usize| json!({"command": "OP", "key": "ids", "operation": "ACQUIRE", "args": args(n)});
    let commands: Vec<Value> = (0..SIZE).map(ask).collect();
    for node in cluster.ids() {
        let answer = cluster.call(node, "BATCH", &json!({"commands": commands}));
        for (item, told) in answer["result"].as_array().unwrap().iter().zip(told) {
            assert_eq!((given(item), &item["yours"]), (*told, &json!(true)), "node {node}: {item}");
        }
    }
}

/// FR-61, and requirement 4 of an allocator: never twice, never beyond the end, and told when there may be one.
#[test]
fn five_hundred_and_twelve_get_an_id_each_while_the_leader_dies() {
    let mut cluster = Cluster::start(Plan::three());
    create(&cluster, "ids", &json!({}));
    let leader = cluster.leader();
    let began = Instant::now();
    let told: Vec<(u64, u64)> = fill(&mut cluster, leader).iter().map(given).collect();
    eprintln!("512 ids over a leader kill after {} ms", began.elapsed().as_millis());
    let ids: BTreeSet<u64> = told.iter().map(|(id, _)| *id).collect();
    assert!(ids.iter().copied().eq(0..SIZE as u64), "not each id once: {ids:?}");
    assert_eq!(told.iter().map(|(_, fence)| fence).collect::<BTreeSet<_>>().len(), SIZE, "a fence was given twice");
    cluster.restart(leader);
    cluster.await_ready(leader);
    all_stand(&cluster, &told);
    let wanted: BTreeMap<u64, (String, u64)> =
        told.iter().enumerate().map(|(n, (id, fence))| (*id, (format!("pod-{n}"), *fence))).collect();
    for node in cluster.ids() {
        assert_eq!(holders(&cluster, node), wanted, "node {node}");
        let late = cluster.op(node, "ids", "ACQUIRE", &json!({"identity": "late", "token": "late"}));
        let (reason, retry_after_ms) = refused(&late);
        let (earliest, left) = (ms(began.elapsed()), retry_after_ms.unwrap_or(0));
        assert_eq!(reason, "exhausted", "{late}");
        assert!((TTL_MS + QUARANTINE_MS - earliest..=TTL_MS + QUARANTINE_MS).contains(&left), "{late}");
    }
    let (node, then) = (cluster.others(leader)[0], cluster.others(leader)[1]);
    let gone = 137;
    assert_eq!(cluster.op(node, "ids", "RELEASE", &json!({"token": format!("secret-{gone}")}))["result"], true);
    assert_eq!(cluster.get(leader, "ids")["slots"], json!({"held": 511, "quarantined": 0, "free": 1}));
    let next = cluster.op(then, "ids", "ACQUIRE", &json!({"identity": "late", "token": "late"}));
    assert_eq!(given(&next).0, told[gone].0, "exactly the one that was given back: {next}");
    let again = cluster.op(leader, "ids", "ACQUIRE", &args(gone));
    assert_eq!(refused(&again).0, "exhausted", "{again}");
    cluster.states_are_equal();
}

/// A program with an identity, in its lives.
struct Program {
    asker: Asker,
    life: u64,
}

impl Program {
    fn token(&self) -> String {
        format!("life-{}", self.life)
    }

    /// Starts, at another node than before, with the token that it has.
    fn start(&mut self) -> Value {
        self.asker.go_on();
        let args = json!({"identity": "pod", "token": self.token(), "ttl_ms": TTL_MS});
        self.asker.insist("ids", "ACQUIRE", &args)
    }

    fn start_anew(&mut self) -> Value {
        self.life += 1;
        self.start()
    }

    fn stop(&mut self) {
        let args = json!({"token": self.token()});
        let released = self.asker.insist("ids", "RELEASE", &args);
        // A repetition is told that the first one did it.
        assert!(released["result"] == true || released["reason"] == "not_held", "{released}");
    }
}

/// FR-59, requirements 3 and 13: whichever way a program ends and begins, it has the id that it had.
#[test]
fn a_hundred_restarts_of_one_identity_use_one_id() {
    let cluster = Cluster::start(Plan::three());
    create(&cluster, "ids", &json!({}));
    let mut program = Program { asker: Asker::new(&cluster, 0), life: 0 };
    let mut had = given(&program.start());
    let first = Instant::now();
    // Twice within a second: it crashed, and forgot its token.
    for _ in 0..2 {
        let answer = program.start_anew();
        let now = given(&answer);
        assert!(now.0 == had.0 && now.1 > had.1, "{answer}");
        assert_eq!((&answer["took_over"], &answer["prior_fence"]), (&json!(true), &json!(had.1)), "{answer}");
        had = now;
    }
    for restart in 0..100 {
        if restart % 2 == 0 {
            // It crashed, and kept its token.
            let answer = program.start();
            assert_eq!((given(&answer), &answer["yours"]), (had, &json!(true)), "{restart}: {answer}");
            continue;
        }
        program.stop();
        if restart % 20 == 1 {
            // Somebody comes by while its id is free.
            let args = json!({"identity": format!("other-{restart}"), "token": format!("other-{restart}")});
            let other = program.asker.insist("ids", "ACQUIRE", &args);
            assert_ne!(given(&other).0, had.0, "{restart}: {other}");
        }
        let answer = program.start_anew();
        let now = given(&answer);
        assert!(now.0 == had.0 && now.1 > had.1 && answer["took_over"].is_null(), "{restart}: {answer}");
        had = now;
    }
    // A third crash without a token within the minute; the fourth may as well be two programs of one identity. Where the
    // minute is over since the first two, on a loaded machine, they do not count, and there may be two more.
    let mut crashes = 0;
    let (token, answer) = loop {
        let token = program.token();
        let answer = program.start_anew();
        if answer["result"].is_null() {
            break (token, answer);
        }
        had = given(&answer);
        crashes += 1;
        let over = first.elapsed() > Duration::from_secs(60);
        assert!(crashes == 1 || (over && crashes <= 3), "{crashes} crashes: {answer}");
    };
    assert!(crashes > 0, "{answer}");
    let (reason, retry_after_ms) = refused(&answer);
    assert_eq!(reason, "identity_conflict", "{answer}");
    assert!(retry_after_ms.is_some_and(|ms| (1..=60_000).contains(&ms)), "{answer}");
    let renewed = program.asker.insist("ids", "RENEW", &json!({"token": token, "ttl_ms": TTL_MS}));
    assert_eq!((&renewed["result"]["status"], given(&renewed)), (&json!("renewed"), had), "who holds is not disturbed");
    let slots = cluster.op(1, "ids", "HOLDERS", &json!({"all": true}))["result"]["holders"].take();
    let used: Vec<&Value> = slots.as_array().unwrap().iter().filter(|slot| slot["identity"] == "pod").collect();
    assert_eq!((used.len(), &used[0]["id"]), (1, &json!(had.0)), "{slots}");
}

/// How many use a semaphore at once, by the log.
fn never_more_than(slots: usize, watch: &mut Stream, grants: usize) {
    let (mut live, mut ended, mut last_fence) = (BTreeMap::new(), 0, 0);
    while ended < grants {
        let told = watch.event();
        let (slot, fence) = (told.data["slot"].as_u64(), told.data["fence"].as_u64());
        match &*told.event {
            "granted" => {
                assert!(fence.unwrap() > last_fence, "fences grow: {told:?}");
                last_fence = fence.unwrap();
                assert_eq!(live.insert(slot.unwrap(), last_fence), None, "a slot of two: {told:?}");
                assert!(live.len() <= slots, "{live:?}");
            }
            "released" => {
                assert_eq!(live.remove(&slot.unwrap()), fence, "{told:?}");
                // What nobody was told of went back, and to the next.
                ended += usize::from(told.data["reason"] == "released");
            }
            "reset" => {}
            other => panic!("{other}: {told:?}"),
        }
    }
    assert!(live.is_empty(), "{live:?}");
}

fn waits(cluster: &Cluster, node: u64, held: usize, waiters: usize) {
    eventually(&format!("{held} hold, {waiters} wait"), || {
        let pool = cluster.get(node, "slots");
        (pool["slots"]["held"] == held && pool["waiters"] == waiters).then_some(())
    });
}

/// Twelve want one of three slots, by way of all nodes; each has its turn, though the leader dies when three have had it.
#[test]
fn a_semaphore_serves_all_while_the_leader_dies() {
    const SLOTS: usize = 3;
    const CLIENTS: usize = 12;
    let mut cluster = Cluster::start(Plan::three());
    create(&cluster, "slots", &json!({"size": SLOTS, "first": 7}));
    let leader = cluster.leader();
    let stays = cluster.others(leader)[0];
    let mut watch = Stream::open(cluster.seat(stays).client, "?key=slots", None);
    let (granted, told) = mpsc::sync_channel(CLIENTS);
    for n in 0..CLIENTS {
        let (mut asker, granted) = (Asker::new(&cluster, n), granted.clone());
        thread::spawn(move || {
            let token = format!("t{n}");
            let args = json!({"owner": token, "token": token, "ttl_ms": TTL_MS, "wait_ms": 60_000});
            let answer = asker.insist("slots", "ACQUIRE", &args);
            assert!(answer["result"]["identity"].is_null(), "{answer}");
            granted.send((given(&answer), token)).unwrap();
        });
        waits(&cluster, stays, SLOTS.min(n + 1), (n + 1).saturating_sub(SLOTS));
    }
    let (mut holding, mut served) = (BTreeMap::new(), BTreeSet::new());
    let mut asker = Asker::new(&cluster, 0);
    while served.len() < CLIENTS || !holding.is_empty() {
        if served.len() < CLIENTS && holding.len() < SLOTS {
            let ((id, fence), token): ((u64, u64), String) = told.recv_timeout(SOON).expect("the next is served");
            assert!((7..7 + SLOTS as u64).contains(&id), "{id}");
            assert_eq!(holding.insert(id, (fence, token.clone())), None, "slot {id} is of two");
            assert!(served.insert(token), "served twice");
            if served.len() == CLIENTS / 2 {
                cluster.kill(leader);
            }
            continue;
        }
        let (_, (fence, token)) = holding.pop_first().unwrap();
        asker.go_on();
        let released = asker.insist("slots", "RELEASE", &json!({"token": token, "fence": fence}));
        // A repetition is told that the first one did it.
        assert!(released["result"] == true || released["reason"] == "not_held", "{released}");
    }
    never_more_than(SLOTS, &mut watch, CLIENTS);
    assert_eq!(cluster.get(stays, "slots")["slots"], json!({"held": 0, "quarantined": 0, "free": SLOTS}));
}
