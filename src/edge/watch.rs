//! One watcher's stream: what it is told, in which order, and when it is over. Knows nothing of sockets.
//!
//! # Model
//! A stream begins after an id, or at a state. In the second case it first tells that state, page by page, as one view
//! had it: proved to be current, and cut at the last position that was applied, so that what comes after it is exactly
//! what is told next. From then on it pulls from the [`History`] by a cursor. Every few seconds it says the newest id, so
//! that its reader knows that the node lives, and can resume after what it was not told because it did not concern it.
//!
//! # Invariants
//! Between two resets, and after the last: each event of the log that is selected is told once, in order; none is left
//! out. A stream that cannot keep this says so: by a reset if the state jumped, else by a cut, after which it is over.
//!
//! # Not promised
//! Renewals (see [`super::history`]). A view shows a lease whose time is over as free, even while its `expired` event is
//! yet to come: that event then follows the reset.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::raft::AsyncRuntime;
use tenure_cluster::time::{Instant, now, timeout};
use tenure_cluster::{Cluster, NeedsTick, Position, ReadAt, ReadError, Stamp, StateMachine};
use tokio::sync::watch;

use super::history::{EventId, History, Missed, NoId, Pulled, Pulse, Told};
use crate::keyspace::{Event, Key, Keyspace, Shown};

/// Heartbeats come so often.
pub const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// Keys of one page of a reset.
pub const PAGE_KEYS_MAX: usize = 1_000;
/// A page ends once its texts take so much.
const PAGE_BYTES_MAX: usize = 256 << 10;
/// What a key takes beside its texts.
const KEY_BYTES: usize = 400;
/// Events that are pulled at once.
const PULLED_MAX: usize = 256;
/// A state is kept so long at most for a reader that is told it page by page.
const LISTED_WITHIN: Duration = Duration::from_secs(60);

/// What a stream is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Which keys.
    pub keys: Keys,
    /// Renewals too.
    pub renewed: bool,
    /// A reset tells the keys as they stand.
    pub list: bool,
}

/// Some of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// These.
    These(BTreeSet<Key>),
    /// Those that start so.
    Prefix(Key),
}

impl Default for Keys {
    fn default() -> Self {
        Self::Prefix(Key::from(""))
    }
}

impl Selection {
    fn takes(&self, event: &Event) -> bool {
        match &self.keys {
            Keys::These(keys) => keys.contains(&event.key),
            Keys::Prefix(prefix) => event.key.starts_with(&**prefix),
        }
    }
}

/// Where a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At the state as it stands.
    Now,
    /// After that event.
    After(EventId),
    /// After an event of another cluster: so, at the state.
    Elsewhere,
}

impl Begin {
    /// What an id that a reader brings means to a node of `cluster`.
    ///
    /// # Errors
    /// [`NoId`].
    pub fn after(text: &str, cluster: &str) -> Result<Self, NoId> {
        let (of, id) = text.rsplit_once('-').ok_or(NoId)?;
        let id = id.parse()?;
        Ok(if of == cluster { Self::After(id) } else { Self::Elsewhere })
    }
}

/// Why there is a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The stream is a new one.
    Start,
    /// What it would resume after is no longer known here.
    TooOld,
    /// What it would resume after is not of this cluster, or of a state that it has lost.
    OtherCluster,
    /// The node took in a snapshot: it does not know what happened up to that.
    Jumped,
}

impl Why {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::TooOld => "too_old",
            Self::OtherCluster => "other_cluster",
            Self::Jumped => "jumped",
        }
    }
}

/// Why a stream is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Its reader fell behind what the node keeps.
    TooSlow,
    /// The node goes away, or cannot prove its state: another can do better.
    Leaving,
}

impl Cut {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooSlow => "too_slow",
            Self::Leaving => "leaving",
        }
    }
}

/// A page of a reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Why.
    pub why: Why,
    /// Keys in byte order; `None`: not asked for.
    pub views: Option<Vec<Shown>>,
    /// The clock that the views' times are counted from.
    pub clock: Stamp,
    /// The last page: what follows comes after this id.
    pub id: Option<EventId>,
}

/// What a stream tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// How things stand.
    Reset(Page),
    /// Something happened.
    Event(Arc<Told>),
    /// All up to here was told, as far as it was asked for.
    Heartbeat(EventId),
    /// The last.
    Cut(Cut),
}

/// A state to tell.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The state.
    pub keyspace: Keyspace,
    /// The last position in it.
    pub position: Position,
    /// Its clock.
    pub clock: Stamp,
}

/// Where states come from.
pub trait Source: Send + Sync + 'static {
    /// A state that holds everything acknowledged before the call.
    fn view(&self) -> impl Future<Output = Result<Listed, ReadError>> + Send;
}

impl<M: StateMachine + AsRef<Keyspace>, RT: AsyncRuntime> Source for Cluster<M, RT> {
    async fn view(&self) -> Result<Listed, ReadError> {
        // Time is judged as of the last applied stamp: what it has ended beyond that is told by the events that follow.
        let seen = self.read(|machine, at| Ok((machine.as_ref().clone(), at.applied))).await?;
        let (keyspace, clock) = seen.value;
        Ok(Listed { keyspace, position: seen.witness.position, clock })
    }
}

/// A reset under way.
struct Listing<RT: AsyncRuntime> {
    why: Why,
    listed: Listed,
    /// The last key that was told.
    cursor: Option<Key>,
    until: Instant<RT>,
}

/// See the module's head.
pub struct Stream<S: Source, RT: AsyncRuntime> {
    source: S,
    history: Arc<History>,
    pulse: watch::Receiver<Pulse>,
    selection: Selection,
    cursor: EventId,
    listing: Option<Listing<RT>>,
    beat_at: Instant<RT>,
    is_over: bool,
}

impl<S: Source, RT: AsyncRuntime> Stream<S, RT> {
    /// Begins.
    ///
    /// # Errors
    /// [`ReadError`]: it has to begin at a state, and this node cannot prove its own to be current.
    pub async fn begin(
        source: S,
        history: Arc<History>,
        selection: Selection,
        begin: Begin,
    ) -> Result<Self, ReadError> {
        let pulse = history.pulse();
        let beat_at = now::<RT>();
        let cursor = EventId::default();
        let mut stream = Self { source, history, pulse, selection, cursor, listing: None, beat_at, is_over: false };
        let why = match begin {
            Begin::Now => Some(Why::Start),
            Begin::Elsewhere => Some(Why::OtherCluster),
            Begin::After(id) => {
                stream.cursor = id;
                stream.resume().await?
            }
        };
        if let Some(why) = why {
            let listed = stream.source.view().await?;
            stream.list(why, listed);
        }
        Ok(stream)
    }

    /// Why it cannot go on after its cursor; `None`: it can.
    async fn resume(&self) -> Result<Option<Why>, ReadError> {
        if self.history.pull(self.cursor, false, 0).is_err() {
            return Ok(Some(Why::TooOld));
        }
        if self.cursor.position.index <= self.history.newest().position.index {
            return Ok(None);
        }
        // Beyond what was heard here: this node lags, or nothing happened, or the id is of a log that is lost.
        let listed = self.source.view().await?;
        Ok((self.cursor.position.index > listed.position.index).then_some(Why::OtherCluster))
    }

    fn list(&mut self, why: Why, listed: Listed) {
        self.cursor = EventId::end_of(listed.position);
        self.listing = Some(Listing { why, listed, cursor: None, until: now::<RT>() + LISTED_WITHIN });
    }

    /// What it tells next, at least one item; waits for it. `None` after a cut. May be given up and called again.
    pub async fn next(&mut self) -> Option<Vec<Item>> {
        while !self.is_over {
            if self.pulse.borrow_and_update().leaving {
                return Some(self.cut(Cut::Leaving));
            }
            if let Some(listing) = self.listing.take() {
                return Some(self.page(listing));
            }
            let mut items = Vec::new();
            match self.history.pull(self.cursor, self.selection.renewed, PULLED_MAX) {
                Ok(Pulled { events, cursor, more }) => {
                    self.cursor = cursor;
                    items.extend(events.into_iter().filter(|told| self.selection.takes(&told.event)).map(Item::Event));
                    if more && items.is_empty() {
                        continue;
                    }
                }
                Err(Missed::FellOut) => return Some(self.cut(Cut::TooSlow)),
                Err(Missed::Jumped) => match self.source.view().await {
                    Ok(listed) => {
                        self.list(Why::Jumped, listed);
                        continue;
                    }
                    Err(_) => return Some(self.cut(Cut::Leaving)),
                },
            }
            let left = self.beat_at.max(now::<RT>()) - now::<RT>();
            if left.is_zero() {
                self.beat_at = now::<RT>() + HEARTBEAT_EVERY;
                items.push(Item::Heartbeat(self.cursor));
            }
            if !items.is_empty() {
                return Some(items);
            }
            // Its sender is in the history, which is here.
            let _ = timeout::<RT, _>(left, self.pulse.changed()).await;
        }
        None
    }

    /// How long it keeps on a state that it is telling page by page. Whoever hands its items over must not wait for
    /// longer: a reader that takes a little now and then would keep an old state, and all that was in it.
    #[must_use]
    pub fn kept_for(&self) -> Option<Duration> {
        let listing = self.listing.as_ref()?;
        Some(listing.until.max(now::<RT>()) - now::<RT>())
    }

    fn cut(&mut self, why: Cut) -> Vec<Item> {
        self.is_over = true;
        vec![Item::Cut(why)]
    }

    fn page(&mut self, mut listing: Listing<RT>) -> Vec<Item> {
        let is_known = self.history.pull(self.cursor, false, 0).is_ok();
        if now::<RT>() >= listing.until || !is_known {
            // What would follow the list is gone, or it is kept for too long.
            return self.cut(Cut::TooSlow);
        }
        let (why, clock) = (listing.why, listing.listed.clock);
        let (views, more) = match self.selection.list.then(|| listing.views(&self.selection.keys)) {
            None => (None, false),
            Some(Ok((views, more))) => (Some(views), more),
            Some(Err(NeedsTick)) => return self.cut(Cut::Leaving),
        };
        if more {
            self.listing = Some(listing);
        }
        vec![Item::Reset(Page { why, views, clock, id: (!more).then_some(self.cursor) })]
    }
}

impl<RT: AsyncRuntime> Listing<RT> {
    /// The next keys, and whether there are more.
    fn views(&mut self, keys: &Keys) -> Result<(Vec<Shown>, bool), NeedsTick> {
        let (keyspace, clock) = (&self.listed.keyspace, self.listed.clock);
        let at = ReadAt { applied: clock, now: clock };
        let prefix = match keys {
            // So few that they are one page.
            Keys::These(keys) => {
                let views = keys.iter().map(|key| keyspace.get(key, at)).filter_map(Result::transpose);
                return Ok((views.collect::<Result<_, _>>()?, false));
            }
            Keys::Prefix(prefix) => prefix,
        };
        let page = keyspace.scan(prefix, self.cursor.as_deref(), PAGE_KEYS_MAX, at)?;
        let (mut views, mut bytes) = (page.views, 0);
        let fitting = views.iter().take_while(|view| {
            let fits = bytes < PAGE_BYTES_MAX;
            bytes += text_bytes(view);
            fits
        });
        let fitting = fitting.count();
        let is_whole = fitting == views.len();
        views.truncate(fitting);
        self.cursor = if is_whole { page.cursor } else { views.last().map(|view| Key::clone(view.key())) };
        Ok((views, self.cursor.is_some()))
    }
}

fn text_bytes(shown: &Shown) -> usize {
    // A pool has no text but its key, and some numbers more than a lease.
    let Shown::Lease(view) = shown else { return 2 * KEY_BYTES + shown.key().len() };
    let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
    let grant = view.grant.as_ref().map_or(0, |grant| grant.owner.len() + text(&grant.note) + text(&grant.broken));
    let last = view.last.as_ref().map_or(0, |last| last.owner.len() + text(&last.detail));
    KEY_BYTES + view.key.len() + grant + last
}

/// An id as readers are given it.
#[must_use]
pub fn full_id(cluster: &str, id: EventId) -> String {
    let mut text = String::with_capacity(cluster.len() + 24);
    text.push_str(cluster);
    // Writing to a string does not fail.
    let _ = write!(text, "-{id}");
    text
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
