//! The cluster's feature level: what its entries may need of every node that applies them. Pure.
//!
//! It goes up only, one entry at a time, once every member's build supports more; and never because a member is away: a
//! node that comes back must be able to read what was written meanwhile.

use std::collections::BTreeMap;

use crate::raft::NodeId;
use crate::transport::LinkState;

/// The level to raise the cluster to, if it is time: `now` is its level, `own` what this build supports, `others` the
/// other members.
pub fn raise(
    now: u16,
    own: u16,
    others: impl IntoIterator<Item = NodeId>,
    links: &BTreeMap<NodeId, LinkState>,
) -> Option<u16> {
    // What a member said on an earlier connection proves nothing: an older build may have been started since.
    let of = |id: NodeId| {
        let link = links.get(&id).filter(|link| link.connected);
        link.and_then(|link| link.hello.as_ref()).map_or(0, |hello| hello.feature_level)
    };
    let least = others.into_iter().map(of).fold(own, u16::min);
    (least > now).then_some(least)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bootstrap::sim_net::greeting;

    fn links(levels: &[(NodeId, u16, bool)]) -> BTreeMap<NodeId, LinkState> {
        let link = |id, feature_level, connected| {
            let hello = Some(crate::hello::HelloV1 { feature_level, ..greeting(id) });
            LinkState { connected, hello, trouble: None }
        };
        levels.iter().map(|(id, level, connected)| (*id, link(*id, *level, *connected))).collect()
    }

    #[test]
    fn the_level_follows_the_oldest_member_that_is_there() {
        let up = |own, levels: &[(NodeId, u16, bool)]| raise(1, own, [2, 3], &links(levels));
        assert_eq!(up(2, &[(2, 2, true), (3, 2, true)]), Some(2));
        assert_eq!(up(3, &[(2, 2, true), (3, 3, true)]), Some(2));
        assert_eq!(up(2, &[(2, 2, true), (3, 1, true)]), None, "an old build");
        assert_eq!(up(2, &[(2, 2, true), (3, 2, false)]), None, "a member that is away");
        assert_eq!(up(2, &[(2, 2, true)]), None, "a member that was never heard");
        assert_eq!(up(1, &[(2, 2, true), (3, 2, true)]), None, "this build itself");
        assert_eq!(raise(2, 1, [2], &links(&[(2, 1, true)])), None, "never lowered");
        assert_eq!(raise(1, 2, [], &links(&[])), Some(2), "alone");
    }
}
