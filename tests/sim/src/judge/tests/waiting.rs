//! The rules on waiting: the real machine, which keeps them under any commands; and steps written by hand that break them.

use std::collections::BTreeMap;
use std::sync::Arc;

use checker::Dice;
use tenure::keyspace::{
    Acquire, Attach, Command, EdgeId, Event, EventKind, Keyspace, OpReply, Place, Reason, Reply, TokenHash, Wait,
};
use tenure_cluster::StateMachine;

use super::super::Verdict;
use super::super::grants::Grants;
use super::{TTL_MS, acquire, key, moment, release, renew, token};

const fn attach(node: u64, request: u64) -> Attach {
    Attach { edge: EdgeId { node, incarnation: 1 }, request }
}

fn wait(number: u8, attach: Attach, wait_ms: u64) -> Command {
    let Command::Acquire(ask) = acquire(number, None) else { unreachable!() };
    Command::Wait(Wait { ask, wait_ms, attach })
}

/// Random commands of some tokens, most of which wait.
struct Random {
    dice: Dice,
    requests: u64,
    /// Requests that were made, by token.
    made: BTreeMap<u8, Vec<Attach>>,
}

impl Random {
    fn attach_of(&mut self, number: u8) -> Attach {
        let made = self.made.get(&number).cloned().unwrap_or_default();
        match made.len() {
            0 => attach(1, 0),
            count => made[usize::try_from(self.dice.in_range(0..=count as u64 - 1)).unwrap()],
        }
    }

    fn wait(&mut self, number: u8) -> Command {
        self.requests += 1;
        let incarnation = 1 + u64::from(self.dice.percent(10));
        let own = Attach { edge: EdgeId { node: self.dice.in_range(1..=3), incarnation }, request: self.requests };
        self.made.entry(number).or_default().push(own);
        let Command::Acquire(ask) = acquire(number, None) else { unreachable!() };
        let span = |dice: &mut Dice| dice.percent(20).then(|| dice.in_range(0..=900));
        let (min_hold_ms, delay_ms) = (span(&mut self.dice), span(&mut self.dice));
        let ask = Acquire { min_hold_ms, delay_ms, once: self.dice.percent(50), ..ask };
        Command::Wait(Wait { ask, wait_ms: self.dice.in_range(1..=9_000), attach: own })
    }

    fn next(&mut self, fence: u64) -> Command {
        let number = u8::try_from(self.dice.in_range(1..=9)).unwrap();
        let (token, edge) = (token(number), EdgeId { node: self.dice.in_range(1..=3), incarnation: 1 });
        match self.dice.in_range(0..=99) {
            0..40 => self.wait(number),
            40..50 => Command::Detach { key: key(), token, attach: self.attach_of(number) },
            50..55 => Command::Cancel { key: key(), token, attach: self.attach_of(number) },
            55..68 => Command::Presence { edge },
            68..70 => Command::Away { edge },
            70..76 => Command::Release { key: key(), token, fence: None },
            76..80 => release(number, fence),
            80..86 => renew(number, fence),
            86..90 => acquire(number, None),
            90..92 => Command::Expire { key: key(), ttl_ms: self.dice.in_range(1..=9_000) },
            92..94 => {
                let grace_ms = self.dice.in_range(0..=1) * 300;
                Command::Break { key: key(), reason: Arc::from("r"), grace_ms, fence: None }
            }
            94 => Command::Del { keys: vec![key()], fence: None },
            95..97 => {
                Command::AllOrNothing(vec![acquire(number, None), Command::Release { key: key(), token, fence: None }])
            }
            _ => {
                let commands = vec![
                    Command::Release { key: key(), token, fence: None },
                    Command::Held { key: key(), token: Some(token) },
                    Command::Get { key: key() },
                    renew(number, fence),
                ];
                Command::Batch(commands)
            }
        }
    }
}

#[test]
fn the_real_machine_keeps_them() {
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 0..20 {
        let (mut keyspace, mut grants, mut verdict) = (Keyspace::default(), Grants::default(), Verdict::default());
        let mut random = Random { dice: Dice::new(seed, 3), requests: 0, made: BTreeMap::new() };
        let (mut at_ms, mut fence) = (0, 1);
        for index in 1..3_000 {
            at_ms += random.dice.in_range(0..=1) * random.dice.in_range(0..=700);
            let (command, moment) = (random.next(fence), moment(index, at_ms));
            let mut events = Vec::new();
            keyspace.advance(&moment, &mut events);
            grants.passed(&moment, &events, &mut verdict);
            events.clear();
            let reply = keyspace.apply(&moment, command.clone(), &mut events);
            grants.step(&moment, &command, &reply, &events, &mut verdict);
            assert!(verdict.0.is_empty(), "seed {seed}: {:#?}", verdict.0);
            fence = grants.fence;
        }
        for (what, times) in grants.waits.0 {
            *counts.entry(what).or_default() += times;
        }
    }
    eprintln!("{counts:#?}");
    assert!(counts.len() >= 16 && counts.values().all(|times| *times >= 10), "{counts:#?}");
}

/// What the first holder and those in line did before; then a step, and the laws that it breaks.
struct Line {
    grants: Grants,
    verdict: Verdict,
    index: u64,
}

fn granted(fence: u64, attach: Option<Attach>) -> Event {
    let (owner, ttl_ms) = (Some(Arc::from("o")), Some(TTL_MS));
    Event {
        key: key(),
        kind: EventKind::Granted,
        fence: Some(fence),
        owner,
        last_renewed: None,
        detail: None,
        ttl_ms,
        attach,
        reason: None,
        slot: None,
    }
}

fn ended(attach: Attach, kind: EventKind, reason: Option<Reason>) -> Event {
    Event { kind, fence: None, owner: None, ttl_ms: None, reason, ..granted(0, Some(attach)) }
}

fn told(result: bool, fence: u64, ttl_ms: u64) -> Reply {
    Reply::Op(OpReply { result, fence: Some(fence), ttl_ms: Some(ttl_ms), ..OpReply::default() })
}

fn queued(ahead: u64, waiters: u64, ttl_ms: u64) -> Reply {
    let op = OpReply { reason: Some(Reason::Queued), fence: Some(1), ttl_ms: Some(ttl_ms), ..OpReply::default() };
    Reply::Queued { op, place: Place { ahead, waiters } }
}

fn done(result: bool) -> Reply {
    Reply::Done { result, reason: None }
}

impl Line {
    /// Token 1 holds; 2 and 3 wait, by requests 2 and 3 of nodes 2 and 3.
    fn new() -> Self {
        let mut line = Self { grants: Grants::default(), verdict: Verdict::default(), index: 0 };
        line.step(0, &acquire(1, None), &told(true, 1, TTL_MS), &[granted(1, None)]);
        line.step(0, &wait(2, attach(2, 2), 9_000), &queued(0, 1, TTL_MS), &[]);
        line.step(0, &wait(3, attach(3, 3), 9_000), &queued(1, 2, TTL_MS), &[]);
        assert!(line.verdict.0.is_empty(), "{:#?}", line.verdict.0);
        line
    }

    fn step(&mut self, at_ms: u64, command: &Command, reply: &Reply, events: &[Event]) {
        self.index += 1;
        self.grants.step(&moment(self.index, at_ms), command, reply, events, &mut self.verdict);
    }

    fn passed(&mut self, at_ms: u64, events: &[Event]) {
        self.index += 1;
        self.grants.passed(&moment(self.index, at_ms), events, &mut self.verdict);
    }

    #[track_caller]
    fn breaks(self, laws: &[&str]) {
        let mut broken: Vec<String> = self.verdict.0.iter().map(|violation| violation.law.clone()).collect();
        broken.sort();
        broken.dedup();
        assert_eq!(broken, laws, "{:#?}", self.verdict.0);
    }
}

fn released() -> Reply {
    Reply::Op(OpReply { result: true, ..OpReply::default() })
}

#[test]
fn the_first_comes_first() {
    let after_release = |events: &[Event], laws: &[&str]| {
        let mut line = Line::new();
        line.step(10, &release(1, 1), &released(), events);
        line.breaks(laws);
    };
    after_release(&[granted(2, Some(attach(2, 2)))], &[]);
    after_release(&[granted(2, Some(attach(3, 3)))], &["FirstComeFirst"]);
    after_release(&[], &["NobodyWaitsForFree"]);
    after_release(&[granted(2, Some(attach(2, 2))), granted(3, None)], &["FirstComeFirst"]);
    // By time.
    let after_expiry = |events: &[Event], laws: &[&str]| {
        let mut line = Line::new();
        line.passed(TTL_MS, events);
        line.breaks(laws);
    };
    after_expiry(&[granted(2, Some(attach(2, 2)))], &[]);
    after_expiry(&[granted(2, Some(attach(3, 3)))], &["FirstComeFirst"]);
    after_expiry(&[], &["NobodyWaitsForFree"]);
    let mut line = Line::new();
    line.passed(TTL_MS - 1, &[granted(2, Some(attach(2, 2)))]);
    line.breaks(&["NotEarly"]);
}

#[test]
fn a_grant_is_told_to_last_as_long_as_was_asked_for() {
    let told_ms = |ttl_ms: u64, laws: &[&str]| {
        let mut line = Line { grants: Grants::default(), verdict: Verdict::default(), index: 0 };
        // Renewed by the same list, which is another event's.
        let longer = Command::Renew { key: key(), token: token(1), ttl_ms: 3_000, fence: None };
        let replies = Reply::Batch(vec![told(true, 1, TTL_MS), told(true, 1, 3_000)]);
        let event = Event { ttl_ms: Some(ttl_ms), ..granted(1, None) };
        line.step(0, &Command::Batch(vec![acquire(1, None), longer]), &replies, &[event]);
        line.breaks(laws);
    };
    told_ms(TTL_MS, &[]);
    told_ms(3_000, &["DeadlinesStand"]);
}

#[test]
fn who_is_gone_is_passed_over_and_keeps_its_place() {
    let detach = |number: u8, own: Attach| Command::Detach { key: key(), token: token(number), attach: own };
    let mut line = Line::new();
    line.step(5, &detach(2, attach(2, 2)), &done(true), &[]);
    line.step(10, &release(1, 1), &released(), &[granted(2, Some(attach(2, 2)))]);
    line.breaks(&["FirstComeFirst"]);
    let mut line = Line::new();
    line.step(5, &detach(2, attach(2, 2)), &done(true), &[]);
    line.step(6, &wait(2, attach(1, 7), 9_000), &queued(0, 2, TTL_MS - 6), &[]);
    line.step(10, &release(1, 1), &released(), &[granted(2, Some(attach(1, 7)))]);
    line.breaks(&[]);
    let mut line = Line::new();
    line.step(5, &detach(2, attach(2, 2)), &done(true), &[]);
    line.step(6, &wait(2, attach(1, 7), 9_000), &queued(1, 2, TTL_MS - 6), &[]);
    line.breaks(&["PlacesStand"]);
    // Another request than its own has no say.
    let mut line = Line::new();
    line.step(5, &detach(2, attach(3, 3)), &done(true), &[]);
    line.breaks(&["UndeliveredIsUnheard"]);
}

#[test]
fn a_wait_ends_once_and_for_a_reason() {
    let superseded = ended(attach(2, 2), EventKind::WaitEnded, Some(Reason::Superseded));
    let over = |reason| ended(attach(2, 2), EventKind::WaitEnded, Some(reason));
    let repeated = wait(2, attach(1, 7), 9_000);
    let mut line = Line::new();
    line.step(5, &repeated, &queued(0, 2, TTL_MS - 5), &[superseded]);
    line.breaks(&[]);
    let mut line = Line::new();
    line.step(5, &repeated, &queued(0, 2, TTL_MS - 5), &[]);
    line.breaks(&["WaitsEndOnce"]);
    let cancel = Command::Cancel { key: key(), token: token(2), attach: attach(2, 2) };
    let mut line = Line::new();
    line.step(5, &cancel, &done(true), &[over(Reason::WaitTimeout)]);
    line.step(6, &cancel, &done(true), &[over(Reason::WaitTimeout)]);
    line.breaks(&["WaitsEndOnce"]);
    let mut line = Line::new();
    line.passed(5, &[over(Reason::WaitTimeout)]);
    line.breaks(&["WaitsEndOnce"]);
    let delete = Command::Del { keys: vec![key()], fence: None };
    let mut line = Line::new();
    line.step(5, &delete, &Reply::Deleted(1), &[over(Reason::Deleted)]);
    line.breaks(&["WaitsEndOnce"]);
}

#[test]
fn edges_lapse_when_they_do() {
    let gone = |own| ended(own, EventKind::Detached, None);
    let held = |line: &mut Line| line.step(900, &renew(1, 1), &told(true, 1, TTL_MS), &[]);
    let (two, three) = (EdgeId { node: 2, incarnation: 1 }, EdgeId { node: 3, incarnation: 1 });
    let mut line = Line::new();
    line.step(5, &Command::Away { edge: two }, &done(true), &[gone(attach(2, 2))]);
    line.breaks(&[]);
    let mut line = Line::new();
    line.step(5, &Command::Away { edge: two }, &done(true), &[]);
    line.breaks(&["EdgesLapse"]);
    let mut line = Line::new();
    held(&mut line);
    line.passed(999, &[gone(attach(2, 2))]);
    line.breaks(&["EdgesLapse"]);
    let lives_on = |until_ms: u64, events: &[Event], laws: &[&str]| {
        let mut line = Line::new();
        line.step(
            1,
            &Command::Renew { key: key(), token: token(1), ttl_ms: 8_000, fence: Some(1) },
            &told(true, 1, 8_000),
            &[],
        );
        line.step(2_000, &Command::Presence { edge: three }, &done(true), &[]);
        line.passed(until_ms, events);
        line.breaks(laws);
    };
    lives_on(2_999, &[], &[]);
    lives_on(3_000, &[gone(attach(2, 2))], &[]);
    lives_on(3_000, &[], &["EdgesLapse"]);
    lives_on(3_000, &[gone(attach(2, 2)), gone(attach(3, 3))], &["EdgesLapse"]);
}

#[test]
fn a_grant_is_returned_until_its_token_is_heard() {
    let undelivered = || {
        let event = ended(attach(2, 2), EventKind::Released, Some(Reason::Undelivered));
        Event { fence: Some(2), ..event }
    };
    let detach = Command::Detach { key: key(), token: TokenHash([2; 16]), attach: attach(2, 2) };
    let next = granted(3, Some(attach(3, 3)));
    let after = |commands: &[(Command, Reply)], result: bool, events: &[Event], laws: &[&str]| {
        let mut line = Line::new();
        line.step(10, &release(1, 1), &released(), &[granted(2, Some(attach(2, 2)))]);
        for (command, reply) in commands {
            line.step(20, command, reply, &[]);
        }
        line.step(30, &detach, &done(result), events);
        line.breaks(laws);
    };
    after(&[], true, &[undelivered(), next.clone()], &[]);
    after(&[], false, &[], &["UndeliveredIsUnheard"]);
    after(&[], true, &[undelivered()], &["NobodyWaitsForFree"]);
    let heard = [(renew(2, 2), told(true, 2, TTL_MS))];
    after(&heard, false, &[], &[]);
    after(&heard, true, &[undelivered(), next], &["FirstComeFirst", "UndeliveredIsUnheard"]);
}
