//! What pools promise to whoever makes ids, told as what once went wrong elsewhere (the field reports FR-59 to FR-65) and
//! what else such a pool must not do.

use std::collections::{BTreeMap, BTreeSet};

use super::pool_log::Log;
use super::storm::Dice;
use crate::keyspace::{
    AcquireSlot, Command, EventKind, OnConflict, PoolOptions, PriorGrant, Reason, Reply, SlotOutcome, TokenHash,
};

/// FR-59: a hundred restarts of one identity use one id: after a clean release, resumed with the same token, after kills
/// that last less or more than the ttl and the quarantine, and over restarts of the store.
#[test]
fn a_hundred_restarts_use_one_id() {
    let mut log = Log::new(PoolOptions::default());
    let mut token = log.token();
    let (mut last, mut ids) = (0, BTreeSet::new());
    for n in 0..100 {
        let grant = log.take("pod-7", token);
        ids.insert(grant.id);
        assert_eq!(grant.fence > last, n % 5 != 1, "restart {n} resumes the grant or has a new one");
        last = grant.fence;
        match n % 5 {
            // Resumed.
            0 => continue,
            1 => assert!(log.release(token)),
            2 => log.pass(31_000),
            3 => log.pass(31_000 + 60_000 * (n % 7)),
            // Taken over, while the old grant is live.
            _ => log.pass(29_000),
        }
        if n % 10 == 9 {
            log.restart();
        }
        token = log.token();
    }
    assert_eq!(ids, BTreeSet::from([0]));
    let view = log.view();
    assert_eq!(view.held + view.quarantined, 1);
}

/// FR-59, and then twice within a second.
#[test]
fn two_restarts_in_a_second_use_one_id() {
    let mut log = Log::new(PoolOptions::default());
    let ids: Vec<_> = (0..3)
        .map(|_| {
            log.pass(400);
            let token = log.token();
            log.take("pod-7", token).id
        })
        .collect();
    assert_eq!(ids, [0, 0, 0]);
}

/// FR-60: 2 000 identities come and go, at most 300 are alive: ids stay within the range, and nobody shares one.
#[test]
fn identities_come_and_go() {
    let mut log = Log::new(PoolOptions::default());
    let mut dice = Dice::new();
    let mut alive: BTreeMap<u32, (String, TokenHash)> = BTreeMap::new();
    let (mut born, mut gone) = (0, 0);
    while gone < 2_000 {
        log.pass(500);
        for (_, token) in alive.values().cloned().collect::<Vec<_>>() {
            if log.now.is_multiple_of(10_000) {
                assert!(log.renew(token).grant().is_some());
            }
        }
        if born < 2_000 && alive.len() < 300 && (alive.len() < 250 || dice.is(50)) {
            let (identity, token) = (format!("10.0.{}.{}", born / 250, born % 250), log.token());
            let id = log.take(&identity, token).id;
            assert!(id < 512);
            let other = alive.insert(id, (identity, token));
            assert_eq!(other, None, "two share {id}");
            born += 1;
        }
        if alive.len() >= 250 || born == 2_000 {
            let id = *alive.keys().nth(dice.below(alive.len())).unwrap();
            let (_, token) = alive.remove(&id).unwrap();
            gone += 1;
            // Most leave silently.
            if dice.is(40) {
                assert!(log.release(token));
            }
        }
    }
    assert_eq!(born, 2_000);
    log.pass(30_000);
    assert_eq!(log.view().held, 0, "and when all are gone, so are the last after their ttl");
}

/// FR-61: the 513th is told when, and one RELEASE gives it exactly that id.
#[test]
fn the_513th_is_exhausted() {
    let mut log = Log::new(PoolOptions::default());
    let tokens: Vec<_> = (0..512)
        .map(|n| {
            let token = log.token();
            assert_eq!(log.take(&format!("pod-{n}"), token).id, n, "ascending");
            log.pass(1);
            token
        })
        .collect();
    let late = log.token();
    let reply = log.acquire(log.ask("late", late));
    assert_eq!((reply.outcome, reply.reason), (SlotOutcome::Nothing, Some(Reason::Exhausted)));
    assert_eq!(reply.retry_after_ms, Some(30_000 - 512 + 60_000), "the first one's deadline, and the quarantine");
    assert_eq!(log.view().acquirable_in_ms, 30_000 - 512 + 60_000);
    assert!(log.release(tokens[137]));
    assert_eq!(log.take("late", late).id, 137);
    let late = log.token();
    assert_eq!(log.acquire(log.ask("later", late)).reason, Some(Reason::Exhausted));
}

/// FR-61: what was told comes true, to the millisecond.
#[test]
fn exhausted_tells_the_very_time() {
    let mut log = Log::new(PoolOptions { size: 3, ..PoolOptions::default() });
    for n in 0..3 {
        let token = log.token();
        log.take(&format!("pod-{n}"), token);
        log.pass(7_000);
    }
    let late = log.token();
    let retry_after_ms = log.acquire(log.ask("late", late)).retry_after_ms.unwrap();
    log.pass(retry_after_ms - 1);
    assert_eq!(log.acquire(log.ask("late", late)).retry_after_ms, Some(1));
    log.pass(1);
    assert_eq!(log.take("late", late).id, 0);
}

/// FR-63: an id whose holder fell silent is nobody else's within the quarantine; one that was given back may be at once;
/// others are preferred to both.
#[test]
fn silence_is_followed_by_quarantine() {
    let mut log = Log::new(PoolOptions { size: 3, ..PoolOptions::default() });
    let (a, b) = (log.token(), log.token());
    assert_eq!((log.take("silent", a).id, log.take("tidy", b).id), (0, 1));
    assert!(log.release(b));
    log.pass(30_000);
    assert_eq!(log.count(EventKind::Expired), 1);
    let token = log.token();
    assert_eq!(log.take("other", token).id, 2, "never used before");
    let token = log.token();
    assert_eq!(log.take("another", token).id, 1, "given back");
    let token = log.token();
    for _ in 0..60 {
        let reply = log.acquire(log.ask("third", token));
        assert_eq!(reply.reason, Some(Reason::Exhausted));
        log.pass(1_000);
    }
    assert_eq!(log.take("third", token).id, 0);
}

/// FR-64: the same identity twice: one id, and at any time exactly one of the two can use it.
#[test]
fn one_identity_is_one_user() {
    let mut log = Log::new(PoolOptions::default());
    let (mut live, mut conflicts) = (log.token(), 0);
    let mut fence = log.take("copy", live).fence;
    for _ in 0..50 {
        log.pass(3_000);
        let token = log.token();
        let ask = AcquireSlot { ttl_ms: 60_000, ..log.ask("copy", token) };
        let reply = log.acquire(ask);
        match reply.reason {
            None => {
                let Some(PriorGrant { fence: Some(prior), .. }) = reply.prior else { panic!("{reply:?}") };
                let grant = reply.grant().unwrap();
                assert_eq!((grant.id, prior), (0, fence));
                assert_eq!(log.renew(live).outcome, SlotOutcome::Lost);
                assert_eq!(log.renew(live).reason, Some(Reason::TakenOver));
                assert_eq!(log.acquire(log.ask("copy", live)).reason, Some(Reason::TakenOver), "never back");
                (live, fence) = (token, log.renew(token).grant().unwrap().fence);
            }
            Some(Reason::IdentityConflict) => {
                assert!(reply.retry_after_ms.is_some_and(|ms| ms <= 60_000));
                assert_eq!(log.renew(token).outcome, SlotOutcome::Lost);
                assert!(log.renew(live).grant().is_some());
                conflicts += 1;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(log.view().held, 1);
    }
    assert_eq!(50 - conflicts, 9, "three in each minute of two and a half");
}

/// FR-64: with `reject` the second is refused as long as the first lives.
#[test]
fn a_second_user_can_be_refused() {
    let mut log = Log::new(PoolOptions { on_conflict: OnConflict::Reject, ..PoolOptions::default() });
    let (first, second) = (log.token(), log.token());
    log.take("copy", first);
    for _ in 0..20 {
        log.pass(10_000);
        assert!(log.renew(first).grant().is_some());
        let reply = log.acquire(log.ask("copy", second));
        assert_eq!((reply.reason, reply.retry_after_ms), (Some(Reason::IdentityInUse), Some(30_000)));
    }
    log.pass(30_000);
    assert_eq!(log.take("copy", second).id, 0);
    assert_eq!(log.renew(first).outcome, SlotOutcome::Lost);
}

/// FR-65: a short ttl is raised and told; at the deadline a grant is lost, whether or not anybody came; the same identity
/// asks again and has the same id.
#[test]
fn short_ttls_are_raised_and_late_renewals_lost() {
    let mut log = Log::new(PoolOptions::default());
    let token = log.token();
    let reply = log.acquire(AcquireSlot { ttl_ms: 5_000, ..log.ask("pod", token) });
    assert!(reply.ttl_raised);
    assert_eq!(reply.grant().map(|grant| grant.ttl_ms), Some(30_000));
    log.pass(29_999);
    assert!(log.renew(token).grant().is_some());
    log.pass(30_001);
    let reply = log.renew(token);
    assert_eq!((reply.outcome, reply.reason), (SlotOutcome::Lost, Some(Reason::Expired)));
    let token = log.token();
    assert_eq!(log.take("pod", token).id, 0);
}

/// machine-id.md 4.3: 512 nodes that restart ten times each use 512 ids, whichever way they go down.
#[test]
fn a_storm_of_restarts_uses_512_ids() {
    let mut log = Log::new(PoolOptions::default());
    let mut dice = Dice::new();
    let mut of = BTreeMap::new();
    for round in 0..=10 {
        for n in 0..512_u32 {
            let (identity, token) = (format!("pod-{n}"), log.token());
            let id = log.take(&identity, token).id;
            assert_eq!(*of.entry(n).or_insert(id), id, "{identity} in round {round}");
            if dice.is(30) {
                assert!(log.release(token));
            }
        }
        // Some are back before their ttl is over, some after.
        log.pass(if round % 2 == 0 { 25_000 } else { 45_000 });
    }
    let ids: BTreeSet<_> = of.values().copied().collect();
    assert_eq!(ids, (0..512).collect());
}

/// machine-id.md 4.3, 4.13: 512 at once, and each answer lost once: a repeat is the same grant.
#[test]
fn lost_answers_use_no_second_id() {
    let mut log = Log::new(PoolOptions::default());
    let tokens: Vec<_> = (0..512).map(|_| log.token()).collect();
    let first: Vec<_> = tokens.iter().enumerate().map(|(n, token)| log.take(&format!("pod-{n}"), *token)).collect();
    for ((n, token), grant) in tokens.iter().enumerate().zip(&first) {
        let reply = log.acquire(log.ask(&format!("pod-{n}"), *token));
        assert!(reply.yours);
        assert_eq!(reply.grant(), Some(grant));
    }
    assert_eq!(log.view().held, 512);
}

/// machine-id.md 4.6: claims pin nothing. All nodes go; as many others get all ids, after ttl and quarantine.
#[test]
fn ids_of_nodes_that_are_gone_return() {
    let mut log = Log::new(PoolOptions::default());
    for n in 0..512 {
        let token = log.token();
        log.take(&format!("old-{n}"), token);
    }
    log.pass(90_000);
    let ids: BTreeSet<_> = (0..512)
        .map(|n| {
            let token = log.token();
            log.take(&format!("new-{n}"), token).id
        })
        .collect();
    assert_eq!(ids, (0..512).collect());
}

/// machine-id.md 4.12: who lost an id frees it for nobody, and what was given back is never renewed.
#[test]
fn old_holders_have_no_say() {
    let mut log = Log::new(PoolOptions { size: 1, quarantine_ms: 0, ..PoolOptions::default() });
    let (old, new) = (log.token(), log.token());
    log.take("old", old);
    log.pass(30_000);
    let grant = log.take("new", new);
    assert!(!log.release(old));
    assert_eq!(log.renew(old).outcome, SlotOutcome::Lost);
    assert_eq!(log.renew(new).grant().map(|now| now.fence), Some(grant.fence));
    assert!(log.release(new));
    assert!(!log.release(new));
    assert_eq!((log.renew(new).outcome, log.renew(new).reason), (SlotOutcome::Lost, Some(Reason::NotHeld)));
}

/// machine-id.md 4.8: two regions have two ranges, and two pools of one range tell themselves apart.
#[test]
fn ranges_do_not_meet() {
    let mut west = Log::new(PoolOptions { size: 256, ..PoolOptions::default() });
    let mut east = Log::new(PoolOptions { size: 256, first: 256, ..PoolOptions::default() });
    let ids = |log: &mut Log| -> BTreeSet<u32> {
        (0..256)
            .map(|n| {
                let token = log.token();
                log.take(&format!("pod-{n}"), token).id
            })
            .collect()
    };
    assert_eq!(ids(&mut west), (0..256).collect());
    assert_eq!(ids(&mut east), (256..512).collect());
    let token = west.token();
    assert_eq!(west.acquire(west.ask("one more", token)).reason, Some(Reason::Exhausted), "never beyond its bits");
}

/// machine-id.md 2.3: an outside signal of a conflict. The id is given up, and nobody has it for a while.
#[test]
fn an_avoided_id_is_nobodys() {
    let mut log = Log::new(PoolOptions { size: 3, ..PoolOptions::default() });
    let token = log.token();
    assert_eq!(log.take("pod", token).id, 0);
    let reply = log.acquire(AcquireSlot { avoid: Some(0), ..log.ask("pod", token) });
    assert_eq!(reply.grant().map(|grant| grant.id), Some(1));
    assert_eq!(log.view().held, 1);
    let others: Vec<_> = (0..2).map(|_| log.token()).collect();
    assert_eq!(log.take("other", others[0]).id, 2);
    assert_eq!(log.acquire(log.ask("third", others[1])).reason, Some(Reason::Exhausted));
    // Given back, its former identity claims the new one, and does not fall back to the old.
    assert!(log.release(token));
    let token = log.token();
    assert_eq!(log.take("pod", token).id, 1);
    log.pass(60_000);
    assert_eq!(log.take("third", others[1]).id, 0);
}

/// A quarantine of nothing, and a pool without it: an id may be given in the entry in which it expired.
#[test]
fn without_quarantine_ids_go_on_at_once() {
    let options = PoolOptions { size: 1, quarantine_ms: 0, ttl_ms_min: 1, ..PoolOptions::default() };
    let mut log = Log::new(options);
    for n in 0..10 {
        let token = log.token();
        let grant = log.take(&format!("pod-{n}"), token);
        assert_eq!(grant.id, 0);
        log.now += 30_000;
    }
    let reply = log.apply(Command::Get { key: log.key() });
    assert!(matches!(reply, Reply::PoolView(view) if (view.held, view.free) == (0, 1)));
}
