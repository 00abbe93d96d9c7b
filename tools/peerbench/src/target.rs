//! What a store must offer to be measured. A new target is one module that implements `Target` and `Conn`, plus one arm
//! in `main` and one command in `args`.

use anyhow::{Result, bail};
use async_trait::async_trait;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// A lease as the store names it: an etcd lease id, a ZooKeeper session id,
/// or the random token of a Redis lock (there the lock is its own lease).
#[derive(Clone, Debug)]
pub struct Lease {
    pub id: u64,
    pub ttl: Duration,
}

/// Keys that disappeared, and when that was heard.
pub type Gone = mpsc::Receiver<(String, Instant)>;
/// Disappeared keys that nobody took yet; beyond it the store's stream waits (the times are taken before).
pub const GONE_MAX: usize = 65_536;

/// The value, also after a panic elsewhere: what lies in these locks is whole between any two steps.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
pub trait Target: Send + Sync {
    fn endpoints(&self) -> &[String];

    /// True where a lease is a connection (ZooKeeper's session).
    fn lease_is_connection(&self) -> bool {
        false
    }

    /// True where a lease that was opened must be renewed by the client
    /// (false: the connection does it, or each lock is renewed by its key).
    fn needs_keeper(&self) -> bool {
        false
    }

    /// Index of the endpoint that leads, or None where there is no leader.
    async fn leader(&self) -> Result<Option<usize>>;

    /// Makes parents and the like; called once before a workload.
    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    /// A connection of its own to one endpoint. `ttl` matters only where a
    /// lease is a connection.
    async fn connect(&self, endpoint: usize, ttl: Duration) -> Result<Arc<dyn Conn>>;

    /// A client that knows all endpoints and starts with `first`.
    async fn connect_ha(&self, first: usize, ttl: Duration) -> Result<Arc<dyn Conn>> {
        self.connect(first, ttl).await
    }

    /// A connection as cheap as the store allows, for holding many leases.
    async fn connect_light(&self, endpoint: usize, ttl: Duration) -> Result<Arc<dyn Conn>> {
        self.connect(endpoint, ttl).await
    }
}

#[async_trait]
pub trait Conn: Send + Sync {
    async fn lease_open(&self, ttl: Duration) -> Result<Lease>;
    async fn lease_close(&self, lease: &Lease) -> Result<()>;
    /// One try; false where another holds the key.
    async fn acquire(&self, lease: &Lease, key: &str) -> Result<bool>;
    async fn release(&self, lease: &Lease, key: &str) -> Result<()>;
    async fn renew(&self, lease: &Lease, key: &str) -> Result<()>;
    /// The holder's value. Linearizable unless `stale_ok`.
    async fn read(&self, key: &str, stale_ok: bool) -> Result<Option<Vec<u8>>>;
    /// Waits for the lock the way the store's users do; returns what `unlock` needs.
    async fn lock_wait(&self, lease: &Lease, name: &str) -> Result<String>;
    async fn unlock(&self, lease: &Lease, token: &str) -> Result<()>;
    /// Pushes keys as they disappear, or None where the store has no such push.
    async fn watch_gone(&self) -> Result<Option<Gone>> {
        Ok(None)
    }
    /// Takes a key that someone else may hold, for probing when it frees.
    async fn probe(&self, key: &str) -> Result<bool> {
        let _ = key;
        bail!("no probe")
    }
}
