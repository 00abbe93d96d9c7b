//! tenure over HTTP/1.1 and JSON, the way any language speaks it. A lock is a key; a lease here is a token of the
//! client's own, and each key is renewed by itself, as with Redis.
//!
//! HTTP/1.1 carries one request at a time, so a `Conn` keeps as many keep-alive connections as it ever had requests in
//! flight: one in W1, W3 and W4; 4 in W2, where 64 renewals share 16 `Conn`s (gRPC puts them on one connection each).
//! A connection whose request was given up or failed is closed, not used again. Every command is sent once.
//! RENEW and RELEASE carry the fence, as tenure's clients do. Renewals are replicated and synced.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::target::{Conn, Lease, Target, locked};

const CONNECT_MAX: Duration = Duration::from_secs(1);
const STATUS_MAX: Duration = Duration::from_secs(2);
/// With [`LockWait::Poll`]: the same as for Redis.
const RETRY: Duration = Duration::from_millis(10);
/// With a place in the line: how long one call waits. Asked again with the same token, the place is kept.
const WAIT: Duration = Duration::from_secs(20);

/// How a client waits for a lock that another holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LockWait {
    /// One ACQUIRE with `wait_ms`: it stands in the key's line, and its answer is the grant. The wait is shorter than the
    /// ttl, so the time before it asked plus the ttl is a deadline of its own.
    Line,
    /// The same, and a RENEW before the lock counts as had, as tenure's own clients do.
    Proved,
    /// ACQUIRE again every 10 ms, as with Redis.
    Poll,
}

pub struct Tenure {
    endpoints: Vec<String>,
    wait: LockWait,
}

impl Tenure {
    pub fn new(endpoints: Vec<String>, wait: LockWait) -> Self {
        Tenure { endpoints, wait }
    }
}

#[async_trait]
impl Target for Tenure {
    fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    async fn leader(&self) -> Result<Option<usize>> {
        for (i, endpoint) in self.endpoints.iter().enumerate() {
            let conn = TenureConn::new(endpoint, self.wait);
            let status = timeout(STATUS_MAX, conn.send("GET", "/v1/status", Bytes::new())).await;
            if let Ok(Ok(status)) = status {
                let status: Value = serde_json::from_slice(&status)?;
                if status["role"] == "leader" {
                    return Ok(Some(i));
                }
            }
        }
        bail!("no tenure leader")
    }

    async fn connect(&self, endpoint: usize, _ttl: Duration) -> Result<Arc<dyn Conn>> {
        let conn = TenureConn::new(&self.endpoints[endpoint], self.wait);
        let first = conn.open().await?;
        locked(&conn.idle).push(first);
        Ok(Arc::new(conn))
    }

    /// No connection is made before it is needed: a node that is down is found by the first try.
    async fn connect_ha(&self, first: usize, _ttl: Duration) -> Result<Arc<dyn Conn>> {
        Ok(Arc::new(TenureConn::new(&self.endpoints[first], self.wait)))
    }
}

type Link = SendRequest<Full<Bytes>>;

pub struct TenureConn {
    endpoint: String,
    wait: LockWait,
    idle: Mutex<Vec<Link>>,
    /// The fence of each grant, by lease and key.
    fences: Mutex<HashMap<(u64, String), u64>>,
}

/// What a command answers, as far as it is needed here.
#[derive(Deserialize)]
struct Answer {
    result: Value,
    fence: Option<u64>,
    reason: Option<String>,
}

impl TenureConn {
    fn new(endpoint: &str, wait: LockWait) -> Self {
        TenureConn { endpoint: endpoint.to_string(), wait, idle: Mutex::default(), fences: Mutex::default() }
    }

    async fn open(&self) -> Result<Link> {
        let socket = timeout(CONNECT_MAX, TcpStream::connect(&self.endpoint)).await.context("connect timed out")??;
        socket.set_nodelay(true)?;
        let (link, driver) = handshake(TokioIo::new(socket)).await?;
        tokio::spawn(driver);
        Ok(link)
    }

    async fn send(&self, method: &str, path: &str, body: Bytes) -> Result<Bytes> {
        let idle = locked(&self.idle).pop();
        let mut link = match idle {
            Some(link) if !link.is_closed() => link,
            _ => self.open().await?,
        };
        // The connection's last answer is read, but its driver may not have noticed yet.
        link.ready().await?;
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.endpoint)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let answer = link.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        locked(&self.idle).push(link);
        if !status.is_success() {
            bail!("{status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }

    async fn command(&self, path: &str, body: &Value) -> Result<Answer> {
        let answer = self.send("POST", path, Bytes::from(serde_json::to_vec(body)?)).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    async fn op(&self, operation: &str, key: &str, args: Value) -> Result<Answer> {
        self.command("/v1/OP", &json!({"key": key, "operation": operation, "args": args})).await
    }

    /// Stands in the line for `wait`, or asks once; what the node answers if that is no grant.
    async fn ask(&self, lease: &Lease, key: &str, wait: Duration) -> Result<Option<String>> {
        let token = token(lease);
        let mut args = json!({"owner": token, "token": token, "ttl_ms": ms(lease.ttl), "create": true});
        if !wait.is_zero() {
            args["wait_ms"] = ms(wait).into();
        }
        let answer = self.op("ACQUIRE", key, args).await?;
        if answer.result != true {
            return Ok(Some(answer.reason.unwrap_or_default()));
        }
        let fence = answer.fence.context("ACQUIRE answered true without a fence")?;
        locked(&self.fences).insert((lease.id, key.to_string()), fence);
        Ok(None)
    }

    fn fence(&self, lease: &Lease, key: &str) -> Result<u64> {
        locked(&self.fences).get(&(lease.id, key.to_string())).copied().with_context(|| format!("{key} is not held"))
    }
}

fn token(lease: &Lease) -> String {
    format!("{:016x}", lease.id)
}

fn ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

#[async_trait]
impl Conn for TenureConn {
    async fn lease_open(&self, ttl: Duration) -> Result<Lease> {
        Ok(Lease { id: rand::random(), ttl }) // the client's own affair
    }

    async fn lease_close(&self, lease: &Lease) -> Result<()> {
        let held: Vec<String> =
            locked(&self.fences).keys().filter(|(id, _)| *id == lease.id).map(|(_, key)| key.clone()).collect();
        for key in held {
            self.release(lease, &key).await?;
        }
        Ok(())
    }

    async fn acquire(&self, lease: &Lease, key: &str) -> Result<bool> {
        Ok(self.ask(lease, key, Duration::ZERO).await?.is_none())
    }

    async fn release(&self, lease: &Lease, key: &str) -> Result<()> {
        let fence = self.fence(lease, key)?;
        let answer = self.op("RELEASE", key, json!({"token": token(lease), "fence": fence})).await?;
        if answer.result != true {
            bail!("release: {}", answer.reason.unwrap_or_default());
        }
        locked(&self.fences).remove(&(lease.id, key.to_string()));
        Ok(())
    }

    async fn renew(&self, lease: &Lease, key: &str) -> Result<()> {
        let args = json!({"token": token(lease), "fence": self.fence(lease, key)?, "ttl_ms": ms(lease.ttl)});
        let answer = self.op("RENEW", key, args).await?;
        if answer.result != true {
            bail!("renew: {}", answer.reason.unwrap_or_default());
        }
        Ok(())
    }

    async fn read(&self, key: &str, stale_ok: bool) -> Result<Option<Vec<u8>>> {
        let path = if stale_ok { "/v1/GET?consistency=stale" } else { "/v1/GET" };
        let answer = self.command(path, &json!({"key": key})).await?;
        Ok(answer.result["owner"].as_str().map(|owner| owner.as_bytes().to_vec()))
    }

    async fn lock_wait(&self, lease: &Lease, name: &str) -> Result<String> {
        if self.wait == LockWait::Poll {
            while !self.acquire(lease, name).await? {
                sleep(RETRY).await;
            }
            return Ok(name.to_string());
        }
        while let Some(reason) = self.ask(lease, name, WAIT).await? {
            if reason != "wait_timeout" {
                bail!("no place in the line: {reason}");
            }
        }
        if self.wait == LockWait::Proved {
            self.renew(lease, name).await?;
        }
        Ok(name.to_string())
    }

    async fn unlock(&self, lease: &Lease, token: &str) -> Result<()> {
        self.release(lease, token).await
    }

    async fn probe(&self, key: &str) -> Result<bool> {
        self.acquire(&Lease { id: rand::random(), ttl: Duration::from_secs(60) }, key).await
    }
}
