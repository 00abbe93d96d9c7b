//! Many who wait for one key, of whom most go away: killed, cut off, impatient; some come again. And what the checker has
//! no model of: waits with options, RELEASE, ACQUIRE, HELD of a token that waits, lists that are all granted or none. They go
//! to keys of their own and stand in no history: the judge, who reads the log, tells whether each was answered right.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure::keyspace::{Acquire, Command, Key, Reply, TokenHash, token_hash};

use super::client::Client;
use super::service::Service;
use crate::runtime;
use crate::world::NoReply;

/// Keys at one time; others take their place every so often.
const KEYS: u64 = 2;
const KEY_FOR_NS: u64 = 5_000_000_000;
/// How many wait at once.
const MANY: std::ops::RangeInclusive<u64> = 1..=12;
const WAIT_MS: std::ops::RangeInclusive<u64> = 20..=6_000;
/// Until one goes away.
const GOES_MS: std::ops::RangeInclusive<u64> = 1..=2_000;
/// How long after a grant was made its request may still go before the node hears of it.
const UNHEARD_MS: std::ops::RangeInclusive<u64> = 0..=12;
/// Of least holds and delays.
const SPAN_MS: std::ops::RangeInclusive<u64> = 1..=400;
/// Of a hundred crowds so many wait for a lease that is given back within its least hold.
const HURRIED: u64 = 25;
const HURRIED_MS: std::ops::RangeInclusive<u64> = 300..=1_500;

/// What one of them does, decided beforehand.
#[derive(Clone)]
struct One {
    ask: Acquire,
    node: u64,
    begins_ms: u64,
    wait_ms: u64,
    /// When it goes away, if it does; and where it comes again.
    goes_ms: Option<u64>,
    again_at: Option<u64>,
    /// What it says of its token meanwhile.
    meanwhile: Meanwhile,
    renews: bool,
    holds_ms: u64,
    releases: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    Release,
    Acquire,
    Held,
}

impl<S: Service> Client<S> {
    /// One holds, many wait.
    pub(super) async fn be_crowd(&mut self) {
        let epoch = runtime::now_ns() / KEY_FOR_NS;
        let keys: Vec<Key> = (1..=KEYS).map(|n| Key::from(format!("crowd-{epoch}-{n}"))).collect();
        if self.dice.percent(25) {
            self.take_all(&keys).await;
        }
        let key = &keys[usize::try_from(self.dice.in_range(0..=KEYS - 1)).unwrap()];
        let (mut holder, hurried) = (self.crowd_ask(key), self.dice.percent(HURRIED));
        let (held_ms, ends) = (self.dice.in_range(0..=1_500), self.dice.in_range(0..=9));
        if hurried {
            holder.min_hold_ms = Some(held_ms + self.dice.in_range(HURRIED_MS));
        }
        let (token, at) = (holder.token, self.turn(100));
        let patience = self.patience();
        drop(self.service.submit(at, Command::Acquire(holder), patience).await);
        let count = self.dice.in_range(MANY);
        let many: Vec<One> = (0..count).map(|_| self.one(key, held_ms)).collect();
        let end = match ends {
            0..=6 => Some(Command::Release { key: Key::clone(key), token, fence: None }),
            7 => Some(Command::Break {
                key: Key::clone(key),
                reason: format!("crowd {}", self.board.number()).into(),
                grace_ms: self.dice.in_range(0..=1) * 200,
                fence: None,
            }),
            8 => {
                let apart = Key::from(format!("nowhere-crowd-{}", self.board.number()));
                Some(Command::Del { keys: vec![Key::clone(key), apart], fence: None })
            }
            _ => None,
        };
        let ended = async {
            runtime::sleep(Duration::from_millis(held_ms)).await;
            if let Some(end) = end {
                drop(self.service.submit(at, end, patience).await);
            }
        };
        let waits = join_all(many.iter().map(|one| self.be_one(one)));
        join(ended, waits).await;
        self.rest(0..=150).await;
    }

    fn crowd_ask(&mut self, key: &Key) -> Acquire {
        let number = self.board.number();
        let span = |dice: &mut checker::Dice| dice.percent(15).then(|| dice.in_range(SPAN_MS));
        Acquire {
            key: Key::clone(key),
            owner: Arc::from("crowd"),
            token: token_hash(key, &format!("crowd-{number}")),
            ttl_ms: i64::try_from(self.lifetime_ms()).unwrap(),
            create: true,
            note: Some(format!("{number}").into()),
            min_hold_ms: span(&mut self.dice),
            delay_ms: span(&mut self.dice),
            once: self.dice.percent(70),
        }
    }

    /// One of those who wait for what is given back after `held_ms`.
    fn one(&mut self, key: &Key, held_ms: u64) -> One {
        let ask = self.crowd_ask(key);
        let (goes, again) = (self.dice.percent(55), self.dice.percent(40));
        let begins_ms = self.dice.in_range(0..=400);
        // Many go in the moment in which it may be granted them.
        let at_the_grant = self.dice.percent(40) && begins_ms < held_ms;
        let goes_ms = if at_the_grant {
            held_ms - begins_ms + self.dice.in_range(UNHEARD_MS)
        } else {
            self.dice.in_range(GOES_MS)
        };
        let meanwhile = match self.dice.in_range(0..=15) {
            0 => Meanwhile::Release,
            1 => Meanwhile::Acquire,
            2 => Meanwhile::Held,
            _ => Meanwhile::Nothing,
        };
        One {
            ask,
            node: self.turn(100),
            begins_ms,
            wait_ms: self.dice.in_range(WAIT_MS),
            goes_ms: goes.then_some(goes_ms),
            again_at: again.then(|| self.turn(100)),
            meanwhile,
            renews: self.dice.percent(50),
            holds_ms: self.dice.in_range(0..=300),
            releases: self.dice.percent(80),
        }
    }

    async fn be_one(&self, one: &One) {
        runtime::sleep(Duration::from_millis(one.begins_ms)).await;
        let (waits, speaks) = (self.wait_as(one, one.node, one.goes_ms), self.speak(one));
        let (mut came, ()) = join(waits, speaks).await;
        if let (None, Some(node)) = (&came, one.again_at) {
            // The same token; it asks for another length, so that the two are told apart.
            let ask = Acquire { ttl_ms: one.ask.ttl_ms + 1, ..one.ask.clone() };
            came = self.wait_as(&One { ask, ..one.clone() }, node, None).await;
        }
        let Some(Reply::Op(reply)) = came else { return };
        let Some(fence) = reply.fence.filter(|_| reply.result || reply.yours) else { return };
        let Acquire { key, token, ttl_ms, .. } = &one.ask;
        let patience = Duration::from_millis(self.request_timeout_ms);
        if one.renews {
            let renew = Command::Renew { key: Key::clone(key), token: *token, ttl_ms: *ttl_ms, fence: Some(fence) };
            drop(self.service.submit(one.node, renew, patience).await);
        }
        runtime::sleep(Duration::from_millis(one.holds_ms)).await;
        if one.releases {
            let release = Command::Release { key: Key::clone(key), token: *token, fence: Some(fence) };
            drop(self.service.submit(one.node, release, patience).await);
        }
    }

    /// Waits; `None`: it went away, or cannot tell.
    async fn wait_as(&self, one: &One, node: u64, goes_ms: Option<u64>) -> Option<Reply> {
        let patience = Duration::from_millis(one.wait_ms + self.request_timeout_ms);
        let answer = self.service.wait(node, one.ask.clone(), one.wait_ms, patience);
        let goes = goes_ms.map_or(patience + patience, Duration::from_millis);
        tokio::select! { biased;
            answer = answer => match answer {
                Ok(applied) => Some(applied.reply),
                Err(NoReply::Nothing | NoReply::Unknown) => None,
            },
            () = runtime::sleep(goes) => None,
        }
    }

    /// Commands of a token that waits.
    async fn speak(&self, one: &One) {
        let Acquire { key, token, .. } = &one.ask;
        let said = match one.meanwhile {
            Meanwhile::Nothing => return,
            Meanwhile::Release => Command::Release { key: Key::clone(key), token: *token, fence: None },
            Meanwhile::Acquire => Command::Acquire(Acquire { ttl_ms: one.ask.ttl_ms + 2, ..one.ask.clone() }),
            Meanwhile::Held => Command::Batch(vec![
                Command::Held { key: Key::clone(key), token: Some(*token) },
                Command::Get { key: Key::clone(key) },
            ]),
        };
        runtime::sleep(Duration::from_millis(one.holds_ms)).await;
        let patience = Duration::from_millis(self.request_timeout_ms);
        drop(self.service.submit(one.node, said, patience).await);
    }

    /// Two keys, or neither; and both given back, or neither.
    async fn take_all(&mut self, keys: &[Key]) {
        let number = self.board.number();
        let token = |key: &Key| -> TokenHash { token_hash(key, &format!("all-{number}")) };
        let node = self.turn(100);
        let patience = self.patience();
        let asks: Vec<Command> =
            keys.iter().map(|key| Command::Acquire(Acquire { token: token(key), ..self.crowd_ask(key) })).collect();
        let Ok(applied) = self.service.submit(node, Command::AllOrNothing(asks), patience).await else { return };
        if !matches!(applied.reply, Reply::Batch(_)) {
            return;
        }
        self.rest(0..=200).await;
        let back = |key: &Key| Command::Release { key: Key::clone(key), token: token(key), fence: None };
        let all = Command::AllOrNothing(keys.iter().map(back).collect());
        drop(self.service.submit(node, all, patience).await);
    }
}
