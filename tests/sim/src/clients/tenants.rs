//! Identities that hold slots: they come, renew, give back, crash and come again with the token of their former life or with
//! another, meet a twin of their name, or hear that somebody else uses their id and avoid it.

use std::sync::Arc;
use std::time::Duration;

use tenure::keyspace::{AcquireSlot, Command, Key, Reason, Reply, SlotOutcome, SlotReply};

use super::client::sleep_until;
use super::convert::token_of;
use super::holding::MS;
use super::pools::{Answered, Lodging, Process};
use super::service::Service;
use crate::runtime;

/// How long they wait in line.
const WAIT_MS: std::ops::RangeInclusive<u64> = 50..=3_000;
/// Until one that waits goes away.
const GOES_MS: std::ops::RangeInclusive<u64> = 5..=800;
/// Tries without an answer before a process gives up.
const TRIES_MAX: u32 = 6;

/// How a life went.
pub(super) enum Life {
    /// It gave its slot back, or lost it.
    Over,
    /// It died, and nobody was told.
    Crashed,
    /// Somebody else uses its id.
    Conflict(u32),
}

impl<S: Service> Process<S> {
    /// One life after another.
    pub(super) async fn live(mut self, identity: Arc<str>) {
        let (mut token, mut avoid) = (self.board.number(), None);
        self.rest(0..=300).await;
        while !self.is_over() {
            let Some(lodging) = self.acquire(&identity, &mut token, &mut avoid).await else {
                self.rest(30..=400).await;
                continue;
            };
            let resumes = match self.stay(lodging).await {
                Life::Over => self.dice.percent(15),
                Life::Crashed => self.dice.percent(45),
                Life::Conflict(id) => {
                    avoid = Some(id);
                    self.dice.percent(50)
                }
            };
            if !resumes {
                token = self.board.number();
            }
            self.rest(0..=500).await;
        }
    }

    /// Asks until there is an answer; with a fresh token where the old one counts no more.
    async fn acquire(&mut self, identity: &Arc<str>, token: &mut u64, avoid: &mut Option<u32>) -> Option<Lodging> {
        for _ in 0..TRIES_MAX {
            if self.is_over() {
                return None;
            }
            let Some(answered) = self.ask_for(identity, *token, *avoid).await else {
                self.rest(10..=200).await;
                continue;
            };
            let Reply::Slot(reply) = &answered.reply else { return None };
            if reply.grant().is_some() {
                *avoid = None;
                return self.believe(*token, &answered);
            }
            match reply.reason {
                Some(Reason::TokenUsed | Reason::TakenOver) => *token = self.board.number(),
                _ => {
                    let again_ms = reply.retry_after_ms.unwrap_or(100).min(600);
                    self.rest(again_ms / 2..=again_ms + 2).await;
                }
            }
        }
        None
    }

    async fn ask_for(&mut self, identity: &Arc<str>, token: u64, avoid: Option<u32>) -> Option<Answered> {
        let tells = self.dice.percent(70);
        let ask = AcquireSlot {
            key: Key::clone(&self.pool),
            identity: Arc::clone(identity),
            token: token_of(&self.pool, token),
            ttl_ms: i64::try_from(self.lifetime_ms()).unwrap(),
            avoid,
            unix_ms: tells.then(|| self.unix_ms()),
            note: Some(self.board.number().to_string().into()),
            once: self.dice.percent(70),
        };
        if !self.dice.percent(30) {
            return self.send(Command::AcquireSlot(ask)).await;
        }
        let (node, wait_ms) = (self.turn(20), self.dice.in_range(WAIT_MS));
        let goes_ms = self.dice.percent(25).then(|| self.dice.in_range(GOES_MS));
        let stays_ms = wait_ms + self.request_timeout_ms;
        let sent_ns = runtime::now_ns();
        let came = tokio::select! { biased;
            came = self.service.wait_slot(node, ask, wait_ms, Duration::from_millis(stays_ms)) => came,
            () = runtime::sleep(Duration::from_millis(goes_ms.unwrap_or(2 * stays_ms))) => return None,
        };
        self.waited(sent_ns, came)
    }

    /// Renews some times; how it ends.
    pub(super) async fn stay(&mut self, mut lodging: Lodging) -> Life {
        for _ in 0..self.dice.in_range(0..=4) {
            let third_ns = lodging.ttl_ms * MS / 3;
            let due_ns = match self.dice.percent(25) {
                true => lodging.until_ns.saturating_sub(self.dice.in_range(200_000..=20 * MS)),
                false => lodging.until_ns.saturating_sub(2 * third_ns),
            };
            sleep_until(due_ns.min(self.until_ns)).await;
            if self.is_over() {
                break;
            }
            if !self.keep(&mut lodging).await {
                return Life::Over;
            }
        }
        self.end(lodging).await
    }

    async fn end(&mut self, lodging: Lodging) -> Life {
        match self.dice.in_range(0..=99) {
            0..30 => self.give_back(lodging).await,
            30..65 => {
                // What it made of its id ends with it.
                self.notes.end(lodging.belief, runtime::now_ns());
                self.rest(0..=600).await;
                return Life::Crashed;
            }
            65..77 => {
                self.notes.end(lodging.belief, runtime::now_ns());
                return Life::Conflict(lodging.id);
            }
            77..88 => {
                let around_ns = self.dice.in_range(0..=150 * MS);
                sleep_until(lodging.until_ns + around_ns).await;
                let renew = self.renewal(&lodging);
                drop(self.send(renew).await);
            }
            _ => sleep_until(lodging.until_ns).await,
        }
        Life::Over
    }

    /// RENEW, again and again while there is time. False: lost.
    pub(super) async fn keep(&mut self, lodging: &mut Lodging) -> bool {
        if self.dice.percent(10) {
            let held = Command::Held { key: Key::clone(&self.pool), token: Some(token_of(&self.pool, lodging.token)) };
            let get = Command::Get { key: Key::clone(&self.pool) };
            drop(self.send_apart(vec![held, get]).await);
        }
        while runtime::now_ns() < lodging.until_ns {
            let renew = self.renewal(lodging);
            let Some(answered) = self.send(renew).await else {
                self.rest(5..=60).await;
                continue;
            };
            let Reply::Slot(reply) = &answered.reply else { return false };
            match &reply.outcome {
                SlotOutcome::Renewed(grant) if answered.returned_ns < lodging.until_ns => {
                    let until_ns = super::beliefs::deadline_ns(answered.sent_ns, answered.returned_ns, grant.ttl_ms);
                    lodging.until_ns = lodging.until_ns.max(until_ns);
                    self.notes.extend(lodging.belief, lodging.until_ns);
                    return true;
                }
                SlotOutcome::Lost => {
                    self.notes.end(lodging.belief, answered.returned_ns);
                    return false;
                }
                // A lifetime of the pool's that is over: nobody renews any more.
                _ => return false,
            }
        }
        false
    }

    fn renewal(&mut self, lodging: &Lodging) -> Command {
        let (key, token) = (Key::clone(&self.pool), token_of(&self.pool, lodging.token));
        let ttl_ms = i64::try_from(self.lifetime_ms()).unwrap();
        let fence = self.dice.percent(80).then_some(lodging.fence);
        match self.dice.percent(60) {
            true => Command::RenewSlot { key, token, ttl_ms, fence, unix_ms: self.unix_ms() },
            false => Command::Renew { key, token, ttl_ms, fence },
        }
    }

    pub(super) async fn give_back(&mut self, lodging: Lodging) {
        self.rest(0..=60).await;
        self.notes.end(lodging.belief, runtime::now_ns());
        let (key, token) = (Key::clone(&self.pool), token_of(&self.pool, lodging.token));
        let fence = self.dice.percent(70).then_some(lodging.fence);
        drop(self.send_apart(vec![Command::Release { key, token, fence }]).await);
    }
}

/// What ACQUIRE and RENEW of a slot are answered.
pub(super) fn slot_reply(answered: &Answered) -> Option<&SlotReply> {
    if let Reply::Slot(reply) = &answered.reply { Some(reply) } else { None }
}
