//! What this node has of one peer: where it is, the connection's calls, what is known of the way.
//!
//! Invariant: once a link is retired nothing about its peer changes any more, whatever its keeper is still doing.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::calls::{Call, Calls};
use super::limits::NAMES_MAX;
use super::traffic::Counters;
use crate::hello::HelloV1;
use crate::raft::NodeId;
use crate::transport::{LinkState, Peer};

/// The peers that are surely gone.
pub(super) type Gone = watch::Sender<BTreeSet<NodeId>>;

#[derive(Default)]
struct Standing {
    link: LinkState,
    /// Of the connection that stands.
    calls: Option<Arc<Calls>>,
    /// No connection is taken any more.
    retired: bool,
}

/// Where a peer may be, by source.
struct Whereabouts {
    /// What this node was given.
    given: Vec<String>,
    /// What the peer said of itself when it dialled last: it may have moved, and nobody else may know yet.
    said: Option<String>,
}

impl Whereabouts {
    fn names(&self) -> Vec<String> {
        let said = self.said.as_ref().filter(|said| !said.is_empty() && !self.given.contains(said));
        let given = self.given.iter().take(NAMES_MAX - usize::from(said.is_some()));
        given.chain(said).cloned().collect()
    }
}

/// One peer.
pub(super) struct Link {
    /// Its id.
    pub id: NodeId,
    /// What goes to it and comes from it.
    pub traffic: Arc<Counters>,
    /// It was heard: try to reach it now.
    pub nudge: Notify,
    /// Where it may be, `host:port`, the likeliest first: what this node was given, then what the peer says of itself.
    names: watch::Sender<Vec<String>>,
    whereabouts: Mutex<Whereabouts>,
    standing: Mutex<Standing>,
    /// Nothing is said of its being gone any more. Apart from `standing`: whoever looks at who is gone may look at the
    /// links meanwhile.
    silenced: Mutex<bool>,
    /// Raised after each change of the state.
    changes: watch::Sender<u64>,
}

/// Where `peer` may be.
pub(super) fn names(peer: &Peer) -> Vec<String> {
    let mut names = Vec::new();
    for name in std::iter::once(&peer.member.peer).chain(&peer.hints) {
        if names.len() < NAMES_MAX && !name.is_empty() && !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

impl Link {
    /// Without a connection.
    pub(super) fn new(peer: &Peer, changes: watch::Sender<u64>) -> Self {
        Self {
            id: peer.id,
            traffic: Arc::default(),
            nudge: Notify::new(),
            names: watch::channel(names(peer)).0,
            whereabouts: Mutex::new(Whereabouts { given: names(peer), said: None }),
            standing: Mutex::default(),
            silenced: Mutex::default(),
            changes,
        }
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its names changed, perhaps.
    pub(super) fn rename(&self, peer: &Peer) {
        self.look_at(|whereabouts| whereabouts.given = names(peer));
    }

    /// The peer, authentic and let in, says that it is at `name`: tried after all that this node was given.
    pub(super) fn said(&self, name: &str) {
        self.look_at(|whereabouts| whereabouts.said = Some(name.to_owned()));
    }

    fn look_at(&self, change: impl FnOnce(&mut Whereabouts)) {
        // Held until the names are told, so that they are those of the latest change.
        let mut whereabouts = self.whereabouts.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut whereabouts);
        let names = whereabouts.names();
        self.names.send_if_modified(|now| {
            let changed = *now != names;
            *now = names;
            changed
        });
    }

    /// Its names, from now on.
    pub(super) fn names(&self) -> watch::Receiver<Vec<String>> {
        self.names.subscribe()
    }

    /// What is known of the way.
    pub(super) fn state(&self) -> LinkState {
        self.standing().link.clone()
    }

    /// A connection stands.
    pub(super) fn connected(&self, hello: HelloV1, calls: Arc<Calls>) {
        let mut standing = self.standing();
        if standing.retired {
            calls.close("it is no peer any more");
            return;
        }
        standing.link = LinkState { connected: true, hello: Some(hello), trouble: None };
        standing.calls = Some(calls);
        drop(standing);
        self.changed();
    }

    /// There is no connection: why.
    pub(super) fn trouble(&self, why: String) {
        let mut standing = self.standing();
        standing.link.connected = false;
        standing.link.trouble = Some(why);
        standing.calls = None;
        drop(standing);
        self.changed();
    }

    /// The peer, heard on a connection of its own, refuses this node. Says nothing of a connection that stands.
    pub(super) fn refused(&self, hello: &HelloV1, why: &str) {
        let mut standing = self.standing();
        if !standing.link.connected {
            standing.link.hello = Some(hello.clone());
            standing.link.trouble = Some(why.to_owned());
        }
        drop(standing);
        self.changed();
    }

    /// The peer said this of itself, and nothing came of it.
    pub(super) fn heard(&self, hello: &HelloV1) {
        self.standing().link.hello = Some(hello.clone());
    }

    /// Queues a request on the connection that stands.
    ///
    /// # Errors
    /// Why it is surely not sent.
    pub(super) fn push(&self, body: impl FnOnce() -> Result<Vec<u8>, String>) -> Result<Call, String> {
        let (calls, trouble) = {
            let standing = self.standing();
            (standing.calls.clone(), standing.link.trouble.clone())
        };
        match calls {
            Some(calls) => calls.push(body()?),
            None => Err(trouble.unwrap_or_else(|| "no connection yet".to_owned())),
        }
    }

    /// Whether its process is surely gone.
    pub(super) fn set_gone(&self, all: &Gone, gone: bool) {
        let silenced = self.silenced.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = gone && !*silenced;
        all.send_if_modified(|set| if gone { set.insert(self.id) } else { set.remove(&self.id) });
    }

    /// It is no peer any more.
    pub(super) fn retire(&self, all: &Gone, why: &str) {
        let calls = {
            let mut standing = self.standing();
            standing.retired = true;
            standing.link.connected = false;
            standing.link.trouble = Some(why.to_owned());
            standing.calls.take()
        };
        if let Some(calls) = calls {
            calls.close(why);
        }
        *self.silenced.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.set_gone(all, false);
        self.changed();
    }
}
