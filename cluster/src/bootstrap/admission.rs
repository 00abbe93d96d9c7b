//! Who is let into a cluster that is there. Pure.
//!
//! A member is its id **and** the incarnation of its data directory. A directory that was lost took promises with it: an
//! acknowledged entry, a vote. Another directory under the same id knows nothing of them, and would help to break them:
//! it is never let in by itself, only in place of the lost one, by a change of the membership.

use super::Peers;
use super::doorman::Register;
use crate::identity::{ClusterId, hex};
use crate::peer::AdmitV1;
use crate::raft::{Member, NodeId};

/// What the membership says to one who asks to take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Yes,
    /// It does, once the membership has this of it.
    Record(Member),
    /// It does not: it is no member. One line that says what to do.
    Stranger(String),
    /// It does not: it comes with another data directory than the member had. One line that says what to do.
    Wiped(String),
}

/// Judges `ask` by the members of `cluster`; `peers` are those of `--peers`.
pub fn judge(cluster: &ClusterId, register: &Register, peers: &Peers, ask: &AdmitV1) -> Verdict {
    let Some(member) = register.get(ask.node) else {
        return Verdict::Stranger(stranger(cluster, ask.node, register, peers));
    };
    let now = Member { client: ask.client.clone(), peer: ask.peer.clone(), incarnation: ask.incarnation };
    match member.incarnation {
        0 => Verdict::Record(now),
        known if known != ask.incarnation => Verdict::Wiped(wiped(cluster, ask.node)),
        _ if *member != now => Verdict::Record(now),
        _ => Verdict::Yes,
    }
}

/// The line for one that is no member.
pub fn stranger(cluster: &ClusterId, node: NodeId, register: &Register, peers: &Peers) -> String {
    let ids: Vec<String> = register.members().map(|(id, _)| id.to_string()).collect();
    let ids = ids.join(", ");
    // A replacement removes the member before it adds it again.
    let or = match peers.contains_key(&node) {
        true => format!("; if it was to be replaced, run `tenure cluster replace {node}` again on a node that serves"),
        false => String::new(),
    };
    format!(
        "node {node} is not a member of cluster {} (its members: {ids}): correct --node-id or --peers{or}",
        hex(cluster)
    )
}

/// The line for a member that comes with another data directory than the member had.
pub fn wiped(cluster: &ClusterId, node: NodeId) -> String {
    format!(
        "the data directory is not the one that node {node} of cluster {} had, and a voter that lost its data may never \
         vote again under the same id: run `tenure cluster replace {node}` on a node that serves, then start this one \
         again; or bring the old data directory back",
        hex(cluster)
    )
}

/// The line of `node`, which became part of `cluster` when that was founded and has none of its entries.
pub fn not_begun(cluster: &ClusterId, node: NodeId) -> String {
    format!(
        "node {node} has nothing of cluster {} yet, which its founder alone can begin: if the founder's data directory was \
         lost, and no node in --peers has data, then nothing was ever acknowledged: stop all nodes, remove the data \
         directories of all, and start them again",
        hex(cluster)
    )
}
