//! RENEW against whatever ends a grant, at the same instant.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::harness::{Cluster, Plan, rounds};
use crate::history::History;
use crate::session::Session;
use checker::{Answer, Operation, Outcome};

/// Rounds at a time: two sessions each. Many, for the disk syncs once for all of them.
const LANES: u32 = 128;
const ROUNDS: usize = 10_000;
const RENEWALS: usize = 3;
const TTL_MS: u64 = 600_000;
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// FR-24: one session renews a fresh grant again and again while another ends it. The checker orders all calls by the
/// log and, without it, by real time: a RENEW that is true after the end fits neither.
#[test]
fn no_renewal_comes_after_the_end() {
    let cluster = Cluster::start(Plan::of(1));
    let (history, next) = (History::default(), AtomicUsize::new(0));
    let whole = rounds(ROUNDS).max(ROUNDS);
    thread::scope(|scope| {
        for lane in 0..LANES {
            let (history, next, endpoints) = (&history, &next, cluster.endpoints());
            let session = |client: u32| Session::new(client, endpoints.clone(), ANSWER_WITHIN, history);
            let (mut renewer, mut ender) = (session(2 * lane), session(2 * lane + 1));
            scope.spawn(move || {
                loop {
                    let round = next.fetch_add(1, Ordering::Relaxed);
                    if round >= whole {
                        return;
                    }
                    race(&mut renewer, &mut ender, round);
                }
            });
        }
    });
    let tally = history.judge("renew-races");
    assert!(tally.grants == whole && tally.releases > whole / 4 && tally.lifetimes == 0, "{tally:?}");
    // A race that one side always wins is none.
    let attempts = whole * RENEWALS;
    assert!(tally.renewals > attempts / 20 && tally.refusals > attempts / 20, "{tally:?}");
}

/// A grant of a key of its own, renewed by its holder while another ends it.
fn race(renewer: &mut Session, ender: &mut Session, round: usize) {
    let (key, token) = (format!("race-{round}"), round as u64);
    let fence = match renewer.call(&key, Operation::Acquire { token, ttl_ms: TTL_MS }) {
        Outcome::Answered(_, Answer::Granted(live)) => live.fence,
        other => panic!("{key}: {other:?}"),
    };
    let end = match round % 3 {
        0 => Operation::Release { token, fence },
        1 => Operation::Delete,
        _ => Operation::Break,
    };
    let start = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            for _ in 0..RENEWALS {
                renewer.call(&key, Operation::Renew { token, fence, ttl_ms: TTL_MS });
            }
        });
        start.wait();
        let ended = ender.call(&key, end);
        assert!(matches!(ended, Outcome::Answered(_, Answer::Done)), "{key}: {end:?}: {ended:?}");
    });
}
