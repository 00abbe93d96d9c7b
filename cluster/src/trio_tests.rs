//! Three nodes over an in-process transport, in virtual time: the transport trait carries all that replication needs.
//! Every message goes through its encoded form.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use openraft::AsyncRuntime;
use openraft::type_config::TypeConfigExt;
use openraft_rt_sim::SimRuntime;
use tokio::sync::watch;

use crate::cluster::{Cluster, Role};
use crate::codec::{self, Kind};
use crate::config::Config;
use crate::counter::{Command, Counter};
use crate::error::SubmitError;
use crate::executor::Inline;
use crate::machine::Stamp;
use crate::memory_log::MemoryLog;
use crate::peer::{PeerAnswerV1, PeerRequestV1};
use crate::raft::{Member, NodeId, TypeConfig};
use crate::snapshot::MemorySnapshots;
use crate::start::Parts;
use crate::transport::{LinkState, Peer, SnapshotOffer, Transport, TransportError};

type Rt = SimRuntime;
type C = TypeConfig<Rt>;
type Trio = Arc<Mutex<Net>>;

const IDS: [NodeId; 3] = [1, 2, 3];
/// One way of a message.
const HOP: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Net {
    nodes: BTreeMap<NodeId, Cluster<Counter, Rt>>,
    /// Cut off from all others.
    cut: BTreeSet<NodeId>,
    snapshots_sent: usize,
}

struct Router {
    from: NodeId,
    net: Trio,
}

impl Router {
    /// The way to `to`, as of now.
    fn way(from: NodeId, net: &Trio, to: &Peer) -> Result<Cluster<Counter, Rt>, TransportError> {
        assert_eq!(to.member.peer, format!("peer-{}", to.id), "the address comes from the membership");
        let net = net.lock().unwrap();
        let lost = TransportError::Unreachable { id: to.id, why: "cut".to_owned() };
        if net.cut.contains(&from) || net.cut.contains(&to.id) {
            return Err(lost);
        }
        net.nodes.get(&to.id).cloned().ok_or(lost)
    }
}

impl Transport for Router {
    fn call(&self, to: Peer, request: PeerRequestV1) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        let (from, net) = (self.from, Arc::clone(&self.net));
        Box::pin(async move {
            C::sleep(HOP).await;
            let bytes = codec::encode(Kind::PeerRequest, 1, &request).unwrap();
            let node = Self::way(from, &net, &to)?;
            let answer = node.answer_peer(codec::decode(Kind::PeerRequest, 1, &bytes).unwrap()).await;
            let bytes = codec::encode(Kind::PeerAnswer, 1, &answer).unwrap();
            C::sleep(HOP).await;
            Self::way(from, &net, &to)?;
            Ok(codec::decode(Kind::PeerAnswer, 1, &bytes).unwrap())
        })
    }

    fn send_snapshot(
        &self,
        to: Peer,
        offer: SnapshotOffer,
    ) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        let (from, net) = (self.from, Arc::clone(&self.net));
        Box::pin(async move {
            C::sleep(HOP).await;
            let node = Self::way(from, &net, &to)?;
            net.lock().unwrap().snapshots_sent += 1;
            Ok(node.receive_snapshot(offer).await)
        })
    }

    fn know(&self, _peers: Vec<Peer>) {}

    fn gone(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        watch::channel(BTreeSet::new()).1
    }

    fn links(&self) -> BTreeMap<NodeId, LinkState> {
        BTreeMap::new()
    }
}

fn config() -> Config {
    let mut config = Config::single("unused");
    config.election_timeout = Duration::from_millis(300);
    config.snapshot_log_bytes = 50_000;
    config.log_margin_bytes = 10_000;
    config
}

async fn trio() -> Trio {
    let net = Trio::default();
    for id in IDS {
        let log = MemoryLog::default();
        let parts = Parts {
            cluster_id: "0".repeat(32),
            node_id: id,
            gauge: Arc::new(log.clone()),
            log,
            snapshots: Arc::new(MemorySnapshots::default()),
            executor: Arc::new(Inline),
            wall: Arc::new(move || 1_700_000_000_000 + id * 3_600_000),
            transport: Arc::new(Router { from: id, net: Arc::clone(&net) }),
            keep: Box::new(()),
        };
        let node = Cluster::start(&config(), parts, Arc::new(|_, _| {})).await.unwrap();
        net.lock().unwrap().nodes.insert(id, node);
    }
    let voters = IDS.map(|id| (id, Member { peer: format!("peer-{id}"), ..Member::default() })).into();
    let first = net.lock().unwrap().nodes[&1].clone();
    first.found(voters).await.unwrap();
    net
}

/// The leader among the nodes that are not cut off, once it can commit.
async fn leader(net: &Trio) -> (NodeId, Cluster<Counter, Rt>) {
    loop {
        let ready = {
            let net = net.lock().unwrap();
            let mut connected = net.nodes.iter().filter(|(id, _)| !net.cut.contains(id));
            connected
                .find(|(_, node)| {
                    let status = node.status();
                    status.role == Role::Leader && status.not_ready.is_none()
                })
                .map(|(id, node)| (*id, node.clone()))
        };
        if let Some(ready) = ready {
            return ready;
        }
        C::sleep(Duration::from_millis(20)).await;
    }
}

async fn all_applied(net: &Trio, sum: u64) {
    let nodes: Vec<_> = net.lock().unwrap().nodes.values().cloned().collect();
    for node in nodes {
        while node.read_stale(|counter, at| counter.sum(at)).value != Ok(sum) {
            C::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[test]
fn three_nodes_elect_order_and_agree() {
    SimRuntime::with_seed(3).block_on(async {
        let net = trio().await;
        let (_, leader) = leader(&net).await;
        for _ in 0..50 {
            leader.submit(Command::Add(2)).await.unwrap();
        }
        assert_eq!(leader.read(|counter, at| counter.sum(at)).await.unwrap().value, 100);
        all_applied(&net, 100).await;
        assert_eq!(leader.status().members.len(), 3);
    });
}

#[test]
fn a_leader_that_is_cut_off_answers_nothing_and_its_time_stands_still() {
    SimRuntime::with_seed(4).block_on(async {
        let net = trio().await;
        let (old_id, old) = leader(&net).await;
        old.submit(Command::Add(1)).await.unwrap();
        let armed = old.submit(Command::ResetIn(20_000)).await.unwrap().witness.clock;
        net.lock().unwrap().cut.insert(old_id);
        let unanswered = old.submit(Command::Add(1_000)).await.unwrap_err();
        assert_eq!(unanswered, SubmitError::OutcomeUnknown);
        old.read(|counter, at| counter.sum(at)).await.unwrap_err();
        assert_eq!(old.status().not_ready, Some("no_quorum"));

        let (new_id, new) = leader(&net).await;
        assert_ne!(new_id, old_id);
        let first = new.submit(Command::Add(10)).await.unwrap();
        assert_eq!(first.reply, 11);
        let since = first.witness.clock.ms_since(armed);
        assert!(first.witness.clock >= armed, "the new clock starts at the log's last stamp");
        assert!(since <= 10_000 + 600, "the election itself costs nobody his time: {since}");

        net.lock().unwrap().cut.remove(&old_id);
        all_applied(&net, 11).await;
        assert_eq!(new.submit(Command::Add(1)).await.unwrap().reply, 12, "the old leader's command is discarded");
        all_applied(&net, 12).await;
    });
}

#[test]
fn stamps_never_go_back_over_many_failovers() {
    SimRuntime::with_seed(5).block_on(async {
        let net = trio().await;
        let (mut clock, mut sum, mut most) = (Stamp(0), 0, 0);
        for _ in 0..8 {
            let (id, node) = leader(&net).await;
            for _ in 0..20 {
                match node.submit(Command::Add(1)).await {
                    Ok(applied) => {
                        sum += 1;
                        assert!(applied.witness.clock >= clock);
                        clock = applied.witness.clock;
                    }
                    Err(SubmitError::OutcomeUnknown) => most += 1,
                    Err(_) => {}
                }
            }
            net.lock().unwrap().cut = [id].into();
        }
        net.lock().unwrap().cut.clear();
        let (_, node) = leader(&net).await;
        let found = node.submit(Command::Add(0)).await.unwrap().reply;
        assert!((sum..=sum + most).contains(&found), "{found} is not in {sum}..={}", sum + most);
        all_applied(&net, found).await;
    });
}

#[test]
fn a_node_that_was_away_too_long_catches_up_by_snapshot() {
    SimRuntime::with_seed(6).block_on(async {
        let net = trio().await;
        let (id, node) = leader(&net).await;
        let away = IDS.into_iter().find(|other| *other != id).unwrap();
        net.lock().unwrap().cut.insert(away);
        for _ in 0..400 {
            node.submit(Command::Padded(vec![1; 1_000])).await.unwrap();
        }
        C::sleep(Duration::from_secs(1)).await;
        assert!(node.status().log_bytes < 200_000, "a node that is away does not hold the log");
        net.lock().unwrap().cut.clear();
        all_applied(&net, 400).await;
        assert!(net.lock().unwrap().snapshots_sent > 0);
        assert_eq!(node.submit(Command::Add(1)).await.unwrap().reply, 401);
        all_applied(&net, 401).await;
    });
}
