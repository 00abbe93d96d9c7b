//! Pools on the wire: their options, the arguments of operations that a lease has not, and what is answered.
//!
//! Whoever holds an anonymous slot asks as for a lease: [`super::AcquireArgs`], and [`super::RenewArgs`] or
//! [`RenewSlotArgs`]. RELEASE, HELD and CHECK are those of a lease in any case. The answer to ACQUIRE and RENEW of a pool
//! is an object or null, read by [`Answer::slot`] and [`Answer::slot_renewal`].

use serde::{Deserialize, Deserializer, Serialize};

use super::snapshot::EndedGrant;
use super::{Answer, OpArgs, Operation, Repeat, Token};

/// Greatest size of a pool.
pub const POOL_SIZE_MAX: u32 = 65_536;
/// Greatest length of an identity, bytes of UTF-8.
pub const IDENTITY_BYTES_MAX: usize = 256;
/// What a pool gives at least, if its options do not say otherwise.
pub const TTL_MS_MIN_DEFAULT: u64 = 30_000;
/// Greatest quarantine: a day.
pub const QUARANTINE_MS_MAX: u64 = 86_400_000;

/// What a live identity's slot does when another token asks with that identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// The newcomer gets the slot, the old token has lost it.
    #[default]
    Takeover,
    /// The newcomer is refused.
    Reject,
}

/// Options of a pool, as CREATE takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolOptions {
    /// How many slots: 1..=65 536. Default 512.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// The lowest id. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u32>,
    /// For so long after an expiry or BREAK a slot is given to nobody but its own identity: 0..=86 400 000. Default
    /// 60 000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_ms: Option<u64>,
    /// The same after a RELEASE. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_quarantine_ms: Option<u64>,
    /// Who asks for less is given so much. Default 30 000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms_min: Option<u64>,
    /// Greatest `ttl_ms` of a grant. Default 86 400 000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms_max: Option<u64>,
    /// Default [`OnConflict::Takeover`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_conflict: Option<OnConflict>,
}

/// Options of a key as GET shows them: those of its type, the others are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyOptions {
    /// A lease: not acquirable for so long after an expiry or BREAK.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// A lease: after an early RELEASE not acquirable until the grant is of that age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_hold_ms: Option<u64>,
    /// Both: greatest `ttl_ms` of a grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms_max: Option<u64>,
    /// A pool: how many slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// A pool: the lowest id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<u32>,
    /// A pool: how long a slot is kept back after an expiry or BREAK.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine_ms: Option<u64>,
    /// A pool: the same after a RELEASE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_quarantine_ms: Option<u64>,
    /// A pool: who asks for less is given so much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms_min: Option<u64>,
    /// A pool: `None` also for a policy that only a newer version knows.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "if_known")]
    pub on_conflict: Option<OnConflict>,
}

fn if_known<'de, D: Deserializer<'de>>(from: D) -> Result<Option<OnConflict>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

/// Arguments of ACQUIRE of a slot for an identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcquireSlotArgs {
    /// Whose slot: 1..=256 bytes. At most one live grant an identity.
    pub identity: String,
    /// The holder's secret.
    pub token: Token,
    /// Wanted lifetime. Default 30 000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<i64>,
    /// Not this id: somebody else seems to use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avoid: Option<u32>,
    /// The caller's wall clock, Unix milliseconds, below 2^53.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_ms: Option<u64>,
    /// How long to wait for a slot: 0..=86 400 000. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Free text for operators: at most 1024 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Refuse a token whose grant ended. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once: Option<bool>,
}

impl OpArgs for AcquireSlotArgs {
    const OPERATION: Operation = Operation::Acquire;

    // By the same token it renews what the first copy was granted, and never takes over from another.
    fn repeat(&self) -> Repeat {
        Repeat::ByToken
    }
}

/// Arguments of RENEW of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewSlotArgs {
    /// The holder's secret.
    pub token: Token,
    /// New lifetime from now; never shortens. Default 30 000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<i64>,
    /// Only the grant with this fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// The caller's wall clock, Unix milliseconds, below 2^53.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_ms: Option<u64>,
}

impl OpArgs for RenewSlotArgs {
    const OPERATION: Operation = Operation::Renew;

    fn repeat(&self) -> Repeat {
        if self.fence.is_some() { Repeat::ByToken } else { Repeat::Never }
    }
}

/// Arguments of BREAK of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BreakSlotArgs {
    /// The slot.
    pub id: u32,
    /// Why: 1..=1024 bytes; the old holder is told.
    pub reason: String,
    /// How long the holder keeps the slot at most. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Only the grant with this fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
}

impl OpArgs for BreakSlotArgs {
    const OPERATION: Operation = Operation::Break;

    fn repeat(&self) -> Repeat {
        Repeat::Never
    }
}

/// Arguments of RESIZE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeArgs {
    /// The new size: 1..=65 536. Live grants beyond the new end go on.
    pub size: u32,
}

impl OpArgs for ResizeArgs {
    const OPERATION: Operation = Operation::Resize;

    // A repetition could undo what somebody did in between.
    fn repeat(&self) -> Repeat {
        Repeat::Never
    }
}

/// Arguments of HOLDERS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldersArgs {
    /// That slot alone, whatever its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// Free slots that were given before too. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
    /// 1..=1000. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The page before's cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<u32>,
}

impl OpArgs for HoldersArgs {
    const OPERATION: Operation = Operation::Holders;

    fn repeat(&self) -> Repeat {
        Repeat::Read
    }
}

/// A slot's live grant, as its holder is told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotGrant {
    /// The slot: for an identity, its machine ID.
    pub id: u32,
    /// The grant's fence.
    pub fence: u64,
    /// Remaining time, milliseconds.
    pub ttl_ms: u64,
    /// Whose it is; `None`: anonymous.
    #[serde(default)]
    pub identity: Option<String>,
    /// The uuid of the pool: two pools of one name and range are still told apart.
    pub pool: String,
    /// The pool's lowest id.
    pub first: u32,
    /// The pool's size.
    pub size: u32,
    /// Where the clocks of earlier holders of this slot stood when they could last have used it, Unix milliseconds.
    /// `None`: nobody told.
    #[serde(default)]
    pub floor_unix_ms: Option<u64>,
}

/// What RENEW of a slot came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotRenewal {
    /// It is the caller's still.
    Renewed(SlotGrant),
    /// It surely is not any more; [`Answer::reason`] says why.
    Lost,
}

/// A grant of the identity that was taken over, and whose holder may not know it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TookOver {
    /// Its fence. `None`: it was not this grant that took it over, but one before.
    pub fence: Option<u64>,
    /// For so long its holder may not know, milliseconds.
    pub ttl_ms: u64,
}

/// Answers to operations on a pool.
impl Answer {
    /// ACQUIRE: the slot that the caller holds now.
    pub fn slot(&self) -> Option<SlotGrant> {
        if !self.result.is_object() {
            return None;
        }
        SlotGrant::deserialize(&self.result).ok()
    }

    /// ACQUIRE: answered by a pool, with a slot or with nothing. A lease answers with a boolean.
    pub fn of_pool(&self) -> bool {
        self.result.is_object() || self.result.is_null()
    }

    /// RENEW: what is said of the caller's slot. `None`: nothing, [`Answer::reason`] may say why.
    pub fn slot_renewal(&self) -> Option<SlotRenewal> {
        match self.result.get("status")?.as_str()? {
            "renewed" => self.slot().map(SlotRenewal::Renewed),
            "lost" => Some(SlotRenewal::Lost),
            _ => None,
        }
    }

    /// Less than the pool's `ttl_ms_min` was asked for, and that was given.
    pub fn ttl_raised(&self) -> bool {
        self.is_set("ttl_raised")
    }

    /// ACQUIRE: who may not know that it lost the slot.
    pub fn took_over(&self) -> Option<TookOver> {
        let (fence, ttl_ms) = (self.number("prior_fence"), self.number("prior_ttl_ms"));
        (self.is_set("took_over") || ttl_ms.is_some()).then(|| TookOver { fence, ttl_ms: ttl_ms.unwrap_or(0) })
    }
}

/// HOLDERS: one page, in order of the ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HoldersPage {
    /// The slots.
    pub holders: Vec<Holder>,
    /// Where the next page starts; `None`: that was all.
    pub cursor: Option<u32>,
}

/// A slot as HOLDERS shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// The slot.
    pub id: u32,
    /// It has a live grant.
    pub held: bool,
    /// The identity of the live grant, or the one that a free slot is kept for while nobody else needs it.
    pub identity: Option<String>,
    /// Who holds: the identity, or what the holder of an anonymous slot said.
    pub owner: Option<String>,
    /// The grant's fence.
    pub fence: Option<u64>,
    /// Remaining time of the grant.
    pub ttl_ms: Option<u64>,
    /// Since the grant.
    pub held_for_ms: Option<u64>,
    /// RFC 3339, the leader's wall clock at the grant: informational.
    pub acquired_at: Option<String>,
    /// The holder's note.
    pub note: Option<String>,
    /// Broken by an operator and in its grace: the text.
    pub broken: Option<String>,
    /// A free slot: until it may be given to others; 0: it may.
    pub free_in_ms: Option<u64>,
    /// The grant that ended last.
    pub last: Option<EndedGrant>,
}

/// How many slots of a pool are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlotCounts {
    /// Held.
    pub held: u32,
    /// Free, and not given yet.
    pub quarantined: u32,
    /// To be had.
    pub free: u32,
}

#[cfg(test)]
mod tests;
