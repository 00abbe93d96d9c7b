//! The listener's end of a requests connection: requests come in and are answered side by side.
//!
//! Invariants: requests reach the handler, and their futures are polled for the first time, in the order of the wire; so
//! appends that were sent in order begin in order. At most [`HANDLED_MAX`] requests of [`HANDLED_BYTES_MAX`] bytes are
//! being answered; one more is refused without the handler having seen it, and nothing is read while [`ANSWERS_MAX`]
//! answers wait for a reader. Whatever is still being answered when the connection ends is dropped.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::frame::{Cut, FrameReader, FrameWriter};
use super::greeting::Greeted;
use super::handler::PeerHandler;
use super::limits::{ANSWERS_MAX, FRAME_BYTES_MAX, HANDLED_BYTES_MAX, HANDLED_MAX};
use super::message::{self, Message};
use crate::codec::{self, Kind};
use crate::hello::HelloV1;
use crate::peer::{PeerAnswerV1, PeerRequestV1};

/// An answer: the request's number and bytes, and what was answered.
type Answered = (u64, usize, PeerAnswerV1);
type Answering = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// The handler as of now.
pub(super) type CurrentHandler = dyn Fn() -> Option<Arc<dyn PeerHandler>> + Send + Sync;

/// Answers requests until the connection ends, and says why it did.
pub(super) async fn answer<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    greeted: Greeted<R, W>,
    handler: &CurrentHandler,
    alive: Duration,
) -> Cut {
    let (answers, waiting) = mpsc::channel(ANSWERS_MAX);
    let mut desk = Desk { from: greeted.hello, handler, open: FuturesUnordered::new(), bytes: 0, answers };
    let ended = tokio::select! {
        ended = desk.serve(greeted.reader) => ended,
        ended = write(greeted.writer, waiting, alive) => ended,
    };
    match ended {
        Ok(never) => match never {},
        Err(cut) => cut,
    }
}

/// The requests of one connection.
struct Desk<'a> {
    from: HelloV1,
    handler: &'a CurrentHandler,
    /// Being answered.
    open: FuturesUnordered<Answering>,
    /// Of the requests being answered.
    bytes: usize,
    answers: mpsc::Sender<Vec<u8>>,
}

impl Desk<'_> {
    async fn serve<R: AsyncRead + Unpin>(&mut self, mut reader: FrameReader<R>) -> Result<Infallible, Cut> {
        loop {
            tokio::select! {
                Some(answered) = self.open.next(), if !self.open.is_empty() => self.finish(answered).await?,
                frame = reader.next() => match Message::parse(frame?)? {
                    Message::Request(number, envelope) => self.begin(number, &envelope).await?,
                    Message::Alive => {}
                    _ => return Err(Cut::Senseless("it is no request")),
                },
            }
        }
    }

    async fn begin(&mut self, number: u64, envelope: &Bytes) -> Result<(), Cut> {
        let bytes = envelope.len();
        self.bytes += bytes;
        let refused = |why: String| (number, bytes, PeerAnswerV1::Refused(why));
        if self.open.len() >= HANDLED_MAX || self.bytes > HANDLED_BYTES_MAX {
            return self.finish(refused("too many requests of this node are being answered".to_owned())).await;
        }
        let request: PeerRequestV1 = match codec::decode(Kind::PeerRequest, 1, envelope) {
            Ok(request) => request,
            Err(error) => return self.finish(refused(format!("the request is not understood: {error}"))).await,
        };
        let Some(handler) = (self.handler)() else {
            return self.finish(refused("the node is still starting".to_owned())).await;
        };
        let answer = handler.answer(&self.from, request);
        let mut answering: Answering = Box::pin(async move { (number, bytes, answer.await) });
        // Begun here and now, before the next request is looked at.
        match poll_fn(|context| Poll::Ready(answering.as_mut().poll(context))).await {
            Poll::Ready(answered) => self.finish(answered).await,
            Poll::Pending => {
                self.open.push(answering);
                Ok(())
            }
        }
    }

    async fn finish(&mut self, (number, bytes, answer): Answered) -> Result<(), Cut> {
        self.bytes -= bytes;
        let mut encoded = Ok(());
        let body = message::answer(number, |body| {
            encoded = codec::encode_into(Kind::PeerAnswer, 1, &answer, body);
        });
        // Something was done, and the other side cannot be told what: it must take the outcome for unknown.
        if encoded.is_err() || body.len() > FRAME_BYTES_MAX {
            return Err(Cut::Senseless("the answer to it is too long"));
        }
        self.answers.send(body).await.map_err(|_| Cut::Wanted("the writer has ended"))
    }
}

/// What waits goes in one write.
async fn write<W: AsyncWrite + Unpin>(
    mut writer: FrameWriter<W>,
    mut answers: mpsc::Receiver<Vec<u8>>,
    alive: Duration,
) -> Result<Infallible, Cut> {
    loop {
        match timeout(alive, answers.recv()).await {
            Ok(Some(body)) => writer.put(&body),
            Ok(None) => return Err(Cut::Wanted("the requests have ended")),
            Err(_) => writer.put(&message::alive()),
        }
        while !writer.is_full() {
            let Ok(body) = answers.try_recv() else { break };
            writer.put(&body);
        }
        writer.flush().await?;
    }
}
