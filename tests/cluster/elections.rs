//! A lease that nobody renews, over one election after the other, ends once: at its ttl, plus what docs/semantics.md
//! grants for outages.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::asker::Asker;
use crate::harness::{Cluster, Plan, ms, rounds};
use crate::process::{STAMP, eventually, pass};

/// At most so much is given on top of an outage: the time since the last tick.
const TICK: Duration = Duration::from_secs(1);
/// What a loaded machine may add: late measuring, and the time of a node that stands still, which is given back. Never
/// taken off the side that protects a holder.
const SLACK: Duration = Duration::from_secs(3);

/// What node `id` says is left; `Some(None)`: nothing; `None`: it gives no answer now.
fn left(cluster: &Cluster, id: u64, key: &str) -> Option<Option<u64>> {
    let answer = cluster.ask(id, "GET", &json!({"key": key}), Duration::from_secs(2)).ok()?;
    (answer.status == 200).then(|| answer.json()["result"]["ttl_ms"].as_u64())
}

/// An election: the leader stops for as long as it takes the others to find a new one. How long there was none.
fn elect(cluster: &mut Cluster) -> Duration {
    let leader = cluster.leader();
    let began = Instant::now();
    cluster.stop(leader);
    cluster.leader_but(leader);
    let outage = began.elapsed();
    cluster.resume(leader);
    outage
}

/// Elections of the suite, and from one to the next; an election takes half of that. Where more are asked for they are
/// further apart.
const ELECTIONS: usize = 3;
const EVERY: Duration = Duration::from_secs(3);
const EVERY_LONG: Duration = Duration::from_secs(5);

/// FR-12, FR-11, FR-10, FR-09: `TENURE_CLUSTER_ROUNDS=12` is the 60 s lease over an election every 5 s; the suite's is
/// shorter, with more elections a second.
#[test]
fn a_lease_over_elections_ends_once_and_not_early() {
    let mut cluster = Cluster::start(Plan::three());
    let elections = rounds(ELECTIONS);
    let every = if elections > ELECTIONS { EVERY_LONG } else { EVERY };
    let ttl = every * u32::try_from(elections).unwrap();
    let args = json!({"owner": "o", "token": "t", "ttl_ms": ms(ttl), "create": true});
    let sent = Instant::now();
    assert_eq!(cluster.op(1, "k", "ACQUIRE", &args)["result"], true);
    let answered = Instant::now();
    let mut outages = Vec::new();
    let mut turn = 0;
    let ended = loop {
        let due = every * u32::try_from(outages.len()).unwrap() + every / 2;
        if outages.len() < elections && answered.elapsed() >= due {
            outages.push(elect(&mut cluster));
        }
        turn += 1;
        let asked = Instant::now();
        match left(&cluster, turn % 3 + 1, "k") {
            Some(None) => break Instant::now(),
            Some(Some(left)) => assert!((1..=ms(ttl)).contains(&left), "{left} ms left"),
            None => {}
        }
        let longest: Duration = outages.iter().map(|outage| *outage + TICK).sum();
        let after = asked - answered;
        assert!(after < ttl + longest + TICK + SLACK, "still held, {after:?} after its grant");
        pass(Duration::from_millis(20));
    };
    assert!(ended + STAMP > sent + ttl, "not early: {:?} of {ttl:?}", ended - sent);
    let given: Duration = outages.iter().sum();
    eprintln!(
        "a lease of {ttl:?} ended {:?} late, over {} outages of {given:?}",
        ended - answered - ttl,
        outages.len()
    );
    // What was seen ended stays so, on every node and under every leader.
    elect(&mut cluster);
    for id in cluster.ids() {
        assert_eq!(eventually("an answer", || left(&cluster, id, "k")), None, "node {id} shows it again");
    }
}

/// FR-16: fifty leases that nobody renews, without an election: none ends early, all within the bound, by whatever node.
#[test]
fn fifty_leases_end_within_the_bound() {
    let cluster = Cluster::start(Plan::three());
    let ttl = Duration::from_secs(4);
    let acquire = |n: usize| {
        let args = json!({"owner": "o", "token": "t", "ttl_ms": ms(ttl), "create": true});
        let sent = Instant::now();
        let answer = Asker::new(&cluster, n).insist(&format!("k{n}"), "ACQUIRE", &args);
        // A repetition is told that the first one did it.
        assert!(answer["result"] == true || answer["yours"] == true, "{answer}");
        (n as u64, sent, Instant::now())
    };
    let mut held: Vec<_> = (0..50).map(acquire).collect();
    while !held.is_empty() {
        held.retain(|(n, sent, answered)| {
            let asked = Instant::now();
            let live = cluster.get((n + 1) % 3 + 1, &format!("k{n}"))["held"] == true;
            assert!(
                live || Instant::now() + STAMP > *sent + ttl,
                "k{n} ended {:?} after it was asked for",
                sent.elapsed()
            );
            assert!(!live || asked <= *answered + ttl + TICK + SLACK, "k{n} is held after {:?}", answered.elapsed());
            live
        });
    }
}
