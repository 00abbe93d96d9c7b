//! What a list does that does not do all, and what listeners are told: steps written by hand that break the rules.

use std::iter::zip;

use tenure::keyspace::{Command, Event, EventKind, Keyspace, OpReply, Reply};
use tenure_cluster::{EventAt, Heard, Position, StateMachine};

use super::super::log::Taken;
use super::super::{Ledger, state_digest};
use super::{Node, TTL_MS, acquire, breaks, keeps, key, moment, release, renew, token};

/// Both items, or none: the second is of a token that holds nothing.
fn list() -> Command {
    Command::AllOrNothing(vec![acquire(1, None), Command::Release { key: key(), token: token(9), fence: None }])
}

/// A machine is given the list, does what `spoilt` says in its stead, and answers so.
fn after(spoilt: fn(&mut Keyspace, &mut Vec<Event>) -> Reply) -> Ledger {
    let ledger = Ledger::default();
    let mut node = Node::new(&ledger, 1);
    let moment = moment(1, 10);
    node.begin(&moment, 10);
    let mut events = Vec::new();
    let reply = spoilt(&mut node.keyspace, &mut events);
    let (command, state) = (list(), state_digest(&node.keyspace));
    let taken = Taken { moment: &moment, command: &command, reply: &reply, events: &events, state };
    ledger.applied(1, &mut node.place, &taken);
    ledger
}

fn not_all() -> Reply {
    Reply::NotAll { index: 1, why: Ok(OpReply::default()) }
}

#[test]
fn a_list_does_all_or_nothing() {
    keeps(&after(|keyspace, events| keyspace.apply(&moment(1, 10), list(), events)));
    keeps(&after(|_, _| not_all()));
    // The first item stands; it is told of; it is said that all was done.
    breaks(
        "AllOrNothing",
        &after(|keyspace, _| {
            drop(keyspace.apply(&moment(1, 10), acquire(1, None), &mut Vec::new()));
            not_all()
        }),
    );
    let told = after(|keyspace, events| {
        drop(keyspace.clone().apply(&moment(1, 10), acquire(1, None), events));
        not_all()
    });
    assert!(told.violations().iter().any(|violation| violation.law == "AllOrNothing"), "{:#?}", told.violations());
    breaks(
        "AllOrNothing",
        &after(|keyspace, events| {
            let granted = keyspace.apply(&moment(1, 10), acquire(1, None), events);
            Reply::Batch(vec![granted, Reply::Op(OpReply::default())])
        }),
    );
}

/// A node's log, and every event of it.
fn told(ledger: &Ledger) -> Vec<(EventAt, Event)> {
    let (mut node, mut keyspace, mut all) = (Node::new(ledger, 1), Keyspace::default(), Vec::new());
    let commands = [acquire(1, None), renew(1, 1), release(1, 1), acquire(2, None)];
    for (index, command) in zip(1.., commands) {
        node.entry(index, index * 10, std::slice::from_ref(&command));
        let (moment, mut events) = (moment(index, index * 10), Vec::new());
        keyspace.advance(&moment, &mut events);
        drop(keyspace.apply(&moment, command, &mut events));
        let at = |nth| EventAt {
            position: moment.position,
            nth,
            stamp: moment.stamp,
            wall_ms: moment.wall_ms,
            term: 1,
            replay: false,
        };
        all.extend(zip(0.., events).map(|(nth, event)| (at(nth), event)));
    }
    all
}

/// Node 1 is told what `spoil` makes of all events.
fn heard(spoil: fn(&Ledger, &mut Vec<(EventAt, Event)>)) -> Ledger {
    let ledger = Ledger::default();
    let mut events = told(&ledger);
    assert!(events.len() >= 4, "{events:#?}");
    spoil(&ledger, &mut events);
    events.iter().for_each(|(at, event)| ledger.heard(1, &Heard::Event(*at, event)));
    ledger
}

#[test]
fn listeners_hear_the_log() {
    keeps(&heard(|_, _| {}));
    keeps(&heard(|_, events| events.truncate(2)));
    // Left out at the beginning and within; twice; in another order; another event; one of no entry.
    breaks("EventsAgree", &heard(|_, events| drop(events.remove(0))));
    breaks("EventsAgree", &heard(|_, events| drop(events.remove(2))));
    breaks("EventsAgree", &heard(|_, events| events.insert(1, events[0].clone())));
    breaks("EventsAgree", &heard(|_, events| events.swap(1, 2)));
    breaks("EventsAgree", &heard(|_, events| events[1].1.kind = EventKind::Expired));
    breaks("EventsAgree", &heard(|_, events| events.last_mut().unwrap().0.nth += 1));
}

#[test]
fn a_jump_leads_forward_and_excuses_what_lies_before_it() {
    let to = |index| Heard::Jump(Position { index, ordinal: 0 });
    let after = |index: u64| {
        let ledger = Ledger::default();
        let mut events = told(&ledger);
        ledger.heard(1, &to(2));
        events.retain(|(at, _)| at.position.index >= index);
        events.iter().for_each(|(at, event)| ledger.heard(1, &Heard::Event(*at, event)));
        ledger
    };
    keeps(&after(3));
    breaks("EventsAgree", &after(2));
    breaks("EventsAgree", &after(4));
    let ledger = after(3);
    ledger.heard(1, &to(3));
    breaks("EventsAgree", &ledger);
    // A new life hears all again.
    let ledger = after(3);
    ledger.stopped(1);
    ledger.started(1);
    told(&Ledger::default()).iter().for_each(|(at, event)| ledger.heard(1, &Heard::Event(*at, event)));
    keeps(&ledger);
}

#[test]
fn nodes_tell_the_same() {
    let other = |events: fn(&mut Vec<Event>)| {
        let ledger = Ledger::default();
        let (mut one, mut other) = (Node::new(&ledger, 1), Node::new(&ledger, 2));
        one.entry(1, 10, &[acquire(1, None)]);
        let moment = moment(1, 10);
        other.begin(&moment, 10);
        let (command, mut told) = (acquire(1, None), Vec::new());
        let reply = other.keyspace.apply(&moment, command.clone(), &mut told);
        events(&mut told);
        let state = state_digest(&other.keyspace);
        let taken = Taken { moment: &moment, command: &command, reply: &reply, events: &told, state };
        ledger.applied(2, &mut other.place, &taken);
        ledger
    };
    keeps(&other(|_| {}));
    breaks("EventsAgree", &other(|events| drop(events.pop())));
    breaks("EventsAgree", &other(|events| events[0].ttl_ms = Some(TTL_MS + 1)));
}
