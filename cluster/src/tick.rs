//! Lets time pass in the log: a tick is an entry without a command.
//!
//! A tick is due at once while the machine has a backlog (`wake <= applied`) or a read waits for time that is not in the
//! log; when the machine's next timer is due; and a second after the last stamp while any timer is outstanding, so that
//! a failover, which starts at the last stamp in the log, gives back no more than that. One tick is in flight at a time.
//! Timers alone cause at most one tick in [`SPACING_MS`]. Without timers nothing is written.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::type_config::TypeConfigExt;
use tokio::sync::{Notify, watch};

use crate::machine::Stamp;
use crate::proposal::Intake;
use crate::raft::{AsyncRuntime, TypeConfig};
use crate::replica::Mark;
use crate::timekeeper::{Lead, Timekeeper};

/// Least distance of two ticks that only timers cause, cluster milliseconds.
const SPACING_MS: u64 = 10;
/// The log's last stamp is at most so old while a timer is outstanding, cluster milliseconds.
const KEEP_WITHIN_MS: u64 = 1_000;
/// Longest sleep before the clock is read again: it may have stood still.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// Reads that wait until a stamp is in the log.
#[derive(Debug, Default)]
pub struct Wanted {
    /// The leadership they read under, and the greatest stamp wanted: a stamp means nothing under another.
    stamp: Mutex<(u64, Stamp)>,
    changed: Notify,
}

impl Wanted {
    /// Asks the leadership `lead` for an entry of `stamp` or later.
    pub fn want(&self, lead: Lead, stamp: Stamp) {
        let mut wanted = self.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        if *wanted < (lead.term, stamp) {
            *wanted = (lead.term, stamp);
            self.changed.notify_one();
        }
    }

    /// The greatest stamp wanted of `lead`.
    fn stamp(&self, lead: Lead) -> Stamp {
        let (term, stamp) = *self.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        if term == lead.term { stamp } else { Stamp::default() }
    }
}

/// When the next tick is due on the cluster clock; `None`: only when something changes.
fn due(mark: Mark, wanted: Stamp) -> Option<Stamp> {
    let applied = mark.stamp;
    if wanted > applied {
        return Some(wanted);
    }
    let wake = mark.wake?;
    if wake <= applied {
        return Some(applied);
    }
    Some(wake.max(applied.plus_ms(SPACING_MS)).min(applied.plus_ms(KEEP_WITHIN_MS)))
}

/// Proposes ticks while this node leads.
pub struct Ticker<RT: AsyncRuntime> {
    /// The clock.
    pub time: Arc<Timekeeper<RT>>,
    /// Where ticks are proposed.
    pub intake: Intake<RT>,
    /// How far the state is.
    pub mark: watch::Receiver<Mark>,
    /// Reads that wait for time.
    pub wanted: Arc<Wanted>,
    /// How long a tick may wait for its turn.
    pub request_timeout: Duration,
}

impl<RT: AsyncRuntime> Ticker<RT> {
    /// Runs for ever.
    pub async fn run(mut self) {
        let mut leading = self.time.leading();
        loop {
            let lead = match leading.wait_for(Option::is_some).await {
                Ok(lead) => *lead,
                Err(_) => return,
            };
            if let Some(lead) = lead {
                TypeConfig::<RT>::select2(self.turn(lead), leading.changed()).await;
            }
        }
    }

    /// Waits for the next change or due time, and proposes a tick when one is due.
    async fn turn(&mut self, lead: Lead) {
        let mark = *self.mark.borrow_and_update();
        let Some(now) = self.time.read(lead) else {
            // The leadership is over: the watch is about to say so.
            return TypeConfig::<RT>::sleep(LOOK_AFTER).await;
        };
        match due(mark, self.wanted.stamp(lead)) {
            Some(due) if due <= now => {
                // Unanswered ticks need no care: the next turn sees what is still due.
                let _ = self.intake.propose(None, 0, self.request_timeout).await;
            }
            Some(due) => {
                let wait = Duration::from_millis(due.ms_since(now)).min(LOOK_AFTER);
                let changed = TypeConfig::<RT>::select2(self.mark.changed(), self.wanted.changed.notified());
                TypeConfig::<RT>::select2(changed, TypeConfig::<RT>::sleep(wait)).await;
            }
            None => {
                TypeConfig::<RT>::select2(self.mark.changed(), self.wanted.changed.notified()).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(applied: u64, wake: Option<u64>) -> Mark {
        Mark { last: None, stamp: Stamp(applied), wake: wake.map(Stamp), ..Mark::default() }
    }

    #[test]
    fn what_one_leadership_was_asked_for_is_not_wanted_of_the_next() {
        let wanted = Wanted::default();
        let (first, next) = (Lead { term: 1 }, Lead { term: 2 });
        wanted.want(first, Stamp(9_000));
        assert_eq!((wanted.stamp(first), wanted.stamp(next)), (Stamp(9_000), Stamp(0)));
        wanted.want(next, Stamp(70));
        wanted.want(first, Stamp(9_500));
        assert_eq!((wanted.stamp(first), wanted.stamp(next)), (Stamp(0), Stamp(70)));
    }

    #[test]
    fn a_tick_is_due_when_time_must_be_in_the_log() {
        let cases = [
            ("nothing to wait for", mark(100, None), 0, None),
            ("an old wish is granted", mark(100, None), 100, None),
            ("a read waits", mark(100, None), 105, Some(105)),
            ("a read waits, whatever the timers", mark(100, Some(5_000)), 105, Some(105)),
            ("a backlog goes on at once", mark(100, Some(90)), 0, Some(100)),
            ("the next timer", mark(100, Some(600)), 0, Some(600)),
            ("a near timer keeps the distance", mark(100, Some(101)), 0, Some(110)),
            ("a far timer: once a second", mark(100, Some(90_000)), 0, Some(1_100)),
        ];
        for (name, mark, wanted, expected) in cases {
            assert_eq!(due(mark, Stamp(wanted)), expected.map(Stamp), "{name}");
        }
    }
}
