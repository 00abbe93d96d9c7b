//! A keyspace with a log of its own and one pool, for tests that tell stories: each call is an entry.

use std::sync::Arc;

use tenure_cluster::{Moment, Position, ReadAt, Stamp, StateMachine};

use super::against_model::saved;
use crate::keyspace::{
    AcquireSlot, Command, Event, EventKind, Key, Keyspace, PoolOptions, PoolUuid, PoolView, Reply, Shown, SlotGrant,
    SlotOutcome, SlotReply, TokenHash,
};

/// See the module's head.
pub struct Log {
    pub keyspace: Keyspace,
    pub now: u64,
    /// Of the last entry.
    pub events: Vec<Event>,
    key: Key,
    index: u64,
    tokens: u64,
}

impl Log {
    pub fn new(options: PoolOptions) -> Self {
        let key = Key::from("ids");
        let (keyspace, events) = (Keyspace::default(), Vec::new());
        let mut log = Self { keyspace, now: 1_000_000, events, key: key.clone(), index: 0, tokens: 0 };
        let reply = log.apply(Command::CreatePool { key, options, uuid: PoolUuid([7; 16]) });
        assert_eq!(reply, Reply::Done { result: true, reason: None });
        log
    }

    pub fn key(&self) -> Key {
        Key::clone(&self.key)
    }

    pub fn apply(&mut self, command: Command) -> Reply {
        let at = self.moment();
        self.events.clear();
        self.keyspace.advance(&at, &mut self.events);
        self.keyspace.apply(&at, command, &mut self.events)
    }

    fn moment(&mut self) -> Moment {
        self.index += 1;
        let position = Position { index: self.index, ordinal: 0 };
        Moment { stamp: Stamp(self.now), position, wall_ms: self.now }
    }

    /// Time passes, and an entry without a command comes in.
    pub fn pass(&mut self, ms: u64) {
        self.now += ms;
        let at = self.moment();
        self.events.clear();
        self.keyspace.advance(&at, &mut self.events);
    }

    /// Saves and loads.
    pub fn restart(&mut self) {
        let bytes = saved(&self.keyspace);
        self.keyspace = Keyspace::load(&mut bytes.as_slice()).unwrap();
        assert_eq!(saved(&self.keyspace), bytes);
    }

    /// A token that nobody had.
    pub fn token(&mut self) -> TokenHash {
        self.tokens += 1;
        let mut token = [0; 16];
        token[..8].copy_from_slice(&self.tokens.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
        token[8..].copy_from_slice(&self.tokens.to_be_bytes());
        TokenHash(token)
    }

    pub fn ask(&self, identity: &str, token: TokenHash) -> AcquireSlot {
        AcquireSlot {
            key: self.key(),
            identity: Arc::from(identity),
            token,
            ttl_ms: 30_000,
            avoid: None,
            unix_ms: None,
            note: None,
            once: true,
        }
    }

    pub fn acquire(&mut self, ask: AcquireSlot) -> SlotReply {
        slot(self.apply(Command::AcquireSlot(ask)))
    }

    /// ACQUIRE that has to be granted.
    pub fn take(&mut self, identity: &str, token: TokenHash) -> SlotGrant {
        let reply = self.acquire(self.ask(identity, token));
        let SlotOutcome::Granted(grant) = reply.outcome else { panic!("{identity}: {reply:?}") };
        grant
    }

    pub fn renew(&mut self, token: TokenHash) -> SlotReply {
        slot(self.apply(Command::Renew { key: self.key(), token, ttl_ms: 30_000, fence: None }))
    }

    /// RELEASE: was it the token's?
    pub fn release(&mut self, token: TokenHash) -> bool {
        match self.apply(Command::Release { key: self.key(), token, fence: None }) {
            Reply::OfSlot { op, .. } | Reply::Op(op) => op.result,
            other => panic!("{other:?}"),
        }
    }

    pub fn view(&self) -> PoolView {
        let at = ReadAt { applied: Stamp(self.now), now: Stamp(self.now) };
        self.keyspace.get(&self.key, at).unwrap().and_then(Shown::pool).unwrap()
    }

    pub fn count(&self, kind: EventKind) -> usize {
        self.events.iter().filter(|event| event.kind == kind).count()
    }
}

fn slot(reply: Reply) -> SlotReply {
    match reply {
        Reply::Slot(reply) => *reply,
        other => panic!("{other:?}"),
    }
}
