//! The greeting: who is there, and does it know the cluster's secret?
//!
//! ```text
//! dialler                                      listener
//! magic, nonce, hello               ->
//!                                   <-         magic, nonce, hello
//! proof                             ->
//!                                   <-         proof (or: another secret)
//!                                   <-         sealed: welcome or refused
//! sealed: welcome or refused        ->
//! ```
//!
//! The dialler proves itself first, so that a stranger who connects learns nothing that hangs on the secret. Each side
//! waits for the other's words before it closes, so that a refusal is always read. Nothing that an unauthenticated side
//! says is shown, but for its protocol versions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use super::frame::{Cut, FrameReader, FrameWriter};
use super::handler::PeerHandler;
use super::keys::{NONCE_BYTES, PROOF_BYTES, Role, Session};
use super::limits::HELLO_BYTES_MAX;
use super::message::{self, Message};
use crate::codec::{self, Kind};
use crate::hello::HelloV1;
use crate::identity::hex;
use crate::peer_config::Secret;
use crate::raft::NodeId;

/// The first bytes of a greeting.
const MAGIC: [u8; 8] = *b"tenure-p";
/// What the listener says to a proof that is right, before its own.
const SECRET_SAME: u8 = 0;
/// And to one that is wrong.
const SECRET_OTHER: u8 = 1;

/// Why there was no greeting. Each text is one line.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoGreeting {
    /// The connection ended.
    #[error("no greeting: {0}")]
    Cut(#[from] Cut),
    /// Not one of ours.
    #[error("no greeting: the other side does not speak this protocol: {0}")]
    Stranger(&'static str),
    /// No version in common.
    #[error("no common protocol version: the other side speaks {}..={}, this node {}..={}", .theirs.0, .theirs.1, .ours.0, .ours.1)]
    Version {
        /// Lowest and highest version of the other side.
        theirs: (u16, u16),
        /// The same of this one.
        ours: (u16, u16),
    },
    /// The proof was wrong.
    #[error("the other side has another cluster secret: give all nodes of a cluster the same")]
    OtherSecret,
    /// The other side refused, and said why.
    #[error("{why}")]
    Refused {
        /// Who.
        by: Box<HelloV1>,
        /// Why.
        why: String,
    },
    /// This side refused.
    #[error("{why}")]
    Objected {
        /// Whom.
        to: Box<HelloV1>,
        /// Why.
        why: String,
    },
    /// This side cannot greet.
    #[error("no greeting: {0}")]
    Unable(String),
}

/// What a side brings to a greeting.
pub(super) struct Side {
    /// What it says of itself.
    pub own: HelloV1,
    /// The cluster's secret.
    pub secret: Secret,
    /// Who decides about the other side.
    pub handler: Option<Arc<dyn PeerHandler>>,
    /// How long a refused other side is given to read why.
    pub linger: Duration,
}

/// A connection whose both sides know each other.
pub(super) struct Greeted<R, W> {
    /// Who the other side is.
    pub hello: HelloV1,
    /// From it.
    pub reader: FrameReader<R>,
    /// To it.
    pub writer: FrameWriter<W>,
}

/// What a side says first, as a frame's body.
fn greeting(own: &HelloV1) -> Result<Vec<u8>, NoGreeting> {
    let mut body = MAGIC.to_vec();
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|error| NoGreeting::Unable(format!("no randomness: {error}")))?;
    body.extend_from_slice(&nonce);
    codec::encode_into(Kind::Hello, 1, own, &mut body).map_err(|error| NoGreeting::Unable(error.to_string()))?;
    if body.len() > HELLO_BYTES_MAX {
        let why = format!("this node's addresses are too long: its hello has {} bytes", body.len());
        return Err(NoGreeting::Unable(why));
    }
    Ok(body)
}

/// Reads what the other side says first.
pub(super) fn read_greeting(body: &[u8]) -> Result<HelloV1, NoGreeting> {
    let rest = body.strip_prefix(&MAGIC).ok_or(NoGreeting::Stranger("its first bytes are others"))?;
    let hello = rest.get(NONCE_BYTES..).ok_or(NoGreeting::Stranger("its hello is cut short"))?;
    codec::decode(Kind::Hello, 1, hello).map_err(|_| NoGreeting::Stranger("its hello does not decode"))
}

/// The highest version that both speak.
fn common_version(own: &HelloV1, other: &HelloV1) -> Result<u16, NoGreeting> {
    let highest = own.protocol_max.min(other.protocol_max);
    if highest >= own.protocol_min.max(other.protocol_min) {
        return Ok(highest);
    }
    let range = |hello: &HelloV1| (hello.protocol_min, hello.protocol_max);
    Err(NoGreeting::Version { theirs: range(other), ours: range(own) })
}

impl Side {
    /// What this side has against `other`.
    fn objection(&self, other: &HelloV1, dialled: Option<NodeId>) -> Option<String> {
        let own = &self.own;
        if let Some(dialled) = dialled.filter(|id| *id != other.node) {
            return Some(format!("node {} answers at the address of node {dialled}: correct the address", other.node));
        }
        if own.node == other.node {
            return Some(format!("both sides are node {}: give each node its own id", own.node));
        }
        if own.group != other.group {
            let (node, group) = (own.node, own.group);
            return Some(format!("node {node} has group {group} and not group {}, node {}'s", other.group, other.node));
        }
        if let Some(why) = self.handler.as_ref().and_then(|handler| handler.refuse(other)) {
            return Some(message::line(&why));
        }
        // One that founds a cluster and has not begun it may still be let into another.
        let is_founding = own.empty || other.empty;
        match (&own.cluster, &other.cluster) {
            (Some(ours), Some(theirs)) if ours != theirs && !is_founding => Some(format!(
                "node {} belongs to cluster {} and node {} to cluster {}: correct the address, or start one of them on \
                 other data",
                own.node,
                hex(ours),
                other.node,
                hex(theirs)
            )),
            _ => None,
        }
    }

    /// Greets whom this side dialled.
    ///
    /// # Errors
    /// [`NoGreeting`].
    pub(super) async fn dial<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &self,
        (from, to): (R, W),
        dialled: NodeId,
    ) -> Result<Greeted<R, W>, NoGreeting> {
        let (mut reader, mut writer) = (self.reader(from), FrameWriter::new(to));
        let mine = greeting(&self.own)?;
        writer.send(&mine).await?;
        let theirs = reader.next().await?;
        let hello = read_greeting(&theirs)?;
        common_version(&self.own, &hello)?;
        let session = Session::new(&self.secret, &mine, &theirs);
        writer.send(&session.proof(Role::Dialler)).await?;
        match reader.next().await?.split_first() {
            Some((&SECRET_SAME, proof)) if session.proves(Role::Listener, proof) => {}
            Some((&SECRET_SAME, _)) => return Err(NoGreeting::OtherSecret),
            Some((&SECRET_OTHER, [])) => return Err(NoGreeting::OtherSecret),
            _ => return Err(NoGreeting::Stranger("its proof is none")),
        }
        let mut greeted = authenticate(hello, reader, writer, &session, Role::Dialler);
        self.heed(&mut greeted).await?;
        let objection = self.objection(&greeted.hello, Some(dialled));
        self.judge(&mut greeted, objection).await?;
        Ok(greeted)
    }

    /// Greets who dialled this side.
    ///
    /// # Errors
    /// [`NoGreeting`].
    pub(super) async fn accept<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &self,
        (from, to): (R, W),
    ) -> Result<Greeted<R, W>, NoGreeting> {
        let (mut reader, mut writer) = (self.reader(from), FrameWriter::new(to));
        let theirs = reader.next().await?;
        let hello = read_greeting(&theirs)?;
        let own = HelloV1 { purpose: hello.purpose, ..self.own.clone() };
        let mine = greeting(&own)?;
        writer.send(&mine).await?;
        if let Err(error) = common_version(&self.own, &hello) {
            self.linger(&mut reader, &mut writer).await;
            return Err(error);
        }
        let session = Session::new(&self.secret, &theirs, &mine);
        if !session.proves(Role::Dialler, &reader.next().await?) {
            writer.send(&[SECRET_OTHER]).await?;
            self.linger(&mut reader, &mut writer).await;
            return Err(NoGreeting::OtherSecret);
        }
        let mut proof = Vec::with_capacity(1 + PROOF_BYTES);
        proof.push(SECRET_SAME);
        proof.extend_from_slice(&session.proof(Role::Listener));
        writer.send(&proof).await?;
        let mut greeted = authenticate(hello, reader, writer, &session, Role::Listener);
        let starting = || format!("node {} is still starting: it lets nobody in yet", self.own.node);
        let objection = match self.handler {
            Some(_) => self.objection(&greeted.hello, None),
            None => Some(starting()),
        };
        self.judge(&mut greeted, objection).await?;
        self.heed(&mut greeted).await?;
        Ok(greeted)
    }

    /// The whole greeting has one deadline; a single read needs none.
    fn reader<R: AsyncRead + Unpin>(&self, from: R) -> FrameReader<R> {
        FrameReader::new(from, HELLO_BYTES_MAX, Duration::from_secs(60))
    }

    /// Tells the other side what this one thinks of it.
    async fn judge<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &self,
        greeted: &mut Greeted<R, W>,
        objection: Option<String>,
    ) -> Result<(), NoGreeting> {
        greeted.writer.send(&message::verdict(objection.as_deref())).await?;
        let Some(why) = objection else { return Ok(()) };
        self.linger(&mut greeted.reader, &mut greeted.writer).await;
        Err(NoGreeting::Objected { to: Box::new(greeted.hello.clone()), why })
    }

    /// Hears what the other side thinks of this one.
    async fn heed<R: AsyncRead + Unpin, W>(&self, greeted: &mut Greeted<R, W>) -> Result<(), NoGreeting> {
        match Message::parse(greeted.reader.next().await?)? {
            Message::Welcome => Ok(()),
            Message::Refused(why) => Err(NoGreeting::Refused { by: Box::new(greeted.hello.clone()), why }),
            _ => Err(NoGreeting::Cut(Cut::Senseless("it is no end of a greeting"))),
        }
    }

    /// Closes so that the other side reads the last words: bytes left unread would reset the connection under them.
    async fn linger<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &self,
        reader: &mut FrameReader<R>,
        writer: &mut FrameWriter<W>,
    ) {
        writer.finish().await;
        // It has read them or it never will.
        let _ = tokio::time::timeout(self.linger, reader.drain()).await;
    }
}

fn authenticate<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    hello: HelloV1,
    mut reader: FrameReader<R>,
    mut writer: FrameWriter<W>,
    session: &Session,
    own: Role,
) -> Greeted<R, W> {
    let other = if own == Role::Dialler { Role::Listener } else { Role::Dialler };
    reader.authenticate(session.tags(other));
    writer.authenticate(session.tags(own));
    Greeted { hello, reader, writer }
}

/// Where a connection's other end is, for the log.
pub(super) fn place(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "an unknown address".to_owned(), |address| address.to_string())
}
