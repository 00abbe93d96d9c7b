//! Commands that a follower forwarded, at the leader's end.
//!
//! Each is looked at first: one that a node could not apply would stop all that it is replicated to, at each start anew.
//! It is answered for itself, and the others are ordered.
//!
//! They go into the same bounded queue as the leader's own, all at once and in order. One that is still queued when its
//! patience ends, or when this node leads no more (the proposer then lets go of it), was surely not ordered. One that
//! is handed to replication by then is waited for a while longer; after that its outcome is unknown.

use std::time::Duration;

use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::InstantOf;

use crate::entry::{BATCH_BYTES_MAX, COMMAND_BYTES_MAX, COMMANDS_MAX};
use crate::host::{Host, Unfit};
use crate::level::REFUSALS_SINCE;
use crate::peer::{ForwardedV1, OrderedV1};
use crate::proposal::{Answer, Intake, NoAnswer, Offered, Waiter};
use crate::raft::{AsyncRuntime, TypeConfig};
use crate::warnings::Warnings;

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
    fitness: &Fitness<'_, RT>,
    forwarded: Vec<ForwardedV1>,
    grace: Duration,
) -> Result<Vec<OrderedV1>, String> {
    let offered = check(forwarded)?;
    let unfit: Vec<Option<OrderedV1>> = offered.iter().map(|(command, ..)| fitness.refuse(command)).collect();
    let fit = offered.into_iter().zip(&unfit).filter_map(|(one, unfit)| unfit.is_none().then_some(one)).collect();
    let waiters = intake.put_forwarded(fit).await.map_err(|_| "too many commands wait here".to_owned())?;
    let mut ordered = outcomes(waiters, grace).await.into_iter();
    // There is an outcome for each that was put in.
    Ok(unfit.into_iter().map(|unfit| unfit.or_else(|| ordered.next()).unwrap_or(OrderedV1::Unknown)).collect())
}

/// Tells which commands may be ordered: whoever takes others' bytes into the log answers for all nodes that read them.
pub struct Fitness<'a, RT: AsyncRuntime> {
    /// The machine, and the cluster's level.
    pub host: &'a dyn Host,
    /// Told of what is refused.
    pub warnings: &'a Warnings<RT>,
}

impl<RT: AsyncRuntime> Fitness<'_, RT> {
    /// What to answer for a command that is not to be ordered; `None` for one that is.
    fn refuse(&self, command: &[u8]) -> Option<OrderedV1> {
        let unfit = self.host.accepts(command).err()?;
        self.warnings
            .warn(|| format!("a peer forwarded a command that is not to be ordered, and was refused it: {unfit}"));
        Some(match unfit {
            // Its node has seen a level that this one has yet to apply: tried again, it passes in a moment.
            Unfit::Level { .. } => OrderedV1::NotOrdered,
            Unfit::Decode(why) if self.host.level() >= REFUSALS_SINCE => OrderedV1::Refused(why.to_string()),
            // Its node may not know the other word. It tries again until its submitter's time is up.
            Unfit::Decode(_) => OrderedV1::NotOrdered,
        })
    }
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
        Err(NoAnswer::Refused(why)) => OrderedV1::Refused(why),
        Err(NoAnswer::NoRoom | NoAnswer::Withdrawn | NoAnswer::Stopped) => OrderedV1::NotOrdered,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use openraft::AsyncRuntime as _;
    use openraft_rt_sim::SimRuntime;

    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::counter::{Command, Counter};
    use crate::entry::{self, ControlV1};
    use crate::host::Hosted;
    use crate::persisted::LogIdV1;
    use crate::proposal;
    use crate::raft::Batch;

    /// A leader's machine and queue, at a feature level.
    struct Leader {
        host: Hosted<Counter>,
        warnings: Warnings<SimRuntime>,
        intake: Intake<SimRuntime>,
    }

    impl Leader {
        fn at(level: u16, intake: Intake<SimRuntime>) -> Self {
            let host = Hosted::new(Arc::default(), Arc::new(|_| {}));
            let raised = Batch(entry::encode_control(&ControlV1::RaiseFeatureLevel(level)).unwrap());
            host.apply(LogIdV1 { term: 1, node: 1, index: 1 }, &raised, false).unwrap();
            Self { host, warnings: Warnings::default(), intake }
        }

        async fn order(&self, forwarded: Vec<ForwardedV1>, grace: Duration) -> Result<Vec<OrderedV1>, String> {
            order(&self.intake, &Fitness { host: &self.host, warnings: &self.warnings }, forwarded, grace).await
        }
    }

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
        let command = entry::encode_command::<Counter>(&Command::Add(1)).unwrap();
        ForwardedV1 { command, reply_bytes: 1, patience_ms: ms }
    }

    #[test]
    fn a_queue_that_nobody_empties_any_more_orders_nothing_of_a_batch() {
        SimRuntime::with_seed(1).block_on(async {
            let (intake, queue) = proposal::channel::<SimRuntime>(100);
            drop(queue);
            let outcomes = Leader::at(2, intake).order(vec![patient(50), patient(60)], Duration::ZERO).await;
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
            let leader = Leader::at(2, intake);
            let ordered = leader.order(vec![patient(50), patient(50)], Duration::from_millis(50));
            let (outcomes, ()) = futures_util::future::join(ordered, ends).await;
            assert_eq!(outcomes, Ok(vec![OrderedV1::Unknown, OrderedV1::NotOrdered]));
        });
    }

    /// Orders the unfit one between two others, of which the proposer answers each; what each comes to.
    fn among_others(level: u16, unfit: Vec<u8>) -> [OrderedV1; 3] {
        SimRuntime::with_seed(4).block_on(async {
            let (intake, mut queue) = proposal::channel::<SimRuntime>(100);
            let answers = async {
                for ordinal in 0..2 {
                    let taken = queue.recv().await.unwrap();
                    assert!(taken.hand_off());
                    let position = crate::machine::Position { index: 7, ordinal };
                    taken.answer(Ok(Answer {
                        reply: Bytes::new(),
                        position,
                        clock: crate::machine::Stamp(5),
                        term: 1,
                    }));
                }
            };
            let unfit = ForwardedV1 { command: unfit.into(), ..patient(50) };
            let leader = Leader::at(level, intake);
            let ordered = leader.order(vec![patient(50), unfit, patient(50)], Duration::ZERO);
            let (outcomes, ()) = futures_util::future::join(ordered, answers).await;
            outcomes.unwrap().try_into().unwrap()
        })
    }

    #[test]
    fn what_no_node_could_apply_is_refused_for_itself() {
        let times = entry::encode_command::<Counter>(&Command::Times(2)).unwrap().to_vec();
        let mut understated = times.clone();
        understated[1] = 1;
        let mut of_a_later_build = times.clone();
        of_a_later_build[1] = 3;
        let cases = [
            ("nonsense", b"nonsense".to_vec(), "expected Command"),
            ("nothing", Vec::new(), "cut short"),
            ("a format below what it needs", understated, "says that it has format 1, but what it holds needs 2"),
            ("a later build's", of_a_later_build, "version 3, this build reads up to 2"),
            ("bytes left over", [&times[..], &[0]].concat(), "left over"),
        ];
        for (name, bytes, expected) in cases {
            let [before, refused, after] = among_others(2, bytes.clone());
            let is_applied = |one: &OrderedV1, at| matches!(one, OrderedV1::Applied { ordinal, .. } if *ordinal == at);
            assert!(is_applied(&before, 0) && is_applied(&after, 1), "{name}: the others are ordered");
            assert!(matches!(&refused, OrderedV1::Refused(why) if why.contains(expected)), "{name}: {refused:?}");
            let [_, refused, _] = among_others(1, bytes);
            assert_eq!(refused, OrderedV1::NotOrdered, "{name}: an old member does not know the other word");
        }
        let [_, early, _] = among_others(1, times.clone());
        assert_eq!(early, OrderedV1::NotOrdered, "above the level: it passes later");
        SimRuntime::with_seed(5).block_on(async {
            let (intake, queue) = proposal::channel::<SimRuntime>(100);
            drop(queue);
            let times = ForwardedV1 { command: times.into(), ..patient(50) };
            let fitness = Leader::at(2, intake);
            assert!(fitness.host.accepts(&times.command).is_ok(), "at its level it is fit");
        });
    }

    #[test]
    fn the_patient_come_back_with_the_impatient() {
        SimRuntime::with_seed(3).block_on(async {
            let (intake, _queue) = proposal::channel::<SimRuntime>(100);
            let started = C::now();
            let outcomes = Leader::at(2, intake).order(vec![patient(5_000), patient(40)], Duration::from_secs(5)).await;
            assert_eq!(outcomes, Ok(vec![OrderedV1::NotOrdered, OrderedV1::NotOrdered]));
            assert!(C::now() - started < Duration::from_millis(100), "who waits longest does not hold up the others");
        });
    }
}
