//! SIGSTOP of the leader and SIGCONT: it sleeps over its own end as a leader, with requests in its sockets.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Cluster, Plan, ms, rounds};
use crate::history::{History, now_ns};
use crate::leader_killed::summary;
use crate::load::Load;
use crate::probe::first_grant_ms;
use crate::process::{SOON, eventually, pass};
use crate::session::Session;
use checker::{Answer, Operation, Outcome};

/// How long the leader sleeps: longer than an election takes; far longer where more than the suite's rounds are asked for.
const STOPPED: Duration = Duration::from_secs(4);
const STOPPED_LONG: Duration = Duration::from_secs(10);
const ROUNDS: usize = 1;
/// Requests that lie in the sleeper's sockets.
const CAUGHT: u32 = 6;
/// A lease that lives over all of it.
const TTL_MS: u64 = 3_600_000;
/// Far beyond the heartbeat of 250 ms: the figure itself is for docs, measured on a quiet machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(SOON.as_secs() / 3);

/// A lease held over the whole test.
struct Held {
    key: &'static str,
    token: u64,
    fence: u64,
}

impl Held {
    fn acquire(cluster: &Cluster, history: &History, key: &'static str, token: u64) -> Self {
        let mut session = Session::new(100, cluster.endpoints(), Duration::from_secs(6), history);
        match session.insist(key, Operation::Acquire { token, ttl_ms: TTL_MS }, 20) {
            Some(Outcome::Answered(_, Answer::Granted(live))) => Self { key, token, fence: live.fence },
            other => panic!("{key}: {other:?}"),
        }
    }

    fn renew(&self) -> Operation {
        Operation::Renew { token: self.token, fence: self.fence, ttl_ms: TTL_MS }
    }
}

/// Stops the leader, renews through the next one, wakes it; how long the first grant took, and how long the sleeper to
/// say that it no longer leads.
fn sleep_and_wake(cluster: &mut Cluster, history: &History, renewed: &Held, quiet: &Held) -> (u64, Duration) {
    let stopped = if rounds(ROUNDS) > ROUNDS { STOPPED_LONG } else { STOPPED };
    let leader = cluster.leader();
    let stopped_ns = now_ns();
    cluster.stop(leader);
    let at = cluster.ids().iter().position(|id| *id == leader).unwrap();
    let endpoints = cluster.endpoints();
    let (first_ms, noticed, caught) = thread::scope(|scope| {
        let caught: Vec<_> = (0..CAUGHT)
            .map(|n| {
                let mut session = Session::new(200 + n, endpoints.clone(), stopped * 5, history);
                session.go_to(at);
                scope.spawn(move || session.call(renewed.key, renewed.renew()))
            })
            .collect();
        let first_ms = first_grant_ms(cluster, leader, history);
        let next = cluster.leader_but(leader);
        let term = cluster.status(next).unwrap()["term"].as_u64().unwrap();
        let mut session = Session::new(300, endpoints.clone(), stopped * 2, history);
        session.go_to(cluster.ids().iter().position(|id| *id == next).unwrap());
        let answer = session.insist(renewed.key, renewed.renew(), 10);
        assert!(
            matches!(answer, Some(Outcome::Answered(_, Answer::Granted(_)))),
            "renewed by the next leader: {answer:?}"
        );
        pass(stopped.saturating_sub(Duration::from_nanos(now_ns() - stopped_ns)));
        let woken = Instant::now();
        cluster.resume(leader);
        eventually("the old leader says that it does not lead", || {
            cluster.status(leader).filter(|status| status["role"] != "leader")
        });
        let noticed = woken.elapsed();
        let caught: Vec<Outcome> = caught.into_iter().map(|caught| caught.join().unwrap()).collect();
        (first_ms, noticed, caught.into_iter().map(|outcome| (outcome, term)).collect::<Vec<_>>())
    });
    // What lay in its sockets it may have handed to the next leader; it must not have said yes by itself.
    for (outcome, term) in caught {
        if let Outcome::Answered(witness, answer) = &outcome {
            assert!(witness.term >= term, "answered by a leader that was none any more: {outcome:?}");
            assert!(matches!(answer, Answer::Granted(_)), "the lease is held and renewed: {outcome:?}");
        }
    }
    for held in [renewed, quiet] {
        let seen = cluster.get(leader, held.key);
        assert_eq!(seen["fence"], json!(held.fence), "the sleeper ended {}: {seen}", held.key);
    }
    (first_ms, noticed)
}

/// FR-25. The time to the first grant is that of a link gone silent: nothing is reset, so the timeouts decide.
#[test]
fn a_leader_that_slept_acknowledges_nothing() {
    let mut cluster = Cluster::start(Plan::three());
    let history = History::default();
    let (renewed, quiet) =
        (Held::acquire(&cluster, &history, "renewed", 1), Held::acquire(&cluster, &history, "quiet", 2));
    let (mut grants_ms, mut noticed_ms) = (Vec::new(), Vec::new());
    let load = Load { holders: 5, readers: 1, ..Load::default() };
    load.run(&mut cluster, &history, |cluster, running| {
        for _ in 0..rounds(ROUNDS) {
            running.await_calls(50);
            let (grant_ms, noticed) = sleep_and_wake(cluster, running.history, &renewed, &quiet);
            grants_ms.push(grant_ms);
            noticed_ms.push(ms(noticed));
            assert!(noticed < NOTICED_WITHIN, "it took {noticed:?} to notice");
            cluster.ids().into_iter().for_each(|id| cluster.await_ready(id));
        }
    });
    eprintln!("leader stopped, first grant after: {}", summary(grants_ms));
    eprintln!("leader woken, no leader by its own word after: {}", summary(noticed_ms));
    history.judge("leader-stopped");
    cluster.states_are_equal();
}
