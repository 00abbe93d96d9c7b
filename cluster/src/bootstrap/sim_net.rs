//! Nodes of several in one simulation: what each has on disk outlives it, the way between them can be cut, and any of
//! them can be made to die at any step of its own or of a conversation.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;
use openraft::type_config::TypeConfigExt;
use openraft_rt_sim::SimRuntime;
use tokio::sync::watch;

use super::joining::Joining;
use super::{Ledger, Peers, Reception, hello};
use crate::cluster::Cluster;
use crate::codec::{self, Kind};
use crate::config::Config;
use crate::counter::Counter;
use crate::error::OpenError;
use crate::executor::Inline;
use crate::hello::HelloV1;
use crate::host::Hosted;
use crate::identity::{Belonging, ClusterId, Identity};
use crate::level::FEATURE_LEVEL;
use crate::memory_log::MemoryLog;
use crate::peer::{PeerAnswerV1, PeerRequestV1};
use crate::peer_config::{PeerConfig, Secret, Startup};
use crate::raft::{Member, NodeId, TypeConfig};
use crate::replica::Replica;
use crate::snapshot::MemorySnapshots;
use crate::start::Parts;
use crate::tcp::PeerHandler;
use crate::transport::{LinkState, NoPeers, Peer, SnapshotOffer, Transport, TransportError};

pub type Rt = SimRuntime;
pub type C = TypeConfig<Rt>;

/// One way of a message.
const HOP: Duration = Duration::from_millis(1);
/// How long a node that died stays away.
const AWAY: Duration = Duration::from_millis(700);

/// What a node says that was just made.
pub fn greeting(id: NodeId) -> HelloV1 {
    let identity = Identity { node_id: id, incarnation: id * 100, several: true, belonging: None };
    hello(&identity, &super::at(&format!("peer-{id}")), FEATURE_LEVEL, true)
}

/// What a node has on disk.
#[derive(Clone)]
pub struct Stored {
    pub identity: Identity,
    pub has_log: bool,
    pub log: MemoryLog<Rt>,
    pub snapshots: MemorySnapshots,
}

/// A process that runs.
struct Process {
    /// Tells it from the one before.
    life: u64,
    address: String,
    hello: Option<HelloV1>,
    handler: Option<Arc<dyn PeerHandler>>,
    known: Vec<Peer>,
    heard: BTreeMap<NodeId, HelloV1>,
    kill: watch::Sender<bool>,
}

#[derive(Default)]
struct Inner {
    disks: BTreeMap<NodeId, Stored>,
    processes: BTreeMap<NodeId, Process>,
    nodes: BTreeMap<NodeId, Cluster<Counter, Rt>>,
    startups: BTreeMap<NodeId, watch::Receiver<Startup>>,
    refusals: BTreeMap<NodeId, String>,
    lives: u64,
    incarnations: u64,
    steps: usize,
    die_at: Option<usize>,
    dead: Vec<NodeId>,
    written: BTreeSet<ClusterId>,
    hard_of_hearing: bool,
}

/// The simulated world. Clones share it.
#[derive(Clone, Default)]
pub struct World(Arc<Mutex<Inner>>);

/// How a node is started.
#[derive(Clone)]
pub struct Flags {
    pub peers: Peers,
    pub majority: bool,
    pub feature_level: u16,
}

impl Flags {
    /// For nodes 1..=count at `peer-1` and so on.
    pub fn of(count: u64) -> Self {
        let peers = (1..=count).map(|id| (id, format!("peer-{id}"))).collect();
        Self { peers, majority: false, feature_level: FEATURE_LEVEL }
    }
}

impl World {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Node `id` will die at this step, counted from now on.
    pub fn die_at(&self, step: usize) {
        let mut inner = self.lock();
        inner.steps = 0;
        inner.die_at = Some(step);
    }

    /// Did the step come at which a node was to die?
    pub fn has_died(&self) -> bool {
        self.lock().die_at.is_none()
    }

    /// From now on no node heeds what another says of where it is.
    pub fn heed_no_addresses(&self) {
        self.lock().hard_of_hearing = true;
    }

    /// Every cluster id that was ever written to any disk.
    pub fn written(&self) -> BTreeSet<ClusterId> {
        self.lock().written.clone()
    }

    pub fn stored(&self, id: NodeId) -> Option<Stored> {
        self.lock().disks.get(&id).cloned()
    }

    pub fn node(&self, id: NodeId) -> Option<Cluster<Counter, Rt>> {
        self.lock().nodes.get(&id).cloned()
    }

    pub fn startup(&self, id: NodeId) -> Startup {
        self.startups(id).borrow().clone()
    }

    pub fn startups(&self, id: NodeId) -> watch::Receiver<Startup> {
        self.lock().startups[&id].clone()
    }

    pub fn refusal(&self, id: NodeId) -> Option<String> {
        self.lock().refusals.get(&id).cloned()
    }

    /// Nobody dies by itself any more.
    pub fn spare(&self) {
        self.lock().die_at = None;
    }

    /// The data directory is lost.
    pub fn wipe(&self, id: NodeId) {
        self.kill(id);
        self.lock().disks.remove(&id);
    }

    /// An old data directory is put in the place of the one there.
    pub fn restore(&self, id: NodeId, stored: Stored) {
        self.lock().disks.insert(id, stored);
    }

    /// The process dies at this instant: what it does from here on reaches nobody, its disk least of all.
    pub fn kill(&self, id: NodeId) {
        let mut inner = self.lock();
        let node = inner.nodes.remove(&id);
        if let Some(process) = inner.processes.remove(&id) {
            process.kill.send_replace(true);
        }
        if let Some(disk) = inner.disks.get_mut(&id) {
            disk.log = disk.log.crash();
        }
        drop(inner);
        drop(node);
    }

    /// A step of node `id`; `false`: it died of it.
    fn step(&self, id: NodeId, life: u64) -> bool {
        let dies = {
            let mut inner = self.lock();
            if inner.processes.get(&id).is_none_or(|process| process.life != life) {
                return false;
            }
            inner.steps += 1;
            inner.die_at == Some(inner.steps)
        };
        if dies {
            self.kill(id);
            let mut inner = self.lock();
            inner.die_at = None;
            inner.dead.push(id);
        }
        !dies
    }

    /// Starts those that died by themselves, once they were away for a while.
    pub async fn revive(&self, flags: &Flags) {
        let dead = std::mem::take(&mut self.lock().dead);
        for id in dead {
            C::sleep(AWAY).await;
            self.start(id, &flags.peers[&id].clone(), flags);
        }
    }

    /// Starts node `id`, reached at `address`.
    pub fn start(&self, id: NodeId, address: &str, flags: &Flags) {
        let (kill, killed) = watch::channel(false);
        let startup = watch::Sender::new(Startup::default());
        let (life, disk) = {
            let mut inner = self.lock();
            inner.lives += 1;
            let life = inner.lives;
            inner.refusals.remove(&id);
            inner.startups.insert(id, startup.subscribe());
            let (address, hello, handler) = (address.to_owned(), None, None);
            let (known, heard) = (Vec::new(), BTreeMap::new());
            inner.processes.insert(id, Process { life, address, hello, handler, known, heard, kill });
            if !inner.disks.contains_key(&id) {
                inner.incarnations += 1;
                let incarnation = id * 100 + inner.incarnations;
                let identity = Identity { node_id: id, incarnation, several: true, belonging: None };
                let (log, snapshots) = (MemoryLog::default(), MemorySnapshots::default());
                inner.disks.insert(id, Stored { identity, has_log: false, log, snapshots });
            }
            (life, inner.disks[&id].clone())
        };
        let end = End { id, life, world: self.clone() };
        let process = self.clone().run(end, disk, address.to_owned(), flags.clone(), startup, killed);
        drop(C::spawn(process));
    }

    async fn run(
        self,
        end: End,
        disk: Stored,
        address: String,
        flags: Flags,
        startup: watch::Sender<Startup>,
        mut killed: watch::Receiver<bool>,
    ) {
        let (id, life) = (end.id, end.life);
        let mut config = Config::single("unused");
        config.election_timeout = Duration::from_millis(300);
        config.snapshot_log_bytes = 20_000;
        config.log_margin_bytes = 5_000;
        let incarnation = disk.identity.incarnation;
        config.member = Member { client: format!("client-of-{address}"), peer: address, incarnation };
        let peers = PeerConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            advertise: None,
            peers: flags.peers,
            secret: Secret::new([7; 16]).unwrap(),
            bootstrap_majority: flags.majority,
        };
        let replica = Arc::new(Replica::<Counter>::default());
        let host = Hosted::new(Arc::clone(&replica), Arc::new(|_| {})).supporting(flags.feature_level);
        let mut drawn = (id << 8) + life;
        let joining = Joining {
            parts: Parts {
                cluster_id: String::new(),
                node_id: id,
                gauge: Arc::new(disk.log.clone()),
                log: disk.log,
                snapshots: Arc::new(disk.snapshots),
                executor: Arc::new(Inline),
                wall: Arc::new(|| 1_700_000_000_000),
                transport: NoPeers::shared(),
                peers: BTreeMap::new(),
                remedy: crate::Remedy::default(),
                keep: Box::new(()),
            },
            ledger: Arc::new(end.clone()),
            reception: Arc::new(end.clone()),
            random: Box::new(move |bytes| {
                drawn += 1 << 16;
                bytes.iter_mut().zip(drawn.to_le_bytes().into_iter().cycle()).for_each(|(byte, drawn)| *byte = drawn);
                Ok(())
            }),
            startup,
        };
        let joined = joining.take_part::<Rt>(&config, &peers, Arc::new(host), replica.mark());
        let dies = async { drop(killed.wait_for(|killed| *killed).await) };
        let openraft::async_runtime::Select2::Second(joined) = C::select2(dies, joined).await else { return };
        let mut inner = self.lock();
        if inner.processes.get(&id).is_none_or(|process| process.life != life) {
            return;
        }
        match joined {
            Ok(node) => drop(inner.nodes.insert(id, Cluster::of(node, replica))),
            Err(error) => {
                inner.refusals.insert(id, error.to_string());
                inner.processes.remove(&id);
            }
        }
    }
}

/// A process's end of the network, and its disk's identity.
#[derive(Clone)]
struct End {
    id: NodeId,
    life: u64,
    world: World,
}

impl End {
    fn died(&self) -> OpenError {
        OpenError::Raft(format!("node {} is dead", self.id))
    }

    /// The process, while it lives.
    fn change(&self, change: impl FnOnce(&mut Process)) {
        let mut inner = self.world.lock();
        if let Some(process) = inner.processes.get_mut(&self.id).filter(|process| process.life == self.life) {
            change(process);
        }
    }

    fn write<T>(&self, write: impl FnOnce(&mut Stored) -> Result<T, OpenError>) -> Result<T, OpenError> {
        if !self.world.step(self.id, self.life) {
            return Err(self.died());
        }
        let written = write(self.world.lock().disks.get_mut(&self.id).unwrap());
        if self.world.step(self.id, self.life) { written } else { Err(self.died()) }
    }

    /// The two ends of the way to `to`: what this side says, and who answers; or why there is none.
    fn way(&self, to: &Peer) -> Result<(HelloV1, HelloV1, Arc<dyn PeerHandler>), String> {
        let (mine, theirs) = {
            let inner = self.world.lock();
            let me = inner.processes.get(&self.id).filter(|process| process.life == self.life);
            let me = me.ok_or_else(|| "dead".to_owned())?;
            let peer = inner.processes.get(&to.id).ok_or_else(|| "connection refused".to_owned())?;
            let dials =
                |to: &Peer, process: &Process| to.member.peer == process.address || to.hints.contains(&process.address);
            // As over TCP: whoever dials this node, and is let in, says where it is itself.
            let dialled = peer.known.iter().any(|known| known.id == self.id && dials(known, me));
            if !dials(to, peer) && (inner.hard_of_hearing || !dialled) {
                return Err(format!("nobody answers at {}", to.member.peer));
            }
            let end = |process: &Process| Some((process.hello.clone()?, Arc::clone(process.handler.as_ref()?)));
            (end(me), end(peer))
        };
        let (Some((hello, handler)), Some((their_hello, their_handler))) = (mine, theirs) else {
            return Err("not listening".to_owned());
        };
        match handler.refuse(&their_hello).or_else(|| their_handler.refuse(&hello)) {
            Some(line) => Err(line),
            None => Ok((hello, their_hello, their_handler)),
        }
    }
}

impl Ledger for End {
    fn identity(&self) -> Identity {
        self.world.lock().disks[&self.id].identity
    }

    fn belongs_to(&self, belonging: Belonging) -> Result<Identity, OpenError> {
        let identity = self.write(|disk| {
            let other = disk.identity.belonging.filter(|held| held.cluster != belonging.cluster);
            if other.is_some_and(|other| !other.founder || disk.has_log) {
                return Err(OpenError::Foreign { path: "disk".into(), what: "belongs to another cluster".to_owned() });
            }
            disk.identity.belonging = Some(belonging);
            Ok(disk.identity)
        })?;
        self.world.lock().written.insert(belonging.cluster);
        Ok(identity)
    }

    fn note_log(&self) -> Result<(), OpenError> {
        self.write(|disk| {
            disk.has_log = true;
            Ok(())
        })
    }
}

impl Reception for End {
    fn introduce(&self, hello: HelloV1) {
        self.change(|process| process.hello = Some(hello));
    }

    fn handle(&self, handler: Arc<dyn PeerHandler>) {
        self.change(|process| process.handler = Some(handler));
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.clone())
    }
}

impl Transport for End {
    fn call(&self, to: Peer, request: PeerRequestV1) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        let end = self.clone();
        Box::pin(async move {
            let unreachable = |why| TransportError::Unreachable { id: to.id, why };
            let broken = || TransportError::Broken { id: to.id, why: "connection reset".to_owned() };
            C::sleep(HOP).await;
            let bytes = codec::encode(Kind::PeerRequest, 1, &request).unwrap();
            let (hello, _, handler) = end.way(&to).map_err(unreachable)?;
            let life = end.world.lock().processes[&to.id].life;
            if !end.world.step(to.id, life) {
                return Err(broken());
            }
            let answer = handler.answer(&hello, codec::decode(Kind::PeerRequest, 1, &bytes).unwrap()).await;
            if !end.world.step(to.id, life) {
                return Err(broken());
            }
            C::sleep(HOP).await;
            end.way(&to).map_err(unreachable)?;
            if end.world.step(end.id, end.life) { Ok(answer) } else { Err(broken()) }
        })
    }

    fn send_snapshot(
        &self,
        to: Peer,
        offer: SnapshotOffer,
    ) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        let end = self.clone();
        Box::pin(async move {
            C::sleep(HOP).await;
            let way = end.way(&to).map_err(|why| TransportError::Unreachable { id: to.id, why });
            let (hello, _, handler) = way?;
            Ok(handler.snapshot(&hello, offer).await)
        })
    }

    fn know(&self, peers: Vec<Peer>) {
        self.change(|process| process.known = peers);
    }

    fn gone(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        watch::channel(BTreeSet::new()).1
    }

    fn links(&self) -> BTreeMap<NodeId, LinkState> {
        let mut known = Vec::new();
        self.change(|process| known.clone_from(&process.known));
        let mut links = BTreeMap::new();
        for peer in known {
            let way = self.way(&peer);
            let connected = way.is_ok();
            let (mut hello, trouble) = match way {
                Ok((_, hello, _)) => (Some(hello), None),
                Err(line) => (None, Some(line)),
            };
            self.change(|process| match &hello {
                Some(hello) => drop(process.heard.insert(peer.id, hello.clone())),
                None => hello = process.heard.get(&peer.id).cloned(),
            });
            links.insert(peer.id, LinkState { connected, hello, trouble });
        }
        links
    }
}
