//! etcd v3 over gRPC. A lease is an etcd lease; a lock is a key created with it.

use crate::target::{Conn, GONE_MAX, Gone, Lease, Target, locked};
use anyhow::{Result, anyhow, bail};
use async_trait::async_trait;
use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, LockOptions, PutOptions, Txn, TxnOp, WatchFilterType,
    WatchOptions,
};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

const PREFIX: &str = "pb/";
/// Keepalives of one connection that wait for its stream.
const KEEPALIVES_MAX: usize = 1024;

pub struct Etcd {
    endpoints: Vec<String>,
}

impl Etcd {
    pub fn new(endpoints: Vec<String>) -> Self {
        Etcd { endpoints }
    }
    async fn open(&self, i: usize) -> Result<EtcdConn> {
        let channel = Endpoint::from_shared(format!("http://{}", self.endpoints[i]))?
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(1))
            .connect_lazy();
        let client = Client::from_channel(etcd_client::Channel::Tonic(channel.clone()), None).await?;
        Ok(EtcdConn { client, channel, keep: Mutex::new(None) })
    }
}

#[async_trait]
impl Target for Etcd {
    fn endpoints(&self) -> &[String] {
        &self.endpoints
    }
    fn needs_keeper(&self) -> bool {
        true
    }
    async fn leader(&self) -> Result<Option<usize>> {
        for i in 0..self.endpoints.len() {
            let c = self.open(i).await?;
            let st = tokio::time::timeout(Duration::from_secs(2), c.client.clone().status()).await;
            if let Ok(Ok(st)) = st {
                let me = st.header().map(|h| h.member_id()).unwrap_or(0);
                if st.leader() == me && me != 0 {
                    return Ok(Some(i));
                }
            }
        }
        bail!("no etcd leader")
    }
    async fn connect(&self, i: usize, _ttl: Duration) -> Result<Arc<dyn Conn>> {
        Ok(Arc::new(self.open(i).await?))
    }
}

// The keepalive stream is driven directly, since one stream carries the
// renewals of many leases (as the Go client does); the crate's own helper
// opens one stream per lease.
#[derive(Clone, PartialEq, prost::Message)]
struct KeepReq {
    #[prost(int64, tag = "1")]
    id: i64,
}
#[derive(Clone, PartialEq, prost::Message)]
struct KeepResp {
    #[prost(int64, tag = "2")]
    id: i64,
    #[prost(int64, tag = "3")]
    ttl: i64,
}

type Waiters = Arc<Mutex<HashMap<i64, VecDeque<oneshot::Sender<i64>>>>>;

struct Keep {
    tx: mpsc::Sender<KeepReq>,
    waiters: Waiters,
}

pub struct EtcdConn {
    client: Client,
    channel: Channel,
    keep: Mutex<Option<Keep>>,
}

impl EtcdConn {
    fn keep_start(&self) -> Keep {
        let (tx, rx) = mpsc::channel(KEEPALIVES_MAX);
        let waiters: Waiters = Default::default();
        let (w, channel) = (waiters.clone(), self.channel.clone());
        tokio::spawn(async move {
            let run = async {
                let mut grpc = tonic::client::Grpc::new(channel);
                grpc.ready().await?;
                let codec = tonic_prost::ProstCodec::<KeepReq, KeepResp>::default();
                let path = http::uri::PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
                let req = tonic::Request::new(ReceiverStream::new(rx));
                let mut resp = grpc.streaming(req, path, codec).await?.into_inner();
                while let Some(m) = resp.message().await? {
                    let mut g = locked(&w);
                    if let Some(q) = g.get_mut(&m.id) {
                        if let Some(s) = q.pop_front() {
                            let _ = s.send(m.ttl);
                        }
                        if q.is_empty() {
                            g.remove(&m.id);
                        }
                    }
                }
                Ok::<_, anyhow::Error>(())
            };
            let _ = run.await;
            locked(&w).clear(); // wakes all waiters with an error
        });
        Keep { tx, waiters }
    }
}

#[async_trait]
impl Conn for EtcdConn {
    async fn lease_open(&self, ttl: Duration) -> Result<Lease> {
        let r = self.client.lease_client().grant(ttl.as_secs() as i64, None).await?;
        Ok(Lease { id: r.id() as u64, ttl: Duration::from_secs(r.ttl() as u64) })
    }
    async fn lease_close(&self, l: &Lease) -> Result<()> {
        self.client.lease_client().revoke(l.id as i64).await?;
        Ok(())
    }
    async fn acquire(&self, l: &Lease, key: &str) -> Result<bool> {
        let k = format!("{PREFIX}{key}");
        let put = PutOptions::new().with_lease(l.id as i64);
        let txn = Txn::new()
            .when(vec![Compare::create_revision(k.clone(), CompareOp::Equal, 0)])
            .and_then(vec![TxnOp::put(k, format!("{:016x}", l.id), Some(put))]);
        Ok(self.client.kv_client().txn(txn).await?.succeeded())
    }
    async fn release(&self, _l: &Lease, key: &str) -> Result<()> {
        let r = self.client.kv_client().delete(format!("{PREFIX}{key}"), None).await?;
        if r.deleted() != 1 {
            bail!("release: key was gone");
        }
        Ok(())
    }
    async fn renew(&self, l: &Lease, _key: &str) -> Result<()> {
        let (s, r) = oneshot::channel();
        let tx = {
            let mut g = locked(&self.keep);
            let k = g.get_or_insert_with(|| self.keep_start());
            locked(&k.waiters).entry(l.id as i64).or_default().push_back(s);
            k.tx.clone()
        };
        if tx.send(KeepReq { id: l.id as i64 }).await.is_err() {
            *locked(&self.keep) = None;
            bail!("keepalive stream closed");
        }
        match r.await {
            Ok(ttl) if ttl > 0 => Ok(()),
            Ok(_) => bail!("lease expired"),
            Err(_) => bail!("keepalive stream closed"),
        }
    }
    async fn read(&self, key: &str, stale_ok: bool) -> Result<Option<Vec<u8>>> {
        let o = stale_ok.then(|| GetOptions::new().with_serializable());
        let r = self.client.kv_client().get(format!("{PREFIX}{key}"), o).await?;
        Ok(r.kvs().first().map(|kv| kv.value().to_vec()))
    }
    async fn lock_wait(&self, l: &Lease, name: &str) -> Result<String> {
        let o = LockOptions::new().with_lease(l.id as i64);
        let r = self.client.lock_client().lock(name, Some(o)).await?;
        String::from_utf8(r.key().to_vec()).map_err(|e| anyhow!(e))
    }
    async fn unlock(&self, _l: &Lease, token: &str) -> Result<()> {
        self.client.lock_client().unlock(token).await?;
        Ok(())
    }
    async fn watch_gone(&self) -> Result<Option<Gone>> {
        let o = WatchOptions::new().with_prefix().with_filters(vec![WatchFilterType::NoPut]);
        let mut stream = self.client.watch_client().watch(PREFIX, Some(o)).await?;
        let (tx, rx) = mpsc::channel(GONE_MAX);
        tokio::spawn(async move {
            while let Ok(Some(m)) = stream.message().await {
                let now = Instant::now();
                for e in m.events() {
                    if e.event_type() != EventType::Delete {
                        continue;
                    }
                    if let Some(k) = e.kv().and_then(|kv| kv.key_str().ok())
                        && tx.send((k[PREFIX.len()..].to_string(), now)).await.is_err()
                    {
                        return;
                    }
                }
            }
        });
        Ok(Some(rx))
    }
}
