//! ZooKeeper. A lease is a session; a lock is an ephemeral znode under /pb.
//!
//! Ordinary clients use the `zookeeper-client` crate. `Light` speaks just
//! enough of the wire protocol (connect, ping, create, delete) over a bare
//! socket to hold thousands of sessions and to time single pings, which no
//! client library exposes.

use crate::target::{Conn, GONE_MAX, Gone, Lease, Target};
use anyhow::{Result, anyhow, bail};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc};
use zookeeper_client as zk;

const DIR: &str = "/pb";

pub struct Zk {
    endpoints: Vec<String>,
}

impl Zk {
    pub fn new(endpoints: Vec<String>) -> Self {
        Zk { endpoints }
    }
    async fn open(&self, cluster: &str, ttl: Duration) -> Result<ZkConn> {
        let client = zk::Client::connector().with_session_timeout(ttl).connect(cluster).await?;
        Ok(ZkConn { client })
    }
}

#[async_trait]
impl Target for Zk {
    fn endpoints(&self) -> &[String] {
        &self.endpoints
    }
    fn lease_is_connection(&self) -> bool {
        true
    }
    async fn leader(&self) -> Result<Option<usize>> {
        for (i, ep) in self.endpoints.iter().enumerate() {
            let ask = async {
                let mut s = TcpStream::connect(ep).await?;
                s.write_all(b"srvr").await?;
                let mut out = String::new();
                s.read_to_string(&mut out).await?;
                Ok::<_, std::io::Error>(out)
            };
            if let Ok(Ok(out)) = tokio::time::timeout(Duration::from_secs(2), ask).await
                && out.contains("Mode: leader")
            {
                return Ok(Some(i));
            }
        }
        bail!("no ZooKeeper leader")
    }
    async fn prepare(&self) -> Result<()> {
        let c = self.open(&self.endpoints.join(","), Duration::from_secs(10)).await?;
        let o = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
        for d in [DIR, "/pblock"] {
            match c.client.create(d, b"", &o).await {
                Ok(_) | Err(zk::Error::NodeExists) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
    async fn connect(&self, i: usize, ttl: Duration) -> Result<Arc<dyn Conn>> {
        Ok(Arc::new(self.open(&self.endpoints[i], ttl).await?))
    }
    async fn connect_ha(&self, first: usize, ttl: Duration) -> Result<Arc<dyn Conn>> {
        let n = self.endpoints.len();
        let all: Vec<String> = (0..n).map(|j| self.endpoints[(first + j) % n].clone()).collect();
        Ok(Arc::new(self.open(&all.join(","), ttl).await?))
    }
    async fn connect_light(&self, i: usize, ttl: Duration) -> Result<Arc<dyn Conn>> {
        Ok(Arc::new(Light::open(&self.endpoints[i], ttl).await?))
    }
}

pub struct ZkConn {
    client: zk::Client,
}

#[async_trait]
impl Conn for ZkConn {
    async fn lease_open(&self, _ttl: Duration) -> Result<Lease> {
        Ok(Lease { id: self.client.session_id().0 as u64, ttl: self.client.session_timeout() })
    }
    async fn lease_close(&self, _l: &Lease) -> Result<()> {
        Ok(()) // the session ends with the client
    }
    async fn acquire(&self, l: &Lease, key: &str) -> Result<bool> {
        let o = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
        let data = format!("{:016x}", l.id);
        match self.client.create(&format!("{DIR}/{key}"), data.as_bytes(), &o).await {
            Ok(_) => Ok(true),
            Err(zk::Error::NodeExists) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
    async fn release(&self, _l: &Lease, key: &str) -> Result<()> {
        Ok(self.client.delete(&format!("{DIR}/{key}"), None).await?)
    }
    async fn renew(&self, _l: &Lease, _key: &str) -> Result<()> {
        bail!("the crate pings by itself; use light connections")
    }
    async fn read(&self, key: &str, stale_ok: bool) -> Result<Option<Vec<u8>>> {
        let path = format!("{DIR}/{key}");
        let got = if stale_ok {
            self.client.get_data(&path).await
        } else {
            // Both requests go out at once; the session keeps their order.
            let s = self.client.sync(&path);
            let g = self.client.get_data(&path);
            let (s, g) = tokio::join!(s, g);
            s?;
            g
        };
        match got {
            Ok((data, _)) => Ok(Some(data)),
            Err(zk::Error::NoNode) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
    /// The textbook recipe: a sequential ephemeral node, then a watch on the
    /// one just before it.
    async fn lock_wait(&self, _l: &Lease, name: &str) -> Result<String> {
        let dir = format!("/pblock/{name}");
        let o = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
        let prefix = format!("{dir}/n-");
        let seq = loop {
            match self.client.create(&prefix, b"", &o).await {
                Ok((_, seq)) => break seq,
                Err(zk::Error::NoNode) => {
                    let p = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
                    match self.client.create(&dir, b"", &p).await {
                        Ok(_) | Err(zk::Error::NodeExists) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                Err(e) => return Err(e.into()),
            }
        };
        let me = format!("n-{seq}");
        loop {
            let mut kids = self.client.list_children(&dir).await?;
            kids.sort();
            let pos = kids.iter().position(|k| *k == me).ok_or_else(|| anyhow!("lost node"))?;
            if pos == 0 {
                return Ok(format!("{dir}/{me}"));
            }
            let prev = format!("{dir}/{}", kids[pos - 1]);
            match self.client.get_and_watch_data(&prev).await {
                Ok((_, _, w)) => {
                    w.changed().await;
                }
                Err(zk::Error::NoNode) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    async fn unlock(&self, _l: &Lease, token: &str) -> Result<()> {
        Ok(self.client.delete(token, None).await?)
    }
    async fn watch_gone(&self) -> Result<Option<Gone>> {
        let mut w = self.client.watch(DIR, zk::AddWatchMode::PersistentRecursive).await?;
        let (tx, rx) = mpsc::channel(GONE_MAX);
        let keep = self.client.clone();
        tokio::spawn(async move {
            let _keep = keep;
            loop {
                let e = w.changed().await;
                let now = Instant::now();
                match e.event_type {
                    zk::EventType::NodeDeleted => {
                        if let Some(k) = e.path.strip_prefix("/pb/")
                            && tx.send((k.to_string(), now)).await.is_err()
                        {
                            return;
                        }
                    }
                    zk::EventType::Session if e.session_state.is_terminated() => return,
                    _ => {}
                }
            }
        });
        Ok(Some(rx))
    }
}

/// A session on a bare socket; one request in flight.
pub struct Light {
    sock: Mutex<TcpStream>,
    id: u64,
    ttl: Duration,
}

struct Buf(Vec<u8>);
impl Buf {
    fn i32(mut self, v: i32) -> Self {
        self.0.extend_from_slice(&v.to_be_bytes());
        self
    }
    fn i64(mut self, v: i64) -> Self {
        self.0.extend_from_slice(&v.to_be_bytes());
        self
    }
    fn bytes(self, v: &[u8]) -> Self {
        let mut b = self.i32(v.len() as i32);
        b.0.extend_from_slice(v);
        b
    }
}

async fn exchange(s: &mut TcpStream, body: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(body.len() + 4);
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(body);
    s.write_all(&out).await?;
    let n = s.read_u32().await? as usize;
    if n > 1 << 20 {
        bail!("oversized reply");
    }
    let mut r = vec![0u8; n];
    s.read_exact(&mut r).await?;
    Ok(r)
}

impl Light {
    async fn open(ep: &str, ttl: Duration) -> Result<Light> {
        let mut s = TcpStream::connect(ep).await?;
        s.set_nodelay(true)?;
        let req = Buf(vec![])
            .i32(0)
            .i64(0)
            .i32(ttl.as_millis() as i32)
            .i64(0)
            .bytes(&[0u8; 16])
            .0
            .into_iter()
            .chain([0u8])
            .collect::<Vec<u8>>();
        let r = exchange(&mut s, &req).await?;
        if r.len() < 16 {
            bail!("short connect reply");
        }
        let ms = i32::from_be_bytes(r[4..8].try_into()?);
        let id = i64::from_be_bytes(r[8..16].try_into()?);
        if ms <= 0 {
            bail!("session refused");
        }
        Ok(Light { sock: Mutex::new(s), id: id as u64, ttl: Duration::from_millis(ms as u64) })
    }
    /// Sends one request and returns its error code.
    async fn call(&self, xid: i32, op: i32, payload: Buf) -> Result<i32> {
        let mut body = Buf(vec![]).i32(xid).i32(op);
        body.0.extend(payload.0);
        let mut s = self.sock.lock().await;
        let r = exchange(&mut s, &body.0).await?;
        if r.len() < 16 || i32::from_be_bytes(r[0..4].try_into()?) != xid {
            bail!("unexpected reply");
        }
        Ok(i32::from_be_bytes(r[12..16].try_into()?))
    }
}

#[async_trait]
impl Conn for Light {
    async fn lease_open(&self, _ttl: Duration) -> Result<Lease> {
        Ok(Lease { id: self.id, ttl: self.ttl })
    }
    async fn lease_close(&self, _l: &Lease) -> Result<()> {
        self.call(1, -11, Buf(vec![])).await?;
        Ok(())
    }
    async fn acquire(&self, l: &Lease, key: &str) -> Result<bool> {
        let p = Buf(vec![])
            .bytes(format!("{DIR}/{key}").as_bytes())
            .bytes(format!("{:016x}", l.id).as_bytes())
            .i32(1)
            .i32(31)
            .bytes(b"world")
            .bytes(b"anyone")
            .i32(1);
        match self.call(1, 1, p).await? {
            0 => Ok(true),
            -110 => Ok(false),
            e => bail!("create: error {e}"),
        }
    }
    async fn release(&self, _l: &Lease, key: &str) -> Result<()> {
        let p = Buf(vec![]).bytes(format!("{DIR}/{key}").as_bytes()).i32(-1);
        match self.call(1, 2, p).await? {
            0 => Ok(()),
            e => bail!("delete: error {e}"),
        }
    }
    async fn renew(&self, _l: &Lease, _key: &str) -> Result<()> {
        match self.call(-2, 11, Buf(vec![])).await? {
            0 => Ok(()),
            e => bail!("ping: error {e}"),
        }
    }
    async fn read(&self, _key: &str, _stale_ok: bool) -> Result<Option<Vec<u8>>> {
        bail!("not on a light connection")
    }
    async fn lock_wait(&self, _l: &Lease, _name: &str) -> Result<String> {
        bail!("not on a light connection")
    }
    async fn unlock(&self, _l: &Lease, _token: &str) -> Result<()> {
        bail!("not on a light connection")
    }
}
