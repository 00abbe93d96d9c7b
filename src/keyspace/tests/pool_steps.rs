//! Random commands on pools: few slots, identities and tokens, and durations that meet, so that grants, quarantines,
//! lifetimes and waits end at one another's stamps again and again.

use std::sync::Arc;

use proptest::prelude::*;

use crate::keyspace::{
    Acquire, AcquireSlot, Attach, Command, EdgeId, Holders, OnConflict, PoolOptions, PoolUuid, TokenHash, Wait,
    WaitSlot, token_hash,
};

pub const KEYS: [&str; 2] = ["p", "q"];
pub const IDENTITIES: [&str; 3] = ["i", "j", "k"];
pub const TOKENS: [&str; 10] = ["i1", "i2", "i3", "i4", "i5", "j1", "j2", "k1", "x", "y"];

/// Where every case's clock starts.
pub const START: u64 = 1_000_000;

/// One entry: how long after the one before, how many timers the lagging machine fires, what is done, what is read
/// after it, and how far ahead the leader's clock is at the read.
#[derive(Clone, Debug)]
pub struct Step {
    pub passed_ms: u64,
    pub lag: usize,
    pub act: Act,
    pub read: Read,
    pub ahead_ms: u64,
}

#[derive(Clone, Debug)]
pub enum Act {
    Tick,
    Do(Command),
    Restart,
}

/// What is read.
#[derive(Clone, Debug)]
pub struct Read {
    pub key: Arc<str>,
    pub token: TokenHash,
    pub fence: u64,
    pub which: Holders,
}

fn key() -> impl Strategy<Value = Arc<str>> {
    prop_oneof![5 => Just(Arc::from(KEYS[0])), 1 => Just(Arc::from(KEYS[1]))]
}

fn ms() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => prop::sample::select(vec![1, 10, 20, 50, 100]),
        2 => prop::sample::select(vec![1_000, 2_000, 3_000, 5_000]),
        1 => 0_u64..200,
        1 => prop::sample::select(vec![60_000, 86_400_000]),
    ]
}

fn ttl_ms() -> impl Strategy<Value = i64> {
    prop_oneof![
        12 => prop::sample::select(vec![1_i64, 5, 20, 50, 100, 1_000, 5_000]),
        6 => Just(60_000),
        1 => -5_i64..=0,
        1 => Just(90_000),
    ]
}

fn fence() -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.15, 1_u64..8)
}

fn text() -> impl Strategy<Value = Arc<str>> {
    prop::sample::select(&["one", "two"][..]).prop_map(Arc::from)
}

/// An id near the lowest of any pool here.
fn id() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0_u32..4, 2 => 4_u32..9, 1 => 4_294_967_290_u32..=4_294_967_295]
}

fn size() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 1_u32..=4, 1 => 5_u32..=6]
}

fn unix_ms() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![START - 500, START, START, START + 5_000, START + 70_000, 0, (1 << 53) - 1])
}

fn options() -> impl Strategy<Value = PoolOptions> {
    let ms_or = |values: Vec<u64>| prop::sample::select(values);
    let times = (ms_or(vec![0, 50, 100, 100, 5_000]), ms_or(vec![0, 0, 20]), ms_or(vec![1, 10, 50]));
    let most = prop::sample::select(vec![60_000_u64, 60_000, 100]);
    let first = prop_oneof![6 => Just(0_u32), 1 => Just(5), 1 => Just(4_294_967_290)];
    let on_conflict = prop::sample::select(vec![OnConflict::Takeover, OnConflict::Takeover, OnConflict::Reject]);
    (size(), first, times, most, on_conflict).prop_map(
        |(size, first, (quarantine_ms, release_quarantine_ms, ttl_ms_min), ttl_ms_max, on_conflict)| PoolOptions {
            size,
            first,
            quarantine_ms,
            release_quarantine_ms,
            ttl_ms_min,
            ttl_ms_max,
            on_conflict,
        },
    )
}

pub fn create(key: impl Strategy<Value = Arc<str>>) -> impl Strategy<Value = Command> {
    (key, options(), any::<[u8; 16]>()).prop_map(|(key, options, uuid)| Command::CreatePool {
        key,
        options,
        uuid: PoolUuid(uuid),
    })
}

fn token() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&TOKENS[..])
}

/// An identity and mostly a token of its own.
fn whose() -> impl Strategy<Value = (&'static str, &'static str)> {
    prop_oneof![
        12 => prop::sample::select(vec![("i", "i1"), ("i", "i2"), ("i", "i3"), ("i", "i4"), ("i", "i5"), ("j", "j1"), ("j", "j2"), ("k", "k1")]),
        1 => (prop::sample::select(&IDENTITIES[..]), token()),
    ]
}

fn ask_slot() -> impl Strategy<Value = AcquireSlot> {
    let more = (
        prop::option::weighted(0.2, id()),
        prop::option::weighted(0.5, unix_ms()),
        prop::option::weighted(0.2, text()),
        prop::bool::weighted(0.2),
    );
    (key(), whose(), ttl_ms(), more).prop_map(|(key, (identity, token), ttl_ms, (avoid, unix_ms, note, once))| {
        let (identity, token) = (Arc::from(identity), token_hash(&key, token));
        AcquireSlot { key, identity, token, ttl_ms, avoid, unix_ms, note, once }
    })
}

fn ask() -> impl Strategy<Value = Acquire> {
    let tokens = prop_oneof![4 => prop::sample::select(vec!["x", "y"]), 1 => token()];
    let wrong = (prop::option::weighted(0.03, ms()), prop::option::weighted(0.03, ms()));
    let more = (prop::option::weighted(0.2, text()), prop::bool::weighted(0.2));
    (key(), tokens, ttl_ms(), wrong, more).prop_map(|(key, token, ttl_ms, (min_hold_ms, delay_ms), (note, once))| {
        let (owner, token) = (Arc::from(format!("owner of {token}")), token_hash(&key, token));
        Acquire { key, owner, token, ttl_ms, create: false, note, min_hold_ms, delay_ms, once }
    })
}

fn claim() -> impl Strategy<Value = (Arc<str>, TokenHash, Option<u64>)> {
    (key(), token(), fence()).prop_map(|(key, token, fence)| {
        let token = token_hash(&key, token);
        (key, token, fence)
    })
}

fn grant_ends() -> impl Strategy<Value = Command> {
    let grace = prop::sample::select(vec![0_u64, 0, 10, 50, 1_000]);
    prop_oneof![
        3 => claim().prop_map(|(key, token, fence)| Command::Release { key, token, fence }),
        2 => (key(), id(), text(), grace, fence())
            .prop_map(|(key, id, reason, grace_ms, fence)| Command::BreakSlot { key, id, reason, grace_ms, fence }),
    ]
}

/// Commands on the keys themselves, and those that are reads.
fn rare() -> impl Strategy<Value = Command> {
    prop_oneof![
        4 => (key(), prop_oneof![6 => size(), 1 => Just(7), 1 => Just(20)])
            .prop_map(|(key, size)| Command::Resize { key, size }),
        2 => create(key()),
        2 => (key(), ms()).prop_map(|(key, ttl_ms)| Command::Expire { key, ttl_ms: ttl_ms.max(1) }),
        1 => key().prop_map(|key| Command::Persist { key }),
        1 => (prop::collection::vec(key(), 1..3), fence()).prop_map(|(keys, fence)| Command::Del { keys, fence }),
        1 => key().prop_map(|key| Command::Get { key }),
        2 => (claim(), any::<bool>())
            .prop_map(|((key, token, _), whose)| Command::Held { key, token: whose.then_some(token) }),
        1 => (key(), 1_u64..8).prop_map(|(key, fence)| Command::Check { key, fence }),
        1 => (key(), text(), fence())
            .prop_map(|(key, reason, fence)| Command::Break { key, reason, grace_ms: 5, fence }),
    ]
}

fn renews() -> impl Strategy<Value = Command> {
    (claim(), ttl_ms(), prop::option::weighted(0.5, unix_ms())).prop_map(|((key, token, fence), ttl_ms, unix_ms)| {
        match unix_ms {
            Some(unix_ms) => Command::RenewSlot { key, token, ttl_ms, fence, unix_ms },
            None => Command::Renew { key, token, ttl_ms, fence },
        }
    })
}

/// All commands on pools but those of waiting and BATCH.
pub fn item() -> impl Strategy<Value = Command> {
    prop_oneof![
        8 => ask_slot().prop_map(Command::AcquireSlot),
        3 => ask().prop_map(Command::Acquire),
        3 => renews(),
        4 => grant_ends(),
        3 => rare(),
    ]
}

fn edge() -> impl Strategy<Value = EdgeId> {
    prop::sample::select(vec![(1, 1), (1, 1), (1, 2), (2, 1)])
        .prop_map(|(node, incarnation)| EdgeId { node, incarnation })
}

/// Mostly the request that is the token's own.
fn attach_of(token: TokenHash) -> impl Strategy<Value = Attach> {
    let own =
        Attach { edge: EdgeId { node: 1 + u64::from(token.0[0]) % 2, incarnation: 1 }, request: token.0[1].into() };
    let any = (edge(), 0_u64..3).prop_map(|(edge, request)| Attach { edge, request });
    prop_oneof![3 => Just(own), 1 => any]
}

fn met() -> impl Strategy<Value = (Arc<str>, TokenHash, Attach)> {
    claim().prop_flat_map(|(key, token, _)| attach_of(token).prop_map(move |attach| (key.clone(), token, attach)))
}

/// All commands on pools but BATCH, with much waiting.
pub fn waiting_item() -> impl Strategy<Value = Command> {
    let wait_ms = || prop::sample::select(vec![1_u64, 100, 1_000, 5_000, 20_000, 20_000]);
    let waits = (ask_slot(), wait_ms()).prop_flat_map(|(ask, wait_ms)| {
        let ask = AcquireSlot { ttl_ms: if ask.ttl_ms == 1 { 60_000 } else { ask.ttl_ms }, ..ask };
        attach_of(ask.token).prop_map(move |attach| Command::WaitSlot(WaitSlot { ask: ask.clone(), wait_ms, attach }))
    });
    let waits_anonymously = (ask(), wait_ms()).prop_flat_map(|(ask, wait_ms)| {
        attach_of(ask.token).prop_map(move |attach| Command::Wait(Wait { ask: ask.clone(), wait_ms, attach }))
    });
    prop_oneof![
        // Boxed: so many kinds in one value are too much for a test's stack.
        8 => waits.boxed(),
        5 => waits_anonymously.boxed(),
        12 => item().boxed(),
        3 => met().prop_map(|(key, token, attach)| Command::Detach { key, token, attach }),
        1 => met().prop_map(|(key, token, attach)| Command::Cancel { key, token, attach }),
        3 => edge().prop_map(|edge| Command::Presence { edge }),
        1 => edge().prop_map(|edge| Command::Away { edge }),
        1 => key().prop_map(|key| Command::Del { keys: vec![key], fence: None }),
        1 => key().prop_map(|key| Command::Expire { key, ttl_ms: 100 }),
        2 => met().prop_map(|(key, token, _)| Command::Release { key, token, fence: None }),
    ]
}

fn read() -> impl Strategy<Value = Read> {
    let which = (prop::option::weighted(0.3, id()), any::<bool>(), prop::option::weighted(0.2, id()), 1_usize..4)
        .prop_map(|(id, all, cursor, limit)| Holders { id, all, cursor: cursor.filter(|_| id.is_none()), limit });
    (claim(), 1_u64..8, which).prop_map(|((key, token, _), fence, which)| Read { key, token, fence, which })
}

pub fn steps(passed: impl Strategy<Value = u64>, item: BoxedStrategy<Command>) -> impl Strategy<Value = Step> {
    let act = prop_oneof![
        1 => Just(Act::Tick),
        1 => Just(Act::Restart),
        12 => item.clone().prop_map(Act::Do),
        1 => prop::collection::vec(item, 0..6).prop_map(|items| Act::Do(Command::Batch(items))),
    ];
    let ahead_ms = prop_oneof![2 => Just(0), 2 => ms()];
    (passed, 0_usize..3, act, read(), ahead_ms).prop_map(|(passed_ms, lag, act, read, ahead_ms)| Step {
        passed_ms,
        lag,
        act,
        read,
        ahead_ms,
    })
}

pub fn passed() -> impl Strategy<Value = u64> {
    prop_oneof![
        12 => Just(0_u64),
        8 => prop::sample::select(vec![1, 10, 20, 50, 100]),
        3 => prop::sample::select(vec![1_000, 3_000, 5_000, 20_000]),
        1 => prop::sample::select(vec![59_999, 60_000, 86_400_000]),
    ]
}
