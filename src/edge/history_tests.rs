//! The laws of the ring: nothing is left out, or it is said.
#![allow(clippy::unwrap_used, clippy::panic)]

use proptest::prelude::*;
use tenure_cluster::Stamp;
use tenure_cluster::raft::TokioRuntime;

use super::*;
use crate::keyspace::Key;

fn at(index: u64, ordinal: u32, nth: u32) -> EventAt {
    let position = Position { index, ordinal };
    EventAt { position, nth, stamp: Stamp(index), wall_ms: 0, term: 1, replay: false }
}

fn event(kind: EventKind) -> Event {
    Event {
        key: Key::from("k"),
        kind,
        fence: None,
        owner: None,
        last_renewed: None,
        detail: None,
        ttl_ms: None,
        attach: None,
        reason: None,
        slot: None,
    }
}

fn id(text: &str) -> EventId {
    text.parse().unwrap()
}

const SMALL: Bounds = Bounds { events_max: 4, bytes_max: 1 << 20, renewals_max: 2, renewal_bytes_max: 1 << 20 };

#[test]
fn ids_are_what_they_are_written_as() {
    for text in ["0.0", "7.3", "7.3.0", "18446744073709551615.4294967295.4294967294"] {
        assert_eq!(id(text).to_string(), text);
    }
    let absurd = ["", ".", "1", "1.", ".1", "1.2.", "1.2.3.4", "+1.2", "1.-2", " 1.2", "1.2 ", "x.1", "1.4294967296"];
    for text in absurd.into_iter().chain(["18446744073709551616.0", "1.2.3.", "１.2", "1,2", "0x1.0"]) {
        assert_eq!(text.parse::<EventId>(), Err(NoId), "{text:?}");
    }
    let order = ["1.0.0", "1.0.1", "1.0", "1.1.0", "1.1", "2.0.0"];
    assert!(order.windows(2).all(|pair| id(pair[0]) < id(pair[1])), "the end of a position is after all of it");
}

#[test]
fn the_oldest_goes_and_who_stands_before_it_is_told() {
    let mut past = Past::new(SMALL);
    (1..=5).for_each(|index| past.push(at(index, 0, 0), &event(EventKind::Granted)));
    assert_eq!(past.pull(id("0.0"), false, 9), Err(Missed::FellOut));
    let pulled = past.pull(id("1.0.0"), false, 3).unwrap();
    let ids: Vec<_> = pulled.events.iter().map(|told| told.id().to_string()).collect();
    assert_eq!((ids.join(" "), pulled.cursor, pulled.more), ("2.0.0 3.0.0 4.0.0".to_owned(), id("4.0.0"), true));
    let pulled = past.pull(pulled.cursor, false, 3).unwrap();
    assert_eq!((pulled.events.len(), pulled.cursor, pulled.more), (1, id("5.0.0"), false));
    let ahead = past.pull(id("9.0"), false, 3).unwrap();
    assert_eq!((ahead.events.len(), ahead.cursor), (0, id("9.0")), "a cursor does not go back");
}

#[test]
fn bytes_count_too_and_one_too_large_is_not_kept() {
    let large = Event { detail: Some("x".repeat(1_000).into()), ..event(EventKind::Broken) };
    let mut past = Past::new(Bounds { events_max: 100, bytes_max: 3_000, ..SMALL });
    (1..=9).for_each(|index| past.push(at(index, 0, 0), &large));
    assert_eq!(past.events.told.len(), 2);
    let mut past = Past::new(Bounds { bytes_max: 100, ..SMALL });
    past.push(at(1, 0, 0), &large);
    assert_eq!(past.pull(id("0.0"), false, 9), Err(Missed::FellOut));
    assert_eq!(past.events.bytes, 0);
}

#[test]
fn renewals_push_nothing_out_and_come_in_their_place() {
    let mut past = Past::new(SMALL);
    past.push(at(1, 0, 0), &event(EventKind::Granted));
    (2..=9).for_each(|index| past.push(at(index, 0, 0), &event(EventKind::Renewed)));
    past.push(at(9, 0, 1), &event(EventKind::Waiting));
    past.push(at(10, 0, 0), &event(EventKind::Released));
    let ids = |renewed| {
        let pulled = past.pull(id("0.0"), renewed, 9).unwrap();
        pulled.events.iter().map(|told| told.at.position.index).collect::<Vec<_>>()
    };
    assert_eq!((ids(false), ids(true)), (vec![1, 10], vec![1, 8, 9, 10]));
    assert_eq!(past.newest, id("10.0.0"));
}

#[test]
fn a_jump_forgets_what_was_and_goes_on_behind_it() {
    let mut past = Past::new(SMALL);
    past.push(at(1, 0, 0), &event(EventKind::Granted));
    past.jump(Position { index: 7, ordinal: 2 });
    assert_eq!(past.pull(id("1.0.0"), false, 9), Err(Missed::Jumped));
    assert_eq!(past.pull(id("7.2.0"), false, 9), Err(Missed::Jumped), "of its last position nobody knows how much");
    past.push(at(8, 0, 0), &event(EventKind::Granted));
    for cursor in ["7.2", "7.9"] {
        assert_eq!(past.pull(id(cursor), false, 9).unwrap().events.len(), 1, "{cursor}");
    }
}

/// Readers are woken after each push, and by the leaving; the task ends with the history.
#[tokio::test]
async fn readers_are_woken() {
    let history = Arc::new(History::new(SMALL));
    history.start::<TokioRuntime>();
    let mut pulse = history.pulse();
    for index in 1..=3 {
        history.hear(Heard::Event(at(index, 0, 0), &event(EventKind::Granted)));
        pulse.changed().await.unwrap();
        assert_eq!(history.newest(), EventId::from(&at(index, 0, 0)));
    }
    history.leave();
    assert!(pulse.wait_for(|pulse| pulse.leaving).await.is_ok());
    drop(history);
    while pulse.changed().await.is_ok() {}
}

/// What happens to a ring and its reader.
#[derive(Clone, Debug)]
enum Act {
    /// So many entries, some with several events, some with none, some with renewals.
    Apply(u8),
    Jump(u8),
    /// Reads at most so many.
    Read(usize),
    /// Loses what it read last and begins after one of the ids that it had.
    Reconnect(prop::sample::Index),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1..6_u8).prop_map(Act::Apply),
        1 => (1..3_u8).prop_map(Act::Jump),
        4 => (1..5_usize).prop_map(Act::Read),
        2 => any::<prop::sample::Index>().prop_map(Act::Reconnect),
    ]
}

/// A log, the ring that hears it, and what a reader was told of it.
struct Tried {
    past: Past,
    log: Vec<EventId>,
    index: u64,
    cursor: EventId,
    had: Vec<EventId>,
    /// All that is told since the last reset, which stood there.
    since: (EventId, Vec<EventId>),
}

impl Tried {
    fn apply(&mut self) {
        self.index += 1;
        for ordinal in 0..u32::try_from(self.index % 3).unwrap() {
            for nth in 0..u32::try_from((self.index + u64::from(ordinal)) % 3).unwrap() {
                let at = at(self.index, ordinal, nth);
                let kinds = [EventKind::Granted, EventKind::Renewed, EventKind::Released, EventKind::Waiting];
                let kind = kinds[usize::try_from(self.index + u64::from(nth)).unwrap() % 4];
                self.past.push(at, &event(kind));
                if matches!(kind, EventKind::Granted | EventKind::Released) {
                    self.log.push(EventId::from(&at));
                }
            }
        }
    }

    /// Begins anew at the state.
    fn reset(&mut self) {
        self.cursor = EventId::end_of(Position { index: self.index, ordinal: u32::MAX });
        self.had = vec![self.cursor];
        self.since = (self.cursor, Vec::new());
    }

    fn read(&mut self, max: usize) -> Result<(), TestCaseError> {
        let Ok(pulled) = self.past.pull(self.cursor, false, max) else {
            self.reset();
            return Ok(());
        };
        prop_assert!(pulled.cursor >= self.cursor && pulled.events.len() <= max);
        self.cursor = pulled.cursor;
        for told in pulled.events {
            self.since.1.push(told.id());
            self.had.push(told.id());
        }
        let wanted = self.log.iter().copied().filter(|id| *id > self.since.0 && *id <= self.cursor);
        prop_assert_eq!(wanted.collect::<Vec<_>>(), self.since.1.clone());
        Ok(())
    }

    fn reconnect(&mut self, nth: prop::sample::Index) {
        let cursor = *nth.get(&self.had);
        self.cursor = cursor;
        self.since.1.retain(|id| *id <= cursor);
        // What came after it is forgotten.
        self.had.retain(|id| *id <= cursor);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// However a reader reads and wherever it begins again: between two resets it has each event of the log, once, in
    /// order.
    #[test]
    fn nothing_is_left_out_without_a_word(acts in prop::collection::vec(act(), 1..60)) {
        let start = EventId::default();
        let (past, log, had) = (Past::new(SMALL), Vec::new(), vec![start]);
        let mut tried = Tried { past, log, index: 0, cursor: start, had, since: (start, Vec::new()) };
        for act in acts {
            match act {
                Act::Apply(entries) => (0..entries).for_each(|_| tried.apply()),
                Act::Jump(entries) => {
                    tried.index += u64::from(entries);
                    tried.past.jump(Position { index: tried.index, ordinal: 0 });
                }
                Act::Read(max) => tried.read(max)?,
                Act::Reconnect(nth) => tried.reconnect(nth),
            }
        }
        tried.read(1_000)?;
        let left = tried.log.iter().filter(|id| **id > tried.cursor).count();
        prop_assert_eq!(left, 0, "at the end all is read");
    }
}
