//! What may count of outages and of entries that are stuck.

use checker::{Answer, Call, Operation};

use super::super::Ledger;
use super::{Node, answered, breaks, keeps, moment};

/// T.
const LIMIT_MS: u64 = 400;

/// A write at entry `index` under this stamp, asked and answered at these times; all milliseconds.
fn write(index: u64, stamp_ms: u64, invoked_ms: u64, returned_ms: u64) -> Call {
    let call = answered(index, stamp_ms, Operation::Persist, Answer::Done);
    Call { invoked_ns: invoked_ms * 1_000_000, returned_ns: returned_ms * 1_000_000, ..call }
}

/// Two outages, of so many milliseconds from 1 000 ms and from 5 000 ms on.
fn timed(first_ms: u64, second_ms: u64, calls: &[Call]) -> Ledger {
    let ledger = Ledger::default();
    for (from_ms, for_ms) in [(1_000, first_ms), (5_000, second_ms)] {
        ledger.outage(from_ms * 1_000_000, (from_ms + for_ms) * 1_000_000);
    }
    ledger.timed(calls, LIMIT_MS);
    ledger
}

#[test]
fn outages_give_back() {
    let before = write(1, 0, 990, 995);
    // 10 ms before it, T (of the slowest clock), 20 ms after it, and rho of all that; and of 10 ms from the first call on.
    keeps(&timed(2_000, 0, &[before.clone(), write(2, 440, 3_000, 3_020)]));
    breaks("OutagesGiveBack", &timed(2_000, 0, &[before.clone(), write(2, 442, 3_000, 3_020)]));
    // In it, beyond T, nothing counts.
    keeps(&timed(2_000, 0, &[write(1, 0, 1_600, 1_605), write(2, 22, 3_000, 3_020)]));
    breaks("OutagesGiveBack", &timed(2_000, 0, &[write(1, 0, 1_600, 1_605), write(2, 24, 3_000, 3_020)]));
    // Each gives back its own.
    let both = |stamp_ms| timed(2_000, 1_000, &[before.clone(), write(2, stamp_ms, 6_000, 6_020)]);
    let counts = 10 + 404 + 2_000 + 404 + 20;
    keeps(&both(counts));
    breaks("OutagesGiveBack", &both(counts * 101 / 100 + 3));
    // One that is too short to be judged; what is read counts too; a read before a write says nothing.
    keeps(&timed(700, 0, &[before.clone(), write(2, 730, 1_700, 1_720)]));
    let read = Call { operation: Operation::Get, ..write(1, 442, 3_000, 3_020) };
    breaks("OutagesGiveBack", &timed(2_000, 0, &[before, read.clone()]));
    keeps(&timed(2_000, 0, &[Call { invoked_ns: 0, ..read }, write(2, 500, 3_000, 3_020)]));
    let ledger = timed(2_000, 1_000, &[]);
    assert_eq!(ledger.counts()["judged_outages"], 2);
}

#[test]
fn stuck_time_stands() {
    // Entries under these stamps, each applied at its time.
    let log = |entries: &[(u64, u64)]| {
        let ledger = Ledger::default();
        let (mut one, mut other) = (Node::new(&ledger, 1), Node::new(&ledger, 2));
        for (index, (stamp_ms, now_ms)) in entries.iter().enumerate() {
            // An order of the cluster's own stands after each.
            let moment = moment(2 * index as u64 + 2, *stamp_ms);
            one.begin(&moment, *now_ms);
            other.begin(&moment, now_ms + 1_000);
        }
        ledger.timed(&[], LIMIT_MS);
        ledger
    };
    keeps(&log(&[(100, 110), (200, 3_000), (600, 3_010), (1_600, 4_000)]));
    keeps(&log(&[(100, 110), (200, 3_000), (612, 3_010)]));
    breaks("StuckTimeStands", &log(&[(100, 110), (200, 3_000), (613, 3_010)]));
    // A slow one after a slow one hides it, a quick one does not.
    keeps(&log(&[(100, 110), (1_100, 1_110), (2_100, 2_110)]));
    breaks("StuckTimeStands", &log(&[(100, 110), (200, 1_110), (1_110, 2_110), (2_110, 2_120)]));
}
