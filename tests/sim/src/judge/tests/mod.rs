//! The judge by itself: for each law a sequence that breaks it, and one beside it that does not.

mod grants;
mod outages;
mod pools;
mod told;
mod waiting;

use std::sync::Arc;

use checker::{Answer, Call, Live, Operation, Outcome, Position as Witnessed, Witness};
use tenure::keyspace::{Acquire, Command, Key, Keyspace, Reply, TokenHash};
use tenure_cluster::{Moment, Position, Stamp, StateMachine};

use super::log::{Passed, Place, Taken};
use super::{Ledger, Watched, state_digest};

const EPOCH_MS: u64 = 1_000_000;
const TTL_MS: u64 = 1_000;

/// A node that tells a ledger what it does. Its clock is true: `at_ms` is stamp and real time at once.
struct Node<'a> {
    ledger: &'a Ledger,
    id: u64,
    keyspace: Keyspace,
    place: Place,
}

impl<'a> Node<'a> {
    fn new(ledger: &'a Ledger, id: u64) -> Self {
        ledger.started(id);
        Self { ledger, id, keyspace: Keyspace::default(), place: Place::default() }
    }

    /// Goes on from another's snapshot.
    fn load(&mut self, keyspace: &Keyspace) {
        self.keyspace = keyspace.clone();
        let state = state_digest(keyspace);
        self.ledger.loaded(self.id, state);
        self.place = Place::loaded(state);
    }

    fn begin(&mut self, moment: &Moment, now_ms: u64) {
        let mut events = Vec::new();
        self.keyspace.advance(moment, &mut events);
        let passed = Passed { moment, events: &events, state: state_digest(&self.keyspace) };
        self.ledger.advanced(self.id, now_ms * 1_000_000, &mut self.place, &passed);
    }

    fn one(&mut self, moment: &Moment, command: &Command) -> Reply {
        let mut events = Vec::new();
        let reply = self.keyspace.apply(moment, command.clone(), &mut events);
        let state = state_digest(&self.keyspace);
        let taken = Taken { moment, command, reply: &reply, events: &events, state };
        self.ledger.applied(self.id, &mut self.place, &taken);
        reply
    }

    fn entry(&mut self, index: u64, at_ms: u64, commands: &[Command]) -> Vec<Reply> {
        let mut moment = moment(index, at_ms);
        self.begin(&moment, at_ms);
        let mut replies = Vec::new();
        for command in commands {
            replies.push(self.one(&moment, command));
            moment.position.ordinal += 1;
        }
        replies
    }
}

fn moment(index: u64, at_ms: u64) -> Moment {
    Moment { stamp: Stamp(EPOCH_MS + at_ms), position: Position { index, ordinal: 0 }, wall_ms: 7 }
}

fn key() -> Key {
    Arc::from("k")
}

const fn token(number: u8) -> TokenHash {
    TokenHash([number; 16])
}

fn acquire(number: u8, note: Option<&str>) -> Command {
    Command::Acquire(Acquire {
        key: key(),
        owner: Arc::from("o"),
        token: token(number),
        ttl_ms: TTL_MS as i64,
        create: true,
        note: note.map(Arc::from),
        min_hold_ms: None,
        delay_ms: None,
        once: false,
    })
}

fn renew(number: u8, fence: u64) -> Command {
    Command::Renew { key: key(), token: token(number), ttl_ms: TTL_MS as i64, fence: Some(fence) }
}

fn release(number: u8, fence: u64) -> Command {
    Command::Release { key: key(), token: token(number), fence: Some(fence) }
}

fn laws(ledger: &Ledger) -> Vec<String> {
    let mut laws: Vec<String> = ledger.violations().into_iter().map(|violation| violation.law).collect();
    laws.dedup();
    laws
}

#[track_caller]
fn breaks(law: &str, ledger: &Ledger) {
    assert_eq!(laws(ledger), [law], "{:#?}", ledger.violations());
}

#[track_caller]
fn keeps(ledger: &Ledger) {
    assert!(ledger.violations().is_empty(), "{:#?}", ledger.violations());
}

#[test]
fn nodes_that_agree_break_nothing() {
    let ledger = Ledger::default();
    let (mut one, mut other) = (Node::new(&ledger, 1), Node::new(&ledger, 2));
    for node in [&mut one, &mut other] {
        node.entry(2, 10, &[acquire(1, Some("1")), renew(1, 1)]);
        node.entry(3, 500, &[]);
    }
    one.entry(5, 1_600, &[acquire(2, Some("2"))]);
    let snapshot = one.keyspace.clone();
    other.load(&snapshot);
    for node in [&mut one, &mut other] {
        node.entry(6, 1_700, &[release(2, 2)]);
    }
    // A restart from nothing.
    ledger.stopped(2);
    other = Node::new(&ledger, 2);
    other.entry(2, 10, &[acquire(1, Some("1")), renew(1, 1)]);
    keeps(&ledger);
    let counts = ledger.counts();
    assert_eq!((counts["judged_entries"], counts["judged_loads"], counts["judged_once"]), (4, 1, 4));
    assert_eq!(counts["judged_on_another_node"], 9);
}

#[test]
fn logs_agree() {
    let another = |commands: &[Command], at_ms| {
        let ledger = Ledger::default();
        let (mut one, mut other) = (Node::new(&ledger, 1), Node::new(&ledger, 2));
        one.entry(1, 10, &[acquire(1, None), renew(1, 1)]);
        other.entry(1, at_ms, commands);
        other.entry(2, 20, &[]);
        ledger
    };
    keeps(&another(&[acquire(1, None), renew(1, 1)], 10));
    breaks("LogsAgree", &another(&[acquire(1, None), renew(2, 1)], 10));
    breaks("LogsAgree", &another(&[acquire(1, None)], 10));
    breaks("LogsAgree", &another(&[acquire(1, None), renew(1, 1), renew(1, 1)], 10));
    assert_eq!(laws(&another(&[acquire(1, None), renew(1, 1)], 11))[0], "LogsAgree");
    // An entry that those who are further do not have.
    let ledger = Ledger::default();
    let (mut one, mut other) = (Node::new(&ledger, 1), Node::new(&ledger, 2));
    one.entry(3, 10, &[]);
    other.entry(2, 10, &[]);
    breaks("LogsAgree", &ledger);
}

#[test]
fn states_agree() {
    let after = |spoil: fn(&mut Node<'_>)| {
        let ledger = Ledger::default();
        let (mut one, mut other) = (Node::new(&ledger, 1), Node::new(&ledger, 2));
        one.entry(1, 10, &[acquire(1, None)]);
        one.entry(2, 20, &[]);
        one.entry(3, 30, &[acquire(2, None)]);
        other.entry(1, 10, &[acquire(1, None)]);
        spoil(&mut other);
        other.entry(2, 20, &[]);
        ledger
    };
    keeps(&after(|_| {}));
    // It forgot everything; it renewed what nobody ordered.
    breaks("StatesAgree", &after(|node| node.keyspace = Keyspace::default()));
    breaks("StatesAgree", &after(|node| drop(node.keyspace.apply(&moment(1, 15), renew(1, 1), &mut Vec::new()))));
    // Snapshots: of no state that ever was; and of another state than the entry's before.
    let ledger = Ledger::default();
    let (mut one, mut other) = (Node::new(&ledger, 1), Node::new(&ledger, 2));
    one.entry(1, 10, &[acquire(1, None)]);
    let first = one.keyspace.clone();
    one.entry(2, 20, &[release(1, 1)]);
    other.load(&first);
    keeps(&ledger);
    other.entry(3, 30, &[]);
    assert_eq!(laws(&ledger)[0], "StatesAgree", "it lacks entry 2");
    let ledger = Ledger::default();
    let mut other = Node::new(&ledger, 2);
    other.load(&first);
    breaks("StatesAgree", &ledger);
}

#[test]
fn positions_grow() {
    let ledger = Ledger::default();
    let (mut one, mut other) = (Node::new(&ledger, 1), Node::new(&ledger, 2));
    (1..=3).for_each(|index| drop(one.entry(index, 10, &[])));
    other.entry(1, 10, &[]);
    // What is no command's entry leaves a hole.
    one.entry(5, 10, &[]);
    keeps(&ledger);
    other.entry(3, 10, &[]);
    breaks("PositionsGrow", &ledger);
    // Back without a restart.
    let ledger = Ledger::default();
    let mut one = Node::new(&ledger, 1);
    one.entry(1, 10, &[]);
    one.place = Place::default();
    one.entry(1, 10, &[]);
    breaks("PositionsGrow", &ledger);
    // A node that was stopped.
    let ledger = Ledger::default();
    let mut one = Node::new(&ledger, 1);
    ledger.stopped(1);
    one.entry(1, 10, &[]);
    breaks("PositionsGrow", &ledger);
    // A command twice, or one left out.
    let ledger = Ledger::default();
    let mut one = Node::new(&ledger, 1);
    one.entry(1, 10, &[]);
    let mut second = moment(1, 10);
    second.position.ordinal = 1;
    one.one(&second, &renew(1, 1));
    assert_eq!(laws(&ledger)[0], "PositionsGrow");
}

#[test]
fn the_clock_grows_and_keeps_pace() {
    let ledger = Ledger::default();
    let mut one = Node::new(&ledger, 1);
    one.entry(1, 10, &[]);
    one.entry(2, 10, &[]);
    keeps(&ledger);
    one.entry(3, 9, &[]);
    breaks("ClockGrows", &ledger);
    let paced = |stamp_ms, now_ms| {
        let ledger = Ledger::default();
        let mut one = Node::new(&ledger, 1);
        one.begin(&moment(1, 0), 0);
        one.begin(&moment(2, stamp_ms), now_ms);
        ledger
    };
    keeps(&paced(1_012, 1_000));
    breaks("ClockKeepsPace", &paced(1_013, 1_000));
    keeps(&paced(0, 1_000_000));
}

#[test]
fn a_try_is_applied_once() {
    let twice = |first: Command, second: Command| {
        let ledger = Ledger::default();
        let (mut one, mut other) = (Node::new(&ledger, 1), Node::new(&ledger, 2));
        for node in [&mut one, &mut other] {
            node.entry(1, 10, std::slice::from_ref(&first));
            node.entry(2, 20, std::slice::from_ref(&second));
        }
        ledger
    };
    breaks("AppliedOnce", &twice(acquire(1, Some("a")), acquire(1, Some("a"))));
    keeps(&twice(acquire(1, Some("a")), acquire(1, Some("b"))));
    breaks("AppliedOnce", &twice(release(1, 1), release(1, 1)));
    breaks("AppliedOnce", &twice(Command::Batch(vec![renew(1, 1)]), Command::Batch(vec![renew(1, 1)])));
    let ledger = twice(acquire(1, Some("a")), acquire(1, Some("b")));
    ledger.without_effect(&[acquire(1, Some("c"))]);
    keeps(&ledger);
    ledger.without_effect(&[acquire(1, Some("b"))]);
    breaks("SurelyNot", &ledger);
}

#[test]
fn leaders_and_votes() {
    let ledger = Ledger::default();
    ledger.led(1, 5);
    ledger.led(1, 5);
    ledger.led(2, 6);
    ledger.voted(1, 5, 1);
    ledger.voted(1, 5, 1);
    ledger.voted(1, 6, 2);
    ledger.durable_vote(1, 6, 2);
    ledger.durable_vote(1, 7, 3);
    keeps(&ledger);
    let broken = |act: fn(&Ledger)| {
        let ledger = Ledger::default();
        ledger.led(1, 5);
        ledger.voted(1, 5, 1);
        act(&ledger);
        ledger
    };
    breaks("VoteStands", &broken(|ledger| ledger.durable_vote(1, 5, 0)));
    breaks("VoteStands", &broken(|ledger| ledger.durable_vote(1, 4, 2)));
    // Said later than voted.
    keeps(&broken(|ledger| ledger.voted(1, 4, 1)));
    keeps(&broken(|ledger| ledger.voted(2, 5, 2)));
}

fn answered(index: u64, at_ms: u64, operation: Operation, answer: Answer) -> Call {
    let position = Witnessed { index, ordinal: 0 };
    let witness = Witness { position, clock_ms: EPOCH_MS + at_ms, term: 1 };
    Call {
        client: 1,
        node: 1,
        key: "k".to_owned(),
        operation,
        invoked_ns: 0,
        sent_ns: 0,
        returned_ns: 1,
        repeated: false,
        outcome: Outcome::Answered(witness, answer),
    }
}

#[test]
fn acked_is_logged() {
    let acquired = Operation::Acquire { token: 1, ttl_ms: TTL_MS };
    let granted = |fence, ttl_ms| Answer::Granted(Live { fence, ttl_ms });
    let compared = |call: Call| {
        let ledger = Ledger::default();
        let mut one = Node::new(&ledger, 1);
        one.entry(4, 10, &[acquire(1, None)]);
        one.entry(5, 20, &[release(2, 1)]);
        one.entry(6, 30, &[Command::Batch(vec![Command::Persist { key: key() }, Command::Get { key: key() }])]);
        one.entry(7, 40, &[Command::Del { keys: vec![key(), Key::from("nowhere")], fence: None }]);
        ledger.acknowledged(&[call]);
        assert_eq!(ledger.counts()["judged_acknowledged"], 1);
        ledger
    };
    keeps(&compared(answered(4, 10, acquired, granted(1, TTL_MS))));
    let (release, held) = (Operation::Release { token: 2, fence: 1 }, Some(Live { fence: 1, ttl_ms: 990 }));
    let refused = Answer::Refused { reason: "not_held".to_owned(), live: held, yours: false };
    keeps(&compared(answered(5, 20, release, refused.clone())));
    keeps(&compared(answered(6, 30, Operation::Persist, Answer::Done)));
    keeps(&compared(answered(7, 40, Operation::Delete, Answer::Done)));
    let wrong = [
        answered(6, 30, Operation::Expire { ttl_ms: 1 }, Answer::Done),
        answered(3, 10, acquired, granted(1, TTL_MS)),
        answered(4, 11, acquired, granted(1, TTL_MS)),
        answered(4, 10, acquired, granted(2, TTL_MS)),
        answered(4, 10, acquired, refused.clone()),
        answered(5, 20, acquired, granted(1, TTL_MS)),
        answered(5, 20, release, Answer::Done),
        Call { key: "other".to_owned(), ..answered(4, 10, acquired, granted(1, TTL_MS)) },
    ];
    for call in wrong {
        breaks("AckedIsLogged", &compared(call));
    }
}

#[test]
fn the_machine_finds_the_ledger_of_its_run() {
    let ledger = Ledger::default();
    let applied = |index| {
        let mut machine = Watched::default();
        machine.advance(&moment(index, 0), &mut Vec::new());
        machine.apply(&moment(index, 0), acquire(1, None), &mut Vec::new());
        let mut bytes = Vec::new();
        machine.save(&mut bytes).unwrap();
        Watched::load(&mut bytes.as_slice()).unwrap();
    };
    applied(1);
    assert_eq!(ledger.counts()["judged_entries"], 0, "none is installed");
    crate::runtime::simulate(1, async {
        let _installed = ledger.install();
        applied(1);
    });
    let counts = ledger.counts();
    assert_eq!((counts["judged_entries"], counts["judged_loads"]), (1, 1));
    applied(2);
    assert_eq!(ledger.counts()["judged_entries"], 1, "installed no more");
    keeps(&ledger);
}

#[test]
fn violations_are_bounded() {
    let ledger = Ledger::default();
    (0..100).for_each(|number| ledger.violated("Liveness", format!("{number}")));
    assert_eq!(ledger.violations().len(), super::VIOLATIONS_MAX);
    assert_eq!(ledger.violations()[0].detail, "0");
}
