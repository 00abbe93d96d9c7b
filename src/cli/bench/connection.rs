//! One client's connection: HTTP/1.1, one request at a time, driven by the task that asks.
//!
//! Neither pool nor retry nor a task of its own: what is measured should be the server.

use std::future::Future;
use std::pin::Pin;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper_util::rt::TokioIo;
use tenure_client::Endpoint;
use tenure_client::wire::{Answer, Code, Problem};
use tokio::net::TcpStream;

use super::workload::Shot;

/// The greatest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How an answer of a command that was obeyed begins; anything else is looked at closely.
const TRUE: &[u8] = b"{\"result\":true";

/// Why an operation does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Answered with false (or null, or that there is no key), for this reason.
    Refused(String),
    /// No such answer: the problem's code, or what happened to the connection.
    Failed(String),
}

impl Fault {
    /// A short, stable name.
    pub fn code(self) -> String {
        match self {
            Self::Refused(code) | Self::Failed(code) => code,
        }
    }
}

/// A connection to one node.
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>,
    host: HeaderValue,
}

impl Connection {
    /// Connects.
    pub async fn open(endpoint: &Endpoint) -> Result<Self, Fault> {
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await;
        let stream = stream.map_err(|error| Fault::Failed(format!("connect: {}", error.kind())))?;
        stream.set_nodelay(true).map_err(|error| Fault::Failed(format!("connect: {}", error.kind())))?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(|_| broken())?;
        let host = HeaderValue::try_from(endpoint.to_string()).map_err(|_| broken())?;
        Ok(Self { sender, driver: Box::pin(driver), host })
    }

    /// Sends one request and judges its answer: `result` must be neither false nor null.
    pub async fn shoot(&mut self, shot: &Shot) -> Result<(), Fault> {
        let request = Request::post(shot.path.clone())
            .header(header::HOST, self.host.clone())
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(Full::new(shot.body.clone()))
            .map_err(|_| broken())?;
        let exchange = exchange(&mut self.sender, request);
        tokio::select! {
            biased;
            _closed = &mut self.driver => Err(broken()),
            judged = exchange => judged,
        }
    }

    /// Whether the node still listens to it.
    pub fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }
}

async fn exchange(sender: &mut http1::SendRequest<Full<Bytes>>, request: Request<Full<Bytes>>) -> Result<(), Fault> {
    let response = sender.send_request(request).await.map_err(|_| broken())?;
    let is_success = response.status().is_success();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|_| broken())?.to_bytes();
    if is_success { judge(&body) } else { Err(problem(&body)) }
}

fn judge(body: &[u8]) -> Result<(), Fault> {
    if body.starts_with(TRUE) {
        return Ok(());
    }
    let answer: Answer = serde_json::from_slice(body).map_err(|_| Fault::Failed("unreadable answer".to_owned()))?;
    match answer.result {
        serde_json::Value::Bool(false) => Err(Fault::Refused(answer.reason().unwrap_or("false").to_owned())),
        serde_json::Value::Null => Err(Fault::Refused("null".to_owned())),
        _ => Ok(()),
    }
}

fn problem(body: &[u8]) -> Fault {
    match serde_json::from_slice::<Problem>(body) {
        // A RELEASE before there is a key: nothing is held, as it should be.
        Ok(problem) if problem.is(Code::NoSuchKey) => Fault::Refused(problem.code),
        Ok(problem) => Fault::Failed(problem.code),
        Err(_) => Fault::Failed("unreadable problem".to_owned()),
    }
}

fn broken() -> Fault {
    Fault::Failed("connection lost".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_done_counts() {
        let code = |body: &str| judge(body.as_bytes()).err().map(Fault::code);
        assert_eq!(code(r#"{"result":true,"fence":7}"#), None);
        assert_eq!(code(r#"{"result":{"key":"a","held":true}}"#), None);
        assert_eq!(code(r#"{"result":false,"reason":"held"}"#).as_deref(), Some("held"));
        assert_eq!(code(r#"{"result":null}"#).as_deref(), Some("null"));
        assert_eq!(code("{").as_deref(), Some("unreadable answer"));
        let unavailable = br#"{"type":"","title":"","status":503,"code":"unavailable","detail":""}"#;
        assert_eq!(problem(unavailable), Fault::Failed("unavailable".to_owned()));
    }
}
