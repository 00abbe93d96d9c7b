//! Bugs put in on purpose, so that the simulator can be seen to find each. Without the feature `planted`, which nothing
//! that is shipped turns on, [`has`] is the constant `false` and no trace of them is compiled.
//!
//! Model: a bug is one wrong condition at the place where it would have been made. With the feature one bug, or none, is
//! put into whatever runs on a thread: into all nodes of a simulation, which has one thread.
//!
//! Not promised: anything for a node with threads of its own (the log's writer, snapshots): no bug is put in there.

/// A bug, and where it would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bug {
    /// Stamps are the wall clock's.
    WallClockStamps,
    /// The log tells that a group is synced before its sync.
    AckBeforeSync,
    /// A read shows an expiry that is not in the log.
    NoTickBeforeExpiredRead,
    /// After its tick a read answers from the state before it.
    OldStateAfterTick,
    /// An entry is appended under whatever leadership there is.
    NoLeadershipAtAppend,
    /// Time without a quorum counts.
    QuorumGapCounts,
    /// Time in which the disk is stuck counts.
    StuckDiskGapCounts,
    /// A leader that is silent is taken for dead.
    CrashPathOnSilence,
    /// A holder counts from the answer. (In the simulated client.)
    DeadlineFromAnswer,
    /// A snapshot forgets the fence.
    FenceResetBySnapshot,
    /// A purge forgets the vote.
    VoteLostByPurge,
    /// A torn last write is taken for damage.
    TornGroupRefused,
    /// Damage is taken for a torn last write.
    DamageCut,
    /// A follower reads what it has.
    StaleFollowerRead,
    /// RENEW does not ask for the token: whoever owns it now is renewed (if the fence fits, where one is given).
    RenewByOwner,
    /// A key's own lifetime ends a live grant.
    KeyTtlEndsGrant,
    /// What may have been ordered is ordered again.
    UnknownRetried,
    /// What became free is handed on to the first in line, attached or not.
    GrantToDetached,
    /// A request that is repeated goes to the end of the line.
    PlaceLostByRepeat,
    /// A grant is returned as undelivered though its token was heard of.
    UndeliveredAfterHeard,
    /// DETACH does not ask which request.
    StaleDetach,
    /// A snapshot forgets who waits.
    WaitersForgottenBySnapshot,
    /// Waiters of an edge that is gone stay attached until it lapses.
    AwayIgnored,
    /// What an edge has answered is detached all the same.
    DetachedAfterAnswer,
    /// What ended by its deadline is numbered among the free at once: no quarantine.
    QuarantineSkipped,
    /// A snapshot forgets for how long what is free is kept from others.
    QuarantineForgottenBySnapshot,
    /// Whoever was taken over from renews all the same.
    SupersededRenews,
    /// A snapshot forgets who was taken over from.
    SupersededForgottenBySnapshot,
    /// What was somebody's before the last holder is still kept for that one.
    ClaimSurvivesAnother,
    /// An operator's end of a grant leaves the holder its claim.
    BreakKeepsClaim,
    /// What was to be avoided is not put aside.
    AvoidedGivenAgain,
    /// One identity is given twice.
    IdentityHoldsTwice,
    /// Another size cuts off what is held beyond the end.
    ResizeCutsLive,
    /// One more is given than there are.
    IdBeyondTheEnd,
    /// Who gave back leaves no floor for the clock of the next.
    FloorForgotten,
    /// Whoever asks again is not told of those who may not know that they were taken over from.
    PriorToldOnce,
    /// Who goes from one to the next by avoiding them is not counted.
    AvoidNotCounted,
    /// Who asks again, and is given, leaves an earlier question of its own in line.
    OlderAskWaitsOn,
    /// A key goes at the end of its lifetime, whatever is kept back.
    KeyTtlEndsQuarantine,
}

/// Is `bug` put in?
#[cfg(not(feature = "planted"))]
#[inline(always)]
#[must_use]
pub const fn has(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
mod switch {
    use std::cell::Cell;
    use std::task::Poll;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Is `bug` put in on this thread?
    #[must_use]
    pub fn has(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Puts `bug`, and no other, into what runs on this thread.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// A place where a thread can lose its processor, made one where a task can: it lets others run once. For guards
    /// that no simulation would need otherwise.
    pub fn breath() -> impl Future<Output = ()> + Send {
        let mut drawn = false;
        std::future::poll_fn(move |context| {
            if std::mem::replace(&mut drawn, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
    }
}

/// Runs `test` with `bug` put in.
#[cfg(all(test, feature = "planted"))]
pub(crate) fn with<T>(bug: Bug, test: impl FnOnce() -> T) -> T {
    struct Pulled;
    impl Drop for Pulled {
        fn drop(&mut self) {
            plant(None);
        }
    }
    plant(Some(bug));
    let _pulled = Pulled;
    test()
}

/// Does `test`, which passes by itself, fail with `bug` put in?
#[cfg(all(test, feature = "planted"))]
pub(crate) fn is_found(bug: Bug, test: fn()) -> bool {
    std::panic::catch_unwind(|| with(bug, test)).is_err()
}

#[cfg(feature = "planted")]
pub use switch::{breath, has, plant};
