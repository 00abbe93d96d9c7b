//! The keyspace's planted bugs: each breaks what holds without it.

use tenure_cluster::planted::{Bug, plant};
use tenure_cluster::{Moment, Position, Stamp, StateMachine};

use crate::keyspace::{Acquire, Command, Keyspace, Reply, TokenHash};

fn at(stamp: u64) -> Moment {
    Moment { stamp: Stamp(stamp), position: Position { index: stamp, ordinal: 0 }, wall_ms: 0 }
}

fn acquire(token: u8) -> Command {
    Command::Acquire(Acquire {
        key: "job".into(),
        owner: "me".into(),
        token: TokenHash([token; 16]),
        ttl_ms: 1000,
        create: true,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: false,
    })
}

/// Is the operation done? Then with which fence?
fn op(keyspace: &mut Keyspace, stamp: u64, command: Command) -> Option<u64> {
    match keyspace.apply(&at(stamp), command, &mut Vec::new()) {
        Reply::Op(reply) if reply.result => reply.fence,
        _ => None,
    }
}

/// Does the fence grow over a snapshot?
fn fence_grows() -> bool {
    let mut keyspace = Keyspace::default();
    let first = op(&mut keyspace, 1, acquire(1));
    let mut bytes = Vec::new();
    keyspace.save(&mut bytes).unwrap();
    let mut loaded = Keyspace::load(&mut bytes.as_slice()).unwrap();
    op(&mut loaded, 2000, acquire(2)) > first
}

/// Is a RENEW refused whose token is not the holder's?
fn renew_asks_for_the_token() -> bool {
    let mut keyspace = Keyspace::default();
    op(&mut keyspace, 1, acquire(1));
    let renew = |token| Command::Renew { key: "job".into(), token: TokenHash([token; 16]), ttl_ms: 1000, fence: None };
    assert!(op(&mut keyspace, 2, renew(1)).is_some());
    op(&mut keyspace, 3, renew(2)).is_none()
}

/// Does a grant outlive its key's lifetime?
fn grant_outlives_the_key() -> bool {
    let mut keyspace = Keyspace::default();
    op(&mut keyspace, 1, acquire(1));
    keyspace.apply(&at(2), Command::Expire { key: "job".into(), ttl_ms: 10 }, &mut Vec::new());
    keyspace.advance(&at(500), &mut Vec::new());
    op(&mut keyspace, 500, acquire(2)).is_none()
}

#[test]
fn each_bug_breaks_what_holds_without_it() {
    let laws: [(Bug, fn() -> bool); 3] = [
        (Bug::FenceResetBySnapshot, fence_grows),
        (Bug::RenewByOwner, renew_asks_for_the_token),
        (Bug::KeyTtlEndsGrant, grant_outlives_the_key),
    ];
    for (bug, law) in laws {
        assert!(law(), "without {bug:?}");
        plant(Some(bug));
        let holds = law();
        plant(None);
        assert!(!holds, "with {bug:?}");
    }
}
