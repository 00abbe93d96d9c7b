//! The commands on keys themselves, whatever their type: CREATE, EXPIRE, PERSIST, DEL; and what time does to keys.
//!
//! A key's lifetime never ends a grant: a held key whose lifetime is over stays until that grant ends, refuses what
//! would prolong it (`key_expired`), and goes with it. DEL is an operator's act and takes the grant along. Both end
//! every wait for the key.

use std::sync::Arc;

use tenure_cluster::Moment;

use super::lease::Lease;
use super::pool::{PASS_MAX, Pool};
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
            // What has expired is told as such, however much it is: all that is held is told of here anyway.
            self.settle_whole(at, key, events);
            let Some((_, record)) = self.table.get(key) else { continue };
            let grant = record.lease().ok().and_then(|lease| lease.grant.as_ref());
            if fence.is_some() && grant.map(|grant| grant.fence) != fence {
                continue;
            }
            let slots = record.pool().into_iter().flat_map(Pool::tenancies);
            events.extend(
                slots.map(|(id, held)| Event::of_grant(key, EventKind::Deleted, &held.grant).of_slot(id, held)),
            );
            let deleted = match grant {
                Some(grant) => Event::of_grant(key, EventKind::Deleted, grant),
                None => Event::of_key(key, EventKind::Deleted),
            };
            let waiters: Vec<_> = record.queue().into_iter().flat_map(|queue| queue.iter().map(Arc::clone)).collect();
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

    /// Settles a key unless time has nothing to do on it. One whose lifetime is over is settled to the end: if all its grants
    /// are over too, it is gone, however long its backlog.
    pub(super) fn settle_if_due(&mut self, at: &Moment, key: &str, events: &mut Vec<Event>) {
        while self.is_due(key, at) && self.settle(at, key, events) >= PASS_MAX && self.is_over(key, at.stamp) {}
    }

    /// Settles a key to the end, however long a pool's backlog.
    pub(super) fn settle_whole(&mut self, at: &Moment, key: &str, events: &mut Vec<Event>) {
        while self.is_due(key, at) {
            self.settle(at, key, events);
        }
    }

    fn is_due(&self, key: &str, at: &Moment) -> bool {
        self.table.get(key).is_some_and(|(_, record)| record.is_due(at.stamp))
    }

    /// Lets time do its work on one key, and what follows from it: a lease that got free is handed on. So every command
    /// that frees a lease, or brings somebody to wait for it, ends here too.
    ///
    /// Returns how many slots of a pool time has changed, at most [`PASS_MAX`]: then more may be due.
    pub(super) fn settle(&mut self, at: &Moment, key: &str, events: &mut Vec<Event>) -> usize {
        let Some((key, record)) = self.table.get(key) else { return 0 };
        let key = Key::clone(key);
        let ended = record.lease().ok().and_then(|lease| lease.grant.as_ref()).filter(|g| g.deadline <= at.stamp);
        if let Some(grant) = ended {
            events.extend(Event::of_expiry(&key, grant));
        }
        let mut after = record.clone();
        let passed = after.pass(at.stamp, PASS_MAX);
        for (id, held) in &passed.ended {
            let event = Event::of_expiry(&key, &held.grant);
            events.extend(event.map(|event| event.of_slot(*id, held)));
        }
        self.tell_left(&key, &passed.left, Reason::WaitTimeout, events);
        self.tell_left(&key, &passed.outlived, Reason::KeyExpired, events);
        if passed.is_gone {
            self.go(&key, events);
            return passed.slots;
        }
        after.mark(at.position);
        self.table.put(&key, after);
        self.hand_on(at, &key, events);
        passed.slots
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
