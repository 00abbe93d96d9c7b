//! What one node has answered every node shows.

use serde_json::json;

use crate::harness::{Cluster, Plan};
use crate::history::History;
use crate::session::Session;
use checker::{Answer, Operation, Outcome};

/// `TENURE_CLUSTER_READS=10000` for the long run.
fn count() -> u64 {
    std::env::var("TENURE_CLUSTER_READS").map_or(200, |count| count.parse().expect("TENURE_CLUSTER_READS is a number"))
}

/// A write at one node, then at once a read at another: it shows the write. Leaders and followers in every pairing.
#[test]
fn a_read_at_another_node_is_never_stale() {
    let cluster = Cluster::start(Plan::three());
    let history = History::default();
    let session = |n| Session::new(n, cluster.endpoints(), crate::process::SOON, &history);
    let (mut writer, mut reader) = (session(1), session(2));
    for round in 0..count() {
        let at = usize::try_from(round % 3).unwrap();
        writer.go_to(at);
        reader.go_to(at + 1 + usize::try_from(round / 3 % 2).unwrap());
        let key = format!("k{}", round % 10);
        let acquire = Operation::Acquire { token: round, ttl_ms: 60_000 };
        let Outcome::Answered(_, Answer::Granted(live)) = writer.call(&key, acquire) else { panic!("not granted") };
        let Outcome::Answered(_, Answer::Seen(Some(seen))) = reader.call(&key, Operation::Get) else {
            panic!("not read")
        };
        assert_eq!(seen.held.map(|live| live.fence), Some(live.fence), "round {round}: stale");
        let release = Operation::Release { token: round, fence: live.fence };
        assert!(matches!(writer.call(&key, release), Outcome::Answered(_, Answer::Done)));
        let Outcome::Answered(_, Answer::Seen(Some(seen))) = reader.call(&key, Operation::Get) else {
            panic!("not read")
        };
        assert_eq!(seen.held, None, "round {round}: stale");
    }
    history.judge("write-then-read");
}

/// A read asked not to be linearizable says how old it may be, and is answered where no leader is.
#[test]
fn a_stale_read_says_so() {
    let mut cluster = Cluster::start(Plan::three());
    cluster.op(1, "k", "ACQUIRE", &json!({"owner": "o", "token": "t", "create": true}));
    cluster.states_are_equal();
    let leader = cluster.leader();
    for id in cluster.others(leader) {
        cluster.kill(id);
    }
    let mut http = crate::http::Http::connect(cluster.seat(leader).client).unwrap();
    let json = [("Content-Type", "application/json")];
    let answer = http.send("POST", "/v1/GET?consistency=stale", &json, r#"{"key":"k"}"#).unwrap();
    assert_eq!((answer.status, &answer.json()["result"]["held"]), (200, &json!(true)), "{answer:?}");
    assert!(answer.headers.contains_key("tenure-age-ms"), "{answer:?}");
}
