//! How a lease is waited for: the rules of the real client.
//!
//! One attempt has one token. Where its node dies, or says that it cannot tell what became of the wait, the client asks
//! again with that token and with the time that is left, at another node; now and then before it has heard the end of what
//! it asked first. A true that came in time is believed; one that came late, and `yours`, are proved by a RENEW.
//! Impatient ones go away, for good or to come again.

use std::time::Duration;

use checker::{Answer, Operation, Outcome};

use super::beliefs::deadline_ns;
use super::client::{Backoff, Client, Told};
use super::holding::{FRESH_TOKENS_MAX, Held, MS};
use super::service::Service;
use crate::runtime;

/// How long clients wait.
const WAIT_MS: std::ops::RangeInclusive<u64> = 100..=7_000;
/// Of an impatient one.
const IMPATIENT_MS: std::ops::RangeInclusive<u64> = 5..=1_500;

impl<S: Service> Client<S> {
    /// Waits for a key, and is soon done with it.
    pub(super) async fn wait_in_line(&mut self) {
        let (key, wait_ms) = (self.board.pick(&mut self.dice), self.dice.in_range(WAIT_MS));
        if let Some(held) = self.line_up(&key, wait_ms).await {
            let renewals = self.dice.in_range(0..=2);
            self.hold(held, renewals).await;
        }
        self.rest(0..=60).await;
    }

    /// Waits until `key` is held, or `wait_ms` are over.
    async fn line_up(&mut self, key: &str, wait_ms: u64) -> Option<Held> {
        let (mut token, mut fresh_left) = (self.board.number(), FRESH_TOKENS_MAX);
        let ttl_ms = self.lifetime_ms();
        let over_ns = runtime::now_ns() + wait_ms * MS;
        let mut pauses = Backoff::default();
        loop {
            let left_ms = (over_ns.saturating_sub(runtime::now_ns()) / MS).max(1);
            let told = self.stand(key, token, ttl_ms, left_ms).await?;
            let pause_ms = match &told.outcome {
                Outcome::Answered(_, Answer::Granted(live)) => {
                    if told.returned_ns < deadline_ns(told.sent_ns, told.returned_ns, live.ttl_ms) {
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
                Outcome::Answered(..) => return None,
                Outcome::Nothing | Outcome::Unknown => {
                    self.turn(100);
                    pauses.next_ms(&mut self.dice)
                }
            };
            let gives_up = self.dice.percent(10);
            if gives_up || self.board.is_over() || !self.board.is_current(key) {
                return None;
            }
            if runtime::now_ns() + pause_ms * MS >= over_ns {
                return None;
            }
            self.rest(pause_ms..=pause_ms + 2).await;
        }
    }

    /// One wait, or two of one token at two nodes.
    async fn stand(&mut self, key: &str, token: u64, ttl_ms: u64, wait_ms: u64) -> Option<Told> {
        let stays_ms = wait_ms + self.request_timeout_ms + 500;
        let patience_ms = if self.dice.percent(25) { self.dice.in_range(IMPATIENT_MS) } else { stays_ms };
        let patience = Duration::from_millis(patience_ms);
        let operation = Operation::Wait { token, ttl_ms, wait_ms };
        if !self.dice.percent(20) {
            return self.call(key, operation, patience).await;
        }
        let (first_nth, second_nth) = (self.board.count(key)?, self.board.count(key)?);
        let (first, second) = (self.turn(3), self.turn(100));
        let after = Duration::from_millis(self.dice.in_range(1..=wait_ms));
        let asked = std::pin::pin!(self.ask(first, key, operation, first_nth, patience));
        let mut asked = asked;
        tokio::select! { biased;
            told = &mut asked => return Some(told),
            () = runtime::sleep(after) => {}
        }
        let (one, other) = futures_util::join!(asked, self.ask(second, key, operation, second_nth, patience));
        // Whichever tells of a grant counts.
        Some(if is_of_grant(&one) { one } else { other })
    }
}

fn is_of_grant(told: &Told) -> bool {
    matches!(&told.outcome, Outcome::Answered(_, Answer::Granted(_) | Answer::Refused { yours: true, .. }))
}
