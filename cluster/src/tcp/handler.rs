//! Who answers: the node behind the transport.

use futures_util::future::BoxFuture;

use crate::hello::HelloV1;
use crate::peer::{PeerAnswerV1, PeerRequestV1};
use crate::transport::SnapshotOffer;

/// What a node does with what its peers say. `from` is authentic: it knows the cluster's secret, and
/// [`PeerHandler::refuse`] had nothing against it when the connection began.
pub trait PeerHandler: Send + Sync {
    /// Answers a request. For the requests of one connection it is called, and its future polled for the first time, in
    /// the order in which they were sent; then they go on side by side. The future is dropped when the connection ends.
    fn answer(&self, from: &HelloV1, request: PeerRequestV1) -> BoxFuture<'static, PeerAnswerV1>;

    /// Takes a snapshot in. The source blocks, and only on a thread that may: it ends after the bytes that were offered,
    /// all checked, or with an error; never short.
    fn snapshot(&self, from: &HelloV1, offer: SnapshotOffer) -> BoxFuture<'static, PeerAnswerV1>;

    /// Why this node has nothing to do with `from`, in one line that says what to do; `None` lets it in. Asked on both
    /// sides of a new connection; the other side is told the line. Must not block.
    fn refuse(&self, from: &HelloV1) -> Option<String>;
}
