//! The snapshot's form: golden bytes, and whatever bytes `load` may meet. A damaged snapshot is an error or, where the
//! damage makes another legal state, exactly that state; never a panic, never a great allocation.

use proptest::prelude::*;
use tenure_cluster::{LoadError, Moment, Position, Stamp, StateMachine};

use super::against_model::saved;
use super::waits::command;
use crate::keyspace::{Acquire, Attach, Command, EdgeId, Keyspace, LeaseOptions, TokenHash, Wait};

fn at(stamp: u64, index: u64) -> Moment {
    Moment { stamp: Stamp(stamp), position: Position { index, ordinal: 2 }, wall_ms: stamp.saturating_add(5) }
}

fn acquire(key: &str, token: u8, create: bool) -> Command {
    Command::Acquire(Acquire {
        key: key.into(),
        owner: "me".into(),
        token: TokenHash([token; 16]),
        ttl_ms: 30_000,
        create,
        note: create.then(|| "why".into()),
        min_hold_ms: None,
        delay_ms: create.then_some(1),
        once: false,
    })
}

/// One of everything a record can hold.
fn sample() -> Keyspace {
    let mut keyspace = Keyspace::default();
    let options = LeaseOptions { delay_ms: 300, min_hold_ms: 2, ttl_ms_max: Some(60_000) };
    let release = |token| Command::Release { key: "a".into(), token: TokenHash([token; 16]), fence: None };
    let end = |reason: &str, grace_ms| Command::Break { key: "b".into(), reason: reason.into(), grace_ms, fence: None };
    let commands = [
        Command::Create { key: "a".into(), options },
        Command::Expire { key: "a".into(), ttl_ms: 40_000 },
        acquire("a", 7, false),
        release(7),
        acquire("b", 8, true),
        end("go", 0),
        acquire("c", 9, true),
    ];
    for (command, n) in commands.into_iter().zip(1..) {
        keyspace.apply(&at(1000, n), command, &mut Vec::new());
    }
    keyspace.advance(&at(31_000, 8), &mut Vec::new());
    for (command, n) in [acquire("b", 4, true), end("stop", 9)].into_iter().zip(9..) {
        keyspace.apply(&at(31_000, n), command, &mut Vec::new());
    }
    keyspace
}

/// One of everything that needs version 2.
fn waiting() -> Keyspace {
    let mut keyspace = Keyspace::default();
    let attach = |node, request| Attach { edge: EdgeId { node, incarnation: 300 }, request };
    let wait = |token, create, request| {
        let Command::Acquire(ask) = acquire("a", token, create) else { unreachable!() };
        let min_hold_ms = create.then_some(2);
        Command::Wait(Wait { ask: Acquire { min_hold_ms, ..ask }, wait_ms: 9_000, attach: attach(1, request) })
    };
    let detach = |key: &str, token, attach| Command::Detach { key: key.into(), token: TokenHash([token; 16]), attach };
    let Command::Acquire(other) = acquire("b", 9, true) else { unreachable!() };
    let commands = [
        wait(1, true, 1),
        wait(2, true, 2),
        wait(3, false, 3),
        detach("a", 3, attach(1, 3)),
        Command::Wait(Wait { ask: other, wait_ms: 1, attach: attach(2, 4) }),
        detach("b", 9, attach(2, 4)),
    ];
    for (command, n) in commands.into_iter().zip(1..) {
        keyspace.apply(&at(100 * n, n), command, &mut Vec::new());
    }
    keyspace
}

#[test]
fn bytes_of_version_2_are_frozen() {
    let parts = [
        "74656e757265206b65797370616365 02 02 b0ea01", // "tenure keyspace", 2, fence 2, 30 000 ms
        "02 01 01ac02ac02 02",                         // ticket 2, 1 edge: 1.300, seen; 2 keys
        "0161 01 9a03 0402 00 00",                     // "a", lease, flags, 4.2, no delay, no hold
        "01 026d65 01010101010101010101010101010101",  // grant: fence 1, "me", token
        "94eb01 64 64 69 02 01 03776879",              // until, since, renewed, wall, hold, delay, note
        "01ac0201",                                    // not confirmed: 1.300:1
        "02",                                          // 2 waiters
        "0f 01 02020202020202020202020202020202",      // flags, ticket 1, token
        "026d65 b0ea01 03776879 02 01",                // "me", 30 000 ms, note, hold, delay
        "f047 01ac0202",                               // until, attached to 1.300:2
        "00 02 03030303030303030303030303030303",      // flags, ticket 2, token
        "026d65 b0ea01 d448 982a",                     // "me", 30 000 ms, until, kept until
        "0162 01 42 0602 00 00",                       // "b", lease, flags, 6.2
        "02 026d65 09090909090909090909090909090909",  // last: fence 2, "me", token
        "04 d804 d804",                                // undelivered, when, opens
    ];
    assert_eq!(hex(&saved(&waiting())), parts.concat().replace(' ', ""));
    assert_eq!(waiting().state_format(), 2);
    assert_eq!(sample().state_format(), 1);
}

/// Every part of version 2 that says what another says too must agree with it.
#[test]
fn version_2_is_refused_where_it_contradicts_itself() {
    let good = hex(&saved(&waiting()));
    let form = |from: &str, to: &str| {
        assert_eq!(good.matches(from).count(), 1, "{from}");
        let text = good.replace(from, to);
        let bytes: Vec<u8> =
            (0..text.len() / 2).map(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).unwrap()).collect();
        match Keyspace::load(&mut bytes.as_slice()) {
            Err(LoadError::Form(what)) => what,
            other => panic!("{from} as {to}: {other:?}"),
        }
    };
    let (tickets, edges, seen) = ("0202b0ea0102", "0101ac02ac02", "ac02ac02");
    assert_eq!(form(tickets, "0202b0ea0101"), "tickets out of order", "a ticket that was never given out");
    assert_eq!(form(tickets, &format!("0202b0ea01{}01", "80".repeat(9))), "too many tickets");
    assert_eq!(form(edges, "00"), "a waiter of no edge");
    assert_eq!(form(seen, "ad02ac02"), "a waiter of no edge");
    assert_eq!(form(edges, "0201ac02ac0202ac02ac02"), "an edge without waiters");
    assert_eq!(form(edges, "0201ac02ac0201ac02ac02"), "edges out of order");
    let (line, second) = ("01ac0201020f01", "0002030303");
    assert_eq!(form(line, "01ac0201020f00"), "tickets out of order");
    assert_eq!(form(second, "0001030303"), "tickets out of order");
    assert_eq!(form(line, "01ac0201021f01"), "unknown flags of a waiter");
    assert_eq!(form(&"03".repeat(16), &"02".repeat(16)), "a token that waits twice");
    let load = |bytes: &[u8]| Keyspace::load(&mut &*bytes).unwrap_err().to_string();
    for nothing_new in [b"tenure keyspace\x02\0\0\0\0\0".as_slice(), b"tenure keyspace\x02\0\0\x05\0\0"] {
        assert!(load(nothing_new).ends_with("a version that is not needed"));
    }
    let line_of_nobody = b"tenure keyspace\x02\0\0\0\0\x01\x01a\x01\x80\x02\0\0\0\0\0";
    assert!(load(line_of_nobody).ends_with("a line of nobody"));
    let in_version_1 = b"tenure keyspace\x01\0\0\x01\x01a\x01\x80\x02\0\0\0\0\0";
    assert!(load(in_version_1).ends_with("unknown flags"));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn bytes_of_version_1_are_frozen() {
    let parts = [
        "74656e757265206b65797370616365 01 04 b0ea01 03", // "tenure keyspace", 1, fence 4, 30 000 ms, 3 keys
        "0161 01 45 0402 a8c002 ac02 02 e0d403",          // "a", lease, flags, 4.2, until, delay, hold, ttl_ms_max
        "01 026d65 07070707070707070707070707070707",     // last: fence 1, "me", token
        "01 e807 ea07",                                   // released, when, opens
        "0162 01 7a 0a02 00 00",                          // "b", lease, flags, 10.2, no delay, no hold
        "04 026d65 04040404040404040404040404040404",     // grant: fence 4, "me", token
        "a1f201 98f201 98f201 9df201 00 01",              // until, since, renewed, wall, hold, delay
        "03776879 0473746f70",                            // note, BREAK's text
        "02 026d65 08080808080808080808080808080808",     // last: fence 2, "me", token
        "03 02676f e807 e907",                            // broken, its text, when, opens
        "0163 01 42 0802 00 00",                          // "c", lease, flags, 8.2, no delay, no hold
        "03 026d65 09090909090909090909090909090909",     // last: fence 3, "me", token
        "02 98f201 99f201",                               // expired, when, opens
    ];
    assert_eq!(hex(&saved(&sample())), parts.concat().replace(' ', ""));
}

#[test]
fn other_bytes_are_refused() {
    let load = |bytes: &[u8]| Keyspace::load(&mut &*bytes).map(|keyspace| keyspace.keys());
    let form = |bytes: &[u8]| match load(bytes) {
        Err(LoadError::Form(what)) => what,
        other => panic!("{other:?}"),
    };
    let good = saved(&sample());
    assert_eq!(load(&good).unwrap(), 3);
    assert_eq!(form(&[good.as_slice(), &[0]].concat()), "bytes after the last key");
    assert_eq!(form(b"something else that is long enough"), "this is no keyspace");
    assert_eq!(form(b"tenure keyspace\x04"), "keyspace of version 4, this build reads up to 3");
    assert_eq!(form(b"tenure keyspace\x81\x00"), "a number that is too long");
    assert_eq!(form(b"tenure keyspace\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), "a number that is too long");
    assert_eq!(form(b"tenure keyspace\x01\x80\x80\x80\x80\x80\x80\x80\x10"), "a fence beyond the counter");
    // A key of 2^62 bytes, and 2^62 keys, of which none is there.
    assert_eq!(form(b"tenure keyspace\x01\x00\x00\x01\x80\x80\x80\x80\x80\x80\x80\x80\x40"), "a text that is too long");
    assert!(matches!(load(b"tenure keyspace\x01\x00\x00\x80\x80\x80\x80\x80\x80\x80\x80\x40"), Err(LoadError::Io(_))));
    let record = |bytes: &[u8]| form(&[b"tenure keyspace\x01\x00\x00\x01\x01a", bytes, &[0; 16]].concat());
    assert_eq!(record(b"\x02"), "a key of unknown type");
    for flags in [b"\x01\x80\x01".as_slice(), b"\x01\x10", b"\x01\x20"] {
        assert_eq!(record(flags), "unknown flags", "one that is not known, a note or BREAK without a grant");
    }
    for length in 0..good.len() {
        assert!(matches!(load(&good[..length]), Err(LoadError::Io(_))), "cut to {length} bytes");
    }
}

/// A change of one place in some bytes.
#[derive(Clone, Debug)]
enum Damage {
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Drop(prop::sample::Index),
    Insert(prop::sample::Index, u8),
    Repeat(prop::sample::Index, prop::sample::Index),
}

impl Damage {
    fn any() -> impl Strategy<Value = Self> {
        let index = any::<prop::sample::Index>;
        prop_oneof![
            4 => (index(), 1_u8..=255).prop_map(|(at, bits)| Self::Flip(at, bits)),
            1 => index().prop_map(Self::Cut),
            1 => index().prop_map(Self::Drop),
            1 => (index(), any::<u8>()).prop_map(|(at, byte)| Self::Insert(at, byte)),
            1 => (index(), index()).prop_map(|(from, to)| Self::Repeat(from, to)),
        ]
    }

    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        match self {
            Self::Flip(at, bits) => bytes[at.index(length)] ^= bits,
            Self::Cut(at) => bytes.truncate(at.index(length)),
            Self::Drop(at) => drop(bytes.remove(at.index(length))),
            Self::Insert(at, byte) => bytes.insert(at.index(length), *byte),
            Self::Repeat(from, to) => {
                let (from, to) = (from.index(length), to.index(length));
                bytes.extend_from_within(from.min(to)..from.max(to));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn damage_is_an_error_or_another_state(
        commands in prop::collection::vec((command(), 0_u64..50), 0..20),
        damage in prop::collection::vec(Damage::any(), 1..4),
        after in prop::collection::vec(command(), 0..10),
    ) {
        let (mut keyspace, mut stamp) = (Keyspace::default(), 1000);
        for (n, (command, passed_ms)) in commands.into_iter().enumerate() {
            stamp += passed_ms;
            keyspace.apply(&at(stamp, n as u64), command, &mut Vec::new());
        }
        let mut bytes = saved(&keyspace);
        damage.iter().for_each(|damage| damage.apply(&mut bytes));
        if let Ok(mut loaded) = Keyspace::load(&mut bytes.as_slice()) {
            prop_assert_eq!(saved(&loaded), bytes);
            // Stamps and numbers at any end of their ranges must not panic either.
            let mut events = Vec::new();
            loaded.advance(&at(stamp, 100), &mut events);
            for command in after {
                loaded.apply(&at(stamp, 101), command, &mut events);
            }
            let waits = loaded.waiters() > 0;
            loaded.advance(&at(u64::MAX - 5, 102), &mut events);
            prop_assert!(loaded.grants() == 0 || waits);
            loaded.advance(&at(u64::MAX, 103), &mut events);
            loaded.advance(&at(u64::MAX, 104), &mut events);
            prop_assert_eq!((loaded.grants(), loaded.waiters()), (0, 0));
            let bytes = saved(&loaded);
            prop_assert_eq!(saved(&Keyspace::load(&mut bytes.as_slice()).unwrap()), bytes);
        }
    }
}
