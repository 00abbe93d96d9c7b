//! Those who want any slot of a pool, as of a semaphore: most wait for it in line.

use std::sync::Arc;
use std::time::Duration;

use tenure::keyspace::{Acquire, Command, Key};

use super::convert::token_of;
use super::pools::{Answered, Process};
use super::service::Service;
use super::tenants::slot_reply;
use crate::runtime;

/// How long they wait in line.
const WAIT_MS: std::ops::RangeInclusive<u64> = 50..=4_000;
/// Until one that waits goes away.
const GOES_MS: std::ops::RangeInclusive<u64> = 1..=1_500;

impl<S: Service> Process<S> {
    /// One slot after another.
    pub(super) async fn lodge(mut self) {
        self.rest(0..=400).await;
        while !self.is_over() {
            let mut token = self.board.number();
            // Where it went away, or cannot tell, it may come again with its token.
            for _ in 0..self.dice.in_range(1..=3) {
                let Some(answered) = self.ask_for_any(token).await else { continue };
                let granted = slot_reply(&answered).is_some_and(|reply| reply.grant().is_some());
                if let Some(lodging) = self.believe(token, &answered) {
                    let _ = self.stay(lodging).await;
                }
                if granted {
                    token = self.board.number();
                }
                break;
            }
            self.rest(50..=500).await;
        }
    }

    async fn ask_for_any(&mut self, token: u64) -> Option<Answered> {
        let ask = Acquire {
            key: Key::clone(&self.pool),
            owner: Arc::from("lodger"),
            token: token_of(&self.pool, token),
            ttl_ms: i64::try_from(self.lifetime_ms()).unwrap(),
            create: false,
            note: Some(self.board.number().to_string().into()),
            min_hold_ms: None,
            delay_ms: None,
            once: self.dice.percent(70),
        };
        if self.dice.percent(30) {
            return self.send(Command::Acquire(ask)).await;
        }
        let (node, wait_ms) = (self.turn(30), self.dice.in_range(WAIT_MS));
        let goes_ms = self.dice.percent(35).then(|| self.dice.in_range(GOES_MS));
        let stays_ms = wait_ms + self.request_timeout_ms;
        let sent_ns = runtime::now_ns();
        let came = tokio::select! { biased;
            came = self.service.wait(node, ask, wait_ms, Duration::from_millis(stays_ms)) => came,
            () = runtime::sleep(Duration::from_millis(goes_ms.unwrap_or(2 * stays_ms))) => return None,
        };
        self.waited(sent_ns, came)
    }
}
