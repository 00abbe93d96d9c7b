//! What clients need of whatever serves them: a world of simulated nodes, or a keyspace alone in the tests of clients.

use std::time::Duration;

use tenure::keyspace::{Acquire, AcquireSlot, Command, Holders, HoldersPage, Reply, Shown};
use tenure_cluster::{Applied, Seen};

use crate::judge::Watched;
use crate::world::{NoReply, World};

/// Serves commands and reads at several nodes.
pub(super) trait Service: Clone + Send + Sync + 'static {
    fn ids(&self) -> Vec<u64>;

    /// One try at `node`.
    fn submit(
        &self,
        node: u64,
        command: Command,
        patience: Duration,
    ) -> impl Future<Output = Result<Applied<Reply>, NoReply>> + Send;

    /// One ACQUIRE that waits in line, at `node`. Dropped, its client is gone.
    fn wait(
        &self,
        node: u64,
        ask: Acquire,
        wait_ms: u64,
        patience: Duration,
    ) -> impl Future<Output = Result<Applied<Reply>, NoReply>> + Send;

    /// The same for a slot of an identity.
    fn wait_slot(
        &self,
        node: u64,
        ask: AcquireSlot,
        wait_ms: u64,
        patience: Duration,
    ) -> impl Future<Output = Result<Applied<Reply>, NoReply>> + Send;

    /// One GET at `node`.
    fn get(
        &self,
        node: u64,
        key: String,
        patience: Duration,
    ) -> impl Future<Output = Result<Seen<Option<Shown>>, NoReply>> + Send;

    /// One HOLDERS at `node`.
    fn holders(
        &self,
        node: u64,
        key: String,
        which: Holders,
        patience: Duration,
    ) -> impl Future<Output = Result<Seen<Option<HoldersPage>>, NoReply>> + Send;
}

impl Service for World {
    fn ids(&self) -> Vec<u64> {
        Self::ids(self)
    }

    fn submit(
        &self,
        node: u64,
        command: Command,
        patience: Duration,
    ) -> impl Future<Output = Result<Applied<Reply>, NoReply>> + Send {
        Self::submit(self, node, command, patience)
    }

    fn wait(
        &self,
        node: u64,
        ask: Acquire,
        wait_ms: u64,
        patience: Duration,
    ) -> impl Future<Output = Result<Applied<Reply>, NoReply>> + Send {
        Self::wait(self, node, ask, wait_ms, patience)
    }

    fn get(
        &self,
        node: u64,
        key: String,
        patience: Duration,
    ) -> impl Future<Output = Result<Seen<Option<Shown>>, NoReply>> + Send {
        self.read(node, move |machine, at| machine.keyspace().get(&key, at), patience)
    }

    fn wait_slot(
        &self,
        node: u64,
        ask: AcquireSlot,
        wait_ms: u64,
        patience: Duration,
    ) -> impl Future<Output = Result<Applied<Reply>, NoReply>> + Send {
        Self::wait(self, node, ask, wait_ms, patience)
    }

    fn holders(
        &self,
        node: u64,
        key: String,
        which: Holders,
        patience: Duration,
    ) -> impl Future<Output = Result<Seen<Option<HoldersPage>>, NoReply>> + Send {
        let read = move |machine: &Watched, at| Ok(machine.keyspace().holders(&key, &which, at)?.ok());
        self.read(node, read, patience)
    }
}
