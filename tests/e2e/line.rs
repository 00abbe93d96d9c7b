//! Clients that wait in line, as bytes on sockets: each is one connection with one request on it, read when the test wants
//! its answer.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::http::{Http, Response};

/// Longer than any wait here.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// One of them. Dropped, its connection is closed.
pub struct Waiting {
    http: Http,
    pub token: String,
}

impl Waiting {
    /// Asks the node for `key` by a request that waits for a minute.
    pub fn ask(addr: SocketAddr, key: &str, token: &str) -> Self {
        Self::ask_with(addr, key, token, &json!({}), "")
    }

    /// The same with other arguments (without those that are null), and headers that end in `\r\n`.
    pub fn ask_with(addr: SocketAddr, key: &str, token: &str, change: &Value, headers: &str) -> Self {
        let mut http = Http::connect_within(addr, ANSWER_WITHIN).unwrap();
        http.send_bytes(request(key, token, change, headers).as_bytes()).unwrap();
        Self { http, token: token.to_owned() }
    }

    /// Awaits the answer, whatever it is.
    pub fn response(&mut self) -> Response {
        self.http.answer().unwrap()
    }

    /// Awaits the answer, which must be one.
    pub fn answer(&mut self) -> Value {
        let response = self.response();
        assert_eq!(response.status, 200, "{}: {response:?}", self.token);
        response.json()
    }

    /// Awaits the grant; its fence.
    pub fn granted(&mut self) -> u64 {
        let answer = self.answer();
        assert_eq!(answer["result"], true, "{}: {answer}", self.token);
        answer["fence"].as_u64().unwrap()
    }

    /// Awaits a false answer; its reason.
    pub fn refused(&mut self) -> String {
        let answer = self.answer();
        assert_eq!(answer["result"], false, "{}: {answer}", self.token);
        answer["reason"].as_str().unwrap_or_default().to_owned()
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.http.send_bytes(bytes).unwrap();
    }
}

/// The bytes of such a request.
pub fn request(key: &str, token: &str, change: &Value, headers: &str) -> String {
    let mut args = json!({"owner": token, "token": token, "ttl_ms": 60_000, "wait_ms": 60_000, "create": true});
    for (name, value) in change.as_object().unwrap() {
        args[name] = value.clone();
    }
    args.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    let body = json!({"key": key, "operation": "ACQUIRE", "args": args}).to_string();
    let length = body.len();
    format!(
        "POST /v1/OP HTTP/1.1\r\nHost: tenure\r\nContent-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
}
