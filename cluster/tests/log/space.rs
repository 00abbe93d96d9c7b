//! A full disk: entries wait, votes do not, and everything goes on by itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, RaftLogStorage, RaftLogStorageExt};
use openraft::type_config::TypeConfigExt;
use tenure_cluster::config::Unobserved;
use tenure_cluster::log::{LogOptions, LogStore, Step};
use tenure_cluster::raft::{Batch, Entry, TokioRuntime, Vote};
use tenure_cluster::simdisk::SimDisk;

use super::harness::{self, Op, Rig, Types, content, id, open, script};

fn entry(index: u64, bytes: usize) -> Entry<TokioRuntime> {
    Entry::<TokioRuntime>::new(id(1, index), EntryPayload::Normal(Batch(Bytes::from(vec![7; bytes]))))
}

/// A log whose appends wait for space, with one that does.
fn full() -> (SimDisk, Rig) {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk).unwrap();
    assert!(rig.run(&[Op::Append(1, 10), Op::Step]));
    disk.set_capacity(Some(disk.used() + 100));
    for _ in 0..100 {
        assert!(rig.act(&Op::Append(1, 500)));
        if rig.settle() == Step::Full {
            assert!(rig.told < rig.prefixes.len() - 1);
            return (disk, rig);
        }
    }
    panic!("the disk never was full");
}

#[test]
fn entries_wait_while_votes_take_the_spare_and_space_ends_it() {
    let (disk, mut rig) = full();
    assert!(rig.log.disk_full());
    assert_eq!((rig.refused, rig.log.fault()), (0, None));
    // The vote takes along what waits before it: order is kept.
    assert!(rig.act(&Op::Vote));
    assert_eq!(rig.settle(), Step::Idle);
    assert_eq!(rig.told, rig.prefixes.len() - 1);
    assert!(!rig.log.disk_full());
    // Entries fill what is left of that segment, then wait again; votes too once nothing is left at all.
    while rig.settle() != Step::Full {
        assert!(rig.act(&Op::Append(1, 500)));
    }
    assert!(rig.log.disk_full());
    assert!(rig.act(&Op::Vote) && rig.act(&Op::Append(3, 500)));
    assert_eq!(rig.settle(), Step::Full);
    disk.set_capacity(None);
    assert_eq!(rig.settle(), Step::Idle);
    assert!(!rig.log.disk_full());
    assert_eq!((rig.told, rig.refused), (rig.prefixes.len() - 1, 0));
    let expected = rig.now();
    disk.process_crash();
    assert_eq!(content(&open(&disk).unwrap().0), expected);
}

#[test]
fn a_full_disk_is_not_tried_at_every_step() {
    let (disk, mut rig) = full();
    let before = disk.operations();
    for _ in 0..5 {
        assert_eq!(rig.writer.step(false), Step::Full);
    }
    assert_eq!(disk.operations(), before);
}

#[test]
fn a_restart_on_a_full_disk_works_and_still_votes() {
    let (disk, rig) = full();
    let told = rig.prefixes[rig.told].clone();
    drop(rig);
    disk.process_crash();
    disk.power_cut(3);
    let mut rig = Rig::open(&disk).unwrap();
    assert_eq!(content(&rig.log), told);
    assert!(rig.act(&Op::Vote));
    rig.settle();
    assert_eq!(rig.told, rig.prefixes.len() - 1);
}

#[test]
fn a_purge_makes_space_by_itself() {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk).unwrap();
    assert!(rig.run(&[Op::Append(20, 700), Op::Step, Op::Commit]));
    disk.set_capacity(Some(disk.used()));
    while rig.settle() != Step::Full {
        assert!(rig.act(&Op::Append(1, 700)));
    }
    assert!(rig.act(&Op::Purge(2)));
    assert_eq!(rig.settle(), Step::Idle);
    assert_eq!((rig.told, rig.refused), (rig.prefixes.len() - 2, 0));
    assert!(rig.run(&[Op::Append(3, 700)]));
    assert_eq!(rig.told, rig.prefixes.len() - 1);
}

#[test]
fn whatever_the_capacity_nothing_is_lost_and_nothing_fails() {
    for capacity in (8192..80_000).step_by(1111) {
        let disk = SimDisk::new();
        disk.set_capacity(Some(capacity));
        let Ok(mut rig) = Rig::open(&disk) else { panic!("two segments fit {capacity} bytes") };
        for op in script() {
            assert!(rig.act(&op), "capacity {capacity}");
        }
        if rig.settle() == Step::Full {
            assert!(rig.log.disk_full());
            disk.set_capacity(None);
        }
        assert_eq!(rig.settle(), Step::Idle);
        assert_eq!((rig.told, rig.refused), (rig.prefixes.len() - 1, 0));
        let expected = rig.now();
        disk.process_crash();
        disk.power_cut(capacity);
        assert_eq!(content(&open(&disk).unwrap().0), expected);
    }
}

#[test]
fn an_append_waits_while_too_much_is_not_synced() {
    let disk = SimDisk::new();
    let options = LogOptions { unsynced_bytes_max: 1000, ..harness::options() };
    let opened =
        LogStore::<TokioRuntime>::open_stepped(disk.mount(), harness::DIR.into(), options, Arc::new(Unobserved));
    let (mut log, mut writer) = opened.unwrap();
    let mut second = log.clone();
    // Larger than the limit: goes alone.
    log.append([entry(0, 2000)], IOFlushed::noop()).now_or_never().unwrap().unwrap();
    let mut waiting = Box::pin(second.append([entry(1, 10)], IOFlushed::noop()));
    assert!((&mut waiting).now_or_never().is_none());
    assert_eq!(writer.step(false), Step::Wrote);
    (&mut waiting).now_or_never().expect("there is room again").unwrap();
    drop(waiting);
    assert_eq!(writer.step(false), Step::Wrote);
    // Closing ends the wait as well, with an error.
    log.append([entry(2, 2000)], IOFlushed::noop()).now_or_never().unwrap().unwrap();
    let mut waiting = Box::pin(second.append([entry(3, 10)], IOFlushed::noop()));
    assert!((&mut waiting).now_or_never().is_none());
    log.close();
    assert!((&mut waiting).now_or_never().unwrap().is_err());
}

#[test]
fn the_writer_thread_comes_back_by_itself() {
    Types::run(async {
        let disk = SimDisk::new();
        let opened = LogStore::open(disk.mount(), harness::DIR.into(), harness::options(), Arc::new(Unobserved));
        let mut log: LogStore<TokioRuntime> = opened.unwrap();
        log.blocking_append([entry(0, 500)]).await.unwrap();
        disk.set_capacity(Some(disk.used()));
        let (told, answer) = Types::oneshot();
        log.append((1..60).map(|index| entry(index, 500)), IOFlushed::signal(told)).await.unwrap();
        // More than segment and spare hold: full, whatever was made before the limit.
        while !log.disk_full() {
            Types::sleep(Duration::from_millis(1)).await;
        }
        disk.set_capacity(None);
        // It tries once a second; the limit is for a broken build only.
        let result = Types::timeout(Duration::from_secs(60), answer).await.expect("comes back").unwrap();
        result.unwrap();
        assert!(!log.disk_full());
        log.save_vote(&Vote::<TokioRuntime>::new(9, 1)).await.unwrap();
        log.close();
        assert!(log.save_vote(&Vote::<TokioRuntime>::new(10, 1)).await.is_err());
        let (log, _) = open(&disk).unwrap();
        assert_eq!(content(&log).entries.len(), 60);
    });
}
