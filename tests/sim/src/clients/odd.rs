//! Commands of which the checker has no model: options of keys, minimum holds and delays, BREAK with a grace, claims by
//! fence, HELD, CHECK and GET in a BATCH. They go to keys of their own and stand in no history: the judge, who reads the
//! log, tells whether each was answered right.

use std::sync::Arc;
use std::time::Duration;

use tenure::keyspace::{Acquire, Command, Key, LeaseOptions, Reply, TokenHash, token_hash};

use super::client::Client;
use super::service::Service;
use crate::runtime;

/// Keys at one time; others take their place every so often, so that some are made by CREATE and some by ACQUIRE.
const KEYS: u64 = 2;
const KEY_FOR_NS: u64 = 4_000_000_000;
/// Of options and of a grace.
const SPAN_MS: std::ops::RangeInclusive<u64> = 0..=400;

/// A grant that was asked for.
#[derive(Clone, Copy)]
struct Claimed {
    token: TokenHash,
    fence: u64,
}

impl<S: Service> Client<S> {
    /// One grant, or a try at it, and what may be done to it.
    pub(super) async fn be_odd(&mut self) {
        let epoch = runtime::now_ns() / KEY_FOR_NS;
        let key = Key::from(format!("odd-{epoch}-{}", self.dice.in_range(1..=KEYS)));
        if self.dice.percent(30) {
            let options = LeaseOptions { delay_ms: self.span_ms(), min_hold_ms: self.span_ms(), ttl_ms_max: None };
            self.send(vec![Command::Create { key: Key::clone(&key), options }]).await;
        }
        let token = token_hash(&key, &format!("odd-{}", self.board.number()));
        let acquire = self.odd_acquire(&key, token);
        let replies = self.send(vec![acquire]).await;
        let Some(fence) = granted(&replies) else { return self.rest(20..=200).await };
        let claimed = Claimed { token, fence };
        for _ in 0..self.dice.in_range(1..=4) {
            let mut commands = Vec::new();
            for _ in 0..self.dice.in_range(1..=3) {
                commands.push(self.odd_one(&key, claimed));
            }
            self.send(commands).await;
            self.rest(0..=150).await;
        }
        if self.dice.percent(70) {
            let fence = self.odd_fence(claimed.fence);
            self.send(vec![Command::Release { key, token, fence }]).await;
        }
        self.rest(0..=150).await;
    }

    fn span_ms(&mut self) -> u64 {
        if self.dice.percent(50) { 0 } else { self.dice.in_range(SPAN_MS) }
    }

    fn odd_acquire(&mut self, key: &Key, token: TokenHash) -> Command {
        let min_hold_ms = if self.dice.percent(40) { Some(self.span_ms()) } else { None };
        let delay_ms = if self.dice.percent(40) { Some(self.span_ms()) } else { None };
        Command::Acquire(Acquire {
            key: Key::clone(key),
            owner: Arc::from("odd"),
            token,
            ttl_ms: i64::try_from(self.lifetime_ms()).unwrap(),
            create: self.dice.percent(70),
            note: None,
            min_hold_ms,
            delay_ms,
            once: self.dice.percent(50),
        })
    }

    /// The right one, none, or one that is not this grant's.
    fn odd_fence(&mut self, fence: u64) -> Option<u64> {
        match self.dice.in_range(0..=3) {
            0 => None,
            1 => Some(fence.saturating_sub(1)),
            2 => Some(fence + 1),
            _ => Some(fence),
        }
    }

    fn odd_one(&mut self, key: &Key, Claimed { token, fence }: Claimed) -> Command {
        let (name, claim) = (Key::clone(key), self.odd_fence(fence));
        match self.dice.in_range(0..=99) {
            0..35 => {
                let ttl_ms = i64::try_from(self.lifetime_ms()).unwrap();
                Command::Renew { key: name, token, ttl_ms, fence: claim }
            }
            35..50 => Command::Check { key: name, fence: claim.unwrap_or(fence) },
            50..65 => Command::Held { key: name, token: Some(token) },
            65..75 => Command::Get { key: name },
            75..80 => Command::Release { key: name, token, fence: claim },
            80..83 => Command::Del { keys: vec![name], fence: claim },
            83..90 => self.odd_acquire(key, token),
            _ => Command::Break { key: name, reason: Arc::from("odd"), grace_ms: self.span_ms(), fence: claim },
        }
    }

    /// One try, as a BATCH that is told apart from all others.
    async fn send(&mut self, mut commands: Vec<Command>) -> Vec<Reply> {
        commands.push(Command::Check { key: Key::from(format!("nowhere-odd-{}", self.board.number())), fence: 1 });
        let patience: Duration = self.patience();
        let node = self.turn(3);
        match self.service.submit(node, Command::Batch(commands), patience).await {
            Ok(applied) => match applied.reply {
                Reply::Batch(replies) => replies,
                other => vec![other],
            },
            Err(_) => {
                self.turn(100);
                Vec::new()
            }
        }
    }
}

fn granted(replies: &[Reply]) -> Option<u64> {
    match replies.first()? {
        Reply::Op(reply) if reply.result => reply.fence,
        _ => None,
    }
}
