//! The task of a watch: connects, reads, resumes.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::sse::{Message, Parser};
use super::{ID_BYTES_MAX, Notice, RESET_BYTES_MAX, SILENCE, Selection, WatchError};
use crate::client::{Backoff, Client, Unopened};
use crate::wire::{Code, Cut, Event, Problem, Reset, Snapshot};

/// Greatest path with its query: beyond it a node closes the connection without a word.
const PATH_BYTES_MAX: usize = 65_000;
/// A connection that lasted so long was a good one: the next is tried without a long pause.
const GOOD_AFTER: Duration = Duration::from_secs(5);

type Notices = mpsc::Sender<Result<Notice, WatchError>>;

/// Why a connection is over.
enum Ended {
    /// The next may do better.
    Lost(String),
    /// The node goes away, and said so.
    Leaving,
    /// Nobody reads any more.
    Unread,
    /// No connection would do better.
    Over(WatchError),
}

impl From<WatchError> for Ended {
    fn from(error: WatchError) -> Ended {
        Ended::Over(error)
    }
}

/// Where a watch is, between connections.
#[derive(Debug)]
pub(super) struct Follower {
    client: Client,
    path: String,
    /// The id of what was read last.
    after: Option<String>,
    trouble: watch::Sender<Option<String>>,
    /// Endpoints in a row that do not know what is asked for, or answer something else.
    refusals: usize,
}

impl Follower {
    pub fn new(
        client: Client,
        selection: &Selection,
        after: Option<String>,
        trouble: watch::Sender<Option<String>>,
    ) -> Follower {
        Follower { client, path: path(selection), after, trouble, refusals: 0 }
    }

    /// Tells until nobody reads, or until it is over.
    pub async fn run(mut self: Box<Self>, notices: Notices) {
        let (mut at, count) = {
            let (endpoints, preferred) = self.client.endpoints();
            (preferred, endpoints.len())
        };
        let mut backoff = Backoff::default();
        loop {
            let began = Instant::now();
            // Who does not read any more must not be waited for by a connection that says nothing.
            let ended = tokio::select! {
                ended = self.follow(at, &notices) => ended,
                () = notices.closed() => Ended::Unread,
            };
            let pause = match ended {
                Ended::Unread => return,
                Ended::Over(error) => {
                    // Nobody reads: fine.
                    let _ = notices.send(Err(error)).await;
                    return;
                }
                Ended::Leaving => {
                    self.trouble.send_replace(Some(self.named(at, "the node leaves")));
                    count == 1
                }
                Ended::Lost(detail) => {
                    self.trouble.send_replace(Some(self.named(at, &detail)));
                    true
                }
            };
            at = (at + 1) % count;
            if began.elapsed() >= GOOD_AFTER {
                backoff = Backoff::default();
            }
            if pause {
                tokio::select! {
                    () = tokio::time::sleep(backoff.next()) => {}
                    () = notices.closed() => return,
                }
            }
        }
    }

    fn named(&self, at: usize, detail: &str) -> String {
        format!("{}: {detail}", self.client.endpoints().0[at])
    }

    /// One connection.
    async fn follow(&mut self, at: usize, notices: &Notices) -> Ended {
        match self.connect(at).await {
            Ok(body) => {
                self.refusals = 0;
                self.trouble.send_replace(None);
                match self.read(at, body, notices).await {
                    Ok(never) => match never {},
                    Err(ended) => ended,
                }
            }
            Err(ended) => ended,
        }
    }

    async fn connect(&mut self, at: usize) -> Result<Incoming, Ended> {
        if let Some(id) = self.after.as_ref().filter(|id| !is_id(id)) {
            return Err(WatchError::Id(id.clone()).into());
        }
        if self.path.len() > PATH_BYTES_MAX {
            let detail =
                format!("the keys take more than {PATH_BYTES_MAX} bytes in a request: watch fewer, or a prefix");
            return Err(WatchError::Refused(Box::new(Problem::new(Code::InvalidArgument, detail).field("key"))).into());
        }
        let (endpoints, _) = self.client.endpoints();
        let problem = match self.client.open_stream(&endpoints[at], &self.path, self.after.as_deref()).await {
            Ok(body) => return Ok(body),
            Err(Unopened::Trouble(detail)) => {
                self.refusals = 0;
                return Err(Ended::Lost(detail));
            }
            Err(Unopened::Unclear(detail)) => {
                self.refusals += 1;
                if self.refusals < endpoints.len() {
                    return Err(Ended::Lost(detail));
                }
                return Err(WatchError::Protocol { endpoint: endpoints[at].to_string(), detail }.into());
            }
            Err(Unopened::Refused(problem)) => problem,
        };
        // A node of an older version knows no such path: another may.
        let is_unknown = problem.is(Code::NotFound) || problem.is(Code::MethodNotAllowed);
        let may_pass = problem.status >= 500 || problem.is(Code::RateLimited) || problem.is(Code::RequestTimeout);
        self.refusals = if is_unknown { self.refusals + 1 } else { 0 };
        if may_pass || (is_unknown && self.refusals < endpoints.len()) {
            return Err(Ended::Lost(problem.detail));
        }
        Err(WatchError::Refused(problem).into())
    }

    async fn read(
        &mut self,
        at: usize,
        mut body: Incoming,
        notices: &Notices,
    ) -> Result<std::convert::Infallible, Ended> {
        let endpoint = self.client.endpoints().0[at].to_string();
        let unclear = |detail: String| WatchError::Protocol { endpoint: endpoint.clone(), detail };
        let mut parser = Parser::new(self.client.options().answer_bytes_max);
        let mut pages = Pages::default();
        loop {
            let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
                Err(_) => return Err(Ended::Lost(format!("silent for {} s", SILENCE.as_secs()))),
                Ok(None) => return Err(Ended::Lost("it closed the connection".to_owned())),
                Ok(Some(Err(error))) => return Err(Ended::Lost(format!("the connection broke: {error}"))),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(bytes) = frame.into_data() else { continue };
            for message in parser.push(&bytes).map_err(|error| unclear(error.to_string()))? {
                let told = pages.take(message).map_err(|wrong| match wrong {
                    Wrong::Cut(reason) if reason == "leaving" => Ended::Leaving,
                    Wrong::Cut(reason) => Ended::Lost(format!("cut: {reason}")),
                    Wrong::TooLarge => WatchError::TooLarge.into(),
                    Wrong::Unclear(detail) => unclear(detail).into(),
                })?;
                match told {
                    Told::Nothing => {}
                    Told::Alive(id) => self.after = Some(id),
                    Told::Notice(notice) => {
                        let id = notice.id().to_owned();
                        notices.send(Ok(*notice)).await.map_err(|_| Ended::Unread)?;
                        self.after = Some(id);
                    }
                }
            }
        }
    }
}

/// What a message comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    /// Nothing more happened up to here.
    Alive(String),
    Notice(Box<Notice>),
}

/// A message that ends the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    Cut(String),
    TooLarge,
    Unclear(String),
}

/// Puts the pages of a reset together.
#[derive(Debug, Default)]
pub(super) struct Pages {
    keys: Vec<Snapshot>,
    bytes: usize,
}

impl Pages {
    pub fn take(&mut self, message: Message) -> Result<Told, Wrong> {
        let Message { id, event, data } = message;
        let id = id.filter(|id| is_id(id));
        let need = |id: Option<String>| id.ok_or_else(|| Wrong::Unclear(format!("{event} without an id")));
        match event.as_str() {
            "reset" => {
                self.bytes = self.bytes.saturating_add(data.len());
                if self.bytes > RESET_BYTES_MAX {
                    return Err(Wrong::TooLarge);
                }
                let Reset { reason, keys, more } = read(&event, &data)?;
                let is_listed = keys.is_some();
                self.keys.extend(keys.into_iter().flatten());
                if more {
                    return Ok(Told::Nothing);
                }
                let keys = std::mem::take(self).keys;
                let keys = is_listed.then_some(keys);
                Ok(Told::Notice(Box::new(Notice::Reset { reason, keys, id: need(id)? })))
            }
            // In the middle of a reset it says only that the node lives.
            "heartbeat" if self.bytes > 0 => Ok(Told::Nothing),
            "heartbeat" => Ok(id.map_or(Told::Nothing, Told::Alive)),
            "cut" => Err(Wrong::Cut(read::<Cut>(&event, &data)?.reason)),
            "created" | "granted" | "renewed" | "released" | "expired" | "broken" | "deleted" => {
                let told: Event = read(&event, &data)?;
                let event = Event { id: need(id)?, kind: event, ..told };
                Ok(Told::Notice(Box::new(Notice::Event(event))))
            }
            // A newer node says more.
            _ => Ok(id.filter(|_| self.bytes == 0).map_or(Told::Nothing, Told::Alive)),
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(event: &str, data: &str) -> Result<T, Wrong> {
    serde_json::from_str(data).map_err(|error| Wrong::Unclear(format!("{event}: {error}")))
}

fn is_id(id: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The path that asks for the selection.
fn path(selection: &Selection) -> String {
    let mut pairs: Vec<String> = selection.keys.iter().map(|key| format!("key={}", escaped(key))).collect();
    pairs.extend(selection.prefix.iter().map(|prefix| format!("prefix={}", escaped(prefix))));
    if selection.renewed {
        pairs.push("renewed=true".to_owned());
    }
    if !selection.list {
        pairs.push("list=false".to_owned());
    }
    if pairs.is_empty() { "/v1/watch".to_owned() } else { format!("/v1/watch?{}", pairs.join("&")) }
}

/// Percent-encoded but for what a query holds as it is.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
