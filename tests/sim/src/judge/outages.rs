//! What may count of the time in which nobody could renew: of each outage the first T, and nothing more (T is twice the
//! least election timeout, on the leader's own clock). Judged when the run is over.
//!
//! # `OutagesGiveBack`
//! An **outage** is a span of true time in which surely no majority worked together; the world tells them. For any write
//! and anything that stands at or after it in the log, the clock went on by no more than the *countable* time from the one's
//! invocation to the other's return, times 1 + rho. Countable is all time but what lies in an outage beyond its first T.
//!
//! Why that holds: a leader's clock counts between two observations if at both a quorum's acknowledgement is younger than T,
//! and they lie less than T apart. An acknowledgement is as old as its request. In an outage none arrives whose request
//! was sent in it, so no observation in it is sound after its first T. The observation after the last sound one comes less
//! than T later, or what lies between does not count; in an outage of **2 T** or more it comes before the end, and is not
//! sound. So of such an outage nothing counts beyond the first T. Of a shorter one all may, if the leader stood still in
//! it; that is not judged. A next leader's clock starts at the log's last stamp, hence adds nothing. Countable time never
//! falls, so that invocation and return, which enclose the two stamps, will do for them.
//!
//! # `StuckTimeStands`
//! For entries that follow each other in the log, with stamps `s` and instants `t` at which the first node applied each:
//! `s[k+1] - s[k] <= T + (t[k+1] - t[k]) (1 + rho)`.
//!
//! Why: a leader has one stamped entry in flight. From its hand-off until it is settled at most T counts (an observation
//! after that is not sound, the one that settles it included); from then to the next hand-off no more than the time itself.
//! It is settled after it was applied, and the next is applied after its hand-off. If another leader stamps the next, its
//! clock starts at the greatest stamp of its log, after it applied all of that, entry `k` included: then `T` is not even
//! used up, unless by entries in flight that the log has lost, whose stamps nobody saw. Orders of the cluster's own stand
//! between two entries at times and have no stamp.
//!
//! # Not promised
//! Sharpness while every entry is slow: the next one's own time in flight is taken for time that may count. The first quick
//! entry after a slow one shows what was counted.

use checker::{Call, Witness};

use super::Verdict;
use super::log::Log;

/// Of one run: a plan has fewer acts. Beyond it nothing is given back, hence less is judged.
const OUTAGES_MAX: usize = 10_000;
/// `1 + rho`, in percent.
const PACE_PERCENT: i128 = 101;
/// Stamps are whole milliseconds, rounded at either end.
const ROUNDING_NS: i128 = 2 * NS_PER_MS;
const NS_PER_MS: i128 = 1_000_000;

/// The outages of a run, in order of time.
#[derive(Debug, Default)]
pub(super) struct Outages(Vec<(u64, u64)>);

/// Time that may count: all but these spans, which lie in order; with each, how long it and those before it are.
struct Countable(Vec<(i128, i128, i128)>);

impl Outages {
    pub(super) fn add(&mut self, from_ns: u64, until_ns: u64) {
        if self.0.len() < OUTAGES_MAX {
            self.0.push((from_ns, until_ns));
        }
    }

    fn countable(&self, limit_ms: u64) -> Countable {
        // Of the slowest clock that there may be.
        let limit_ns = i128::from(limit_ms) * NS_PER_MS * PACE_PERCENT / 100;
        let mut lost_ns = 0;
        let long = self.0.iter().map(|(from, until)| (i128::from(*from), i128::from(*until)));
        let spans = long.filter(|(from, until)| until - from >= 2 * limit_ns).map(|(from, until)| {
            lost_ns += until - from - limit_ns;
            (from + limit_ns, until, lost_ns)
        });
        Countable(spans.collect())
    }

    /// `OutagesGiveBack`, of what clients were answered. Returns how many outages were long enough to be judged.
    pub(super) fn compare(&self, calls: &[Call], limit_ms: u64, verdict: &mut Verdict) -> u64 {
        let countable = self.countable(limit_ms);
        if countable.0.is_empty() {
            return 0;
        }
        let mut answered: Vec<(&Call, &Witness)> =
            calls.iter().filter_map(|call| call.answered().map(|(witness, _)| (call, witness))).collect();
        // What a read at a position saw includes the write at that position.
        answered.sort_by_key(|(call, witness)| (witness.position, !call.is_write()));
        let mut tightest: Option<(i128, &Call)> = None;
        for (call, witness) in answered {
            // How far the clock is ahead of what counts, in hundredths of a nanosecond.
            let clock = i128::from(witness.clock_ms) * NS_PER_MS * 100;
            let ahead = clock - countable.until(call.returned_ns) * PACE_PERCENT;
            if let Some((least, before)) = tightest.filter(|(least, _)| ahead > least + ROUNDING_NS * 100) {
                verdict.violated("OutagesGiveBack", || {
                    let over_us = (ahead - least) / 100_000;
                    format!("the clock counts {over_us} us that nobody could use, from {before} to {call}")
                });
            }
            let room = clock - countable.until(call.invoked_ns) * PACE_PERCENT;
            if call.is_write() && tightest.is_none_or(|(least, _)| room < least) {
                tightest = Some((room, call));
            }
        }
        countable.0.len() as u64
    }
}

impl Countable {
    /// How much may count up to `at_ns`.
    fn until(&self, at_ns: u64) -> i128 {
        let at = i128::from(at_ns);
        let begun = self.0.partition_point(|(from, ..)| *from < at);
        let Some((_, until, lost)) = begun.checked_sub(1).and_then(|last| self.0.get(last)) else { return at };
        at - lost + (until - at).max(0)
    }
}

/// `StuckTimeStands`, of all entries.
pub(super) fn stuck(log: &Log, limit_ms: u64, verdict: &mut Verdict) {
    let mut before = None;
    for (index, entry) in log.entries() {
        let this = (index, entry.stamp_ms, i128::from(entry.first_ns));
        if let Some((last, stamp_ms, first_ns)) = before.replace(this) {
            let counted_ns = i128::from(entry.stamp_ms.saturating_sub(stamp_ms)) * NS_PER_MS;
            let between_ns = this.2 - first_ns;
            let most_ns = i128::from(limit_ms) * NS_PER_MS + between_ns * PACE_PERCENT / 100 + ROUNDING_NS;
            if counted_ns > most_ns {
                verdict.violated("StuckTimeStands", || {
                    let (counted_ms, between_ms) = (counted_ns / NS_PER_MS, between_ns / NS_PER_MS);
                    format!("{counted_ms} ms from entry {last} to {index}, applied {between_ms} ms after it; T is {limit_ms} ms")
                });
            }
        }
    }
}
