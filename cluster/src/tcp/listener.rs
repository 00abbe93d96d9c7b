//! Whoever connects: greeted, then served.
//!
//! Invariants: few connections are not authenticated, each for at most a few seconds (see `strangers`); a node has one
//! requests connection here, its latest.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::answering;
use super::dial;
use super::frame::Cut;
use super::greeting::{Greeted, NoGreeting, place};
use super::journal::Cause;
use super::limits::FRAME_BYTES_MAX;
use super::shared::Shared;
use super::snapshot_in;
use super::strangers::Stranger;
use crate::hello::{HelloV1, PurposeV1};

type Halves = (tokio::net::tcp::OwnedReadHalf, tokio::net::tcp::OwnedWriteHalf);
type Accepted = Greeted<tokio::net::tcp::OwnedReadHalf, tokio::net::tcp::OwnedWriteHalf>;

/// Accepts connections for as long as the transport is open.
pub(super) async fn listen(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => accept(&shared, stream, address),
            Err(error) => {
                shared.journal.warn(None, Cause::Listener, &format!("no peer connection can be accepted: {error}"));
                // No file descriptor is free, most likely: there is no event for that.
                tokio::time::sleep(shared.pace.retry_first).await;
            }
        }
    }
}

fn accept(shared: &Arc<Shared>, stream: TcpStream, address: SocketAddr) {
    let stranger = shared.strangers.admit(address.ip());
    // Closed already: the connection goes with the task.
    let _ = shared.spawn(serve(Arc::clone(shared), stream, address, stranger));
}

async fn serve(shared: Arc<Shared>, stream: TcpStream, address: SocketAddr, mut stranger: Stranger) {
    let mut own = shared.own.subscribe();
    let greeting = async {
        dial::tune(&stream).map_err(Cut::from)?;
        greet(&shared, &mut own, stream.into_split()).await
    };
    let greeted = tokio::select! { biased;
        greeted = timeout(shared.pace.greet_accepted, greeting) => match greeted {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(error)) => return log_no_greeting(&shared, address, &error),
            Err(_) => return log_no_greeting(&shared, address, &NoGreeting::Stranger("it says too little in time")),
        },
        () = stranger.ends() => {
            let line = format!("a peer connection from {address} was closed: too many came that are not authenticated");
            return shared.journal.warn(None, Cause::Stranger, &line);
        }
    };
    drop(stranger);
    let Ok(_accepted) = Arc::clone(&shared.permits.accepted).try_acquire_owned() else {
        let line = format!("a connection of node {} from {address} was closed: too many", greeted.hello.node);
        return shared.journal.warn(Some(greeted.hello.node), Cause::Listener, &line);
    };
    if let Some(link) = shared.link(greeted.hello.node) {
        link.said(&greeted.hello.peer);
        link.nudge.notify_one();
    }
    tokio::select! {
        () = serve_greeted(&shared, greeted) => {}
        _ = own.changed() => {}
    }
}

async fn greet(
    shared: &Shared,
    own: &mut watch::Receiver<Option<HelloV1>>,
    halves: Halves,
) -> Result<Accepted, NoGreeting> {
    let introduced = own.wait_for(Option::is_some).await.ok().and_then(|own| own.clone());
    let introduced = introduced.ok_or_else(|| NoGreeting::Unable("this node has not said who it is".to_owned()))?;
    shared.side(introduced, PurposeV1::Requests).accept(halves).await
}

async fn serve_greeted(shared: &Arc<Shared>, mut greeted: Accepted) {
    let node = greeted.hello.node;
    match greeted.hello.purpose {
        PurposeV1::Requests => {
            let traffic = shared.link(node).map(|link| Arc::clone(&link.traffic)).unwrap_or_default();
            greeted.reader.widen(FRAME_BYTES_MAX, shared.pace.silence, Arc::clone(&traffic));
            greeted.writer.count(shared.pace.stall, traffic);
            let (serial, replaced) = shared.succeed(node);
            let handler = Arc::clone(shared);
            let handler = move || handler.handler();
            let cut = tokio::select! {
                cut = answering::answer(greeted, &handler, shared.pace.alive) => cut,
                _ = replaced => Cut::Wanted("it has connected again"),
            };
            shared.leave(node, serial);
            if !cut.is_end() {
                let line = format!("requests of node {node} are not answered any more: {cut}");
                shared.journal.info(Some(node), Cause::Lost, &line);
            }
        }
        PurposeV1::Snapshot => {
            greeted.reader.widen(FRAME_BYTES_MAX, shared.pace.snapshot_silence, Arc::default());
            if let Err(cut) = snapshot_in::receive(shared, greeted).await {
                let line = format!("the snapshot from node {node} was not taken in: {cut}");
                shared.journal.warn(Some(node), Cause::Snapshot, &line);
            }
        }
    }
}

fn log_no_greeting(shared: &Shared, address: SocketAddr, error: &NoGreeting) {
    let place = place(Some(address));
    match error {
        NoGreeting::Refused { by, why } => {
            if let Some(link) = shared.link(by.node) {
                link.refused(by, why);
            }
            let line = format!("node {} at {place} refuses this node: {why}", by.node);
            shared.journal.warn(Some(by.node), Cause::Refused, &line);
        }
        NoGreeting::Objected { to, why } => {
            let line = format!("node {} at {place} is refused: {why}", to.node);
            shared.journal.warn(Some(to.node), Cause::Refused, &line);
        }
        NoGreeting::OtherSecret | NoGreeting::Version { .. } => {
            shared.journal.warn(None, Cause::Refused, &format!("a connection from {place} is refused: {error}"));
        }
        NoGreeting::Cut(_) | NoGreeting::Stranger(_) | NoGreeting::Unable(_) => {
            shared.journal.info(None, Cause::Stranger, &format!("a connection from {place} was closed: {error}"));
        }
    }
}
