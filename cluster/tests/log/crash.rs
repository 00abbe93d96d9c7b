//! Crashes at every disk operation: power cuts that tear and lose, killed processes, failed writes and syncs.

use tenure_cluster::error::OpenError;
use tenure_cluster::log::Step;
use tenure_cluster::simdisk::{Fault, SimDisk};

use super::harness::{Content, Op, Rig, content, open, script};

const SEEDS: u64 = 6;

/// Runs the script on a disk on which operation `at` has `fault`.
fn run_with(at: u64, fault: Fault) -> (SimDisk, Option<Rig>) {
    let disk = SimDisk::new();
    disk.fail_at(at, fault);
    let rig = Rig::open(&disk).ok().map(|mut rig| {
        rig.run(&script());
        rig
    });
    (disk, rig)
}

fn operations() -> u64 {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk).unwrap();
    assert!(rig.run(&script()), "the script runs to its end where nothing fails");
    assert_eq!(rig.told, rig.prefixes.len() - 1, "everything was told in the end");
    assert_eq!(content(&rig.log), rig.now());
    disk.operations()
}

fn check(rig: Option<&Rig>, found: &Content) {
    match rig {
        Some(rig) => rig.assert_allows(found),
        None => assert_eq!(*found, Content::default(), "the log was never opened"),
    }
}

/// The log found goes on: what is appended to it is there after a clean restart, exactly.
fn goes_on(disk: &SimDisk) {
    let mut rig = Rig::open(disk).unwrap();
    assert!(rig.run(&[Op::Append(2, 300), Op::Step, Op::Vote, Op::Append(3, 900), Op::Step]));
    assert_eq!(rig.told, rig.prefixes.len() - 1);
    disk.process_crash();
    disk.power_cut(0);
    assert_eq!(content(&open(disk).unwrap().0), rig.now());
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing_told() {
    for at in 1..=operations() {
        for seed in 0..SEEDS {
            let (disk, rig) = run_with(at, Fault::Stop);
            disk.power_cut(seed);
            // A second cut in the midst of the recovery.
            disk.fail_at(disk.operations() + 1 + seed, Fault::Stop);
            let first = open(&disk).map(|(log, _)| content(&log));
            disk.power_cut(seed + 100);
            let (log, _) = open(&disk).unwrap_or_else(|error| panic!("operation {at}, seed {seed}: {error}"));
            let found = content(&log);
            check(rig.as_ref(), &found);
            if let Ok(first) = first {
                assert_eq!(first, found, "operation {at}, seed {seed}: what a restart found was not durable");
            }
            drop(log);
            goes_on(&disk);
        }
    }
}

#[test]
fn what_a_killed_process_left_is_made_durable_at_the_restart() {
    for at in 1..=operations() {
        let (disk, rig) = run_with(at, Fault::Stop);
        disk.process_crash();
        let found = content(&open(&disk).unwrap().0);
        check(rig.as_ref(), &found);
        for seed in 0..2 {
            disk.power_cut(seed);
            assert_eq!(content(&open(&disk).unwrap().0), found, "operation {at}");
        }
        goes_on(&disk);
    }
}

#[test]
fn after_an_error_nothing_is_told_and_a_restart_trusts_no_unsynced_byte() {
    for at in 1..=operations() {
        let (disk, rig) = run_with(at, Fault::Error);
        if let Some(mut rig) = rig {
            let fault = rig.log.fault().unwrap_or_else(|| panic!("operation {at} failed unnoticed"));
            assert!(!fault.contains('\n') && fault.contains("/log"), "{fault}");
            let (told, refused) = (rig.told, rig.refused);
            assert!(!rig.act(&Op::Append(1, 1)) && !rig.act(&Op::Vote) && !rig.act(&Op::Commit));
            assert_eq!(rig.step(), Step::Stopped);
            assert_eq!(rig.told, told);
            assert!(rig.refused > refused, "a vote after the fault is refused");
            disk.process_crash();
            let found = content(&open(&disk).unwrap_or_else(|error| panic!("operation {at}: {error}")).0);
            check(Some(&rig), &found);
            disk.power_cut(at);
            assert_eq!(content(&open(&disk).unwrap().0), found, "operation {at}: the page cache was believed");
        } else {
            assert!(matches!(open(&disk), Ok(_) | Err(OpenError::Io { .. })));
        }
        goes_on(&disk);
    }
}

#[test]
fn an_error_while_opening_is_reported_and_harms_nothing() {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk).unwrap();
    assert!(rig.run(&script()));
    let expected = rig.now();
    disk.process_crash();
    let before = disk.operations();
    drop(open(&disk).unwrap());
    let needed = disk.operations() - before;
    assert!(needed > 0);
    for at in 1..=needed {
        disk.process_crash();
        disk.fail_at(disk.operations() + at, Fault::Error);
        assert!(matches!(open(&disk), Err(OpenError::Io { .. })), "operation {at}");
        disk.power_cut(at);
        assert_eq!(content(&open(&disk).unwrap().0), expected);
    }
}
