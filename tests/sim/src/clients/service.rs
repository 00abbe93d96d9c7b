//! What clients need of whatever serves them: a world of simulated nodes, or a keyspace alone in the tests of clients.

use std::time::Duration;

use tenure::keyspace::{Acquire, Command, Reply, View};
use tenure_cluster::{Applied, Seen};

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

    /// One GET at `node`.
    fn get(
        &self,
        node: u64,
        key: String,
        patience: Duration,
    ) -> impl Future<Output = Result<Seen<Option<View>>, NoReply>> + Send;
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
    ) -> impl Future<Output = Result<Seen<Option<View>>, NoReply>> + Send {
        self.read(node, move |machine, at| machine.keyspace().get(&key, at), patience)
    }
}
