//! The manifest of a snapshot directory: the one file that vouches for all others.
//!
//! It is written last, when nothing writes to the directory any more, and read first: a directory without a whole
//! manifest, or with a file that differs from it, is never given to sled (which answers some damage with a panic).

use serde::{Deserialize, Serialize};

use super::Head;
use crate::codec::{self, DecodeError, EncodeError, Kind};
use crate::persisted::old::MembershipV1;
use crate::persisted::{LogIdV1, MembershipV2};

/// The version this build writes. It reads all before.
const VERSION: u16 = 3;

/// A file as it must be. Frozen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct FileSumV1 {
    /// Path below the snapshot's directory, `/` between the parts.
    pub name: String,
    /// Length, bytes.
    pub bytes: u64,
    /// CRC32C of the whole file.
    pub crc32c: u32,
}

/// A manifest. Frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ManifestV3 {
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
    /// How many chunks the state has.
    pub chunks: u64,
    /// How many bytes.
    pub bytes: u64,
    /// CRC32C of all of them.
    pub crc32c: u32,
    /// Every other file of the directory, by name.
    pub files: Vec<FileSumV1>,
}

/// A manifest that did not name the last command. Frozen; no longer written.
#[derive(Deserialize)]
struct ManifestV2 {
    last: LogIdV1,
    membership_at: Option<LogIdV1>,
    membership: MembershipV2,
    stamp_ms: u64,
    feature_level: u16,
    format_version: u16,
    chunks: u64,
    bytes: u64,
    crc32c: u32,
    files: Vec<FileSumV1>,
}

impl From<ManifestV2> for ManifestV3 {
    fn from(old: ManifestV2) -> Self {
        Self {
            last: old.last,
            ordinal: 0,
            membership_at: old.membership_at,
            membership: old.membership,
            stamp_ms: old.stamp_ms,
            feature_level: old.feature_level,
            format_version: old.format_version,
            chunks: old.chunks,
            bytes: old.bytes,
            crc32c: old.crc32c,
            files: old.files,
        }
    }
}

/// A manifest before members had an incarnation. Frozen; no longer written.
#[derive(Deserialize)]
struct ManifestV1 {
    last: LogIdV1,
    membership_at: Option<LogIdV1>,
    membership: MembershipV1,
    stamp_ms: u64,
    feature_level: u16,
    format_version: u16,
    chunks: u64,
    bytes: u64,
    crc32c: u32,
    files: Vec<FileSumV1>,
}

impl From<ManifestV1> for ManifestV2 {
    fn from(old: ManifestV1) -> Self {
        Self {
            last: old.last,
            membership_at: old.membership_at,
            membership: old.membership.into(),
            stamp_ms: old.stamp_ms,
            feature_level: old.feature_level,
            format_version: old.format_version,
            chunks: old.chunks,
            bytes: old.bytes,
            crc32c: old.crc32c,
            files: old.files,
        }
    }
}

impl ManifestV3 {
    pub(super) fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        codec::encode(Kind::Manifest, VERSION, self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (version, body) = codec::open(Kind::Manifest, VERSION, bytes)?;
        match version {
            1 => codec::decode_body::<ManifestV1>(Kind::Manifest, body).map(ManifestV2::from).map(Into::into),
            2 => codec::decode_body::<ManifestV2>(Kind::Manifest, body).map(Into::into),
            _ => codec::decode_body(Kind::Manifest, body),
        }
    }

    pub(super) fn head(&self) -> Head {
        Head {
            last: self.last,
            ordinal: self.ordinal,
            membership_at: self.membership_at,
            membership: self.membership.clone(),
            stamp_ms: self.stamp_ms,
            feature_level: self.feature_level,
            format_version: self.format_version,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::persisted::MemberV2;

    fn sample(incarnation: u64, ordinal: u32) -> ManifestV3 {
        let member = |client: &str, peer: &str, incarnation| MemberV2 {
            client: client.to_owned(),
            peer: peer.to_owned(),
            incarnation,
        };
        let id = |term, node, index| LogIdV1 { term, node, index };
        ManifestV3 {
            last: id(3, 1, 70_000),
            ordinal,
            membership_at: Some(id(1, 1, 2)),
            membership: MembershipV2 {
                configs: vec![vec![1, 2], vec![1]],
                nodes: vec![(1, member("a:1", "a:2", incarnation)), (2, member("b:1", "", 0))],
            },
            stamp_ms: 1_700_000_000_123,
            feature_level: 1,
            format_version: 300,
            chunks: 2,
            bytes: 5_000,
            crc32c: 0xDEAD_BEEF,
            files: vec![FileSumV1 { name: "db".into(), bytes: 524_288, crc32c: 0x0102_0304 }],
        }
    }

    /// What stands between the version and the end, but for the ordinal and the nodes.
    const LAST: &str = "0301fc70110100"; // log id
    const HEAD: &str = concat!(
        "01010102",     // the membership's log id
        "020201020101", // voters
    );
    const TAIL: &str = concat!(
        "fd7b68e5cf8b010000",           // stamp
        "01fb2c01",                     // feature level, format version
        "02fb8813fcefbeadde",           // chunks, bytes, checksum
        "01026462fc00000800fc04030201", // files
    );

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn version_3_keeps_its_bytes() {
        let written = sample(77, 6).encode().unwrap();
        assert_eq!(written, bytes(&format!("070300{LAST}06{HEAD}020103613a3103613a324d0203623a310000{TAIL}")));
        assert_eq!(ManifestV3::decode(&written).unwrap(), sample(77, 6));
        for length in 0..written.len() {
            ManifestV3::decode(&written[..length]).unwrap_err();
        }
    }

    #[test]
    fn older_versions_are_read_for_ever() {
        let version_2 = format!("070200{LAST}{HEAD}020103613a3103613a324d0203623a310000{TAIL}");
        assert_eq!(ManifestV3::decode(&bytes(&version_2)).unwrap(), sample(77, 0));
        let version_1 = format!("070100{LAST}{HEAD}020103613a3103613a320203623a3100{TAIL}");
        assert_eq!(ManifestV3::decode(&bytes(&version_1)).unwrap(), sample(0, 0));
    }
}
