//! Commands that a follower forwarded, at the leader's end.
//!
//! They go into the same bounded queue as the leader's own, all at once and in order. One that is still queued when its
//! patience ends, or when this node leads no more (the proposer then lets go of it), was surely not ordered. One that
//! is handed to replication by then is waited for a while longer; after that its outcome is unknown.

use std::time::Duration;

use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::InstantOf;

use crate::entry::{BATCH_BYTES_MAX, COMMAND_BYTES_MAX, COMMANDS_MAX};
use crate::peer::{ForwardedV1, OrderedV1};
use crate::proposal::{Answer, Intake, NoAnswer, Offered, Waiter};
use crate::raft::{AsyncRuntime, TypeConfig};

/// Checks what a peer forwarded against the bounds that each node keeps itself.
///
/// # Errors
/// One line; nothing was ordered.
fn check(forwarded: Vec<ForwardedV1>) -> Result<Vec<Offered>, String> {
    let count = forwarded.len();
    if !(1..=COMMANDS_MAX).contains(&count) {
        return Err(format!("{count} commands forwarded at once; it must be 1 to {COMMANDS_MAX}"));
    }
    let longest = forwarded.iter().map(|one| one.command.len()).max().unwrap_or(0);
    if longest > COMMAND_BYTES_MAX {
        return Err(format!("a forwarded command has {longest} bytes; at most {COMMAND_BYTES_MAX} fit an entry"));
    }
    let total: usize = forwarded.iter().map(|one| one.command.len()).sum();
    if total > BATCH_BYTES_MAX {
        return Err(format!("{total} bytes of commands forwarded at once; at most {BATCH_BYTES_MAX} fit an entry"));
    }
    let offered = |one: ForwardedV1| {
        let reply_bytes = usize::try_from(one.reply_bytes).unwrap_or(usize::MAX);
        (one.command, reply_bytes, Duration::from_millis(one.patience_ms.into()))
    };
    Ok(forwarded.into_iter().map(offered).collect())
}

/// Has `forwarded` ordered; one outcome for each, in order. What is handed to replication is waited for `grace` beyond
/// its patience.
///
/// # Errors
/// One line; nothing was ordered.
pub async fn order<RT: AsyncRuntime>(
    intake: &Intake<RT>,
    forwarded: Vec<ForwardedV1>,
    grace: Duration,
) -> Result<Vec<OrderedV1>, String> {
    let offered = check(forwarded)?;
    let waiters = intake.put_forwarded(offered).await.map_err(|_| "too many commands wait here".to_owned())?;
    Ok(outcomes(waiters, grace).await)
}

/// A waiter whose outcome is not known yet.
struct Open<RT: AsyncRuntime> {
    waiter: Waiter<RT>,
    /// When to look at it again.
    until: InstantOf<TypeConfig<RT>>,
    /// Its patience has ended.
    late: bool,
    outcome: Option<OrderedV1>,
}

/// Waits for all. Answers come in order, so one is waited for at a time, and one timer serves all.
async fn outcomes<RT: AsyncRuntime>(waiters: Vec<Waiter<RT>>, grace: Duration) -> Vec<OrderedV1> {
    let open = |waiter: Waiter<RT>| Open { until: waiter.deadline, waiter, late: false, outcome: None };
    let mut all: Vec<Open<RT>> = waiters.into_iter().map(open).collect();
    let mut timer = all.iter().map(|one| one.until).min();
    for next in 0..all.len() {
        while let (None, Some(until)) = (&all[next].outcome, timer) {
            match all[next].waiter.answered_until(until).await {
                Some(answer) => all[next].outcome = Some(outcome(answer)),
                None => timer = expire(&mut all[next..], grace),
            }
        }
    }
    all.into_iter().map(|one| one.outcome.unwrap_or(OrderedV1::Unknown)).collect()
}

/// Ends what is to be ended now, and says when to look again. One answer goes back for all: with the first whose time is
/// up, all that are still queued are let go of. Who sent them has time left, and this leader takes too long.
fn expire<RT: AsyncRuntime>(open: &mut [Open<RT>], grace: Duration) -> Option<InstantOf<TypeConfig<RT>>> {
    let now = TypeConfig::<RT>::now();
    for one in open.iter_mut().filter(|one| one.outcome.is_none() && one.until <= now) {
        one.outcome = match (one.waiter.withdraw(), one.late) {
            (true, _) => Some(OrderedV1::NotOrdered),
            (false, true) => Some(OrderedV1::Unknown),
            (false, false) => None,
        };
        one.late = true;
        one.until += grace;
    }
    if open.iter().any(|one| one.outcome == Some(OrderedV1::NotOrdered)) {
        for one in open.iter_mut().filter(|one| one.outcome.is_none() && one.waiter.withdraw()) {
            one.outcome = Some(OrderedV1::NotOrdered);
        }
    }
    open.iter().filter(|one| one.outcome.is_none()).map(|one| one.until).min()
}

fn outcome(answer: Result<Answer, NoAnswer>) -> OrderedV1 {
    match answer {
        Ok(Answer { reply, position, clock, term }) => {
            OrderedV1::Applied { reply, index: position.index, ordinal: position.ordinal, clock: clock.0, term }
        }
        Err(NoAnswer::Unknown) => OrderedV1::Unknown,
        Err(NoAnswer::NoRoom | NoAnswer::Withdrawn | NoAnswer::Stopped) => OrderedV1::NotOrdered,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use openraft::AsyncRuntime as _;
    use openraft_rt_sim::SimRuntime;

    use super::*;
    use crate::proposal;

    fn forwarded(count: usize, bytes: usize) -> Vec<ForwardedV1> {
        let one = ForwardedV1 { command: vec![0; bytes].into(), reply_bytes: u64::MAX, patience_ms: 9 };
        vec![one; count]
    }

    #[test]
    fn what_no_node_would_send_is_refused() {
        assert!(check(forwarded(COMMANDS_MAX, 200)).is_ok());
        assert!(check(forwarded(1, COMMAND_BYTES_MAX)).is_ok());
        let cases = [
            (0, 1, "0 commands forwarded at once"),
            (COMMANDS_MAX + 1, 1, "4097 commands forwarded at once"),
            (1, COMMAND_BYTES_MAX + 1, "a forwarded command has"),
            (2, COMMAND_BYTES_MAX, "bytes of commands forwarded at once"),
        ];
        for (count, bytes, expected) in cases {
            let refused = check(forwarded(count, bytes)).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    type C = TypeConfig<SimRuntime>;

    fn patient(ms: u32) -> ForwardedV1 {
        ForwardedV1 { command: vec![7].into(), reply_bytes: 1, patience_ms: ms }
    }

    #[test]
    fn a_queue_that_nobody_empties_any_more_orders_nothing_of_a_batch() {
        SimRuntime::with_seed(1).block_on(async {
            let (intake, queue) = proposal::channel::<SimRuntime>(100);
            drop(queue);
            let outcomes = order(&intake, vec![patient(50), patient(60)], Duration::ZERO).await;
            assert_eq!(
                outcomes,
                Ok(vec![OrderedV1::NotOrdered, OrderedV1::NotOrdered]),
                "each for itself, not the batch"
            );
        });
    }

    #[test]
    fn a_proposer_that_ends_amid_a_batch_leaves_what_it_took_unknown() {
        SimRuntime::with_seed(2).block_on(async {
            let (intake, mut queue) = proposal::channel::<SimRuntime>(100);
            let ends = async {
                let taken = queue.recv().await.unwrap();
                assert!(taken.hand_off());
                drop(queue);
                C::sleep(Duration::from_millis(5)).await;
                drop(taken);
            };
            let ordered = order(&intake, vec![patient(50), patient(50)], Duration::from_millis(50));
            let (outcomes, ()) = futures_util::future::join(ordered, ends).await;
            assert_eq!(outcomes, Ok(vec![OrderedV1::Unknown, OrderedV1::NotOrdered]));
        });
    }

    #[test]
    fn the_patient_come_back_with_the_impatient() {
        SimRuntime::with_seed(3).block_on(async {
            let (intake, _queue) = proposal::channel::<SimRuntime>(100);
            let started = C::now();
            let outcomes = order(&intake, vec![patient(5_000), patient(40)], Duration::from_secs(5)).await;
            assert_eq!(outcomes, Ok(vec![OrderedV1::NotOrdered, OrderedV1::NotOrdered]));
            assert!(C::now() - started < Duration::from_millis(100), "who waits longest does not hold up the others");
        });
    }
}
