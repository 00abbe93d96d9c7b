//! The dialler's end of a requests connection: calls go out, answers come back in any order.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::calls::{Calls, Failed};
use super::frame::{Cut, FrameReader, FrameWriter};
use super::message::{self, Message};
use crate::codec::{self, Kind};

/// Carries `calls` until the connection ends, and says why it did. The caller then closes `calls`.
pub(super) async fn carry<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    calls: &Calls,
    reader: FrameReader<R>,
    writer: FrameWriter<W>,
    alive: Duration,
) -> Cut {
    let ended = tokio::select! {
        ended = write(calls, writer, alive) => ended,
        ended = read(calls, reader) => ended,
    };
    match ended {
        Ok(never) => match never {},
        Err(cut) => cut,
    }
}

/// What waits goes in one write.
async fn write<W: AsyncWrite + Unpin>(
    calls: &Calls,
    mut writer: FrameWriter<W>,
    alive: Duration,
) -> Result<std::convert::Infallible, Cut> {
    loop {
        match timeout(alive, calls.take()).await {
            Ok(batch) => batch.iter().for_each(|body| writer.put(body)),
            Err(_) => writer.put(&message::alive()),
        }
        writer.flush().await?;
    }
}

async fn read<R: AsyncRead + Unpin>(
    calls: &Calls,
    mut reader: FrameReader<R>,
) -> Result<std::convert::Infallible, Cut> {
    loop {
        match Message::parse(reader.next().await?)? {
            Message::Answer(number, envelope) => {
                let answer = codec::decode(Kind::PeerAnswer, 1, &envelope);
                calls.answered(number, answer.map_err(|error| Failed::MaybeSent(format!("its answer: {error}"))));
            }
            Message::Alive => {}
            _ => return Err(Cut::Senseless("it is no answer")),
        }
    }
}
