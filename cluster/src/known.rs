//! Tells the transport whom this node deals with: the members, by the membership as it is now, but itself.
//!
//! Told at each change, addresses included, so that a connection stands before it is needed and a process that dies is
//! noticed at once. A node that is no member of anything tells nothing: until then the transport's owner knows better.

use std::sync::Arc;

use openraft::async_runtime::watch::WatchReceiver;

use crate::raft::AsyncRuntime;
use crate::standing::Standings;
use crate::transport::{Peer, Transport};

/// Runs until replication ends.
pub async fn keep_known<RT: AsyncRuntime>(standings: Standings<RT>, transport: Arc<dyn Transport>) {
    let mut server = standings.server().clone();
    let mut told = Vec::new();
    loop {
        let members: Vec<Peer> = {
            let server = server.borrow_and_update();
            let nodes = server.membership_config.membership().nodes();
            nodes.map(|(id, member)| Peer { id: *id, member: member.clone(), hints: Vec::new() }).collect()
        };
        let is_member = members.iter().any(|peer| peer.id == standings.node());
        if is_member && members != told {
            transport.know(members.iter().filter(|peer| peer.id != standings.node()).cloned().collect());
            told = members;
        }
        if server.changed().await.is_err() {
            return;
        }
    }
}
