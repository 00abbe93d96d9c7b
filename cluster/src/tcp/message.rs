//! What an authenticated frame's body says: one byte of kind, then its fields. Pure.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::frame::Cut;
use super::limits::LINE_BYTES_MAX;

const REQUEST: u8 = 1;
const ANSWER: u8 = 2;
const ALIVE: u8 = 3;
const WELCOME: u8 = 4;
const REFUSED: u8 = 5;
const OFFER: u8 = 6;
const CHUNK: u8 = 7;
const END: u8 = 8;

/// Bytes before the envelope of a request or an answer.
const NUMBERED_HEAD: usize = 1 + 8;

/// What a frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A request (an envelope of `codec`); its answer has the same number.
    Request(u64, Bytes),
    /// An answer.
    Answer(u64, Bytes),
    /// Nothing to say, but alive.
    Alive,
    /// The greeting is done.
    Welcome,
    /// The greeting is done, and the connection refused: why.
    Refused(String),
    /// A snapshot begins: its head, an envelope.
    Offer(Bytes),
    /// The snapshot's next bytes.
    Chunk(Bytes),
    /// The snapshot is whole.
    End {
        /// Its length.
        bytes: u64,
        /// CRC32C of all of it.
        crc32c: u32,
    },
}

impl Message {
    /// Reads a frame's body.
    ///
    /// # Errors
    /// [`Cut::Senseless`].
    pub(super) fn parse(mut body: Bytes) -> Result<Self, Cut> {
        let short = Cut::Senseless("it is cut short");
        let kind = body.try_get_u8().map_err(|_| Cut::Senseless("it is empty"))?;
        let message = match kind {
            REQUEST => Self::Request(body.try_get_u64_le().map_err(|_| short)?, body.split_to(body.len())),
            ANSWER => Self::Answer(body.try_get_u64_le().map_err(|_| short)?, body.split_to(body.len())),
            ALIVE => Self::Alive,
            WELCOME => Self::Welcome,
            REFUSED => Self::Refused(line(&String::from_utf8_lossy(&body.split_to(body.len())))),
            OFFER => Self::Offer(body.split_to(body.len())),
            CHUNK => Self::Chunk(body.split_to(body.len())),
            END => match (body.try_get_u64_le(), body.try_get_u32_le()) {
                (Ok(bytes), Ok(crc32c)) => Self::End { bytes, crc32c },
                _ => return Err(short),
            },
            _ => return Err(Cut::Senseless("it is of an unknown kind")),
        };
        if body.is_empty() { Ok(message) } else { Err(Cut::Senseless("bytes are left over")) }
    }
}

/// One line of at most [`LINE_BYTES_MAX`] bytes: what another node or a handler says goes into logs and status.
pub(super) fn line(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    while line.len() > LINE_BYTES_MAX {
        line.pop();
    }
    line
}

/// A request's body; its number is set later, by [`set_number`].
pub(super) fn request(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    numbered(REQUEST, 0, write)
}

/// An answer's body.
pub(super) fn answer(number: u64, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    numbered(ANSWER, number, write)
}

fn numbered(kind: u8, number: u64, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = Vec::with_capacity(64);
    body.put_u8(kind);
    body.put_u64_le(number);
    write(&mut body);
    body
}

/// Numbers a request's body.
pub(super) fn set_number(body: &mut [u8], number: u64) {
    if let Some(place) = body.get_mut(1..NUMBERED_HEAD) {
        place.copy_from_slice(&number.to_le_bytes());
    }
}

/// The body of [`Message::Alive`].
pub(super) const fn alive() -> [u8; 1] {
    [ALIVE]
}

/// The body that ends a greeting: `None` welcomes.
pub(super) fn verdict(refused: Option<&str>) -> Vec<u8> {
    match refused {
        None => vec![WELCOME],
        Some(why) => [&[REFUSED], line(why).as_bytes()].concat(),
    }
}

/// The body of [`Message::Offer`].
pub(super) fn offer(envelope: &[u8]) -> Vec<u8> {
    [&[OFFER], envelope].concat()
}

/// The body of [`Message::Chunk`].
pub(super) fn chunk(bytes: &[u8]) -> BytesMut {
    let mut body = BytesMut::with_capacity(1 + bytes.len());
    body.put_u8(CHUNK);
    body.put_slice(bytes);
    body
}

/// The body of [`Message::End`].
pub(super) fn end(bytes: u64, crc32c: u32) -> Vec<u8> {
    let mut body = vec![END];
    body.put_u64_le(bytes);
    body.put_u32_le(crc32c);
    body
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::frame::split;
    use super::super::greeting::read_greeting;
    use super::super::limits::{FRAME_BYTES_MAX, HELLO_BYTES_MAX};
    use super::*;

    fn back(body: impl Into<Bytes>) -> Message {
        Message::parse(body.into()).unwrap()
    }

    #[test]
    fn what_is_said_is_read() {
        let mut asked = request(|body| body.extend_from_slice(b"ask"));
        set_number(&mut asked, 1 << 40);
        assert_eq!(back(asked), Message::Request(1 << 40, Bytes::from_static(b"ask")));
        assert_eq!(back(answer(9, |_| {})), Message::Answer(9, Bytes::new()));
        assert_eq!(back(alive().to_vec()), Message::Alive);
        assert_eq!(back(verdict(None)), Message::Welcome);
        assert_eq!(back(verdict(Some("no\nway"))), Message::Refused("no way".to_owned()));
        assert_eq!(back(offer(b"head")), Message::Offer(Bytes::from_static(b"head")));
        assert_eq!(back(chunk(b"bytes")), Message::Chunk(Bytes::from_static(b"bytes")));
        assert_eq!(back(end(7, 8)), Message::End { bytes: 7, crc32c: 8 });
    }

    #[test]
    fn a_line_is_short() {
        assert!(line(&"\u{1f511}".repeat(1000)).len() <= LINE_BYTES_MAX);
    }

    proptest! {
        /// Whatever comes: no panic, no frame beyond the limit, and no more memory than what came.
        #[test]
        fn any_bytes_are_frames_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..256), limit in 0..300_usize) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(frame)) = split(&mut buffer, limit, 16) {
                prop_assert!(frame.len() <= limit + 16);
                let _ = Message::parse(frame.freeze());
            }
            prop_assert!(buffer.capacity() <= bytes.len().max(64));
        }

        #[test]
        fn lengths_beyond_the_limit_are_refused(length in HELLO_BYTES_MAX as u32 + 1.., rest in any::<[u8; 8]>()) {
            let mut buffer = BytesMut::from(&[&length.to_le_bytes()[..], &rest].concat()[..]);
            let refused = matches!(split(&mut buffer, HELLO_BYTES_MAX, 0), Err(Cut::TooLong { .. }));
            prop_assert!(refused);
            let in_authentic = split(&mut buffer, FRAME_BYTES_MAX, 16);
            prop_assert_eq!(in_authentic.is_err(), length as usize > FRAME_BYTES_MAX);
        }

        #[test]
        fn any_bytes_are_a_message_or_refused(kind in 0..10_u8, bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Message::parse(Bytes::from([&[kind], &bytes[..]].concat()));
        }

        #[test]
        fn any_bytes_are_a_greeting_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..128), ours: bool) {
            let magic: &[u8] = if ours { b"tenure-p" } else { b"" };
            let nonce = if ours { &[0; 32][..] } else { b"" };
            let _ = read_greeting(&[magic, nonce, &bytes[..]].concat());
        }
    }
}
