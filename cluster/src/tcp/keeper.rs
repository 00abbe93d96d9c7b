//! Keeps the requests connection to one peer, and knows when its process is surely gone.
//!
//! A connection that was closed or reset makes the peer *suspect*: the address where it was is connected to at once.
//! Refused there: the peer is gone, until a try ends in anything else. Greeting a peer that keeps closing is damped, but
//! connecting is not, so that a process that dies is noticed in the time of one round trip. A connection that fell
//! silent, or that this side closed, makes nobody suspect; nor does a first try that is refused: whoever was not there
//! cannot have gone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::calls::Calls;
use super::dial::{self, Means, NoWay};
use super::frame::Cut;
use super::greeting::{Greeted, NoGreeting};
use super::journal::Cause;
use super::limits::FRAME_BYTES_MAX;
use super::link::Link;
use super::pauses::{self, Pauses};
use super::requests;
use super::shared::Shared;
use crate::hello::{HelloV1, PurposeV1};
use crate::raft::NodeId;

/// A greeted connection that this side dialled.
pub(super) type Dialled = Greeted<OwnedReadHalf, OwnedWriteHalf>;

/// A peer whose connection broke.
struct Suspect {
    /// Where its process was.
    address: SocketAddr,
    /// Until then it is probed in short steps, and nowhere else.
    probed_until: Instant,
    /// The next pause between two probes.
    pause: Duration,
}

/// A connection that stands, and where.
struct Reached {
    greeted: Dialled,
    address: Option<SocketAddr>,
}

/// Why there is no connection.
struct Trouble {
    cause: Cause,
    why: String,
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self { cause: Cause::NoWay, why }
    }
}

impl From<&NoGreeting> for Trouble {
    fn from(error: &NoGreeting) -> Self {
        let cause = match error {
            NoGreeting::Cut(_) | NoGreeting::Stranger(_) => Cause::NoWay,
            _ => Cause::Refused,
        };
        Self { cause, why: error.to_string() }
    }
}

/// Closes the calls of a connection however it ends.
struct Closing(Arc<Calls>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close("the connection was given up");
    }
}

/// Greets over a stream that this side dialled.
///
/// # Errors
/// [`NoGreeting`].
pub(super) async fn greet(
    shared: &Shared,
    stream: TcpStream,
    own: &HelloV1,
    purpose: PurposeV1,
    dialled: NodeId,
) -> Result<Dialled, NoGreeting> {
    let side = shared.side(own.clone(), purpose);
    let greeting = side.dial(stream.into_split(), dialled);
    timeout(shared.pace.greet, greeting).await.unwrap_or(Err(NoGreeting::Cut(Cut::Silent(shared.pace.greet))))
}

/// Keeps the connection for as long as the peer is known.
pub(super) async fn keep(shared: Arc<Shared>, link: Arc<Link>) {
    let mut keeper = Keeper {
        own: shared.own.subscribe(),
        names: link.names(),
        pauses: Pauses::new(&shared.pace),
        damped: Duration::ZERO,
        suspect: None,
        shared,
        link,
    };
    while keeper.own.wait_for(Option::is_some).await.is_ok() {
        keeper.turn().await;
    }
}

struct Keeper {
    shared: Arc<Shared>,
    link: Arc<Link>,
    own: watch::Receiver<Option<HelloV1>>,
    names: watch::Receiver<Vec<String>>,
    pauses: Pauses,
    /// How long to hold the next greeting off: the last connection did not last.
    damped: Duration,
    suspect: Option<Suspect>,
}

impl Keeper {
    /// One round of tries and, if one has success, the connection's life; else a pause.
    async fn turn(&mut self) {
        let Some(own) = self.own.borrow_and_update().clone() else { return };
        let (names, are_new) = {
            let names = self.names.borrow_and_update();
            (names.clone(), names.has_changed())
        };
        if are_new {
            self.forget_suspicion();
        }
        match self.reach(&own, &names).await {
            Ok(reached) => {
                self.set_gone(false);
                self.suspect = None;
                self.hold(reached, names.first()).await;
            }
            Err(Trouble { cause, why }) => {
                let line = format!("no connection to node {}: {why}", self.link.id);
                self.link.trouble(why);
                self.shared.journal.warn(Some(self.link.id), cause, &line);
                self.pause().await;
            }
        }
    }

    fn set_gone(&self, gone: bool) {
        self.link.set_gone(&self.shared.gone, gone);
    }

    /// Tries all ways to the peer, in turn.
    async fn reach(&mut self, own: &HelloV1, names: &[String]) -> Result<Reached, Trouble> {
        let mut trouble: Option<Trouble> = None;
        if let Some(suspect) = &self.suspect {
            let (address, probing) = (suspect.address, Instant::now() < suspect.probed_until);
            match self.probe(own, address).await {
                Ok(reached) => return Ok(reached),
                Err(found) if probing => return Err(found),
                Err(found) => trouble = Some(found),
            }
        }
        for name in names {
            let addresses = match dial::look_up(name, self.shared.pace.connect).await {
                Ok(addresses) => addresses,
                Err(why) => {
                    trouble.get_or_insert(why.into());
                    continue;
                }
            };
            let stream = match dial::connect(&addresses, self.shared.pace.connect).await {
                Ok(stream) => stream,
                Err(NoWay { why, .. }) => {
                    trouble.get_or_insert(why.into());
                    continue;
                }
            };
            let address = stream.peer_addr().ok();
            match self.greet(stream, own).await {
                Ok(greeted) => return Ok(Reached { greeted, address }),
                // What somebody answers says more than that nobody does.
                Err(error) => trouble = Some((&error).into()),
            }
        }
        Err(trouble.unwrap_or_else(|| "its address is not known".to_owned().into()))
    }

    /// Is the peer's process still where it was?
    async fn probe(&mut self, own: &HelloV1, address: SocketAddr) -> Result<Reached, Trouble> {
        let stream = match dial::connect(&[address], self.shared.pace.connect).await {
            Ok(stream) => stream,
            Err(no_way) => {
                self.set_gone(no_way.means == Means::Nobody);
                if no_way.means == Means::Nothing {
                    self.suspect = None;
                }
                return Err(no_way.why.into());
            }
        };
        self.set_gone(false);
        match self.greet(stream, own).await {
            Ok(greeted) => Ok(Reached { greeted, address: Some(address) }),
            Err(error) => {
                // Cut off in the greeting: perhaps it was just dying. Then the next probe is refused.
                if !matches!(&error, NoGreeting::Cut(cut) if cut.is_end()) {
                    self.suspect = None;
                }
                Err((&error).into())
            }
        }
    }

    async fn greet(&mut self, stream: TcpStream, own: &HelloV1) -> Result<Dialled, NoGreeting> {
        // Whoever is dialled says nothing first: what comes meanwhile is the connection's end.
        let mut byte = [0];
        if let Ok(ended) = timeout(std::mem::take(&mut self.damped), stream.peek(&mut byte)).await {
            return Err(NoGreeting::Cut(ended.map_or_else(Cut::Broke, |_| Cut::Closed)));
        }
        let greeted = greet(&self.shared, stream, own, PurposeV1::Requests, self.link.id).await;
        if let Err(NoGreeting::Refused { by: other, .. } | NoGreeting::Objected { to: other, .. }) = &greeted {
            self.link.heard(other);
        }
        greeted
    }

    /// Uses a connection until it ends.
    async fn hold(&mut self, Reached { mut greeted, address }: Reached, name: Option<&String>) {
        let (shared, link) = (Arc::clone(&self.shared), Arc::clone(&self.link));
        let since = Instant::now();
        greeted.reader.widen(FRAME_BYTES_MAX, shared.pace.silence, Arc::clone(&link.traffic));
        greeted.writer.count(shared.pace.stall, Arc::clone(&link.traffic));
        let closing = Closing(Arc::default());
        link.connected(greeted.hello, Arc::clone(&closing.0));
        shared.journal.info(Some(link.id), Cause::Connected, &format!("connected to node {}", link.id));
        let (cut, is_wanted) = tokio::select! {
            cut = requests::carry(&closing.0, greeted.reader, greeted.writer, shared.pace.alive) => (cut, false),
            _ = self.own.changed() => (Cut::Wanted("this node has something else to say of itself"), true),
            () = moved(&mut self.names, name) => (Cut::Wanted("the node has another address now"), true),
        };
        let why = cut.to_string();
        closing.0.close(&why);
        link.trouble(why);
        if is_wanted {
            // No trouble, and no reason to hold off.
            return self.pauses.restart();
        }
        shared.journal.warn(Some(link.id), Cause::Lost, &format!("lost the connection to node {}: {cut}", link.id));
        let now = Instant::now();
        if now.duration_since(since) >= shared.pace.probe {
            self.pauses.restart();
        } else {
            self.damped = self.pauses.next(pauses::random());
        }
        if let Some(address) = address.filter(|_| cut.is_end()) {
            let pause = Duration::from_millis(1);
            self.suspect = Some(Suspect { address, probed_until: now + shared.pace.probe, pause });
        }
    }

    /// Waits for the next round: for a while, or until something changed.
    async fn pause(&mut self) {
        let probing = self.suspect.as_mut().filter(|suspect| Instant::now() < suspect.probed_until);
        let pause = match probing {
            Some(suspect) => {
                let pause = suspect.pause;
                suspect.pause = (pause * 2).min(self.shared.pace.retry_first);
                pause
            }
            None => self.pauses.next(pauses::random()),
        };
        tokio::select! {
            () = sleep(pause) => {}
            _ = self.own.changed() => {}
            // Looked at by the next round, as a change that came before this pause.
            Ok(()) = self.names.changed() => self.names.mark_changed(),
            () = self.link.nudge.notified() => {
                // It runs, perhaps elsewhere: look everywhere.
                if let Some(suspect) = &mut self.suspect {
                    suspect.probed_until = Instant::now();
                }
            }
        }
    }

    /// It is expected elsewhere now: that nobody is where it was means nothing, nor that connections there did not last.
    fn forget_suspicion(&mut self) {
        self.suspect = None;
        self.damped = Duration::ZERO;
        self.set_gone(false);
        self.pauses.restart();
    }
}

/// Resolves when the likeliest name is not `name` any more.
async fn moved(names: &mut watch::Receiver<Vec<String>>, name: Option<&String>) {
    // The link lives as long as its keeper; were it gone, nothing would move any more.
    if names.wait_for(|names| names.first() != name).await.is_err() {
        std::future::pending::<()>().await;
    }
}
