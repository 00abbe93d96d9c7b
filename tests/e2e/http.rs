//! A blocking HTTP/1.1 client as small as the tests need: one connection, kept alive, and bytes as they are, so that
//! malformed requests can be sent too. Not the product's client: its bugs must not hide the server's.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longer than the node's own request timeout (5 s), so that the node's answer is what ends a request.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// One connection.
pub struct Http {
    stream: BufReader<TcpStream>,
}

/// An answer.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Response {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in the body of {self:?}"))
    }
}

impl Http {
    /// Connects.
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        Self::connect_within(addr, ANSWER_WITHIN)
    }

    /// Connects, to wait so long for each answer.
    pub fn connect_within(addr: SocketAddr, answer_within: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, answer_within.min(Duration::from_secs(5)))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(answer_within))?;
        stream.set_write_timeout(Some(answer_within))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends `POST /v1/{command}` with a JSON body.
    pub fn post(&mut self, command: &str, body: &str) -> io::Result<Response> {
        self.send("POST", &format!("/v1/{command}"), &[("Content-Type", "application/json")], body)
    }

    /// Sends any request and reads its answer.
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> io::Result<Response> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: tenure\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        request.push_str(body);
        self.send_bytes(request.as_bytes())?;
        self.answer()
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads one answer.
    pub fn answer(&mut self) -> io::Result<Response> {
        let status_line = self.line()?;
        let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status in {status_line:?}")))?;
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let mut body = Vec::new();
        if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            loop {
                let size = usize::from_str_radix(&self.line()?, 16).map_err(io::Error::other)?;
                let mut chunk = vec![0; size];
                self.stream.read_exact(&mut chunk)?;
                body.append(&mut chunk);
                self.line()?;
                if size == 0 {
                    break;
                }
            }
        } else {
            let length = headers.get("content-length").map_or(Ok(0), |length| length.parse());
            body.resize(length.map_err(io::Error::other)?, 0);
            self.stream.read_exact(&mut body)?;
        }
        Ok(Response { status, headers, body: String::from_utf8(body).map_err(io::Error::other)? })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}
