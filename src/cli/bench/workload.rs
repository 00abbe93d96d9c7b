//! What a client of the benchmark asks, written down before the clock starts: measuring must cost the server nothing.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tenure_client::Token;
use tenure_client::wire::{AcquireArgs, Create, Get, Op, PoolOptions, ReleaseArgs, RenewArgs, Request};

/// Long against any pause of a benchmark, short enough that a key left behind by a killed one is soon free.
const TTL_MS: i64 = 30_000;

/// What each operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// ACQUIRE, then RELEASE: two durable writes
    Cycle,
    /// RENEW of a held lease: one durable write
    Renew,
    /// GET of a held lease: one linearizable read
    Read,
    /// ACQUIRE, then RELEASE of any slot of a pool that all share and that has one for each: two durable writes
    Slot,
}

/// A request as it goes over the wire.
#[derive(Clone, Debug)]
pub struct Shot {
    /// `/v1/{COMMAND}`.
    pub path: hyper::Uri,
    /// JSON.
    pub body: Bytes,
}

/// The requests of one client.
#[derive(Clone, Debug)]
pub struct Script {
    /// Before the first operation and after a failed one: brings the lease where operations begin. May be refused.
    pub before: Arc<[Shot]>,
    /// One operation.
    pub operation: Arc<[Shot]>,
    /// After the last one.
    pub after: Arc<[Shot]>,
}

impl Workload {
    /// The requests of a client that holds `token`, on `key`.
    pub fn script(self, key: &str, token: &Token) -> serde_json::Result<Script> {
        let create = (self != Self::Slot).then_some(true);
        let acquire = shot(&Op::new(key, AcquireArgs { create, ..acquire(token) }))?;
        let release = shot(&Op::new(key, ReleaseArgs { token: token.clone(), fence: None }))?;
        let renew = RenewArgs { token: token.clone(), ttl_ms: Some(TTL_MS), fence: None };
        let (before, operation) = match self {
            Self::Cycle | Self::Slot => (vec![release.clone()], vec![acquire, release.clone()]),
            Self::Renew => (vec![acquire], vec![shot(&Op::new(key, renew))?]),
            Self::Read => (vec![acquire], vec![shot(&Get { key: key.to_owned() })?]),
        };
        Ok(Script { before: before.into(), operation: operation.into(), after: [release].into() })
    }

    /// Whether clients of one key must have one token: to hold together, not to compete.
    pub fn shares_token(self) -> bool {
        matches!(self, Self::Renew | Self::Read)
    }

    /// How many keys so many clients have if nobody says so.
    pub fn keys(self, clients: usize) -> usize {
        if self == Self::Slot { 1 } else { clients }
    }

    /// How `key` is made beforehand, where ACQUIRE does not do so: with room for `clients`.
    pub fn create(self, key: &str, clients: usize) -> Option<Create<PoolOptions>> {
        let size = u32::try_from(clients).ok();
        (self == Self::Slot).then(|| Create::pool(key, PoolOptions { size, ..PoolOptions::default() }))
    }

    /// What one operation is, for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Cycle => "ACQUIRE + RELEASE",
            Self::Renew => "RENEW",
            Self::Read => "GET",
            Self::Slot => "ACQUIRE + RELEASE of a slot",
        }
    }
}

fn acquire(token: &Token) -> AcquireArgs {
    AcquireArgs {
        owner: "tenure bench".to_owned(),
        token: token.clone(),
        ttl_ms: Some(TTL_MS),
        wait_ms: None,
        create: None,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: None,
    }
}

fn shot<R: Request>(request: &R) -> serde_json::Result<Shot> {
    let path = format!("/v1/{}", R::COMMAND).parse().map_err(serde::ser::Error::custom)?;
    Ok(Shot { path, body: serde_json::to_vec(request)?.into() })
}
