//! How a snapshot's head travels: a frozen twin of what replication says of it. Encoded with `codec` (kind
//! `SnapshotOffer`).

use serde::{Deserialize, Serialize};

use crate::persisted::{LogIdV1, MembershipV2, VoteV1};
use crate::snapshot::Head;

/// What a snapshot says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeadV1 {
    /// The last entry that the state contains.
    pub last: LogIdV1,
    /// The entry that set the membership.
    pub membership_at: Option<LogIdV1>,
    /// The membership as of `last`.
    pub membership: MembershipV2,
    /// The last applied stamp, cluster milliseconds.
    pub stamp_ms: u64,
    /// The cluster's feature level.
    pub feature_level: u16,
    /// The machine's format version.
    pub format_version: u16,
}

/// What comes before a snapshot's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferV1 {
    /// The leader that sends it.
    pub vote: VoteV1,
    /// What it says of itself.
    pub head: SnapshotHeadV1,
    /// Its length.
    pub bytes: u64,
}

impl From<&Head> for SnapshotHeadV1 {
    fn from(head: &Head) -> Self {
        let Head { last, membership_at, membership, stamp_ms, feature_level, format_version } = head.clone();
        Self { last, membership_at, membership, stamp_ms, feature_level, format_version }
    }
}

impl From<SnapshotHeadV1> for Head {
    fn from(head: SnapshotHeadV1) -> Self {
        let SnapshotHeadV1 { last, membership_at, membership, stamp_ms, feature_level, format_version } = head;
        Self { last, membership_at, membership, stamp_ms, feature_level, format_version }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{self, Kind};
    use crate::persisted::MemberV2;

    fn member(client: &str, peer: &str, incarnation: u64) -> MemberV2 {
        MemberV2 { client: client.to_owned(), peer: peer.to_owned(), incarnation }
    }

    #[test]
    fn golden_bytes() {
        let head = Head {
            last: LogIdV1 { term: 3, node: 2, index: 900 },
            membership_at: Some(LogIdV1 { term: 1, node: 1, index: 1 }),
            membership: MembershipV2 {
                configs: vec![vec![1, 2]],
                nodes: vec![(1, member("a:1", "a:2", 7)), (2, member("", "b:2", 0))],
            },
            stamp_ms: 70_000,
            feature_level: 1,
            format_version: 2,
        };
        let vote = VoteV1 { term: 3, node: Some(2), committed: true };
        let offer = OfferV1 { vote, head: (&head).into(), bytes: 5 };
        let bytes = codec::encode(Kind::SnapshotOffer, 1, &offer).unwrap();
        let golden: &[u8] = b"\x0e\x01\x00\x03\x01\x02\x01\x03\x02\xfb\x84\x03\x01\x01\x01\x01\x01\x02\x01\x02\x02\
            \x01\x03a:1\x03a:2\x07\x02\x00\x03b:2\x00\xfc\x70\x11\x01\x00\x01\x02\x05";
        assert_eq!(bytes, golden, "{bytes:02x?}");
        let back: OfferV1 = codec::decode(Kind::SnapshotOffer, 1, &bytes).unwrap();
        assert_eq!(back, offer);
        assert_eq!(Head::from(back.head), head);
    }
}
