//! What clients have of the world: they send a command or a read to a node, and wait.
//!
//! A client cannot know whether a request that it sent arrived: whatever it does not hear of is unknown. Only a refused
//! connection, and a node that says so, mean that nothing happened.

use std::time::Duration;

use tenure::keyspace::{Command, Reply};
use tenure_cluster::{Applied, NeedsTick, ReadAt, Seen, SubmitError};

use super::exchange::{Failure, Sent};
use super::site::Node;
use super::{NoReply, World};
use crate::judge::Watched;
use crate::plan::Way;
use crate::runtime::{self, WORLD};

/// About what a request or an answer over HTTP has.
const BYTES: u64 = 400;

impl World {
    /// Sends a command to `node` over the network, as a client that waits for `patience` does.
    ///
    /// # Errors
    /// [`NoReply`]
    pub async fn submit(&self, node: u64, command: Command, patience: Duration) -> Result<Applied<Reply>, NoReply> {
        let work = move |node: Node| async move { node.submit_within(command, patience).await };
        let answer = self.ask(node, patience, work).await?;
        answer.map_err(|error| match error {
            SubmitError::OutcomeUnknown => NoReply::Unknown,
            SubmitError::Unavailable(_) | SubmitError::TooLarge { .. } | SubmitError::Internal(_) => NoReply::Nothing,
        })
    }

    /// Asks `node` to read linearizably, as a client that waits for `patience` does.
    ///
    /// # Errors
    /// [`NoReply::Nothing`]: a read changes nothing.
    pub async fn read<R: Send + 'static>(
        &self,
        node: u64,
        read: impl Fn(&Watched, ReadAt) -> Result<R, NeedsTick> + Send + Sync + 'static,
        patience: Duration,
    ) -> Result<Seen<R>, NoReply> {
        let work = move |node: Node| async move { node.read_within(read, patience).await };
        match self.ask(node, patience, work).await {
            Ok(Ok(seen)) => Ok(seen),
            Ok(Err(_)) | Err(_) => Err(NoReply::Nothing),
        }
    }

    pub(super) async fn ask<T, F>(
        &self,
        node: u64,
        patience: Duration,
        work: impl FnOnce(Node) -> F + Send + 'static,
    ) -> Result<T, NoReply>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let sent = Sent { way: Way { from: WORLD, to: node }, life: 0, bytes: BYTES };
        tokio::select! { biased;
            answer = self.exchange(sent, work, |_| BYTES) => answer.map_err(|failure| match failure {
                Failure::NotSent => NoReply::Nothing,
                Failure::Broken => NoReply::Unknown,
            }),
            () = runtime::sleep(patience) => Err(NoReply::Unknown),
        }
    }
}
