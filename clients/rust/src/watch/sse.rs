//! Server-sent events, read as they come: bytes in, messages out. Pure.
//!
//! As the HTML standard has it: lines end in CR, LF or both; a line that begins with a colon is a comment; an empty line
//! ends a message; an id stays until the next one. Not supported: `retry`, which the watch decides itself.

/// One message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Its id, if it brought one.
    pub id: Option<String>,
    /// Its kind.
    pub event: String,
    /// Its data.
    pub data: String,
}

/// The stream is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// A message beyond the limit.
    #[error("a message is larger than {0} bytes")]
    TooLarge(usize),
    /// Not UTF-8.
    #[error("a line is no UTF-8")]
    Text,
}

/// Puts messages together.
#[derive(Debug)]
pub struct Parser {
    bytes_max: usize,
    line: Vec<u8>,
    /// The last byte was a CR: an LF after it belongs to it.
    after_cr: bool,
    message: Message,
    has_data: bool,
    bytes: usize,
    is_first_line: bool,
}

impl Parser {
    /// Messages of at most so many bytes.
    pub fn new(bytes_max: usize) -> Parser {
        Parser {
            bytes_max,
            line: Vec::new(),
            after_cr: false,
            message: Message::default(),
            has_data: false,
            bytes: 0,
            is_first_line: true,
        }
    }

    /// Takes what came and gives the messages it completes.
    ///
    /// # Errors
    /// [`SseError`]; the stream cannot be read on.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<Vec<Message>, SseError> {
        let mut messages = Vec::new();
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            let part = &bytes[..end.unwrap_or(bytes.len())];
            self.bytes += part.len();
            if self.bytes > self.bytes_max {
                return Err(SseError::TooLarge(self.bytes_max));
            }
            self.line.extend_from_slice(part);
            let Some(end) = end else { break };
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            messages.extend(self.line()?);
        }
        Ok(messages)
    }

    /// The line is whole.
    fn line(&mut self) -> Result<Option<Message>, SseError> {
        let line = std::mem::take(&mut self.line);
        let line = std::str::from_utf8(&line).map_err(|_| SseError::Text)?;
        let line = if std::mem::take(&mut self.is_first_line) { line.trim_start_matches('\u{feff}') } else { line };
        if line.is_empty() {
            self.bytes = 0;
            let message = std::mem::take(&mut self.message);
            return Ok(std::mem::take(&mut self.has_data).then_some(message));
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => value.clone_into(&mut self.message.event),
            "id" if !value.contains('\0') => self.message.id = Some(value.to_owned()),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.message.data.push('\n');
                }
                self.message.data.push_str(value);
            }
            // A comment, or a field of a later standard.
            _ => {}
        }
        // What is taken over counts once more only if it stays.
        if name.is_empty() {
            self.bytes = self.bytes.saturating_sub(line.len());
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn message(id: Option<&str>, event: &str, data: &str) -> Message {
        Message { id: id.map(str::to_owned), event: event.to_owned(), data: data.to_owned() }
    }

    const STREAM: &str = "\u{feff}: hello\n\nid: a-1.0\nevent: granted\ndata: {\"x\":1}\n\n\
        data:one\rdata: two\r\r\nevent:x\r\n\r\nid\r\ndata\r\nretry: 5\r\nunknown: y\r\n\r\nevent: z\ndata: unfinished\n";

    fn wanted() -> Vec<Message> {
        vec![message(Some("a-1.0"), "granted", "{\"x\":1}"), message(None, "", "one\ntwo"), message(Some(""), "", "")]
    }

    #[test]
    fn a_stream_says_the_same_however_it_is_cut() {
        for size in 1..=STREAM.len() {
            let mut parser = Parser::new(64);
            let cut = STREAM.as_bytes().chunks(size).flat_map(|chunk| parser.push(chunk).unwrap());
            assert_eq!(cut.collect::<Vec<_>>(), wanted(), "in pieces of {size}");
        }
    }

    #[test]
    fn a_message_has_a_limit_and_comments_have_no_end() {
        let mut parser = Parser::new(16);
        for _ in 0..100 {
            assert_eq!(parser.push(b":comment\n"), Ok(Vec::new()));
        }
        assert_eq!(parser.push(b"data: 0123\ndata: 45678"), Err(SseError::TooLarge(16)));
        let mut parser = Parser::new(16);
        assert_eq!(parser.push(&[b'x'; 17]), Err(SseError::TooLarge(16)), "also without a line's end");
    }

    #[test]
    fn a_line_is_text() {
        assert_eq!(Parser::new(16).push(b"data: \xff\n"), Err(SseError::Text));
    }
}
