//! The log on disk: whole directories of segments, a segment's header, a record's payload.
//!
//! A log's input is its segments, one after the other, of [`SEGMENT`] bytes each, behind the first one's number. Recovery
//! reads it on a simulated disk. Invariants: a log that is refused is unchanged; one that is opened can be read to its
//! end, without a hole; opened again it is the same.
//!
//! Checksums are mended by code of its own, from the format as it is documented: a mutant is then a log whose writer was
//! wrong, rather than a disk.

use std::path::PathBuf;

use bytes::Bytes;
use tenure_cluster::codec::{self, Kind};
use tenure_cluster::error::OpenError;
use tenure_cluster::log::LogOptions;
use tenure_cluster::persisted::old::{EntryV1, MembershipV1, PayloadV1};
use tenure_cluster::persisted::{EntryV2, LogIdV1, LogStateV1, PayloadV2, SegmentHeaderV1, VoteV1};
use tenure_cluster::reading::{self, LogRead};
use tenure_cluster::simdisk::SimDisk;

use crate::mutate::Form;
use crate::peers::membership;
use crate::{Heap, KIB, MIB, Sample, Target, Verdict, survives};

/// A log's directory.
pub const SEGMENTS: Target = Target {
    name: "log-segments",
    read: segments,
    samples: segments_samples,
    form: Form::Binary,
    mend: Some(|bytes| mend_segments(bytes)),
    // Each segment is on the simulated disk twice (as read, as synced), read into memory, and beside it its entries.
    heap: Heap { per_byte: 64, besides: 4 * MIB },
    least: 300,
};

/// One header.
pub const HEADER: Target = Target {
    name: "log-header",
    read: |bytes| survives(bytes, reading::segment_header),
    samples: header_samples,
    form: Form::Binary,
    mend: Some(mend_header),
    heap: Heap { per_byte: 4, besides: 8 * KIB },
    least: 2_000,
};

/// A record's kind, index and payload; entries of the old version too.
pub const CHANGE: Target = Target {
    name: "log-change",
    read: |bytes| survives(bytes, change),
    samples: change_samples,
    form: Form::Binary,
    mend: None,
    // As a peer's entries: see `peers`.
    heap: Heap { per_byte: 256, besides: 4 * MIB },
    least: 2_000,
};

const SEGMENT: usize = 4096;
const HEADER_BYTES: usize = 512;
const RECORD_HEAD: usize = 28;
const DIR: &str = "/log";

fn options() -> LogOptions {
    LogOptions { segment_bytes: SEGMENT as u64, cached_bytes_max: 1_000, must_exist: true, ..LogOptions::default() }
}

fn path(sequence: u64) -> PathBuf {
    PathBuf::from(format!("{DIR}/{sequence:020}.log"))
}

/// The number of the first segment, and the segments.
fn parts(bytes: &[u8]) -> Option<(u64, std::slice::Chunks<'_, u8>)> {
    let (first, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*first), rest.chunks(SEGMENT)))
}

/// A disk with those segments, durable.
fn disk_with(first: u64, segments: std::slice::Chunks<'_, u8>) -> (SimDisk, Vec<PathBuf>) {
    let disk = SimDisk::new();
    let mount = disk.mount();
    mount.create_dir(&PathBuf::from(DIR)).unwrap();
    let mut paths = Vec::new();
    for (at, segment) in segments.take(64).enumerate() {
        let Some(sequence) = first.checked_add(at as u64) else { break };
        let file = mount.create_new(&path(sequence)).unwrap();
        file.write_at(segment, 0).unwrap();
        file.sync_data().unwrap();
        paths.push(path(sequence));
    }
    mount.sync_dir(&PathBuf::from(DIR)).unwrap();
    (disk, paths)
}

fn segments(bytes: &[u8]) -> Verdict {
    let Some((first, chunks)) = parts(bytes) else { return Verdict::Refused };
    let (disk, paths) = disk_with(first, chunks);
    let before: Vec<Option<Vec<u8>>> = paths.iter().map(|path| disk.bytes_of(path)).collect();
    let found = match reading::log(&disk, DIR, &options()) {
        Ok(Ok(read)) => read,
        // A membership that names a voter it has no address of: well-formed, under a right checksum, so nothing that a disk
        // does. Replication refuses it when it is read, and the node stops with that line.
        Ok(Err(error)) if error.to_string().contains("is not one of replication's") => return Verdict::Refused,
        Ok(Err(error)) => panic!("it was opened, and cannot be read: {error}"),
        Err(error) => {
            let after: Vec<Option<Vec<u8>>> = paths.iter().map(|path| disk.bytes_of(path)).collect();
            assert!(before == after, "a refused log is unchanged on disk: {error}");
            assert!(!matches!(error, OpenError::Io { .. }), "the disk has no fault: {error}");
            return Verdict::Refused;
        }
    };
    is_whole(&found);
    let again = reading::log(&disk, DIR, &options()).expect("what was opened once is opened again").unwrap();
    assert_eq!(again, found);
    Verdict::Accepted
}

/// Without a hole from the purge mark to the last entry.
fn is_whole(found: &LogRead) {
    let indexes: Vec<u64> = found.entries.iter().map(|entry| entry.id.index).collect();
    assert!(indexes.windows(2).all(|two| two[0] + 1 == two[1]), "{indexes:?}");
    if let (Some(purged), Some(first)) = (found.purged, indexes.first()) {
        assert_eq!(purged.index.checked_add(1), Some(*first));
    }
    if let Some(last) = found.entries.last() {
        assert_eq!(Some(last.id), found.last);
    }
    if let Some(committed) = found.committed {
        assert!(found.last.is_some_and(|last| last.index >= committed.index), "committed beyond the last entry");
    }
}

fn id(term: u64, index: u64) -> LogIdV1 {
    LogIdV1 { term, node: 1, index }
}

fn batches(range: std::ops::Range<u64>, bytes: usize) -> Vec<EntryV2> {
    let payload = |index: u64| PayloadV2::Batch(Bytes::from(vec![index as u8; bytes]));
    range.map(|index| EntryV2 { id: id(2, index), payload: payload(index) }).collect()
}

/// A log of those groups, as it lies on disk from segment `first` on.
fn image(groups: Vec<Vec<EntryV2>>, purged: Option<LogIdV1>) -> Vec<u8> {
    let disk = SimDisk::new();
    let vote = VoteV1 { term: 3, node: Some(2), committed: true };
    let options = LogOptions { must_exist: false, ..options() };
    reading::extend_log(&disk, DIR, &options, groups, vote, purged).unwrap().unwrap();
    let all: Vec<u64> = (1..64).filter(|sequence| disk.bytes_of(&path(*sequence)).is_some()).collect();
    let mut bytes = all[0].to_le_bytes().to_vec();
    for sequence in all {
        bytes.extend_from_slice(&disk.bytes_of(&path(sequence)).unwrap());
    }
    bytes
}

fn segments_samples() -> Vec<Sample> {
    let first = EntryV2 { id: id(1, 0), payload: PayloadV2::Membership(membership()) };
    let blank = EntryV2 { id: id(2, 1), payload: PayloadV2::Blank };
    let small = vec![vec![first.clone()], vec![blank.clone()], batches(2..5, 20)];
    let long = vec![vec![first, blank], batches(2..9, 900), batches(9..10, 300), batches(10..14, 700)];
    vec![("small", image(small, None)), ("long", image(long.clone(), None)), ("purged", image(long, Some(id(2, 9))))]
}

fn mend_segments(bytes: &mut [u8]) {
    let Some((first, rest)) = bytes.split_first_chunk_mut::<8>() else { return };
    let first = u64::from_le_bytes(*first);
    for (at, segment) in rest.chunks_mut(SEGMENT).enumerate() {
        if segment.len() >= HEADER_BYTES {
            mend_header_in(&mut segment[..HEADER_BYTES]);
            mend_records(segment, first.wrapping_add(at as u64));
        }
    }
}

fn mend_header(bytes: &mut Vec<u8>) {
    bytes.resize(HEADER_BYTES, 0);
    mend_header_in(bytes);
}

/// `magic 8 | crc32c u32 (of all that follows) | …`.
fn mend_header_in(header: &mut [u8]) {
    let crc = crc32c::crc32c(&header[12..]);
    header[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// `crc32c u32 | length u32 | kind u8 | …`; the checksum begins with the segment's number and the record's offset.
fn mend_records(segment: &mut [u8], sequence: u64) {
    let mut offset = HEADER_BYTES;
    while let Some(head) = segment.get(offset..offset + RECORD_HEAD) {
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let end = offset + RECORD_HEAD + length;
        if head[8] == 0 || end > segment.len() {
            return;
        }
        let mut crc = crc32c::crc32c(&sequence.to_le_bytes());
        crc = crc32c::crc32c_append(crc, &(offset as u64).to_le_bytes());
        crc = crc32c::crc32c_append(crc, &segment[offset + 4..end]);
        segment[offset..offset + 4].copy_from_slice(&crc.to_le_bytes());
        offset = end;
    }
}

fn header_samples() -> Vec<Sample> {
    let header = |header: SegmentHeaderV1| {
        let envelope = codec::encode(Kind::SegmentHeader, 1, &header).unwrap();
        let mut bytes = b"raft-log\0\0\0\0".to_vec();
        bytes.extend_from_slice(&(envelope.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&envelope);
        mend_header(&mut bytes);
        bytes
    };
    let state = LogStateV1 {
        vote: Some(VoteV1 { term: 3, node: Some(2), committed: true }),
        committed: Some(id(3, 300)),
        purged: Some(id(2, 9)),
        last: Some(id(3, 70_000)),
        first: 10,
    };
    vec![
        ("first", header(SegmentHeaderV1 { sequence: 1, previous_end: 0, group: 1, state: LogStateV1::default() })),
        ("later", header(SegmentHeaderV1 { sequence: 300, previous_end: 4_000, group: 70_000, state })),
    ]
}

/// A kind, 8 bytes of index, a payload.
fn change(bytes: &[u8]) -> Option<Vec<u8>> {
    let (kind, rest) = bytes.split_first()?;
    let (index, payload) = rest.split_first_chunk::<8>()?;
    let (kind, index, again) = reading::change(*kind, u64::from_le_bytes(*index), payload)?;
    Some(joined(kind, index, &again))
}

fn joined(kind: u8, index: u64, payload: &[u8]) -> Vec<u8> {
    [&[kind], &index.to_le_bytes()[..], payload].concat()
}

fn change_samples() -> Vec<Sample> {
    let of = |index, payload| codec::encode(Kind::Entry, 2, &EntryV2 { id: id(3, index), payload }).unwrap();
    let nodes = vec![(1, "a:1".to_owned(), "a:2".to_owned()), (2, String::new(), "b:2".to_owned())];
    let members = MembershipV1 { configs: vec![vec![1, 2]], nodes };
    let old = |payload| codec::encode(Kind::Entry, 1, &EntryV1 { id: id(1, 300), payload }).unwrap();
    let voted = codec::encode(Kind::Vote, 1, &VoteV1 { term: 7, node: Some(2), committed: true }).unwrap();
    let at = codec::encode(Kind::LogId, 1, &Some(id(3, 5))).unwrap();
    let nowhere = codec::encode(Kind::LogId, 1, &None::<LogIdV1>).unwrap();
    vec![
        ("vote", joined(1, 0, &voted)),
        ("committed", joined(2, 5, &at)),
        ("committed-none", joined(2, 0, &nowhere)),
        ("blank", joined(3, 300, &of(300, PayloadV2::Blank))),
        ("batch", joined(3, 301, &of(301, PayloadV2::Batch(Bytes::from_static(b"abc"))))),
        ("membership", joined(3, 302, &of(302, PayloadV2::Membership(membership())))),
        ("old-batch", joined(3, 300, &old(PayloadV1::Batch(Bytes::from_static(b"abc"))))),
        ("old-membership", joined(3, 300, &old(PayloadV1::Membership(members)))),
        ("truncate", joined(4, 5, &at)),
        ("purge", joined(5, 5, &at)),
        ("roll", joined(6, 9, &[])),
    ]
}
