//! Those who wait long, one or more at every node, for what is held long: so that an edge that is cut off, silent or gone has
//! somebody waiting, and a snapshot a line in it. Their keys stand in no history: the judge, who reads the log, tells whether
//! each was answered right.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure::keyspace::{Acquire, Command, Key, Reply, token_hash};
use tenure_cluster::Applied;

use super::client::Client;
use super::service::Service;
use crate::runtime;

/// How long it is held: past the silence after which an edge is gone, and the probes of a client that is.
const HELD_MS: std::ops::RangeInclusive<u64> = 5_000..=9_000;
/// And waited for.
const WAIT_MS: std::ops::RangeInclusive<u64> = 6_000..=11_000;
/// At each node.
const MANY: std::ops::RangeInclusive<u64> = 1..=2;
/// Between two looks whether the run is over.
const LOOK_MS: u64 = 250;

/// One who waits.
struct Besieged {
    ask: Acquire,
    node: u64,
    wait_ms: u64,
}

impl<S: Service> Client<S> {
    /// One holds, somebody waits at every node.
    pub(super) async fn besiege(&mut self) {
        let key = Key::from(format!("siege-{}", self.board.number()));
        let (held_ms, at, patience) = (self.dice.in_range(HELD_MS), self.turn(100), self.patience());
        let holder = self.siege_ask(&key, held_ms);
        let token = holder.token;
        drop(self.service.submit(at, Command::Acquire(holder), patience).await);
        let mut many = Vec::new();
        for node in self.service.ids() {
            for _ in 0..self.dice.in_range(MANY) {
                let (ttl_ms, wait_ms) = (self.lifetime_ms(), self.dice.in_range(WAIT_MS));
                many.push(Besieged { ask: self.siege_ask(&key, ttl_ms), node, wait_ms });
            }
        }
        let given_back = async {
            let mut left_ms = held_ms;
            while left_ms > 0 && !self.board.is_over() {
                runtime::sleep(Duration::from_millis(LOOK_MS)).await;
                left_ms = left_ms.saturating_sub(LOOK_MS);
            }
            let release = Command::Release { key: Key::clone(&key), token, fence: None };
            drop(self.service.submit(at, release, patience).await);
        };
        join(given_back, join_all(many.into_iter().map(|one| self.wait_long(one)))).await;
        self.rest(0..=500).await;
    }

    fn siege_ask(&mut self, key: &Key, ttl_ms: u64) -> Acquire {
        Acquire {
            key: Key::clone(key),
            owner: Arc::from("siege"),
            token: token_hash(key, &format!("siege-{}", self.board.number())),
            ttl_ms: i64::try_from(ttl_ms).unwrap(),
            create: true,
            note: None,
            min_hold_ms: None,
            delay_ms: None,
            once: true,
        }
    }

    /// Waits, and is done with it.
    async fn wait_long(&self, one: Besieged) {
        let Besieged { ask, node, wait_ms } = one;
        let (key, token) = (Key::clone(&ask.key), ask.token);
        let patience = Duration::from_millis(wait_ms + self.request_timeout_ms);
        let came = self.service.wait(node, ask, wait_ms, patience).await;
        let Ok(Applied { reply: Reply::Op(reply), .. }) = came else { return };
        if reply.result {
            let release = Command::Release { key, token, fence: reply.fence };
            let patience = Duration::from_millis(self.request_timeout_ms);
            drop(self.service.submit(node, release, patience).await);
        }
    }
}
