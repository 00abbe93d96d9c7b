//! The commands on keys themselves, whatever their type: CREATE, EXPIRE, PERSIST, DEL; and what time does to keys.
//!
//! A key's lifetime never ends a grant: a held key whose lifetime is over stays until that grant ends, refuses what
//! would prolong it (`key_expired`), and goes with it. DEL is an operator's act and takes the grant along. Both end
//! every wait for the key.

use std::sync::Arc;

use tenure_cluster::Moment;

use super::lease::Lease;
use super::record::Record;
use super::{Event, EventKind, Key, Keyspace, LeaseOptions, Reason, Refusal, Reply};

impl Keyspace {
    /// CREATE of a lease.
    pub(super) fn create(
        &mut self,
        at: &Moment,
        key: &Key,
        options: LeaseOptions,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        if self.settled(at, key, events).is_some() {
            return Err(Refusal::AlreadyExists);
        }
        self.check_room()?;
        self.table.put(key, Record::of_lease(at.position, false, Lease { options, ..Lease::default() }));
        events.push(Event::of_key(key, EventKind::Created));
        Ok(done(true, None))
    }

    /// EXPIRE: the lifetime counts from now. A key made by ACQUIRE `create` still goes when it idles.
    pub(super) fn expire(&mut self, at: &Moment, key: &Key, ttl_ms: u64, events: &mut Vec<Event>) -> Reply {
        let ends = at.stamp.plus_ms(ttl_ms);
        self.change_lifetime(at, key, events, |record| record.ends = Some(ends))
    }

    /// PERSIST: no lifetime, and no end by idling.
    pub(super) fn persist(&mut self, at: &Moment, key: &Key, events: &mut Vec<Event>) -> Reply {
        self.change_lifetime(at, key, events, |record| {
            record.ends = None;
            record.auto_created = false;
        })
    }

    fn change_lifetime(
        &mut self,
        at: &Moment,
        key: &Key,
        events: &mut Vec<Event>,
        change: impl FnOnce(&mut Record),
    ) -> Reply {
        let Some(record) = self.settled(at, key, events) else { return done(false, None) };
        if record.is_over(at.stamp) {
            return done(false, Some(Reason::KeyExpired));
        }
        self.table.edit(key, |record| {
            record.mark(at.position);
            change(record);
        });
        done(true, None)
    }

    /// DEL: how many keys it deleted. With a fence, only keys whose live grant has it.
    pub(super) fn delete(&mut self, at: &Moment, keys: &[Key], fence: Option<u64>, events: &mut Vec<Event>) -> u64 {
        let mut count = 0;
        for key in keys {
            let Some(record) = self.settled(at, key, events) else { continue };
            let lease = record.lease().ok();
            let grant = lease.and_then(|lease| lease.grant.as_ref());
            if fence.is_some() && grant.map(|grant| grant.fence) != fence {
                continue;
            }
            let deleted = match grant {
                Some(grant) => Event::of_grant(key, EventKind::Deleted, grant),
                None => Event::of_key(key, EventKind::Deleted),
            };
            let waiters: Vec<_> =
                lease.and_then(Lease::queue).into_iter().flat_map(|queue| queue.iter().map(Arc::clone)).collect();
            self.tell_left(key, &waiters, Reason::Deleted, events);
            events.push(deleted);
            self.table.remove(key);
            count += 1;
        }
        count
    }

    /// The key's record after time has done its work on it, in the state and in `events`. Every command begins here.
    pub(super) fn settled(&mut self, at: &Moment, key: &str, events: &mut Vec<Event>) -> Option<&Record> {
        self.settle_if_due(at, key, events);
        self.table.get(key).map(|(_, record)| record)
    }

    /// Settles a key unless time has nothing to do on it.
    pub(super) fn settle_if_due(&mut self, at: &Moment, key: &str, events: &mut Vec<Event>) {
        if self.table.get(key).is_some_and(|(_, record)| record.is_due(at.stamp)) {
            self.settle(at, key, events);
        }
    }

    /// Lets time do its work on one key, and what follows from it: a lease that got free is handed on. So every command
    /// that frees a lease, or brings somebody to wait for it, ends here too.
    pub(super) fn settle(&mut self, at: &Moment, key: &str, events: &mut Vec<Event>) {
        let Some((key, record)) = self.table.get(key) else { return };
        let key = Key::clone(key);
        let ended = record.lease().ok().and_then(|lease| lease.grant.as_ref()).filter(|g| g.deadline <= at.stamp);
        // A broken grant was told of at its BREAK.
        if let Some(grant) = ended.filter(|grant| grant.broken.is_none()) {
            let event = Event::of_grant(&key, EventKind::Expired, grant);
            events.push(Event { last_renewed: Some(grant.renewed_at), ..event });
        }
        let mut after = record.clone();
        let passed = after.pass(at.stamp);
        self.tell_left(&key, &passed.left, Reason::WaitTimeout, events);
        self.tell_left(&key, &passed.outlived, Reason::KeyExpired, events);
        if passed.is_gone {
            return self.go(&key, events);
        }
        after.mark(at.position);
        self.table.put(&key, after);
        self.hand_on(at, &key, events);
    }

    fn go(&mut self, key: &Key, events: &mut Vec<Event>) {
        self.table.remove(key);
        events.push(Event::of_key(key, EventKind::Deleted));
    }

    /// Is there room for one more key? Keys that time has ended count until they are cleaned up.
    pub(super) fn check_room(&self) -> Result<(), Refusal> {
        let max = self.keys_max;
        if self.table.len() < max { Ok(()) } else { Err(Refusal::KeysMax { max: max as u64 }) }
    }
}

pub(super) fn done(result: bool, reason: Option<Reason>) -> Reply {
    Reply::Done { result, reason }
}
