//! The manifest of a snapshot directory: the one file that vouches for all others.
//!
//! It is written last, when nothing writes to the directory any more, and read first: a directory without a whole
//! manifest, or with a file that differs from it, is never given to sled (which answers some damage with a panic).

use serde::{Deserialize, Serialize};

use super::Head;
use crate::codec::{self, DecodeError, EncodeError, Kind};
use crate::persisted::{LogIdV1, MembershipV1};

/// The version this build writes.
const VERSION: u16 = 1;

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
pub(super) struct ManifestV1 {
    /// The last entry that the state contains.
    pub last: LogIdV1,
    /// The entry that set the membership.
    pub membership_at: Option<LogIdV1>,
    /// The membership as of `last`.
    pub membership: MembershipV1,
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

impl ManifestV1 {
    pub(super) fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        codec::encode(Kind::Manifest, VERSION, self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        codec::decode(Kind::Manifest, VERSION, bytes)
    }

    pub(super) fn head(&self) -> Head {
        Head {
            last: self.last,
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

    fn sample() -> ManifestV1 {
        let id = |term, node, index| LogIdV1 { term, node, index };
        ManifestV1 {
            last: id(3, 1, 70_000),
            membership_at: Some(id(1, 1, 2)),
            membership: MembershipV1 {
                configs: vec![vec![1, 2], vec![1]],
                nodes: vec![(1, "a:1".into(), "a:2".into()), (2, "b:1".into(), String::new())],
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

    /// Version 1 as it is on disks: must decode for ever.
    const GOLDEN: &str = concat!(
        "070100",                           // kind, version
        "0301fc70110100",                   // log id
        "01010102",                         // the membership's log id
        "020201020101",                     // voters
        "020103613a3103613a320203623a3100", // nodes
        "fd7b68e5cf8b010000",               // stamp
        "01fb2c01",                         // feature level, format version
        "02fb8813fcefbeadde",               // chunks, bytes, checksum
        "01026462fc00000800fc04030201",     // files
    );

    #[test]
    fn version_1_keeps_its_bytes() {
        let bytes = sample().encode().unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, GOLDEN);
        assert_eq!(ManifestV1::decode(&bytes).unwrap(), sample());
        for length in 0..bytes.len() {
            ManifestV1::decode(&bytes[..length]).unwrap_err();
        }
    }
}
