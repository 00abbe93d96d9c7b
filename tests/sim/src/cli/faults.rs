//! What must have had an effect for a silence to mean anything.

use std::collections::BTreeMap;

/// Everything that a sweep must have seen happen.
pub const FAULTS: [&str; 87] = [
    "message_lost",
    "message_delayed",
    "message_duplicated",
    "message_overtaken",
    "way_cut",
    "one_way_cut",
    "link_slow",
    "reset",
    "refused",
    "killed",
    "power_cut",
    "torn_write",
    "write_lost",
    "paused",
    "stalled",
    "clock_rate",
    "wall_jump",
    "slow_sync",
    "disk_full",
    "disk_failed",
    "damage_refused",
    "snapshot_taken",
    "snapshot_installed",
    "log_purged",
    "leader_changed",
    "handed_over",
    "answer_lost",
    "crash_path",
    "segment_rolled",
    // A verdict over nothing says nothing.
    "judged_entries",
    "judged_on_another_node",
    "judged_loads",
    "judged_acknowledged",
    "keys_cross_checked",
    // What was asked and how it was answered: a rule that no call came near is not tried.
    "granted",
    "renewed",
    "released",
    "broken",
    "deleted",
    "lifetime_set",
    "lifetime_over",
    "refused_trespass",
    "refused_late",
    "in_doubt",
    // Of waiting: what clients saw,
    "granted_waiting",
    "refused_yours_waiting",
    "wait_over",
    "wait_superseded",
    // what became of their sockets,
    "waiting_client_gone",
    "waiting_client_silent",
    "wait_in_doubt",
    // and what stands in the log.
    "judged_events",
    "judged_jumps",
    "judged_waits_answered",
    "waits_queued",
    "waits_granted",
    "waits_superseded",
    "waits_taken_up_again",
    "waits_detached",
    "waits_undelivered",
    "waits_released",
    "waits_min_hold",
    "waits_deleted",
    "waits_lapsed",
    "waits_lapsed_by_time",
    "waits_timed_out",
    "quiet_dead",
    // Of pools: restarts (with the former token: yours; with another: own, taken over),
    "slots_granted",
    "slots_yours",
    "slots_own",
    "slots_own_in_quarantine",
    "slots_taken_over",
    "slots_superseded",
    "slots_in_conflict",
    "slots_in_use",
    // ends, and what comes after,
    "slots_renewed",
    "slots_released",
    "slots_expired",
    "slots_broken",
    "slots_lost_taken_over",
    "slots_in_quarantine",
    "slots_exhausted",
    // waiting, sizes, and readers.
    "slots_granted_waiting",
    "slot_waits_queued",
    "slots_held_beyond_the_end",
    "pools_grown",
    "judged_pools_shown",
];

/// A sweep of fewer seeds is not asked whether everything happened.
pub const SEEDS_MIN: u64 = 100;

/// How often something had an effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// In all runs together.
    pub times: u64,
    /// In so many of the runs.
    pub runs: u64,
}

/// Which of [`FAULTS`] never had an effect.
pub fn holes(counts: &BTreeMap<&'static str, Count>) -> Vec<&'static str> {
    let fired = |fault: &&str| counts.get(*fault).is_some_and(|count| count.times > 0);
    FAULTS.into_iter().filter(|fault| !fired(fault)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_happened_is_a_hole() {
        let once = Count { times: 1, runs: 1 };
        let mut counts: BTreeMap<_, _> = FAULTS.into_iter().map(|fault| (fault, once)).collect();
        counts.insert("something_else", Count::default());
        assert_eq!(holes(&counts), [""; 0]);
        counts.insert("paused", Count::default());
        counts.remove("torn_write");
        assert_eq!(holes(&counts), ["torn_write", "paused"]);
    }
}
