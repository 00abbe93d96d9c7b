//! Snapshots on disk: the manifest's envelope, chunks put together again, and a whole store behind its manifest.
//!
//! The store's input is the manifest's file in a directory that holds nothing else, so that a manifest without files
//! vouches for it. What it says of chunks is then wrong or nothing.

use std::cell::OnceCell;
use std::io::{self, Read};

use tempfile::TempDir;
use tenure_cluster::codec::{self, Kind};
use tenure_cluster::persisted::old::MembershipV1;
use tenure_cluster::persisted::{LogIdV1, MembershipV2};
use tenure_cluster::reading::{self, Chunks};
use tenure_cluster::snapshot::{SledSnapshots, SnapshotError, SnapshotStore};

use crate::mutate::Form;
use crate::peers::membership;
use crate::{Heap, MIB, Sample, Target, Verdict, survives};

/// The envelope alone.
pub const MANIFEST: Target = Target {
    name: "snapshot-manifest",
    read: |bytes| survives(bytes, reading::manifest),
    samples: manifest_samples,
    form: Form::Binary,
    mend: None,
    // Voters, members and files of 32 to 80 bytes each; three lists may be reserved by their announced lengths, 1 MiB each.
    heap: Heap { per_byte: 128, besides: 4 * MIB },
    least: 2_000,
};

/// Totals, then keys and values.
pub const CHUNKS: Target = Target {
    name: "snapshot-chunks",
    read: chunks,
    samples: chunks_samples,
    form: Form::Binary,
    mend: Some(|bytes| mend_chunks(bytes)),
    // sled's page cache and its log buffers, which do not hang on the input.
    heap: Heap { per_byte: 64, besides: 64 * MIB },
    least: 100,
};

/// A directory with that manifest.
pub const STORE: Target = Target {
    name: "snapshot-store",
    read: store,
    samples: store_samples,
    form: Form::Binary,
    mend: Some(mend_sum),
    // As the manifest; one that is accepted opens sled.
    heap: Heap { per_byte: 128, besides: 64 * MIB },
    least: 20,
};

/// A manifest as the frozen type has it; the fields are public here alone.
type Fields<'a> = (LogIdV1, u32, Option<LogIdV1>, MembershipV2, u64, u16, u16, u64, u64, u32, Vec<(&'a str, u64, u32)>);

fn manifest(chunks: u64, files: Vec<(&str, u64, u32)>) -> Vec<u8> {
    let last = LogIdV1 { term: 3, node: 1, index: 900 };
    let fields: Fields<'_> =
        (last, 4, Some(last), membership(), 1 << 40, 1, 1, chunks, chunks * 4096, 0xdead_beef, files);
    codec::encode(Kind::Manifest, 3, &fields).unwrap()
}

fn manifest_samples() -> Vec<Sample> {
    // Version 1 had no incarnations, version 2 no ordinal.
    let last = LogIdV1 { term: 3, node: 1, index: 900 };
    let members = MembershipV1 { configs: vec![vec![1]], nodes: vec![(1, "a:1".into(), "a:2".into())] };
    let files = vec![("db", 524_288_u64, 7_u32)];
    let version_2 = (last, None::<LogIdV1>, membership(), 5_u64, 1_u16, 1_u16, 1_u64, 9_u64, 7_u32, files.clone());
    let old = (last, None::<LogIdV1>, members, 5_u64, 1_u16, 1_u16, 1_u64, 9_u64, 7_u32, files);
    vec![
        ("files", manifest(2, vec![("blobs/1", 0, 0), ("conf", 63, 1), ("db", 524_288, 0x0102_0304)])),
        ("empty", manifest(0, Vec::new())),
        ("old", codec::encode(Kind::Manifest, 1, &old).unwrap()),
        ("version-2", codec::encode(Kind::Manifest, 2, &version_2).unwrap()),
    ]
}

thread_local! {
    static CHUNK_STORE: OnceCell<Chunks> = const { OnceCell::new() };
}

fn with_chunks<T>(act: impl FnOnce(&Chunks) -> T) -> T {
    CHUNK_STORE.with(|store| act(store.get_or_init(|| Chunks::temporary().unwrap())))
}

const TOTALS: usize = 8 + 8 + 4;
const LENGTHS: usize = 2 + 2;

type Totals = (u64, u64, u32);

fn totals_of(bytes: &[u8]) -> Option<Totals> {
    let head = bytes.first_chunk::<TOTALS>()?;
    let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
    Some((long(0), long(8), u32::from_le_bytes(head[16..].try_into().unwrap())))
}

/// Where each key and value lies.
fn pairs(bytes: &[u8]) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
    let mut found = Vec::new();
    let mut at = TOTALS;
    while let Some(lengths) = bytes.get(at..at + LENGTHS) {
        let key = at + LENGTHS..at + LENGTHS + usize::from(u16::from_le_bytes([lengths[0], lengths[1]]));
        let value = key.end..key.end + usize::from(u16::from_le_bytes([lengths[2], lengths[3]]));
        if value.end > bytes.len() {
            break;
        }
        at = value.end;
        found.push((key, value));
    }
    found
}

fn chunks(bytes: &[u8]) -> Verdict {
    let Some(totals) = totals_of(bytes) else { return Verdict::Refused };
    let ranges = pairs(bytes);
    let of: Vec<(&[u8], &[u8])> =
        ranges.iter().map(|(key, value)| (&bytes[key.clone()], &bytes[value.clone()])).collect();
    match with_chunks(|store| store.joined(&of, totals)) {
        Ok(state) => {
            assert_eq!((state.len() as u64, crc32c::crc32c(&state)), (totals.1, totals.2));
            Verdict::Accepted
        }
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            Verdict::Refused
        }
    }
}

/// Each value's sum, and the totals.
fn mend_chunks(bytes: &mut [u8]) {
    if bytes.len() < TOTALS {
        return;
    }
    let (mut count, mut length, mut sum) = (0_u64, 0_u64, 0);
    for (key, value) in pairs(bytes) {
        if value.len() < 4 {
            continue;
        }
        let data = value.start + 4..value.end;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[key]), &bytes[data.clone()]);
        bytes[value.start..value.start + 4].copy_from_slice(&crc.to_le_bytes());
        sum = crc32c::crc32c_append(sum, &bytes[data.clone()]);
        count += 1;
        length += data.len() as u64;
    }
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    bytes[8..16].copy_from_slice(&length.to_le_bytes());
    bytes[16..20].copy_from_slice(&sum.to_le_bytes());
}

fn chunks_samples() -> Vec<Sample> {
    let sample = |length: usize| {
        let state: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let (pairs, (count, bytes, sum)) = with_chunks(|store| store.cut(&state)).unwrap();
        let mut image = [&count.to_le_bytes()[..], &bytes.to_le_bytes(), &sum.to_le_bytes()].concat();
        for (key, value) in pairs {
            image.extend_from_slice(&(key.len() as u16).to_le_bytes());
            image.extend_from_slice(&(value.len() as u16).to_le_bytes());
            image.extend_from_slice(&key);
            image.extend_from_slice(&value);
        }
        image
    };
    vec![("three", sample(2 * 4096 + 5)), ("one", sample(9)), ("none", sample(0))]
}

fn store(bytes: &[u8]) -> Verdict {
    let dir = TempDir::new().unwrap();
    let snapshot = dir.path().join(format!("snap-{:020}-{:020}", 3, 900));
    std::fs::create_dir(&snapshot).unwrap();
    std::fs::write(snapshot.join("manifest"), bytes).unwrap();
    let Ok(store) = SledSnapshots::open(dir.path()) else {
        assert_eq!(std::fs::read(snapshot.join("manifest")).unwrap(), bytes, "what is refused is unchanged");
        return Verdict::Refused;
    };
    let stored = store.newest().unwrap().expect("a snapshot that checks out is there");
    let mut state = Vec::new();
    match store.open(&stored).map(|mut reader| reader.read_to_end(&mut state)) {
        Ok(Ok(length)) => {
            assert_eq!(length as u64, stored.bytes);
            Verdict::Accepted
        }
        Ok(Err(error)) => {
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            Verdict::Refused
        }
        // The manifest checked out. Of sled there is nothing.
        Err(error) => {
            assert!(matches!(error, SnapshotError::Io { .. }), "{error}");
            Verdict::Accepted
        }
    }
}

/// The CRC32C behind the envelope.
fn mend_sum(bytes: &mut Vec<u8>) {
    let end = bytes.len().saturating_sub(4);
    let crc = crc32c::crc32c(&bytes[..end]);
    bytes.splice(end.., crc.to_le_bytes());
}

fn store_samples() -> Vec<Sample> {
    let mut empty = manifest(0, Vec::new());
    empty.extend_from_slice(&[0; 4]);
    mend_sum(&mut empty);
    vec![("empty", empty)]
}

/// For what lies in a sealed file.
pub(crate) fn sealed(envelope: &[u8]) -> Vec<u8> {
    let mut bytes = [envelope, &[0; 4]].concat();
    mend_sum(&mut bytes);
    bytes
}

/// See [`sealed`].
pub(crate) fn mend_sealed(bytes: &mut Vec<u8>) {
    mend_sum(bytes);
}
