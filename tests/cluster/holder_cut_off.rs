//! FR-62. A program that uses an id is cut off: by its own clock it stops before anybody else has the id.
//!
//! It reaches one node alone, the leader, and that node no other: cut off by the network where namespaces can be made, else
//! stopped. What the others do meanwhile (elect, end the grant, give the id on) it is not told.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tenure_client::machine_id::{Lost, MachineId, MachineIds};
use tenure_client::{Client, LostBy};

use crate::asker::{Asker, given};
use crate::harness::{Cluster, Plan, SOON};
use crate::network::Network;
use crate::partition::start_in;
use crate::process::{eventually, pass};

/// So long that a stall before the next stands in line does not lose it.
const TTL: Duration = Duration::from_secs(8);
/// The program's pace.
const USED_EVERY: Duration = Duration::from_millis(2);

/// Uses the id until it may not: the last use, when it was refused the next, and why.
fn use_it(id: &MachineId) -> (Instant, Instant, Lost) {
    let began = Instant::now();
    let mut last = began;
    loop {
        let asked = Instant::now();
        assert!(asked < began + SOON, "used for ever");
        match id.id() {
            Ok(id) => assert_eq!(id, 0),
            Err(lost) => return (last, asked, lost),
        }
        last = asked;
        pass(USED_EVERY);
    }
}

/// Nothing is heard of the node any more.
fn silence(cluster: &mut Cluster, network: Option<&Network>, id: u64) {
    match network {
        Some(network) => network.cut(id),
        None => cluster.stop(id),
    }
}

fn heal(cluster: &mut Cluster, network: Option<&Network>, id: u64) {
    match network {
        Some(network) => network.heal(id),
        None => cluster.resume(id),
    }
    cluster.await_ready(id);
}

#[test]
fn a_holder_that_is_cut_off_stops_before_its_id_is_given_on() {
    let network = Network::build(3).map_err(|why| eprintln!("stopped instead of cut off: {why}")).ok();
    let mut cluster = network.as_ref().map_or_else(|| Cluster::start(Plan::three()), |network| start_in(network, 3));
    let leader = cluster.leader();
    let options = json!({"size": 1, "quarantine_ms": 0, "ttl_ms_min": 1_000});
    cluster.call(leader, "CREATE", &json!({"key": "ids", "type": "pool", "options": options}));
    let client = Client::new(&format!("tenure://{}", cluster.seat(leader).client).parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let id = runtime.block_on(MachineIds::new(client, "ids", "old").ttl(TTL).acquire()).unwrap();
    let mut next = Asker::of(&cluster, &cluster.others(leader));
    let (last, refused, lost, taken, cut) = thread::scope(|scope| {
        let user = scope.spawn(|| use_it(&id));
        let next = scope.spawn(move || {
            let args = json!({"identity": "new", "token": "new", "ttl_ms": 60_000, "wait_ms": 60_000});
            let answer = next.insist("ids", "ACQUIRE", &args);
            (given(&answer), Instant::now())
        });
        eventually("the next waits", || (cluster.get(leader, "ids")["waiters"] == 1).then_some(()));
        let cut = Instant::now();
        silence(&mut cluster, network.as_ref(), leader);
        let (last, refused, lost) = user.join().unwrap();
        let ((taken_id, fence), taken) = next.join().unwrap();
        assert!(taken_id == 0 && fence > id.fence(), "the same id, a later grant: {taken_id}, {fence}");
        (last, refused, lost, taken, cut)
    });
    assert!(refused < taken, "refused {:?} after it was another's", refused - taken);
    let (used, after) = (last.saturating_duration_since(cut), taken - last);
    eprintln!("cut off, it used its id for {} ms; {} ms later another had it", used.as_millis(), after.as_millis());
    assert!(used > TTL / 4, "a silence is no loss before its time: {used:?}");
    assert!(matches!(lost.by, LostBy::Deadline { .. }), "{lost:?}");
    heal(&mut cluster, network.as_ref(), leader);
    // Back again, the node it always asked says who has it.
    let holder = cluster.op(leader, "ids", "HOLDERS", &json!({"id": 0}))["result"]["holders"][0].take();
    assert_eq!((&holder["identity"], &holder["last"]["owner"]), (&json!("new"), &json!("old")), "{holder}");
    assert_eq!(holder["last"]["reason"], "expired", "{holder}");
}
