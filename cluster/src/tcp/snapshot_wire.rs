//! How a snapshot's head travels: a frozen twin of what replication says of it. Encoded with `codec` (kind
//! `SnapshotOffer`). Version 2 to whoever speaks protocol 2, version 1 to others; both are read.

use serde::{Deserialize, Serialize};

use crate::codec::{self, DecodeError, EncodeError, Kind};
use crate::persisted::{LogIdV1, MembershipV2, VoteV1};
use crate::snapshot::Head;

/// What a snapshot says of itself, without the last command. Frozen.
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

/// What a snapshot says of itself. Frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeadV2 {
    /// The last entry that the state contains.
    pub last: LogIdV1,
    /// The last command in that entry.
    pub ordinal: u32,
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

/// [`OfferV2`] with [`SnapshotHeadV1`]. Frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferV1 {
    /// The leader that sends it.
    pub vote: VoteV1,
    /// What it says of itself.
    pub head: SnapshotHeadV1,
    /// Its length.
    pub bytes: u64,
}

/// What comes before a snapshot's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferV2 {
    /// The leader that sends it.
    pub vote: VoteV1,
    /// What it says of itself.
    pub head: SnapshotHeadV2,
    /// Its length.
    pub bytes: u64,
}

impl From<&Head> for SnapshotHeadV2 {
    fn from(head: &Head) -> Self {
        let Head { last, ordinal, membership_at, membership, stamp_ms, feature_level, format_version } = head.clone();
        Self { last, ordinal, membership_at, membership, stamp_ms, feature_level, format_version }
    }
}

impl From<SnapshotHeadV2> for Head {
    fn from(head: SnapshotHeadV2) -> Self {
        let SnapshotHeadV2 { last, ordinal, membership_at, membership, stamp_ms, feature_level, format_version } = head;
        Self { last, ordinal, membership_at, membership, stamp_ms, feature_level, format_version }
    }
}

impl From<SnapshotHeadV2> for SnapshotHeadV1 {
    fn from(head: SnapshotHeadV2) -> Self {
        let SnapshotHeadV2 { last, membership_at, membership, stamp_ms, feature_level, format_version, .. } = head;
        Self { last, membership_at, membership, stamp_ms, feature_level, format_version }
    }
}

impl From<SnapshotHeadV1> for SnapshotHeadV2 {
    fn from(old: SnapshotHeadV1) -> Self {
        let SnapshotHeadV1 { last, membership_at, membership, stamp_ms, feature_level, format_version } = old;
        Self { last, ordinal: 0, membership_at, membership, stamp_ms, feature_level, format_version }
    }
}

impl OfferV2 {
    /// For whoever speaks that version of the protocol.
    pub fn encode(self, protocol: u16) -> Result<Vec<u8>, EncodeError> {
        if protocol >= 2 {
            return codec::encode(Kind::SnapshotOffer, 2, &self);
        }
        let Self { vote, head, bytes } = self;
        codec::encode(Kind::SnapshotOffer, 1, &OfferV1 { vote, head: head.into(), bytes })
    }

    /// Of either version.
    pub fn decode(envelope: &[u8]) -> Result<Self, DecodeError> {
        let (version, body) = codec::open(Kind::SnapshotOffer, 2, envelope)?;
        if version >= 2 {
            return codec::decode_body(Kind::SnapshotOffer, body);
        }
        let OfferV1 { vote, head, bytes } = codec::decode_body(Kind::SnapshotOffer, body)?;
        Ok(Self { vote, head: head.into(), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persisted::MemberV2;

    fn member(client: &str, peer: &str, incarnation: u64) -> MemberV2 {
        MemberV2 { client: client.to_owned(), peer: peer.to_owned(), incarnation }
    }

    fn offer(ordinal: u32) -> OfferV2 {
        let head = Head {
            last: LogIdV1 { term: 3, node: 2, index: 900 },
            ordinal,
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
        OfferV2 { vote, head: (&head).into(), bytes: 5 }
    }

    #[test]
    fn golden_bytes() {
        let newest: &[u8] = b"\x0e\x02\x00\x03\x01\x02\x01\x03\x02\xfb\x84\x03\x04\x01\x01\x01\x01\x01\x02\x01\x02\x02\
            \x01\x03a:1\x03a:2\x07\x02\x00\x03b:2\x00\xfc\x70\x11\x01\x00\x01\x02\x05";
        let old: &[u8] = b"\x0e\x01\x00\x03\x01\x02\x01\x03\x02\xfb\x84\x03\x01\x01\x01\x01\x01\x02\x01\x02\x02\
            \x01\x03a:1\x03a:2\x07\x02\x00\x03b:2\x00\xfc\x70\x11\x01\x00\x01\x02\x05";
        for (protocol, golden, back) in [(2, newest, offer(4)), (1, old, offer(0))] {
            let bytes = offer(4).encode(protocol).unwrap();
            assert_eq!(bytes, golden, "{bytes:02x?}");
            assert_eq!(OfferV2::decode(&bytes).unwrap(), back);
        }
        assert_eq!(SnapshotHeadV2::from(&Head::from(offer(4).head)), offer(4).head);
    }
}
