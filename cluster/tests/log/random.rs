//! Random histories with random crashes, one after the other on the same disk, against the naive model.

use proptest::prelude::*;
use tenure_cluster::simdisk::{Fault, SimDisk};

use super::harness::{Op, Rig, content};

#[derive(Clone, Debug)]
enum End {
    Clean,
    Kill,
    PowerCut(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => Just(Op::Vote),
        8 => (1_u64..6, 0_usize..1200).prop_map(|(count, bytes)| Op::Append(count, bytes)),
        1 => (1_u64..3, 3000_usize..9000).prop_map(|(count, bytes)| Op::Append(count, bytes)),
        4 => Just(Op::Commit),
        2 => (1_u64..6).prop_map(Op::Truncate),
        2 => (0_u64..6).prop_map(Op::Purge),
        1 => (1_u64..4).prop_map(Op::Jump),
        6 => Just(Op::Step),
    ]
}

type Life = (Vec<Op>, Option<(u64, bool)>, End);

fn life() -> impl Strategy<Value = Life> {
    let end = prop_oneof![Just(End::Clean), Just(End::Kill), any::<u64>().prop_map(End::PowerCut)];
    (prop::collection::vec(op(), 1..40), prop::option::of((1_u64..120, any::<bool>())), end)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_restart_finds_a_prefix_with_all_that_was_told(lives in prop::collection::vec(life(), 1..6)) {
        let disk = SimDisk::new();
        let mut before: Option<Rig> = None;
        for (script, fault, end) in lives {
            if let Some((after, stop)) = fault {
                let kind = if stop { Fault::Stop } else { Fault::Error };
                disk.fail_at(disk.operations() + after, kind);
            }
            let mut rig = match Rig::open(&disk) {
                Ok(rig) => rig,
                Err(error) => {
                    prop_assert!(fault.is_some(), "an unhurt log was refused: {error}");
                    disk.process_crash();
                    continue;
                }
            };
            if let Some(before) = before.take() {
                before.assert_allows(&content(&rig.log));
            }
            // What was found counts as told: replication leans on it.
            rig.run(&script);
            if let (End::Clean, None) = (&end, fault) {
                prop_assert_eq!(rig.told, rig.prefixes.len() - 1 - rig.untold);
            }
            match end {
                End::Clean | End::Kill => disk.process_crash(),
                End::PowerCut(seed) => drop(disk.power_cut(seed)),
            }
            before = Some(rig);
        }
        disk.process_crash();
        let last = Rig::open(&disk).map_err(|error| TestCaseError::fail(error.to_string()))?;
        if let Some(before) = before {
            before.assert_allows(&content(&last.log));
        }
    }
}
