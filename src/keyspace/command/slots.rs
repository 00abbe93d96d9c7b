//! What pools are told and what they answer. Persisted as its parent is, as of format 3: nothing here is edited once shipped.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_cluster::Position;

use super::{Attach, Key, Reason, TokenHash};

/// A pool's own identity, drawn at random when it is made: two pools of one name and range are still told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolUuid(pub [u8; 16]);

impl fmt::Display for PoolUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, byte) in self.0.iter().enumerate() {
            let dash = if matches!(n, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// What a live identity's slot does when another token asks with that identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnConflict {
    /// The newcomer gets the slot, the old token is lost `taken_over`.
    #[default]
    Takeover,
    /// The newcomer is refused `identity_in_use`.
    Reject,
}

/// Options of a pool, fixed at CREATE but for `size` (RESIZE). Milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolOptions {
    /// How many slots: 1..=65 536. `first + size` is at most 2^32.
    pub size: u32,
    /// The lowest id.
    pub first: u32,
    /// For so long after an expiry or BREAK a slot is given to nobody but its own identity. 0..=86 400 000.
    pub quarantine_ms: u64,
    /// The same after a RELEASE. 0..=86 400 000.
    pub release_quarantine_ms: u64,
    /// What is asked for less is given so much: 1..=`ttl_ms_max`.
    pub ttl_ms_min: u64,
    /// Greatest `ttl_ms` that may be asked for: at most 31 536 000 000.
    pub ttl_ms_max: u64,
    /// See [`OnConflict`].
    pub on_conflict: OnConflict,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            size: 512,
            first: 0,
            quarantine_ms: 60_000,
            release_quarantine_ms: 0,
            ttl_ms_min: 30_000,
            ttl_ms_max: 86_400_000,
            on_conflict: OnConflict::Takeover,
        }
    }
}

/// OP ACQUIRE of a slot for an identity. An anonymous slot is asked for as a lease is: [`Acquire`](super::Acquire).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcquireSlot {
    /// The pool.
    pub key: Key,
    /// Whose slot: 1..=256 bytes. At most one live grant an identity.
    pub identity: Arc<str>,
    /// The holder's secret, hashed.
    pub token: TokenHash,
    /// Wanted lifetime; below the pool's `ttl_ms_min` that is given. Zero or negative: `ttl_not_positive`.
    pub ttl_ms: i64,
    /// Not this id: somebody else seems to use it. It is put in quarantine.
    pub avoid: Option<u32>,
    /// The caller's wall clock, Unix milliseconds, below 2^53.
    pub unix_ms: Option<u64>,
    /// Free text for operators: at most 1024 bytes.
    pub note: Option<Arc<str>>,
    /// Refuse a token whose grant ended.
    pub once: bool,
}

/// OP ACQUIRE of a slot for an identity, waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitSlot {
    /// What is asked for.
    pub ask: AcquireSlot,
    /// How long to wait for it, from when this is applied: 1..=86 400 000.
    pub wait_ms: u64,
    /// Who is told.
    pub attach: Attach,
}

/// Arguments of ACQUIRE that a pool's slot has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseArgument {
    /// `min_hold_ms`.
    MinHoldMs,
    /// `delay_ms`.
    DelayMs,
}

/// What ACQUIRE or RENEW of a slot comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlotOutcome {
    /// ACQUIRE: the slot is the caller's.
    Granted(SlotGrant),
    /// RENEW: it still is.
    Renewed(SlotGrant),
    /// RENEW: it surely is not.
    Lost,
    /// Nothing was done; what was held before still is. The reason says why.
    Nothing,
}

/// A slot's live grant, as its holder is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotGrant {
    /// The slot.
    pub id: u32,
    /// The grant's fence.
    pub fence: u64,
    /// Remaining time, milliseconds, at least 1.
    pub ttl_ms: u64,
    /// Whose it is; `None`: anonymous.
    pub identity: Option<Arc<str>>,
    /// The pool.
    pub uuid: PoolUuid,
    /// The pool's lowest id.
    pub first: u32,
    /// The pool's size.
    pub size: u32,
    /// Where the clocks of earlier holders of this slot stood when they could last have used it, by what they told, Unix
    /// milliseconds. `None`: nobody told.
    pub floor_unix_ms: Option<u64>,
}

/// A grant of the same identity that was taken over, and whose holder may not know it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorGrant {
    /// Its fence. `None`: it was not this grant that took it over, but one before.
    pub fence: Option<u64>,
    /// For so long its holder may not know, milliseconds: what it had left, or if that is longer, what the one before it
    /// had.
    pub ttl_ms: u64,
}

/// The answer to ACQUIRE and RENEW on a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotReply {
    /// What came of it.
    pub outcome: SlotOutcome,
    /// Why not.
    pub reason: Option<Reason>,
    /// ACQUIRE: the token held it already (and has renewed it by this).
    pub yours: bool,
    /// Less than `ttl_ms_min` was asked for, and that was given.
    pub ttl_raised: bool,
    /// ACQUIRE: another token of the identity lost the slot to this grant, or to one before it, and may be at work yet.
    pub prior: Option<PriorGrant>,
    /// When trying again may help, milliseconds.
    pub retry_after_ms: Option<u64>,
    /// The operator's text of a BREAK.
    pub detail: Option<Arc<str>>,
}

impl SlotReply {
    /// Nothing was done.
    #[must_use]
    pub const fn nothing(reason: Reason) -> Self {
        Self {
            outcome: SlotOutcome::Nothing,
            reason: Some(reason),
            yours: false,
            ttl_raised: false,
            prior: None,
            retry_after_ms: None,
            detail: None,
        }
    }

    /// The live grant it tells of.
    #[must_use]
    pub const fn grant(&self) -> Option<&SlotGrant> {
        match &self.outcome {
            SlotOutcome::Granted(grant) | SlotOutcome::Renewed(grant) => Some(grant),
            SlotOutcome::Lost | SlotOutcome::Nothing => None,
        }
    }
}

/// GET: a pool as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolView {
    /// The key.
    pub key: Key,
    /// Which pool of that name.
    pub uuid: PoolUuid,
    /// The options, `size` as it is now.
    pub options: PoolOptions,
    /// Slots that are held, those beyond the end after a RESIZE included.
    pub held: u32,
    /// Slots within the range that are free but not given yet.
    pub quarantined: u32,
    /// Slots within the range that can be acquired now.
    pub free: u32,
    /// Waiters in the queue.
    pub waiters: u64,
    /// 0 when a slot can be acquired now; else the least time until one could be, milliseconds.
    pub acquirable_in_ms: u64,
    /// Position of the key's last change.
    pub version: Position,
    /// Remaining lifetime of the key, milliseconds; 0: over, goes with its last grant; `None`: no end.
    pub key_ttl_ms: Option<u64>,
}
