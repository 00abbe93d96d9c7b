//! The machine: its saved state, commands and replies as they come out of the log, a snapshot or a peer.
//!
//! Invariants: what `load` accepts, `save` writes to the byte; any state and any command, however absurd, can be worked
//! with, and what comes of it can be saved and loaded.

use tenure::api::convert;
use tenure::keyspace::{
    Acquire, AcquireSlot, Attach, Command, EdgeId, Event, Holders, Key, Keyspace, LeaseOptions, OnConflict,
    PoolOptions, PoolUuid, Reply, TokenHash, Wait, WaitSlot, token_hash,
};
use tenure_cluster::{Moment, Position, ReadAt, Stamp, StateMachine, entry};

use crate::mutate::Form;
use crate::{Heap, MIB, Sample, Target, Verdict};

/// A saved state.
pub const STATE: Target = Target {
    name: "keyspace-state",
    read: state,
    samples: state_samples,
    form: Form::Binary,
    mend: None,
    // A key of one byte takes about 8 bytes of form, and a record, tree nodes and a timer of some hundred bytes each;
    // and all of that a few times over while it is worked with. Texts are at most 1 MiB at a time.
    heap: Heap { per_byte: 512, besides: 4 * MIB },
    least: 1_000,
};

/// An encoded command.
pub const COMMAND: Target = Target {
    name: "keyspace-command",
    read: command,
    samples: command_samples,
    form: Form::Binary,
    mend: None,
    // A command takes 3 bytes at least and about 150 as a value, in a vector that doubles; a batch makes a reply for each.
    heap: Heap { per_byte: 512, besides: 4 * MIB },
    least: 1_000,
};

/// An encoded reply.
pub const REPLY: Target = Target {
    name: "keyspace-reply",
    read: reply,
    samples: reply_samples,
    form: Form::Binary,
    mend: None,
    // A reply takes 2 bytes at least and about 150 as a value, in a vector that doubles; as JSON about 100 bytes.
    heap: Heap { per_byte: 512, besides: 4 * MIB },
    least: 1_000,
};

fn moment(stamp: u64, index: u64) -> Moment {
    Moment { stamp: Stamp(stamp), position: Position { index, ordinal: 0 }, wall_ms: stamp }
}

fn token() -> TokenHash {
    token_hash("k", "t")
}

fn acquire(key: &str, ttl_ms: i64) -> Command {
    Command::Acquire(Acquire {
        key: key.into(),
        owner: "o".into(),
        token: token(),
        ttl_ms,
        create: true,
        note: Some("n".into()),
        min_hold_ms: Some(7),
        delay_ms: None,
        once: false,
    })
}

fn attach(request: u64) -> Attach {
    Attach { edge: EdgeId { node: 2, incarnation: 77 }, request }
}

/// An ACQUIRE of another token that waits.
fn wait(key: &str, token: &str, request: u64) -> Command {
    let Command::Acquire(ask) = acquire(key, 30_000) else { unreachable!() };
    let ask = Acquire { token: token_hash(key, token), ..ask };
    Command::Wait(Wait { ask, wait_ms: 600_000, attach: attach(request) })
}

/// An ACQUIRE of an identity's slot, by a token that is named as the identity.
fn acquire_slot(key: &str, identity: &str, avoid: Option<u32>) -> AcquireSlot {
    AcquireSlot {
        key: key.into(),
        identity: identity.into(),
        token: token_hash(key, identity),
        ttl_ms: 30_000,
        avoid,
        unix_ms: Some(1_796_000_000_000),
        note: Some("n".into()),
        once: true,
    }
}

/// A pool of so many slots.
fn create_pool(key: &str, size: u32) -> Command {
    let options = PoolOptions {
        size,
        first: 5,
        quarantine_ms: 60_000,
        release_quarantine_ms: 7,
        ttl_ms_min: 1_000,
        ttl_ms_max: 90_000,
        on_conflict: OnConflict::Takeover,
    };
    Command::CreatePool { key: key.into(), options, uuid: PoolUuid([7; 16]) }
}

/// An anonymous slot, by a token that is named as the owner.
fn acquire_anonymous(key: &str, owner: &str) -> Command {
    let Command::Acquire(ask) = acquire(key, 30_000) else { unreachable!() };
    let token = token_hash(key, owner);
    Command::Acquire(Acquire { owner: owner.into(), token, create: false, min_hold_ms: None, ..ask })
}

fn renew_slot(key: &str, identity: &str, unix_ms: u64) -> Command {
    let token = token_hash(key, identity);
    Command::RenewSlot { key: key.into(), token, ttl_ms: 40_000, fence: None, unix_ms }
}

/// One of each.
fn commands() -> Vec<(&'static str, Command)> {
    let key = || Key::from("k");
    let options = LeaseOptions { delay_ms: 5, min_hold_ms: 6, ttl_ms_max: Some(60_000) };
    vec![
        ("create", Command::Create { key: key(), options }),
        ("acquire", acquire("k", 30_000)),
        ("renew", Command::Renew { key: key(), token: token(), ttl_ms: 40_000, fence: Some(1) }),
        ("release", Command::Release { key: key(), token: token(), fence: None }),
        ("break", Command::Break { key: key(), reason: "r".into(), grace_ms: 300, fence: None }),
        ("expire", Command::Expire { key: key(), ttl_ms: 70_000 }),
        ("persist", Command::Persist { key: key() }),
        ("del", Command::Del { keys: vec![key(), "l".into()], fence: None }),
        (
            "batch",
            Command::Batch(vec![acquire("m", 1), Command::Get { key: key() }, Command::Persist { key: "m".into() }]),
        ),
        ("held", Command::Batch(vec![Command::Held { key: key(), token: Some(token()) }])),
        ("check", Command::Batch(vec![Command::Check { key: key(), fence: 1 }])),
        ("held-again", acquire("k", 30_000)),
        ("wait", wait("k", "w", 9)),
        ("detach", Command::Detach { key: key(), token: token_hash("k", "w"), attach: attach(9) }),
        ("cancel", Command::Cancel { key: key(), token: token_hash("k", "w"), attach: attach(9) }),
        ("presence", Command::Presence { edge: attach(9).edge }),
        ("away", Command::Away { edge: attach(9).edge }),
        (
            "all",
            Command::AllOrNothing(vec![
                acquire("n", 1),
                Command::Release { key: "n".into(), token: token_hash("n", "t"), fence: None },
            ]),
        ),
        ("create-pool", create_pool("p", 3)),
        ("acquire-slot", Command::AcquireSlot(acquire_slot("p", "i", None))),
        ("avoid-slot", Command::AcquireSlot(acquire_slot("p", "i", Some(5)))),
        ("renew-slot", renew_slot("p", "i", 1_796_000_000_001)),
        ("takeover", {
            let token = token_hash("p", "again");
            Command::AcquireSlot(AcquireSlot { token, ..acquire_slot("p", "i", None) })
        }),
        ("lost-slot", renew_slot("p", "i", 1)),
        ("anonymous", acquire_anonymous("p", "o")),
        (
            "held-slot",
            Command::Batch(vec![
                Command::Held { key: "p".into(), token: Some(token_hash("p", "o")) },
                Command::Get { key: "p".into() },
            ]),
        ),
        ("resize", Command::Resize { key: "p".into(), size: 1 }),
        ("wait-slot", wait_slot("p", "w", 11)),
        ("break-slot", Command::BreakSlot { key: "p".into(), id: 6, reason: "r".into(), grace_ms: 9, fence: None }),
        ("break-no-slot", Command::Break { key: "p".into(), reason: "r".into(), grace_ms: 9, fence: None }),
        ("slot-of-lease", Command::AcquireSlot(acquire_slot("k", "i", None))),
    ]
}

/// An ACQUIRE of an identity's slot that waits.
fn wait_slot(key: &str, identity: &str, request: u64) -> Command {
    let ask = acquire_slot(key, identity, None);
    Command::WaitSlot(WaitSlot { ask, wait_ms: 600_000, attach: attach(request) })
}

fn saved(keyspace: &Keyspace) -> Vec<u8> {
    let mut bytes = Vec::new();
    keyspace.save(&mut bytes).unwrap();
    bytes
}

/// Leases held, free, ended each way, with and without all that may be absent.
fn small() -> Keyspace {
    let mut keyspace = Keyspace::default();
    let mut events = Vec::new();
    let mut apply = |index: u64, command| drop(keyspace.apply(&moment(1_000 * index, index), command, &mut events));
    apply(1, acquire("broken", 90_000));
    apply(2, Command::Break { key: "broken".into(), reason: "why".into(), grace_ms: 0, fence: None });
    apply(3, acquire("graced", 90_000));
    apply(4, Command::Break { key: "graced".into(), reason: "why".into(), grace_ms: 60_000, fence: None });
    apply(5, acquire("expired", 1));
    apply(6, acquire("k", 30_000));
    apply(
        7,
        Command::Create { key: "free".into(), options: LeaseOptions { ttl_ms_max: Some(9), ..Default::default() } },
    );
    apply(8, Command::Expire { key: "free".into(), ttl_ms: 500_000 });
    apply(9, acquire("released", 90_000));
    apply(10, Command::Release { key: "released".into(), token: token(), fence: None });
    keyspace.advance(&moment(11_000, 11), &mut events);
    keyspace
}

/// Lines of who is there and who is not, and a grant that nobody has heard of.
fn lines() -> Keyspace {
    let mut keyspace = small();
    let mut events = Vec::new();
    let mut apply = |index: u64, command| drop(keyspace.apply(&moment(1_000 * index, index), command, &mut events));
    apply(12, wait("k", "first", 1));
    apply(13, wait("k", "second", 2));
    apply(14, Command::Detach { key: "k".into(), token: token_hash("k", "first"), attach: attach(1) });
    apply(15, wait("graced", "third", 3));
    apply(16, wait("unheard", "fourth", 4));
    keyspace
}

/// Pools with slots in every state: held, by whom and by nobody in particular, taken over, in quarantine, kept for
/// their own, given up, beyond the end, waited for.
fn pools() -> Keyspace {
    let mut keyspace = lines();
    let mut events = Vec::new();
    let mut apply = |index: u64, command| drop(keyspace.apply(&moment(1_000 * index, index), command, &mut events));
    let slot = |identity: &str, avoid| Command::AcquireSlot(acquire_slot("p", identity, avoid));
    let release = |identity: &str| Command::Release { key: "p".into(), token: token_hash("p", identity), fence: None };
    apply(17, create_pool("p", 7));
    apply(18, slot("a", None));
    let token = token_hash("p", "again");
    apply(19, Command::AcquireSlot(AcquireSlot { token, ..acquire_slot("p", "a", None) }));
    apply(20, slot("b", None));
    apply(21, release("b"));
    apply(22, slot("c", None));
    apply(23, slot("c", Some(7)));
    apply(24, slot("d", None));
    apply(25, Command::BreakSlot { key: "p".into(), id: 9, reason: "why".into(), grace_ms: 0, fence: None });
    apply(26, acquire_anonymous("p", "e"));
    apply(27, slot("f", None));
    apply(28, Command::BreakSlot { key: "p".into(), id: 11, reason: "why".into(), grace_ms: 60_000, fence: None });
    apply(29, Command::Resize { key: "p".into(), size: 4 });
    apply(30, create_pool("small", 1));
    apply(31, acquire_anonymous("small", "o"));
    apply(32, wait_slot("small", "first", 5));
    apply(33, wait_slot("small", "second", 6));
    apply(34, create_pool("ended", 1));
    apply(35, Command::AcquireSlot(AcquireSlot { ttl_ms: 1, ..acquire_slot("ended", "i", None) }));
    apply(36, create_pool("new", 65_536));
    keyspace.advance(&moment(37_000, 37), &mut events);
    keyspace
}

/// Whatever is asked of it is answered, and what it is then can be saved and loaded.
fn is_workable(mut keyspace: Keyspace, extra: Option<Command>) {
    let mut events: Vec<Event> = Vec::new();
    let wake = keyspace.wake().map_or(0, |stamp| stamp.0);
    for (index, stamp) in [0, 11_000, wake, wake.saturating_add(1), 1 << 60, u64::MAX].into_iter().enumerate() {
        let at = moment(stamp, u64::MAX - 7 + index as u64);
        keyspace.advance(&at, &mut events);
        for command in extra.iter().cloned().chain(commands().into_iter().map(|(_, command)| command)) {
            let _ = Keyspace::reply_bytes_max(&command);
            let reply = keyspace.apply(&at, command, &mut events);
            let _ = convert::reply(&reply, Stamp(stamp)).map(Result::unwrap);
        }
        asked(&keyspace, ReadAt { applied: Stamp(stamp), now: Stamp(stamp.saturating_add(5)) });
    }
    let bytes = saved(&keyspace);
    let again = Keyspace::load(&mut bytes.as_slice()).expect("what is saved is loaded");
    assert!(saved(&again) == bytes, "and the same");
}

fn asked(keyspace: &Keyspace, at: ReadAt) {
    let _ = keyspace.held("k", Some(token()), at);
    let _ = keyspace.check("k", 1, at);
    for key in ["k", "p", "small"] {
        let _ = keyspace.key_type(key, at);
        let _ = keyspace.held(key, None, at);
        for which in [
            Holders { all: true, limit: 1_000, ..Holders::default() },
            Holders { id: Some(5), ..Holders::default() },
            Holders { cursor: Some(5), limit: 1, ..Holders::default() },
        ] {
            if let Ok(Ok(page)) = keyspace.holders(key, &which, at) {
                convert::holders(&page, at.now).unwrap();
            }
        }
    }
    let _ = keyspace.pools().count();
    let _ = keyspace.exists("k", at);
    let _ = keyspace.key_ttl("k", at);
    if let Ok(view) = keyspace.get("k", at) {
        convert::view(view.as_ref(), at.now).unwrap();
    }
    if let Ok(page) = keyspace.scan("", None, 1_000, at) {
        convert::page(&page, at.now).unwrap();
    }
    let _ = (keyspace.grants(), keyspace.keys(), keyspace.longest_ttl_ms());
}

fn state(bytes: &[u8]) -> Verdict {
    let Ok(keyspace) = Keyspace::load(&mut &*bytes) else { return Verdict::Refused };
    assert!(saved(&keyspace) == bytes, "each state has one form");
    is_workable(keyspace, None);
    Verdict::Accepted
}

fn state_samples() -> Vec<Sample> {
    vec![
        ("empty", saved(&Keyspace::default())),
        ("small", saved(&small())),
        ("lines", saved(&lines())),
        ("pools", saved(&pools())),
    ]
}

fn command(bytes: &[u8]) -> Verdict {
    let Ok(command) = entry::decode_command::<Keyspace>(bytes) else { return Verdict::Refused };
    let again = entry::encode_command::<Keyspace>(&command).unwrap();
    assert_eq!(entry::decode_command::<Keyspace>(&again).unwrap(), command);
    is_workable(pools(), Some(command));
    Verdict::Accepted
}

fn command_samples() -> Vec<Sample> {
    let encode = |command| entry::encode_command::<Keyspace>(&command).unwrap().to_vec();
    commands().into_iter().map(|(name, command)| (name, encode(command))).collect()
}

fn reply(bytes: &[u8]) -> Verdict {
    let Ok(reply) = entry::decode_reply::<Keyspace>(bytes) else { return Verdict::Refused };
    let again = entry::encode_replies::<Keyspace>(std::slice::from_ref(&reply)).unwrap();
    assert_eq!(entry::decode_reply::<Keyspace>(&again[0]).unwrap(), reply);
    if let Ok(body) = convert::reply(&reply, Stamp(11_000)) {
        serde_json::from_slice::<serde_json::Value>(body.unwrap().json.as_ref()).unwrap();
    }
    Verdict::Accepted
}

fn reply_samples() -> Vec<Sample> {
    let mut keyspace = small();
    let mut events = Vec::new();
    let mut replies: Vec<(&'static str, Reply)> = Vec::new();
    for (at, (name, command)) in commands().into_iter().enumerate() {
        replies.push((name, keyspace.apply(&moment(12_000 + at as u64, 12 + at as u64), command, &mut events)));
    }
    let encode = |reply| entry::encode_replies::<Keyspace>(&[reply]).unwrap()[0].to_vec();
    replies.into_iter().map(|(name, reply)| (name, encode(reply))).collect()
}
