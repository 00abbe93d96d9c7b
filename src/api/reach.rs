//! What replication says of the ways to the other nodes.

use serde::Serialize;
use tenure_cluster::Status;
use tenure_cluster::raft::NodeId;
use tenure_cluster::transport::LinkState;

/// The way to one peer.
#[derive(Serialize)]
pub struct LinkReport {
    node_id: NodeId,
    connected: bool,
    trouble: Option<String>,
    version: Option<String>,
    feature_level: Option<u16>,
}

/// The ways to all peers, by id.
pub fn links(status: &Status) -> Vec<LinkReport> {
    status.links.iter().map(|(id, link)| report(*id, link)).collect()
}

fn report(node_id: NodeId, link: &LinkState) -> LinkReport {
    let hello = link.hello.as_ref();
    LinkReport {
        node_id,
        connected: link.connected,
        trouble: link.trouble.clone(),
        version: hello.map(|hello| hello.build.clone()),
        feature_level: hello.map(|hello| hello.feature_level),
    }
}
