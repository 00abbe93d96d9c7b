//! A reader of `GET /v1/watch` over a bare socket: what is on the wire, and when it is read.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::SOON;

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub id: Option<String>,
    pub event: String,
    pub data: Value,
}

impl Message {
    /// Its place in the log: `index.n.k` as numbers, which order as the events do.
    pub fn place(&self) -> Vec<u64> {
        let id = self.id.as_ref().unwrap_or_else(|| panic!("no id: {self:?}"));
        id.rsplit_once('-').unwrap().1.split('.').map(|number| number.parse().unwrap()).collect()
    }
}

/// A watch on one connection.
pub struct Stream {
    reader: BufReader<TcpStream>,
    pub head: String,
}

impl Stream {
    /// Asks for `/v1/watch{query}`, after that id if one is given.
    pub fn open(addr: SocketAddr, query: &str, after: Option<&str>) -> Self {
        Self::on(TcpStream::connect_timeout(&addr, SOON).unwrap(), query, after)
    }

    /// The same on a connection that stands already.
    pub fn on(mut stream: TcpStream, query: &str, after: Option<&str>) -> Self {
        stream.set_read_timeout(Some(SOON)).unwrap();
        let id = after.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
        // HTTP/1.0 knows no chunks: the body is as it is.
        stream.write_all(format!("GET /v1/watch{query} HTTP/1.0\r\nhost: x\r\n{id}\r\n").as_bytes()).unwrap();
        let (mut reader, mut head) = (BufReader::new(stream), String::new());
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "no answer: {head}");
        }
        Self { reader, head: head.to_lowercase() }
    }

    /// The next message; `None` once the connection is closed or broken.
    pub fn next(&mut self) -> Option<Message> {
        let mut message = Message { id: None, event: String::new(), data: Value::Null };
        loop {
            let mut line = String::new();
            match self.reader.read_line(&mut line) {
                Ok(0) => return None,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                read => read.unwrap(),
            };
            // The connection ended in the middle of a line.
            if !line.ends_with('\n') {
                return None;
            }
            match line.trim_end_matches('\n').split_once(": ") {
                Some(("id", id)) => message.id = Some(id.to_owned()),
                Some(("event", event)) => event.clone_into(&mut message.event),
                Some(("data", data)) => message.data = serde_json::from_str(data).unwrap(),
                None if line == "\n" => return Some(message),
                _ => panic!("no line of an event stream: {line:?}"),
            }
        }
    }

    /// The next message that is no heartbeat.
    pub fn event(&mut self) -> Message {
        let until = Instant::now() + SOON;
        loop {
            let message = self.next().expect("the watch goes on");
            if message.event != "heartbeat" {
                return message;
            }
            assert!(Instant::now() < until, "nothing but heartbeats for {SOON:?}");
        }
    }

    /// Reads on to what is told so of that grant; when it was, on the cluster clock. A kept place is waited for on that clock,
    /// and what a loaded machine adds on the way to us is not in it.
    pub fn clock_ms(&mut self, event: &str, fence: u64) -> u64 {
        loop {
            let told = self.event();
            if told.event == event && told.data["fence"] == fence {
                return told.data["clock_ms"].as_u64().unwrap();
            }
        }
    }

    /// So many of them.
    pub fn events(&mut self, count: usize) -> Vec<Message> {
        (0..count).map(|_| self.event()).collect()
    }
}

/// A connection that holds little for whoever does not read it.
pub fn narrow(addr: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.connect_timeout(&addr.into(), Duration::from_secs(5)).unwrap();
    socket.into()
}
