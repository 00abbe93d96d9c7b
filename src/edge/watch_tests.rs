//! A stream over a keyspace that the test drives.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Mutex;

use tenure_cluster::raft::TokioRuntime;
use tenure_cluster::{EventAt, Heard, Moment};

use super::super::history::Bounds;
use super::*;
use crate::keyspace::{Acquire, Command, EventKind, LeaseOptions, TokenHash};

/// A machine, its history, and how far a node has come with it.
#[derive(Clone)]
struct World(Arc<Mutex<Inner>>);

struct Inner {
    keyspace: Keyspace,
    at: Moment,
    history: Arc<History>,
    is_proved: bool,
}

impl World {
    fn new(bounds: Bounds) -> Self {
        let history = Arc::new(History::new(bounds));
        history.start::<TokioRuntime>();
        let (keyspace, at) = (Keyspace::default(), Moment::default());
        Self(Arc::new(Mutex::new(Inner { keyspace, at, history, is_proved: true })))
    }

    /// One entry with these commands.
    fn apply(&self, commands: Vec<Command>) {
        let inner = &mut *self.0.lock().unwrap();
        inner.at.position = Position { index: inner.at.position.index + 1, ordinal: 0 };
        inner.at.stamp = inner.at.stamp.plus_ms(1_000);
        let mut events = Vec::new();
        inner.keyspace.advance(&inner.at, &mut events);
        for (ordinal, command) in commands.into_iter().enumerate() {
            inner.at.position.ordinal = u32::try_from(ordinal).unwrap();
            inner.keyspace.apply(&inner.at, command, &mut events);
            let (position, stamp) = (inner.at.position, inner.at.stamp);
            for (nth, event) in events.drain(..).enumerate() {
                let nth = u32::try_from(nth).unwrap();
                let at = EventAt { position, nth, stamp, wall_ms: 0, term: 1, replay: false };
                inner.history.hear(Heard::Event(at, &event));
            }
        }
    }

    fn acquire(&self, keys: &[&str]) {
        self.apply(keys.iter().map(|key| acquire(key)).collect());
    }

    /// A snapshot comes in: some entries were never told.
    fn jump(&self) {
        let inner = &mut *self.0.lock().unwrap();
        inner.at.position.index += 5;
        inner.history.hear(Heard::Jump(inner.at.position));
    }

    async fn begin(&self, selection: Selection, begin: Begin) -> Result<Stream<World, TokioRuntime>, ReadError> {
        let history = Arc::clone(&self.0.lock().unwrap().history);
        Stream::begin(self.clone(), history, selection, begin).await
    }
}

impl Source for World {
    async fn view(&self) -> Result<Listed, ReadError> {
        let inner = self.0.lock().unwrap();
        if !inner.is_proved {
            return Err(ReadError::Unavailable("no leader".to_owned()));
        }
        Ok(Listed { keyspace: inner.keyspace.clone(), position: inner.at.position, clock: inner.at.stamp })
    }
}

fn acquire(key: &str) -> Command {
    let (key, owner) = (Key::from(key), Arc::from("me"));
    let (token, ttl_ms) = (TokenHash([1; 16]), 60_000);
    let (note, min_hold_ms, delay_ms) = (None, None, None);
    Command::Acquire(Acquire { key, owner, token, ttl_ms, create: true, note, min_hold_ms, delay_ms, once: false })
}

fn all() -> Selection {
    Selection { list: true, ..Selection::default() }
}

/// As people write it: `reset start [a b] 1.0`, `granted a 2.0.1`, `heartbeat 2.0`, `cut leaving`.
async fn next<S: Source>(stream: &mut Stream<S, TokioRuntime>) -> Vec<String> {
    let items = stream.next().await.unwrap();
    items.iter().map(text).collect()
}

fn text(item: &Item) -> String {
    match item {
        Item::Reset(page) => {
            let keys = page.views.as_ref().map(|views| views.iter().map(|view| &**view.key()).collect::<Vec<_>>());
            let keys = keys.map_or("-".to_owned(), |keys| format!("[{}]", keys.join(" ")));
            let id = page.id.map_or("…".to_owned(), |id| id.to_string());
            format!("reset {} {keys} {id}", page.why.as_str())
        }
        Item::Event(told) => format!("{:?} {} {}", told.event.kind, told.event.key, told.id()).to_lowercase(),
        Item::Heartbeat(id) => format!("heartbeat {id}"),
        Item::Cut(why) => format!("cut {}", why.as_str()),
    }
}

fn after(id: &str) -> Begin {
    Begin::after(&format!("c-{id}"), "c").unwrap()
}

#[tokio::test]
async fn a_list_and_what_comes_after_it() {
    let world = World::new(Bounds::default());
    world.acquire(&["a", "b"]);
    let mut stream = world.begin(all(), Begin::Now).await.unwrap();
    // The list is of before, the event of after it: though it is read later.
    world.acquire(&["c"]);
    assert_eq!(next(&mut stream).await, ["reset start [a b] 1.1"]);
    assert_eq!(next(&mut stream).await, ["created c 2.0.0", "granted c 2.0.1", "heartbeat 2.0.1"]);
    let at = now::<TokioRuntime>();
    let left = stream.beat_at.max(at) - at;
    assert!(left <= HEARTBEAT_EVERY, "{left:?}");
    stream.beat_at = now::<TokioRuntime>();
    assert_eq!(next(&mut stream).await, ["heartbeat 2.0.1"]);
}

#[tokio::test]
async fn what_does_not_concern_it_moves_its_id_on() {
    let world = World::new(Bounds::default());
    world.acquire(&["a"]);
    let some = Selection { keys: Keys::These(BTreeSet::from(["b".into(), "x".into()])), ..all() };
    let mut stream = world.begin(some, Begin::Now).await.unwrap();
    assert_eq!(next(&mut stream).await, ["reset start [] 1.0"]);
    world.acquire(&["aa", "a"]);
    world.apply(vec![Command::Renew { key: "a".into(), token: TokenHash([1; 16]), fence: None, ttl_ms: 90_000 }]);
    assert_eq!(next(&mut stream).await, ["heartbeat 3.0.0"], "also beyond what nobody asked for");
    world.acquire(&["b"]);
    assert_eq!(next(&mut stream).await, ["created b 4.0.0", "granted b 4.0.1"]);
    let prefix = Selection { keys: Keys::Prefix("a".into()), renewed: true, list: false };
    let mut stream = world.begin(prefix, after("1.0.0")).await.unwrap();
    let told = next(&mut stream).await;
    assert_eq!(told[..4], ["granted a 1.0.1", "created aa 2.0.0", "granted aa 2.0.1", "renewed a 3.0.0"]);
}

#[tokio::test]
async fn it_resumes_or_says_why_not() {
    let world = World::new(Bounds { events_max: 4, ..Bounds::default() });
    world.acquire(&["a", "b", "c"]);
    let mut stream = world.begin(all(), after("1.1.0")).await.unwrap();
    assert_eq!(next(&mut stream).await[0], "granted b 1.1.1");
    for (begin, wanted) in [
        (after("1.0.0"), "reset too_old [a b c] 1.2"),
        (Begin::after("d-1.1.0", "c").unwrap(), "reset other_cluster [a b c] 1.2"),
        (after("2.0"), "reset other_cluster [a b c] 1.2"),
    ] {
        let mut stream = world.begin(all(), begin).await.unwrap();
        assert_eq!(next(&mut stream).await, [wanted], "{begin:?}");
    }
    let unlisted = Selection { list: false, ..all() };
    let mut stream = world.begin(unlisted, after("0.0")).await.unwrap();
    assert_eq!(next(&mut stream).await, ["reset too_old - 1.2"]);
}

/// The reader was at a node that is ahead of this one: what it had already is skipped when it comes here.
#[tokio::test]
async fn it_resumes_ahead_of_a_node_that_lags() {
    let world = World::new(Bounds::default());
    world.acquire(&["a"]);
    let ahead = World::new(Bounds::default());
    (0..3).for_each(|_| ahead.acquire(&["x"]));
    let lagging = Arc::clone(&world.0.lock().unwrap().history);
    let begun = Stream::<_, TokioRuntime>::begin(ahead, lagging, all(), after("3.0.0")).await;
    let mut stream = begun.unwrap();
    assert_eq!(next(&mut stream).await, ["heartbeat 3.0.0"]);
    world.acquire(&["b"]);
    world.acquire(&["c", "d"]);
    assert_eq!(next(&mut stream).await, ["granted c 3.0.1", "created d 3.1.0", "granted d 3.1.1"]);
}

#[tokio::test]
async fn a_jump_is_a_reset_and_falling_behind_a_cut() {
    let world = World::new(Bounds { events_max: 4, ..Bounds::default() });
    let mut stream = world.begin(all(), Begin::Now).await.unwrap();
    assert_eq!(next(&mut stream).await, ["reset start [] 0.0"]);
    world.jump();
    assert_eq!(next(&mut stream).await, ["reset jumped [] 5.0"]);
    world.acquire(&["a"]);
    assert_eq!(next(&mut stream).await[..2], ["created a 6.0.0", "granted a 6.0.1"]);
    (0..3).for_each(|n| world.acquire(&[&format!("b{n}")]));
    assert_eq!(next(&mut stream).await, ["cut too_slow"]);
    assert_eq!(stream.next().await, None);
}

#[tokio::test]
async fn a_node_that_leaves_or_cannot_prove_its_state_sends_its_readers_away() {
    let world = World::new(Bounds::default());
    let mut stream = world.begin(all(), Begin::Now).await.unwrap();
    let mut jumped = world.begin(all(), Begin::Now).await.unwrap();
    assert_eq!(next(&mut jumped).await, ["reset start [] 0.0"]);
    world.0.lock().unwrap().is_proved = false;
    assert!(world.begin(all(), Begin::Now).await.is_err());
    assert!(world.begin(all(), after("0.0")).await.is_ok(), "what is known here needs no proof");
    world.jump();
    assert_eq!(next(&mut jumped).await, ["cut leaving"]);
    world.0.lock().unwrap().history.leave();
    assert_eq!(next(&mut stream).await, ["cut leaving"]);
}

#[tokio::test]
async fn a_long_list_comes_in_pages_of_one_view() {
    let world = World::new(Bounds::default());
    let keys: Vec<String> = (0..2_500).map(|n| format!("k{n:05}")).collect();
    let create = |key: &String| Command::Create { key: Key::from(&**key), options: LeaseOptions::default() };
    world.apply(keys.iter().map(create).collect());
    let mut stream = world.begin(all(), Begin::Now).await.unwrap();
    let (mut listed, mut pages) = (Vec::new(), 0);
    loop {
        let items = stream.next().await.unwrap();
        let [Item::Reset(page)] = &items[..] else { panic!("{items:?}") };
        let views = page.views.as_ref().unwrap();
        assert!(views.len() <= PAGE_KEYS_MAX);
        assert_eq!(stream.kept_for().is_some(), page.id.is_none(), "a state is kept until the last page");
        listed.extend(views.iter().map(|view| view.key().to_string()));
        pages += 1;
        // What changes meanwhile is not in the view: it comes after it.
        world.apply(vec![Command::Del { keys: vec![Key::from(&*keys[2_400 + pages])], fence: None }]);
        if page.id.is_some() {
            break;
        }
    }
    assert_eq!(listed, keys);
    let told = next(&mut stream).await;
    assert_eq!(told.iter().filter(|told| told.starts_with("deleted")).count(), pages);
}

#[tokio::test]
async fn a_list_is_not_kept_for_a_reader_that_does_not_take_it() {
    let world = World::new(Bounds { events_max: 4, ..Bounds::default() });
    for how in ["time", "events"] {
        let mut stream = world.begin(all(), Begin::Now).await.unwrap();
        match how {
            "time" => stream.listing.as_mut().unwrap().until = now::<TokioRuntime>(),
            _ => (0..3).for_each(|n| world.acquire(&[&format!("b{n}")])),
        }
        assert_eq!(next(&mut stream).await, ["cut too_slow"], "{how}");
    }
}

#[test]
fn a_page_of_long_texts_ends_sooner() {
    let mut keyspace = Keyspace::default();
    let mut events = Vec::new();
    let at = Moment { stamp: Stamp(5), ..Moment::default() };
    for n in 0..600 {
        let key = Key::from(format!("{n:0>1024}"));
        keyspace.apply(&at, Command::Create { key, options: LeaseOptions::default() }, &mut events);
    }
    assert!(events.iter().all(|event| event.kind == EventKind::Created) && events.len() == 600);
    let listed = Listed { keyspace, position: Position::default(), clock: at.stamp };
    let until = now::<TokioRuntime>();
    let mut listing = Listing::<TokioRuntime> { why: Why::Start, listed, cursor: None, until };
    let mut pages = Vec::new();
    loop {
        let (views, more) = listing.views(&Keys::default()).unwrap();
        pages.push(views.len());
        if !more {
            break;
        }
    }
    assert!(pages.len() == 4 && pages.iter().sum::<usize>() == 600, "{pages:?}");
}
