//! Who may take part: data and ids that do not belong together are refused, and say what to do next.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Cluster, Plan, page, rounds};
use crate::ports;
use crate::process::{SOON, pass};

/// For showing that something does not happen: several times as long as an election takes.
const A_WHILE: Duration = Duration::from_secs(4);

fn acquire(cluster: &Cluster, node: u64, key: &str) -> Value {
    let args = json!({"owner": "o", "token": "t", "ttl_ms": 3_600_000, "create": true});
    let granted = cluster.op(node, key, "ACQUIRE", &args);
    assert_eq!(granted["result"], true, "{granted}");
    granted["fence"].clone()
}

/// The cluster id, as node `id` knows it.
fn cluster_id(cluster: &Cluster, id: u64) -> Option<String> {
    cluster.status(id)?["cluster_id"].as_str().map(str::to_owned)
}

/// Awaits that the node, running or ended, has said the command that replaces it; it is not ready then.
fn is_told_to_be_replaced(cluster: &mut Cluster, id: u64) {
    let lines = cluster.process(id).lines.clone();
    let told = lines.await_line(SOON, |line| line.contains("replace").then(|| line.to_owned()));
    let told = told.unwrap_or_else(|| panic!("node {id} does not say how to go on: {}", lines.text()));
    eprintln!("node {id} was told: {told}");
    let ready = page(cluster.seat(id).client, "/readyz").is_ok_and(|answer| answer.status == 200);
    assert!(!ready, "node {id} takes part");
}

/// FR-35: a voter that comes back with an empty disk would vote a second time for what it forgot. It is refused, with
/// the command that replaces it; the others go on, and nothing is gone.
#[test]
fn a_wiped_voter_is_refused() {
    let mut cluster = Cluster::start(Plan::three());
    let fence = acquire(&cluster, 1, "k");
    let wiped = cluster.others(cluster.leader())[0];
    cluster.kill(wiped);
    cluster.wipe(wiped);
    cluster.spawn(wiped);
    is_told_to_be_replaced(&mut cluster, wiped);
    for id in cluster.others(wiped) {
        assert_eq!(cluster.get(id, "k")["fence"], fence);
        acquire(&cluster, id, &format!("written by {id}"));
    }
    // Now the other two need each other: were the wiped one's vote counted, one of them could go.
    let down = cluster.leader();
    cluster.kill(down);
    let began = Instant::now();
    while began.elapsed() < A_WHILE {
        assert_eq!(cluster.leader_now(), None, "a wiped voter gave its vote");
        pass(Duration::from_millis(100));
    }
    cluster.restart(down);
    cluster.leader();
    assert_eq!(cluster.get(down, "k")["fence"], fence);
}

/// Shows for [`A_WHILE`] that nobody leads, and none of `asked` answers.
fn nobody_serves(cluster: &Cluster, asked: &[u64], what: &str) {
    let began = Instant::now();
    while began.elapsed() < A_WHILE {
        assert_eq!(cluster.leader_now(), None, "{what}");
        for id in asked {
            let answer = cluster.ask(*id, "GET", &json!({"key": "k"}), Duration::from_millis(300));
            assert!(!answer.is_ok_and(|answer| answer.status == 200), "{what}: node {id} answers");
        }
        pass(Duration::from_millis(100));
    }
}

/// Two of three come up empty while the third, with the data, is down: they found no new cluster. When it is back, they
/// make no quorum with it, and its log keeps everything; with one of the old directories brought back it serves again.
#[test]
fn two_wiped_nodes_found_no_cluster_over_live_data() {
    for _ in 0..rounds(1) {
        wipe_two_of_three();
    }
}

fn wipe_two_of_three() {
    let mut cluster = Cluster::start(Plan::three());
    let fence = acquire(&cluster, 1, "k");
    cluster.states_are_equal();
    let (id, last) = (cluster_id(&cluster, 3), last_index(&cluster, 3).unwrap());
    cluster.kill_all();
    cluster.set_aside(1);
    cluster.wipe(2);
    [1, 2].into_iter().for_each(|empty| cluster.spawn(empty));
    nobody_serves(&cluster, &[1, 2], "two empty nodes founded a cluster without the third");
    cluster.spawn(3);
    [1, 2].into_iter().for_each(|wiped| is_told_to_be_replaced(&mut cluster, wiped));
    nobody_serves(&cluster, &[1, 2, 3], "wiped voters made a quorum");
    assert_eq!(cluster_id(&cluster, 3), id);
    // Alone it cannot know what of its log is committed; but all of it is there.
    assert!(last_index(&cluster, 3) >= Some(last), "its log is shorter than it was, {last}");
    cluster.end(1);
    cluster.bring_back(1);
    cluster.restart(1);
    cluster.leader();
    for asked in [1, 3] {
        cluster.await_ready(asked);
        assert_eq!(cluster.get(asked, "k")["fence"], fence, "node {asked}");
        assert_eq!(cluster_id(&cluster, asked), id);
    }
}

/// Where the node's log ends, by its status.
fn last_index(cluster: &Cluster, id: u64) -> Option<u64> {
    cluster.status(id)?["last_index"].as_u64()
}

/// FR-37: data of one node under the id of another: refused, naming both ids and the directory. The right id works.
#[test]
fn another_id_on_the_same_data() {
    let mut cluster = Cluster::start(Plan::three());
    let fence = acquire(&cluster, 1, "k");
    cluster.kill_all();
    let (data, own) = (cluster.seat(2).data.clone(), cluster.seat(3).data.clone());
    cluster.seat_mut(3).data.clone_from(&data);
    cluster.spawn(3);
    let (status, said) = cluster.last_words(3);
    assert!(!status.success(), "{said}");
    let line = said.lines().find(|line| line.contains(&data.display().to_string()));
    let line = line.unwrap_or_else(|| panic!("the directory is not named: {said}"));
    let ids = line.replace(&data.display().to_string(), "");
    assert!(ids.contains('2') && ids.contains('3'), "both ids are named: {line}");
    cluster.seat_mut(3).data = own;
    cluster.restart_all();
    assert_eq!(cluster.get(2, "k")["fence"], fence);
}

/// One member a node, under the addresses of now.
fn members_are(cluster: &Cluster, asked: u64) -> Option<()> {
    let status = cluster.status(asked)?;
    let members = status["members"].as_array()?;
    let of = |id: u64| members.iter().filter(move |member| member["node_id"] == id).collect::<Vec<_>>();
    let right = cluster.ids().into_iter().all(|id| match of(id)[..] {
        [member] => {
            let seat = cluster.seat(id);
            member["address"] == seat.client.to_string() && member["peer_address"] == seat.peer.to_string()
        }
        _ => false,
    });
    (right && members.len() == cluster.ids().len()).then_some(())
}

/// FR-38: one node on new ports, then all: one member a node, a leader within ten seconds, the data there.
#[test]
fn changed_ports() {
    let mut cluster = Cluster::start(Plan::three());
    let fence = acquire(&cluster, 1, "k");
    let move_to_new_ports = |cluster: &mut Cluster, ids: &[u64]| {
        for id in ids {
            cluster.terminate(*id);
        }
        for id in ids {
            cluster.end(*id);
            let seat = cluster.seat_mut(*id);
            (seat.client, seat.peer) = (ports::free(), ports::free());
        }
        let started = Instant::now();
        cluster.restart_all();
        cluster.leader();
        eprintln!("{} nodes on new ports, ready after {} ms", ids.len(), started.elapsed().as_millis());
        // Twice what is promised: elections on a loaded machine.
        assert!(started.elapsed() < Duration::from_secs(20), "it took {:?}", started.elapsed());
        for id in cluster.ids() {
            crate::process::eventually(&format!("node {id} knows the addresses"), || members_are(cluster, id));
            assert_eq!(cluster.get(id, "k")["fence"], fence);
        }
    };
    move_to_new_ports(&mut cluster, &[2]);
    move_to_new_ports(&mut cluster, &[1, 2, 3]);
    cluster.states_are_equal();
}
