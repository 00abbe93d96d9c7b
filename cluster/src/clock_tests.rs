//! The leader's clock under arbitrary evidence: what an outage gives back, and that stamps never go back.

#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;

const T: Duration = Duration::from_millis(1_500);
const START: Stamp = Stamp(1_000_000);

fn sole(ms: u64) -> Evidence {
    Evidence { now: Duration::from_millis(ms), quorum: Quorum::Sole }
}

fn acked(ms: u64, ack_ms: u64) -> Evidence {
    Evidence { now: Duration::from_millis(ms), quorum: Quorum::Acked(Some(Duration::from_millis(ack_ms))) }
}

fn led() -> LeaderClock {
    let mut clock = LeaderClock::new(T);
    clock.lead(1, START, sole(0));
    clock
}

/// Observes every 100 ms from `from` up to and with `to`.
fn watch(clock: &mut LeaderClock, from: u64, to: u64, at: impl Fn(u64) -> Evidence) {
    for ms in (from..=to).step_by(100) {
        clock.observe(at(ms));
    }
}

fn passed(clock: &mut LeaderClock, at: Evidence) -> u64 {
    clock.read(1, at).unwrap().ms_since(START)
}

#[test]
fn it_runs_with_the_monotonic_clock() {
    let mut clock = led();
    watch(&mut clock, 0, 10_000, sole);
    assert_eq!(passed(&mut clock, sole(10_000)), 10_000);
    assert_eq!(clock.hand_off(1, sole(10_250)), Some(START.plus_ms(10_250)));
}

#[test]
fn fractions_of_a_millisecond_are_not_lost() {
    let mut clock = led();
    for step in 1..=10_000_u64 {
        clock.observe(Evidence { now: Duration::from_micros(step * 700), quorum: Quorum::Sole });
    }
    assert_eq!(passed(&mut clock, sole(7_000)), 7_000);
}

#[test]
fn without_a_leadership_there_are_no_stamps() {
    let mut clock = LeaderClock::new(T);
    assert_eq!(clock.hand_off(1, sole(5)), None);
    clock.lead(2, START, sole(10));
    assert_eq!(clock.hand_off(1, sole(20)), None, "stamps are bound to their term");
    assert_eq!(clock.read(2, sole(30)), Some(START.plus_ms(20)));
    clock.follow();
    assert_eq!(clock.read(2, sole(40)), None);
    assert!(!clock.runs());
}

#[test]
fn a_new_leadership_starts_at_the_log_and_not_where_the_old_one_stood() {
    let mut clock = led();
    watch(&mut clock, 0, 5_000, sole);
    clock.lead(3, START.plus_ms(1_200), sole(9_000));
    assert_eq!(clock.read(3, sole(9_000)), Some(START.plus_ms(1_200)));
}

#[test]
fn a_stopped_process_costs_nothing() {
    let mut clock = led();
    watch(&mut clock, 0, 1_000, sole);
    assert_eq!(passed(&mut clock, sole(61_000)), 1_000, "a minute of SIGSTOP is cut out");
    assert_eq!(passed(&mut clock, sole(61_100)), 1_100, "then it runs on");
}

#[test]
fn a_stuck_disk_costs_at_most_t() {
    let mut clock = led();
    watch(&mut clock, 0, 1_000, sole);
    assert!(clock.hand_off(1, sole(1_000)).is_some());
    watch(&mut clock, 1_100, 30_000, sole);
    assert!(!clock.runs());
    assert_eq!(clock.uncommitted_for(Duration::from_secs(30)), Some(Duration::from_secs(29)));
    clock.settled(1, sole(30_050));
    let stood = passed(&mut clock, sole(30_050));
    assert_eq!(stood, 2_400, "1 000, and the observations younger than T");
    watch(&mut clock, 30_150, 30_650, sole);
    assert_eq!(passed(&mut clock, sole(30_650)), stood + 600, "then it runs on");
}

#[test]
fn an_entry_that_settles_late_between_observations_is_seen() {
    let mut clock = led();
    clock.observe(sole(1_000));
    clock.hand_off(1, sole(1_000));
    clock.observe(sole(2_400));
    clock.settled(1, sole(3_000));
    assert_eq!(
        passed(&mut clock, sole(3_000)),
        2_400,
        "2 000 ms uncommitted: the part that was judged at its end is cut"
    );
}

#[test]
fn a_lost_quorum_costs_at_most_t() {
    let mut clock = LeaderClock::new(T);
    clock.lead(1, START, acked(0, 0));
    watch(&mut clock, 0, 5_000, |ms| acked(ms, ms.saturating_sub(50)));
    watch(&mut clock, 5_100, 20_000, |ms| acked(ms, 4_950));
    assert!(!clock.runs());
    let stood = passed(&mut clock, acked(20_000, 4_950));
    assert!((5_000..4_950 + 1_500).contains(&stood), "{stood}");
    assert_eq!(passed(&mut clock, acked(20_100, 20_090)), stood, "the first ack proves nothing for the silence");
    watch(&mut clock, 20_200, 20_400, |ms| acked(ms, ms - 10));
    assert_eq!(passed(&mut clock, acked(20_400, 20_390)), stood + 200);
}

#[test]
fn a_leader_that_nobody_acked_stands_still() {
    let mut clock = LeaderClock::new(T);
    let silent = |ms| Evidence { now: Duration::from_millis(ms), quorum: Quorum::Acked(None) };
    clock.lead(1, START, silent(0));
    watch(&mut clock, 0, 5_000, silent);
    assert_eq!(passed(&mut clock, silent(5_000)), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Observe,
    HandOff,
    Settle,
    Read,
}

fn steps() -> impl Strategy<Value = Vec<(u64, bool, Step)>> {
    let step = prop_oneof![Just(Step::Observe), Just(Step::HandOff), Just(Step::Settle), Just(Step::Read)];
    let wait = prop_oneof![6 => 0..300_u64, 2 => 300..1_600_u64, 1 => 1_600..100_000_u64];
    prop::collection::vec((wait, any::<bool>(), step), 1..120)
}

proptest! {
    /// Whatever happens: stamps never go back, never outrun real time, and of each stretch of time in which an entry
    /// lay uncommitted or no quorum answered, at most T is counted.
    #[test]
    fn the_rules_hold(sole_voter in any::<bool>(), steps in steps()) {
        let (mut now, mut ack) = (Duration::ZERO, Duration::ZERO);
        let quorum = |ack| if sole_voter { Quorum::Sole } else { Quorum::Acked(Some(ack)) };
        let mut clock = LeaderClock::new(T);
        clock.lead(1, START, Evidence { now, quorum: quorum(ack) });
        let mut last = START;
        let mut handed: Option<(Duration, Stamp)> = None;
        let mut answered = (ack, START);
        for (wait, acks, step) in steps {
            now += Duration::from_millis(wait);
            if acks {
                ack = now;
            }
            let at = Evidence { now, quorum: quorum(ack) };
            match step {
                Step::Observe | Step::Read => clock.observe(at),
                Step::HandOff => {
                    let stamp = clock.hand_off(1, at).unwrap();
                    handed.get_or_insert((now, stamp));
                }
                Step::Settle => clock.settled(1, at),
            }
            let stamp = clock.read(1, at).unwrap();
            prop_assert!(stamp >= last, "went back from {last:?} to {stamp:?}");
            prop_assert!(u128::from(stamp.ms_since(START)) <= now.as_millis(), "ahead of real time");
            if let Some((_, at_hand_off)) = handed {
                prop_assert!(stamp.ms_since(at_hand_off) <= 1_500, "an uncommitted entry let more than T pass");
            }
            if matches!(step, Step::Settle) {
                handed = None;
            }
            if acks {
                prop_assert!(
                    sole_voter || stamp.ms_since(answered.1) <= 1_500 || ack - answered.0 < T,
                    "a silent quorum let more than T pass"
                );
                answered = (ack, stamp);
            }
            last = stamp;
        }
    }
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_found() {
    use crate::planted::is_found;
    assert!(is_found(Bug::QuorumGapCounts, a_lost_quorum_costs_at_most_t));
    assert!(is_found(Bug::StuckDiskGapCounts, a_stuck_disk_costs_at_most_t));
}
