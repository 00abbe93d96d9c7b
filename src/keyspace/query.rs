//! Reads: HELD, CHECK, GET, EXISTS (and TYPE), TTL, SCAN.
//!
//! Model: a read sees each key as it stood at the last applied stamp (a backlog of timers is of no account) and counts
//! remaining times from the leader's stamp. If any answer about the key changes by time between the two, the read is
//! [`NeedsTick`]: it never shows the end of anything that is not in the log.
//!
//! `version` is the position of the key's last change, and whatever happens to its line is one: `waiters` is a part of
//! what GET shows. In a backlog a lease may be seen free though somebody waits for it: a read grants nothing.
//!
//! Not promised: that `version` of a key whose grant expired is that of the expiry before cleaning has reached it; that
//! a SCAN over several pages is one snapshot. A page may hold fewer keys than asked for, even none, and still have a
//! cursor: one call looks at a bounded number of keys, dead ones included.

mod pools;

use std::borrow::Cow;

use tenure_cluster::{NeedsTick, ReadAt, Stamp};

use super::lease::{Claim, Grant, Last, Lease};
use super::record::{Kind, Record};
use super::{
    Attach, EdgeId, Ended, GrantView, Key, Keyspace, OpReply, Place, PoolView, Refusal, Reply, TokenHash, View,
};

/// One call of SCAN looks at this many keys at most.
const SCAN_VISITS_MAX: usize = 10_000;

/// A key as GET shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A lease.
    Lease(Box<View>),
    /// A pool.
    Pool(Box<PoolView>),
}

impl Shown {
    /// The key.
    pub fn key(&self) -> &Key {
        match self {
            Self::Lease(view) => &view.key,
            Self::Pool(view) => &view.key,
        }
    }

    /// A lease's view, if it is one.
    pub fn lease(self) -> Option<View> {
        match self {
            Self::Lease(view) => Some(*view),
            Self::Pool(_) => None,
        }
    }

    /// A pool's view, if it is one.
    pub fn pool(self) -> Option<PoolView> {
        match self {
            Self::Pool(view) => Some(*view),
            Self::Lease(_) => None,
        }
    }
}

impl From<Option<Shown>> for Reply {
    fn from(shown: Option<Shown>) -> Self {
        match shown {
            Some(Shown::Lease(view)) => Self::View(Some(view)),
            Some(Shown::Pool(view)) => Self::PoolView(view),
            None => Self::View(None),
        }
    }
}

/// TYPE: what a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    /// A lease.
    Lease,
    /// A pool.
    Pool,
}

pub use pools::{Holders, HoldersPage, PoolUse, SlotView};

/// One page of SCAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Keys in byte order.
    pub views: Vec<Shown>,
    /// Where the next page starts; `None`: that was all.
    pub cursor: Option<Key>,
}

/// HELD: the answer, and where the token stands if it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The answer to the operation.
    pub op: OpReply,
    /// The token's place in line: then the answer is false, `queued`.
    pub place: Option<Place>,
    /// Of a pool: the slot.
    pub slot: Option<u32>,
}

impl From<OpReply> for Standing {
    fn from(op: OpReply) -> Self {
        Self { op, place: None, slot: None }
    }
}

impl From<Standing> for Reply {
    fn from(Standing { op, place, slot }: Standing) -> Self {
        match (place, slot) {
            (Some(place), _) => Self::Queued { op, place },
            (None, Some(id)) => Self::OfSlot { op, id },
            (None, None) => Self::Op(op),
        }
    }
}

/// TTL of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyTtl {
    /// No such key (-2 on the wire).
    NoKey,
    /// No end (-1 on the wire).
    Endless,
    /// Remaining milliseconds; 0 while a grant outlives the key's lifetime.
    Remaining(u64),
}

/// Reads. Each judges time by [`ReadAt::passed`].
impl Keyspace {
    /// OP HELD: is there a live grant (the token's, if given)? With BREAK's text in `detail` while it has grace. For a
    /// token that waits, its place.
    ///
    /// # Errors
    /// [`NeedsTick`].
    pub fn held(
        &self,
        key: &str,
        token: Option<TokenHash>,
        at: ReadAt,
    ) -> Result<Result<Standing, Refusal>, NeedsTick> {
        self.holds(key, &Claim { token, fence: None }, at)
    }

    /// OP CHECK: is this the live grant's fence?
    ///
    /// # Errors
    /// [`NeedsTick`].
    pub fn check(&self, key: &str, fence: u64, at: ReadAt) -> Result<Result<Standing, Refusal>, NeedsTick> {
        self.holds(key, &Claim { token: None, fence: Some(fence) }, at)
    }

    /// OP HOLDERS of a pool.
    ///
    /// # Errors
    /// [`NeedsTick`].
    pub fn holders(&self, key: &str, which: &Holders, at: ReadAt) -> Result<Result<HoldersPage, Refusal>, NeedsTick> {
        let Some(record) = self.seen(key, at)? else { return Ok(Err(Refusal::NoSuchKey)) };
        Ok(record.pool().map(|pool| pools::holders(pool, which, at.now)))
    }

    /// GET; `None`: no such key.
    ///
    /// # Errors
    /// [`NeedsTick`].
    pub fn get(&self, key: &str, at: ReadAt) -> Result<Option<Shown>, NeedsTick> {
        let Some((key, record)) = self.table.get(key) else { return Ok(None) };
        Ok(seen(record, at)?.map(|record| view(key, &record, at.now)))
    }

    /// TYPE; `None`: no such key.
    ///
    /// # Errors
    /// [`NeedsTick`].
    pub fn key_type(&self, key: &str, at: ReadAt) -> Result<Option<KeyType>, NeedsTick> {
        Ok(self.seen(key, at)?.map(|record| if record.pool().is_ok() { KeyType::Pool } else { KeyType::Lease }))
    }

    /// EXISTS.
    ///
    /// # Errors
    /// [`NeedsTick`].
    pub fn exists(&self, key: &str, at: ReadAt) -> Result<bool, NeedsTick> {
        Ok(self.seen(key, at)?.is_some())
    }

    /// TTL.
    ///
    /// # Errors
    /// [`NeedsTick`].
    pub fn key_ttl(&self, key: &str, at: ReadAt) -> Result<KeyTtl, NeedsTick> {
        let Some(record) = self.seen(key, at)? else { return Ok(KeyTtl::NoKey) };
        Ok(key_ttl_ms(&record, at.now).map_or(KeyTtl::Endless, KeyTtl::Remaining))
    }

    /// SCAN: up to `limit` keys that start with `prefix`, strictly after `cursor`, in byte order.
    ///
    /// # Errors
    /// [`NeedsTick`].
    pub fn scan(&self, prefix: &str, cursor: Option<&str>, limit: usize, at: ReadAt) -> Result<Page, NeedsTick> {
        let mut views = Vec::new();
        let mut last: Option<&Key> = None;
        for (visits, (key, record)) in self.table.page(prefix, cursor).enumerate() {
            if views.len() >= limit || visits >= SCAN_VISITS_MAX {
                return Ok(Page { views, cursor: last.cloned() });
            }
            views.extend(seen(record, at)?.map(|record| view(key, &record, at.now)));
            last = Some(key);
        }
        Ok(Page { views, cursor: None })
    }

    /// Live grants, expired ones not yet cleaned included: for metrics.
    pub fn grants(&self) -> usize {
        self.table.grants()
    }

    /// Keys, those that time has ended but cleaning has not reached included: for metrics.
    pub fn keys(&self) -> usize {
        self.table.len()
    }

    /// All pools in byte order, and how much of each is in use; what has ended but cleaning has not reached counts as held:
    /// for metrics.
    pub fn pools(&self) -> impl Iterator<Item = (&Key, PoolUse)> {
        self.table.pools().map(|(key, pool)| (key, pool.usage()))
    }

    /// Waiters of all leases, kept places and those that time has ended but cleaning has not reached included: for
    /// metrics.
    pub fn waiters(&self) -> usize {
        self.table.waiters()
    }

    /// The edges that have attached waiters, in order.
    pub fn edges(&self) -> impl Iterator<Item = EdgeId> {
        self.edges.iter().map(|(edge, _)| edge)
    }

    /// The request by which `token` waits for `key`, as of the last applied entry; `None`: by none, or nobody waits there.
    pub fn attached(&self, key: &str, token: TokenHash) -> Option<Attach> {
        let (_, record) = self.table.get(key)?;
        record.waiter(token)?.attach()
    }

    /// The longest `ttl_ms` ever granted: a restore holds every key back for so long.
    pub fn longest_ttl_ms(&self) -> u64 {
        self.longest_ttl_ms
    }

    fn seen(&self, key: &str, at: ReadAt) -> Result<Option<Cow<'_, Record>>, NeedsTick> {
        self.table.get(key).map_or(Ok(None), |(_, record)| seen(record, at))
    }

    fn holds(&self, key: &str, claim: &Claim, at: ReadAt) -> Result<Result<Standing, Refusal>, NeedsTick> {
        let Some(record) = self.seen(key, at)? else { return Ok(Err(Refusal::NoSuchKey)) };
        Ok(Ok(match &record.kind {
            Kind::Lease(lease) => lease.standing(claim, at.now),
            Kind::Pool(pool) => pool.standing(claim, at.now),
        }))
    }
}

/// A record as a reader may see it.
fn seen(record: &Record, at: ReadAt) -> Result<Option<Cow<'_, Record>>, NeedsTick> {
    let Some(record) = record.seen(at.applied) else { return Ok(None) };
    if let Some(next) = record.next_change(at.applied) {
        at.passed(next)?;
    }
    Ok(Some(record))
}

/// Remaining lifetime of a key that is there: 0 when a grant, or a pool's quarantine, outlives it.
fn key_ttl_ms(record: &Record, now: Stamp) -> Option<u64> {
    match record.gone_at().filter(|_| record.pool().is_err()) {
        Some(gone_at) => Some(gone_at.ms_since(now).max(1)),
        None => record.ends.map(|ends| ends.ms_since(now)),
    }
}

/// A settled key as GET shows it.
pub(super) fn view(key: &Key, record: &Record, now: Stamp) -> Shown {
    let lease = match &record.kind {
        Kind::Lease(lease) => lease,
        Kind::Pool(pool) => return Shown::Pool(Box::new(pools::pool_view(key, record, pool, now))),
    };
    Shown::Lease(Box::new(View {
        key: Key::clone(key),
        grant: lease.grant.as_ref().map(|grant| grant.view(now)),
        waiters: lease.waiters() as u64,
        acquirable_in_ms: acquirable_in_ms(record, lease, now),
        options: lease.options,
        version: record.version(),
        key_ttl_ms: key_ttl_ms(record, now),
        auto_created: record.auto_created,
        last: lease.last.as_deref().map(Last::view),
    }))
}

/// Until the lease can be acquired if nothing but time happens; a held key past its lifetime: until it goes.
fn acquirable_in_ms(record: &Record, lease: &Lease, now: Stamp) -> u64 {
    match &lease.grant {
        Some(grant) if record.is_over(now) => grant.remaining_ms(now),
        _ => lease.acquirable_at().ms_since(now),
    }
}

impl Grant {
    fn view(&self, now: Stamp) -> GrantView {
        GrantView {
            owner: self.owner.clone(),
            fence: self.fence,
            ttl_ms: self.remaining_ms(now),
            held_for_ms: now.ms_since(self.granted_at),
            acquired_wall_ms: self.granted_wall_ms,
            note: self.note.clone(),
            broken: self.broken.clone(),
        }
    }
}

impl Last {
    fn view(&self) -> Ended {
        Ended {
            fence: self.fence,
            owner: self.owner.clone(),
            reason: self.end.reason(),
            at: self.at,
            detail: self.end.detail(),
        }
    }
}
