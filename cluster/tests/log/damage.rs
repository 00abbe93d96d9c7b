//! Damage: what must be refused, what must be cut, and that a refusal changes nothing.

use std::path::Path;

use tenure_cluster::codec::{self, Kind};
use tenure_cluster::error::OpenError;
use tenure_cluster::log::LogOptions;
use tenure_cluster::persisted::{LogStateV1, SegmentHeaderV1, VoteV1};
use tenure_cluster::simdisk::SimDisk;

use super::harness::{self, Content, Op, Rig, content, open, segment_path};

/// Where the last byte that is not zero ends.
fn used(disk: &SimDisk, sequence: u64) -> usize {
    let bytes = disk.bytes_of(&segment_path(sequence)).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)
}

fn refusal(disk: &SimDisk) -> String {
    let before = disk.operations();
    match open(disk) {
        Err(error @ OpenError::Damaged { .. }) => {
            let what = error.to_string();
            assert_eq!(disk.operations(), before + 1, "a refused log is only looked at (its parent is synced)");
            assert!(what.contains("To go on: ") && !what.contains('\n'), "{what}");
            what
        }
        Err(other) => panic!("{other}"),
        Ok((log, _)) => panic!("opened with {:?}", content(&log)),
    }
}

/// Groups of several records each, in one segment; returns where each ends and what the log was then.
fn groups(disk: &SimDisk) -> Vec<(usize, Content)> {
    let mut rig = Rig::open(disk).unwrap();
    let mut ends = vec![(512, rig.now())];
    for _ in 0..4 {
        assert!(rig.run(&[Op::Append(2, 60), Op::Commit, Op::Vote, Op::Append(1, 20), Op::Step]));
        ends.push((used(disk, 1), rig.now()));
    }
    disk.process_crash();
    ends
}

#[test]
fn any_flipped_byte_of_an_earlier_group_is_refused_and_of_the_last_group_cut() {
    let disk = SimDisk::new();
    let groups = groups(&disk);
    let whole = groups.last().unwrap();
    let before = &groups[groups.len() - 2];
    let bytes = disk.bytes_of(&segment_path(1)).unwrap();
    for offset in 0..whole.0 {
        disk.process_crash();
        disk.corrupt(&segment_path(1), offset, 0x40);
        if offset < before.0 {
            let what = refusal(&disk);
            assert!(what.contains("log segment 00000000000000000001.log, byte "), "{what}");
            disk.corrupt(&segment_path(1), offset, 0x40);
        } else {
            let found = content(&open(&disk).unwrap().0);
            assert_eq!(found, before.1, "byte {offset}");
            assert_eq!(used(&disk, 1), before.0, "the torn tail is zeroed");
            overwrite(&disk, &segment_path(1), &bytes, 0);
        }
    }
}

#[test]
fn a_lost_sector_of_an_earlier_group_is_refused() {
    let disk = SimDisk::new();
    let groups = groups(&disk);
    let bytes = disk.bytes_of(&segment_path(1)).unwrap();
    // From the middle of the first group on, zeros up to a later group.
    for (at, byte) in bytes.iter().enumerate().take(groups[2].0).skip(groups[0].0 + 30) {
        disk.corrupt(&segment_path(1), at, *byte);
    }
    assert!(refusal(&disk).contains("write group 1 does not check out although group 3"));
}

/// A log of several segments with live entries in all of them.
fn segments(disk: &SimDisk) -> Content {
    let mut rig = Rig::open(disk).unwrap();
    assert!(rig.run(&[Op::Vote, Op::Append(14, 700), Op::Step]));
    disk.process_crash();
    rig.now()
}

#[test]
fn any_flipped_byte_of_an_older_segment_is_refused_or_means_nothing() {
    let disk = SimDisk::new();
    let expected = segments(&disk);
    assert!(disk.bytes_of(&segment_path(3)).is_some());
    // The roll record ends with the zeros of a small number.
    let end = used(&disk, 2) + 7;
    for offset in (0..4096).step_by(3) {
        disk.process_crash();
        disk.corrupt(&segment_path(2), offset, 1);
        if offset < end {
            refusal(&disk);
        } else {
            let opened = open(&disk).unwrap_or_else(|error| panic!("byte {offset} of {end}: {error}"));
            assert_eq!(content(&opened.0), expected);
        }
        disk.corrupt(&segment_path(2), offset, 1);
    }
}

#[test]
fn a_missing_segment_is_refused_whichever_it_is() {
    let newest = (1..).take_while(|sequence| {
        let disk = SimDisk::new();
        segments(&disk);
        disk.bytes_of(&segment_path(*sequence)).is_some()
    });
    let newest = newest.last().unwrap();
    assert!(newest >= 3);
    for sequence in 1..=newest {
        let disk = SimDisk::new();
        segments(&disk);
        disk.lose(&segment_path(sequence));
        let what = refusal(&disk);
        if sequence == 1 {
            assert!(what.contains("log entry 0 is missing"), "{what}");
        } else {
            assert!(what.contains(&format!("log segment {sequence:020}.log is missing")), "{what}");
        }
    }
}

#[test]
fn a_segment_of_another_log_is_refused_even_if_all_its_sizes_agree() {
    for (term, bytes, expected) in [(5, 700, "do not add up"), (1, 650, "does not end where the next segment says")] {
        let (disk, other) = (SimDisk::new(), SimDisk::new());
        segments(&disk);
        let mut rig = Rig::open(&other).unwrap();
        rig.term = term;
        assert!(rig.run(&[Op::Vote, Op::Append(14, bytes), Op::Step]));
        overwrite(&disk, &segment_path(2), &other.bytes_of(&segment_path(2)).unwrap(), 0);
        let what = refusal(&disk);
        assert!(what.contains(expected), "{what}");
    }
}

#[test]
fn an_empty_directory_is_refused_where_a_log_was() {
    let disk = SimDisk::new();
    let options = LogOptions { must_exist: true, ..harness::options() };
    let opened = tenure_cluster::log::LogStore::<tenure_cluster::raft::TokioRuntime>::open_stepped(
        disk.mount(),
        harness::DIR.into(),
        options,
        std::sync::Arc::new(tenure_cluster::config::Unobserved),
    );
    assert!(matches!(opened, Err(OpenError::Damaged { .. })));
}

fn overwrite(disk: &SimDisk, path: &Path, bytes: &[u8], offset: u64) {
    disk.mount().open(path).unwrap().write_at(bytes, offset).unwrap();
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let disk = SimDisk::new();
    drop(Rig::open(&disk).unwrap());
    let state = LogStateV1::default();
    let header = SegmentHeaderV1 { sequence: 1, previous_end: 0, group: 1, state };
    let envelope = codec::encode(Kind::SegmentHeader, 2, &header).unwrap();
    let mut bytes = vec![0; 512];
    bytes[..8].copy_from_slice(b"raft-log");
    bytes[12..14].copy_from_slice(&(envelope.len() as u16).to_le_bytes());
    bytes[14..14 + envelope.len()].copy_from_slice(&envelope);
    let crc = crc32c::crc32c(&bytes[12..]).to_le_bytes();
    bytes[8..12].copy_from_slice(&crc);
    let good = disk.bytes_of(&segment_path(1)).unwrap();
    overwrite(&disk, &segment_path(1), &bytes, 0);
    let text = open(&disk).err().unwrap().to_string();
    assert!(text.contains("newer version") && text.contains("version 2, this build reads up to 1"), "{text}");

    // The same in a record, here a vote as group 1.
    overwrite(&disk, &segment_path(1), &good, 0);
    let payload = codec::encode(Kind::Vote, 7, &VoteV1 { term: 1, node: Some(1), committed: false }).unwrap();
    let mut record = vec![0; 28];
    record[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    record[8..10].copy_from_slice(&[1, 1]);
    record[12..20].copy_from_slice(&1_u64.to_le_bytes());
    record.extend_from_slice(&payload);
    let mut covered = Vec::new();
    covered.extend_from_slice(&1_u64.to_le_bytes());
    covered.extend_from_slice(&512_u64.to_le_bytes());
    covered.extend_from_slice(&record[4..]);
    let crc = crc32c::crc32c(&covered).to_le_bytes();
    record[..4].copy_from_slice(&crc);
    overwrite(&disk, &segment_path(1), &record, 512);
    let text = open(&disk).err().unwrap().to_string();
    assert!(text.contains("newer version") && text.contains("Vote of version 7"), "{text}");
}
