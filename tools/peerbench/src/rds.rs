//! Redis: SET NX PX and a compare-and-delete script, on one instance or, as
//! Redlock, on a majority of independent instances.

use crate::target::{Conn, Lease, Target};
use anyhow::{Result, bail};
use async_trait::async_trait;
use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script};
use std::sync::Arc;
use std::time::Duration;

const DEL: &str = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
const RENEW: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end";

pub struct Redis {
    endpoints: Vec<String>,
    redlock: bool,
}

impl Redis {
    pub fn new(endpoints: Vec<String>, redlock: bool) -> Self {
        Redis { endpoints, redlock }
    }
    async fn open(&self, i: usize) -> Result<MultiplexedConnection> {
        let c = redis::Client::open(format!("redis://{}/", self.endpoints[i]))?;
        let cfg = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(5)))
            .set_response_timeout(None);
        Ok(c.get_multiplexed_async_connection_with_config(&cfg).await?)
    }
}

#[async_trait]
impl Target for Redis {
    fn endpoints(&self) -> &[String] {
        &self.endpoints
    }
    async fn leader(&self) -> Result<Option<usize>> {
        Ok(if self.redlock { None } else { Some(0) })
    }
    async fn connect(&self, i: usize, _ttl: Duration) -> Result<Arc<dyn Conn>> {
        let mut nodes = vec![];
        if self.redlock {
            for j in 0..self.endpoints.len() {
                nodes.push(self.open(j).await?);
            }
        } else {
            nodes.push(self.open(i).await?);
        }
        Ok(Arc::new(RedisConn { nodes, del: Script::new(DEL), renew: Script::new(RENEW) }))
    }
}

pub struct RedisConn {
    nodes: Vec<MultiplexedConnection>,
    del: Script,
    renew: Script,
}

impl RedisConn {
    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }
    async fn set_nx(&self, key: &str, val: &str, ms: u64) -> Vec<Result<bool, redis::RedisError>> {
        join_all(self.nodes.iter().map(|n| {
            let mut n = n.clone();
            async move {
                let r: Option<String> =
                    redis::cmd("SET").arg(key).arg(val).arg("NX").arg("PX").arg(ms).query_async(&mut n).await?;
                Ok(r.is_some())
            }
        }))
        .await
    }
    async fn script(&self, s: &Script, key: &str, args: &[String]) -> Result<usize> {
        let rs = join_all(self.nodes.iter().map(|n| {
            let mut n = n.clone();
            async move {
                let mut inv = s.prepare_invoke();
                inv.key(key);
                for a in args {
                    inv.arg(a);
                }
                let r: i64 = inv.invoke_async(&mut n).await?;
                Ok::<_, redis::RedisError>(r == 1)
            }
        }))
        .await;
        let mut ok = 0;
        for r in rs {
            match r {
                Ok(true) => ok += 1,
                Ok(false) => {}
                Err(e) if self.nodes.len() == 1 => return Err(e.into()),
                Err(_) => {}
            }
        }
        Ok(ok)
    }
}

fn token(l: &Lease) -> String {
    format!("{:016x}", l.id)
}

#[async_trait]
impl Conn for RedisConn {
    async fn lease_open(&self, ttl: Duration) -> Result<Lease> {
        Ok(Lease { id: rand::random(), ttl }) // client side only
    }
    async fn lease_close(&self, _l: &Lease) -> Result<()> {
        Ok(())
    }
    async fn acquire(&self, l: &Lease, key: &str) -> Result<bool> {
        let rs = self.set_nx(key, &token(l), l.ttl.as_millis() as u64).await;
        let mut ok = 0;
        for r in rs {
            match r {
                Ok(true) => ok += 1,
                Ok(false) => {}
                Err(e) if self.nodes.len() == 1 => return Err(e.into()),
                Err(_) => {}
            }
        }
        if ok >= self.majority() {
            return Ok(true);
        }
        if ok > 0 {
            self.script(&self.del, key, &[token(l)]).await?; // undo a minority
        }
        Ok(false)
    }
    async fn release(&self, l: &Lease, key: &str) -> Result<()> {
        if self.script(&self.del, key, &[token(l)]).await? < self.majority() {
            bail!("release: not held");
        }
        Ok(())
    }
    async fn renew(&self, l: &Lease, key: &str) -> Result<()> {
        let ms = l.ttl.as_millis().to_string();
        if self.script(&self.renew, key, &[token(l), ms]).await? < self.majority() {
            bail!("renew: not held");
        }
        Ok(())
    }
    async fn read(&self, key: &str, _stale_ok: bool) -> Result<Option<Vec<u8>>> {
        let rs = join_all(self.nodes.iter().map(|n| {
            let mut n = n.clone();
            async move { redis::cmd("GET").arg(key).query_async::<Option<Vec<u8>>>(&mut n).await }
        }))
        .await;
        if rs.len() == 1 {
            return rs.into_iter().next().transpose().map(Option::flatten).map_err(Into::into);
        }
        let got: Vec<Option<Vec<u8>>> = rs.into_iter().flatten().collect();
        for v in &got {
            if got.iter().filter(|w| *w == v).count() >= self.majority() {
                return Ok(v.clone());
            }
        }
        bail!("no majority")
    }
    async fn lock_wait(&self, l: &Lease, name: &str) -> Result<String> {
        while !self.acquire(l, name).await? {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(name.to_string())
    }
    async fn unlock(&self, l: &Lease, token: &str) -> Result<()> {
        self.release(l, token).await
    }
    async fn probe(&self, key: &str) -> Result<bool> {
        let l = Lease { id: rand::random(), ttl: Duration::from_secs(60) };
        self.acquire(&l, key).await
    }
}
