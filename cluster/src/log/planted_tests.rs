//! The log's planted bugs: each breaks what holds without it.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::record::Change;
use super::spare::Making;
use super::{LogOptions, Open, Step, Writer, segment};
use crate::config::Unobserved;
use crate::error::OpenError;
use crate::persisted::{EntryV2, LogIdV1, PayloadV2, VoteV1};
use crate::planted::{Bug, with};
use crate::simdisk::{Fault, SimDisk};

const DIR: &str = "/log";
const VOTE: VoteV1 = VoteV1 { term: 7, node: Some(2), committed: false };

fn open(disk: &SimDisk) -> Result<(Open, Writer), OpenError> {
    let options = LogOptions { segment_bytes: 8192, ..LogOptions::default() };
    Open::new(disk.mount(), PathBuf::from(DIR), options, Arc::new(Unobserved), Making::Inline)
}

fn id(index: u64) -> LogIdV1 {
    LogIdV1 { term: 7, node: 2, index }
}

/// An entry of three sectors.
fn entry(index: u64) -> Change {
    Change::Append(EntryV2 { id: id(index), payload: PayloadV2::Batch(Bytes::from(vec![9; 1500])) })
}

/// Each change is a group of its own.
fn write(log: &Open, writer: &mut Writer, changes: impl IntoIterator<Item = Change>) {
    for change in changes {
        log.queue.submit(change, None).unwrap();
        assert_eq!(writer.step(true), Step::Wrote);
    }
}

/// Is a vote that was told to be synced there after every power cut?
fn keeps_what_it_told() -> bool {
    (0..20).all(|seed| {
        let disk = SimDisk::new();
        let (log, mut writer) = open(&disk).unwrap();
        let told = Arc::new(AtomicBool::new(false));
        let heard = Arc::clone(&told);
        log.queue.submit(Change::Vote(VOTE), Some(Box::new(move |_| heard.store(true, Ordering::Relaxed)))).unwrap();
        writer.step(true);
        assert!(told.load(Ordering::Relaxed));
        disk.power_cut(seed);
        open(&disk).is_ok_and(|(log, _)| log.queue.lock().vote == Some(VOTE))
    })
}

/// Is a vote there after a purge and a restart?
fn keeps_the_vote() -> bool {
    let disk = SimDisk::new();
    let (log, mut writer) = open(&disk).unwrap();
    write(&log, &mut writer, [Change::Vote(VOTE), entry(1), entry(2), Change::Purge(id(1))]);
    assert_eq!(log.queue.lock().vote, Some(VOTE));
    disk.process_crash();
    open(&disk).unwrap().0.queue.lock().vote == Some(VOTE)
}

/// Does it open whatever a power cut left of the last write?
fn cuts_what_is_torn() -> bool {
    (0..20).all(|seed| {
        let disk = SimDisk::new();
        let (log, mut writer) = open(&disk).unwrap();
        write(&log, &mut writer, [entry(1)]);
        disk.fail_at(disk.operations() + 2, Fault::Stop);
        log.queue.submit(entry(2), None).unwrap();
        assert_eq!(writer.step(true), Step::Stopped);
        disk.power_cut(seed);
        open(&disk).is_ok()
    })
}

/// Is a log refused in the middle of which a byte has changed?
fn refuses_damage() -> bool {
    let disk = SimDisk::new();
    let (log, mut writer) = open(&disk).unwrap();
    write(&log, &mut writer, [entry(1), entry(2), entry(3)]);
    disk.process_crash();
    disk.corrupt(&segment::path(Path::new(DIR), 1), 600, 0x40);
    matches!(open(&disk), Err(OpenError::Damaged { .. }))
}

#[test]
fn each_bug_breaks_what_holds_without_it() {
    let laws: [(Bug, fn() -> bool); 4] = [
        (Bug::AckBeforeSync, keeps_what_it_told),
        (Bug::VoteLostByPurge, keeps_the_vote),
        (Bug::TornGroupRefused, cuts_what_is_torn),
        (Bug::DamageCut, refuses_damage),
    ];
    for (bug, law) in laws {
        assert!(law(), "without {bug:?}");
        assert!(!with(bug, law), "with {bug:?}");
    }
}
