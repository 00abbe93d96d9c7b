//! How a lease is come by, kept and given back: the rules of the real client (`tenure_client::lease`).
//!
//! One attempt has one token, also when an ACQUIRE is in doubt: then it is asked again, and `yours`, or a `true` that came
//! too late, is proved by a RENEW before it counts. A token whose grant came and went unseen is refused as used, and a
//! fresh one taken. RENEW is repeated within the time that is left; lost stays lost. Nothing else is repeated.
//!
//! Unlike the real client this one gives up an attempt in doubt without a RELEASE: the grant ends by its deadline.

use std::time::Duration;

use checker::{Answer, Live, Operation, Outcome};

use super::Belief;
use super::beliefs::deadline_ns;
use super::client::{Backoff, Client, Told, sleep_until};
use super::service::Service;
use crate::runtime;

/// Fresh tokens an attempt takes at most.
pub(super) const FRESH_TOKENS_MAX: u32 = 3;
/// What a try of RENEW is given at least.
const TRY_LEAST_MS: u64 = 20;
pub(super) const MS: u64 = 1_000_000;

/// A grant that is believed in.
pub(super) struct Held {
    key: String,
    token: u64,
    fence: u64,
    /// Asked for.
    ttl_ms: u64,
    /// The own deadline.
    until_ns: u64,
    /// In the notes.
    belief: usize,
}

/// When to renew.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Every third of the lifetime.
    Thirds,
    /// As late as it goes.
    Edge,
}

impl<S: Service> Client<S> {
    /// Asks for `key` until it is held, or `wait_ms` are over.
    pub(super) async fn acquire(&mut self, key: &str, wait_ms: u64) -> Option<Held> {
        let (mut token, mut fresh_left) = (self.board.number(), FRESH_TOKENS_MAX);
        let ttl_ms = self.lifetime_ms();
        let over_ns = runtime::now_ns() + wait_ms * MS;
        let mut pauses = Backoff::default();
        loop {
            let patience = self.patience();
            let told = self.call(key, Operation::Acquire { token, ttl_ms }, patience).await?;
            let pause_ms = match &told.outcome {
                Outcome::Answered(_, Answer::Granted(live)) => {
                    let until_ns = deadline_ns(told.sent_ns, told.returned_ns, live.ttl_ms);
                    if told.returned_ns < until_ns {
                        return Some(self.believe(key, token, ttl_ms, *live, &told));
                    }
                    return self.prove(key, token, live.fence, ttl_ms).await;
                }
                Outcome::Answered(_, Answer::Refused { yours: true, live: Some(live), .. }) => {
                    return self.prove(key, token, live.fence, ttl_ms).await;
                }
                Outcome::Answered(_, Answer::Refused { reason, .. }) if reason == "token_used" && fresh_left > 0 => {
                    (token, fresh_left) = (self.board.number(), fresh_left - 1);
                    0
                }
                Outcome::Answered(_, Answer::Refused { live, .. }) => self.wait_ms(*live),
                _ => pauses.next_ms(&mut self.dice),
            };
            if self.board.is_over() || !self.board.is_current(key) || runtime::now_ns() + pause_ms * MS >= over_ns {
                return None;
            }
            self.rest(pause_ms..=pause_ms + 2).await;
        }
    }

    /// How long to wait for somebody else's grant: to its very edge, or a while.
    fn wait_ms(&mut self, live: Option<Live>) -> u64 {
        match live {
            Some(live) if live.ttl_ms < 20 || self.dice.percent(30) => live.ttl_ms.saturating_sub(1),
            _ => self.dice.in_range(5..=90),
        }
    }

    /// Whose answer came late, or by `yours`, proves it by a RENEW.
    pub(super) async fn prove(&mut self, key: &str, token: u64, fence: u64, ttl_ms: u64) -> Option<Held> {
        let mut pauses = Backoff::default();
        loop {
            let patience = self.patience();
            let told = self.call(key, Operation::Renew { token, fence, ttl_ms }, patience).await?;
            match told.outcome {
                Outcome::Answered(_, Answer::Granted(live)) => {
                    let in_time = told.returned_ns < deadline_ns(told.sent_ns, told.returned_ns, live.ttl_ms);
                    return in_time.then(|| self.believe(key, token, ttl_ms, live, &told));
                }
                Outcome::Answered(..) => return None,
                Outcome::Nothing | Outcome::Unknown if self.board.is_over() => return None,
                Outcome::Nothing | Outcome::Unknown => {
                    let pause_ms = pauses.next_ms(&mut self.dice);
                    self.rest(pause_ms..=pause_ms).await;
                }
            }
        }
    }

    pub(super) fn believe(&self, key: &str, token: u64, ttl_ms: u64, live: Live, told: &Told) -> Held {
        let until_ns = deadline_ns(told.sent_ns, told.returned_ns, live.ttl_ms);
        let belief = self.notes.begin(Belief {
            client: self.number,
            key: key.to_owned(),
            fence: live.fence,
            sent_ns: told.sent_ns,
            from_ns: told.returned_ns,
            until_ns,
        });
        Held { key: key.to_owned(), token, fence: live.fence, ttl_ms, until_ns, belief }
    }

    /// Renews up to so many times; then gives it back, leaves it to its deadline, or comes too late on purpose.
    pub(super) async fn hold(&mut self, mut held: Held, renewals: u64) {
        let pace = if self.dice.percent(30) { Pace::Edge } else { Pace::Thirds };
        for _ in 0..renewals {
            let due_ns = match pace {
                Pace::Thirds => held.until_ns.saturating_sub(held.ttl_ms * MS * 2 / 3),
                Pace::Edge => held.until_ns.saturating_sub(self.dice.in_range(200_000..=30 * MS)),
            };
            sleep_until(due_ns).await;
            if !self.board.is_current(&held.key) {
                break;
            }
            if !self.renew(&mut held).await {
                return;
            }
        }
        match self.dice.in_range(0..=99) {
            0..45 => {
                self.rest(0..=60).await;
                self.release(held).await;
            }
            45..75 => {}
            _ => self.come_late(held).await,
        }
    }

    /// RENEW, again and again while there is time. False: lost.
    async fn renew(&mut self, held: &mut Held) -> bool {
        let mut pauses = Backoff::default();
        loop {
            let now_ns = runtime::now_ns();
            if now_ns >= held.until_ns {
                return false;
            }
            // A third: with one node out of reach there is time for the others.
            let patience_ms = ((held.until_ns - now_ns) / MS / 3).max(TRY_LEAST_MS);
            let Held { token, fence, ttl_ms, .. } = *held;
            let renew = Operation::Renew { token, fence, ttl_ms };
            let Some(told) = self.call(&held.key, renew, Duration::from_millis(patience_ms)).await else {
                return false;
            };
            match told.outcome {
                Outcome::Answered(_, Answer::Granted(live)) => {
                    if told.returned_ns >= held.until_ns {
                        return false;
                    }
                    let until_ns = deadline_ns(told.sent_ns, told.returned_ns, live.ttl_ms);
                    held.until_ns = held.until_ns.max(until_ns);
                    self.notes.extend(held.belief, held.until_ns);
                    return true;
                }
                Outcome::Answered(..) => {
                    self.notes.end(held.belief, told.returned_ns);
                    return false;
                }
                Outcome::Nothing | Outcome::Unknown => {
                    let pause_ms = pauses.next_ms(&mut self.dice).min(held.ttl_ms / 12);
                    self.rest(pause_ms..=pause_ms + 1).await;
                }
            }
        }
    }

    async fn release(&mut self, held: Held) {
        self.notes.end(held.belief, runtime::now_ns());
        let patience = self.patience();
        let Held { token, fence, .. } = held;
        // In doubt or not: it is not repeated.
        drop(self.call(&held.key, Operation::Release { token, fence }, patience).await);
    }

    /// RENEW or RELEASE around and after the deadline: whatever is answered, the own deadline stands.
    async fn come_late(&mut self, held: Held) {
        let around_ns = self.dice.in_range(0..=200 * MS);
        sleep_until(held.until_ns + around_ns).await;
        let Held { token, fence, ttl_ms, .. } = held;
        let patience = self.patience();
        let late = if self.dice.percent(80) {
            Operation::Renew { token, fence, ttl_ms }
        } else {
            Operation::Release { token, fence }
        };
        drop(self.call(&held.key, late, patience).await);
    }
}
