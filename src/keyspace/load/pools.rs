//! How a pool is read: the inverse of `save::pools`. Accepted is only what that writes: slots in strict order, each token,
//! identity and fence once.

use std::sync::Arc;

use tenure_cluster::planted::{self, Bug};
use tenure_cluster::{LoadError, Stamp};

use super::{Form, wrong};
use crate::keyspace::lease::End;
use crate::keyspace::pool::Pool;
use crate::keyspace::record::Record;
use crate::keyspace::save::{end, flag, on_conflict, slot_flag, waiter_flag};
use crate::keyspace::slot::{CLOCKS_MAX, Floor, Past, SUPERSEDED_MAX, Slot, TAKEOVERS_MAX, Tenancy};
use crate::keyspace::{OnConflict, PoolOptions, PoolUuid};

impl Form<'_> {
    pub(super) fn pool(&mut self) -> Result<Record, LoadError> {
        let flags = self.number()?;
        let has = |flag| flags & flag != 0;
        if flags & !(flag::ENDS | flag::QUEUE) != 0 {
            return Err(wrong("unknown flags of a pool"));
        }
        let version = self.position()?;
        let ends = if has(flag::ENDS) { Some(self.stamp()?) } else { None };
        let uuid = PoolUuid(self.bytes()?);
        let options = self.pool_options()?;
        let mut pool = Pool::new(options, uuid);
        let mut before = None;
        for _ in 0..self.number()? {
            let id = self.id()?;
            if id < options.first || before.replace(id).is_some_and(|before| before >= id) {
                return Err(wrong("slots out of order"));
            }
            let slot = self.slot()?;
            if !pool.put(id, slot) {
                return Err(wrong("a token, an identity or a fence that has two slots"));
            }
        }
        pool.queue = if has(flag::QUEUE) { Some(Box::new(self.queue(waiter_flag::ALL)?)) } else { None };
        let mut record = Record::of_pool(version, pool);
        record.ends = ends;
        Ok(record)
    }

    fn id(&mut self) -> Result<u32, LoadError> {
        u32::try_from(self.number()?).map_err(|_| wrong("an id that is too large"))
    }

    fn pool_options(&mut self) -> Result<PoolOptions, LoadError> {
        let (size, first) = (self.id()?, self.id()?);
        if u64::from(size) + u64::from(first) > 1 << 32 {
            return Err(wrong("a pool beyond the last id"));
        }
        Ok(PoolOptions {
            size,
            first,
            quarantine_ms: self.number()?,
            release_quarantine_ms: self.number()?,
            ttl_ms_min: self.number()?,
            ttl_ms_max: self.number()?,
            on_conflict: match self.number()? {
                on_conflict::TAKEOVER => OnConflict::Takeover,
                on_conflict::REJECT => OnConflict::Reject,
                _ => return Err(wrong("a pool that does something unknown")),
            },
        })
    }

    fn slot(&mut self) -> Result<Slot, LoadError> {
        use slot_flag::{ALL, ALL_OF_HELD, BELIEVED, CLAIM, CLOCKS_RUN, FLOOR, GUARDED, HELD, LAST, LAST_TOKEN, OPENS};
        let flags = self.number()?;
        let has = |flag| flags & flag != 0;
        let is_at_odds = if has(HELD) { has(CLAIM | OPENS) } else { has(ALL_OF_HELD) };
        if flags > ALL || is_at_odds || (has(LAST_TOKEN) && !has(LAST)) {
            return Err(wrong("unknown flags of a slot"));
        }
        let held = if has(HELD) { Some(self.tenancy(flags)?) } else { None };
        let guarded = if has(GUARDED) { Some(self.stamp()?) } else { None };
        let since = if held.is_none() { self.stamp()? } else { Stamp(0) };
        let last = if has(LAST) { Some(self.past(has(LAST_TOKEN), held.as_ref())?) } else { None };
        let claim = self.text_if(has(CLAIM))?.map(|claim| match &last {
            Some(last) if last.owner == claim => Arc::clone(&last.owner),
            _ => claim,
        });
        let opens_at = if has(OPENS) { Some(self.stamp()?) } else { None };
        let opens_at = opens_at.filter(|_| !planted::has(Bug::QuarantineForgottenBySnapshot));
        let fixed = if has(FLOOR) { Some(self.number()?) } else { None };
        let running = if has(CLOCKS_RUN) { self.clocks()? } else { Vec::new() };
        let mut superseded = self.few(SUPERSEDED_MAX, Self::token)?;
        superseded.retain(|_| !planted::has(Bug::SupersededForgottenBySnapshot));
        let takeovers = self.few(TAKEOVERS_MAX, Self::stamp)?;
        let believed = if has(BELIEVED) { Some(self.stamp()?) } else { None };
        let floor = Floor { fixed, running };
        Ok(Slot { held, last, claim, opens_at, guarded, since, superseded, takeovers, believed, floor })
    }

    fn clocks(&mut self) -> Result<Vec<(i64, Stamp)>, LoadError> {
        let clocks = self.few(CLOCKS_MAX, |form| Ok((form.signed()?, form.stamp()?)))?;
        let is_in_order = clocks.is_sorted_by(|(ahead, until), (clock, later)| ahead > clock && until < later);
        if clocks.is_empty() || !is_in_order {
            return Err(wrong("clocks out of order"));
        }
        Ok(clocks)
    }

    fn few<T>(&mut self, max: usize, read: fn(&mut Self) -> Result<T, LoadError>) -> Result<Vec<T>, LoadError> {
        match usize::try_from(self.number()?) {
            Ok(count) if count <= max => (0..count).map(|_| read(self)).collect(),
            _ => Err(wrong("too many of what a slot remembers")),
        }
    }

    fn tenancy(&mut self, flags: u64) -> Result<Tenancy, LoadError> {
        let has = |flag| flags & flag != 0;
        let grant = self.grant(has(slot_flag::NOTE), has(slot_flag::BROKEN))?;
        let identity = has(slot_flag::IDENTIFIED).then(|| Arc::clone(&grant.owner));
        let clock = if has(slot_flag::CLOCK) { Some(self.signed()?) } else { None };
        let unconfirmed = if has(slot_flag::UNCONFIRMED) { Some(self.attach()?) } else { None };
        if grant.fence == 0 {
            return Err(wrong("a grant without a fence"));
        }
        if grant.min_hold_ms > 0 || grant.delay_ms > 0 {
            return Err(wrong("a slot with what only a lease has"));
        }
        Ok(Tenancy { grant, identity, clock, unconfirmed })
    }

    fn past(&mut self, has_token: bool, held: Option<&Tenancy>) -> Result<Past, LoadError> {
        let fence = self.fence()?;
        let owner = self.text()?;
        let owner = match held {
            Some(held) if held.grant.owner == owner => Arc::clone(&held.grant.owner),
            _ => owner,
        };
        let token = if has_token { Some(self.token()?) } else { None };
        let end = match self.number()? {
            end::TAKEN_OVER => End::TakenOver,
            other => self.end(other)?,
        };
        Ok(Past { fence, owner, token, end, at: self.stamp()? })
    }
}
