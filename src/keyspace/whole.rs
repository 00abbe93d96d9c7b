//! BATCH `all_or_nothing`: every item is done, or nothing is.
//!
//! Model: the items are applied in order to the state; it was kept before, which costs nothing. The first that is not
//! done puts the kept state back, and the events with it. What time had done in between comes again by itself.
//!
//! Invariants: an item is done if it is true, or if it is an ACQUIRE of a grant that is the token's own and not broken.
//! A refusal changes nothing at all.

use tenure_cluster::Moment;

use super::{Command, Event, Keyspace, OpReply, Reason, Refusal, Reply, SlotReply};

impl Keyspace {
    /// Applies all of `commands`, or none.
    pub(super) fn all_or_nothing(&mut self, at: &Moment, commands: Vec<Command>, events: &mut Vec<Event>) -> Reply {
        let (before, told) = (self.clone(), events.len());
        let mut replies = Vec::with_capacity(commands.len());
        for (index, command) in (0..).zip(commands) {
            let reply = match command {
                Command::Acquire(_)
                | Command::AcquireSlot(_)
                | Command::Renew { .. }
                | Command::RenewSlot { .. }
                | Command::Release { .. } => self.apply_one(at, command, events),
                // The edge lets no other through.
                _ => Ok(Reply::Op(OpReply::default())),
            };
            match undone(reply) {
                Ok(reply) => replies.push(reply),
                Err(why) => {
                    *self = before;
                    events.truncate(told);
                    return Reply::NotAll { index, why };
                }
            }
        }
        Reply::Batch(replies)
    }
}

/// The reply, or as an error what says that the item was not done.
fn undone(reply: Result<Reply, Refusal>) -> Result<Reply, Result<OpReply, Refusal>> {
    match reply {
        Ok(Reply::Op(op)) if op.result || (op.yours && op.reason.is_none()) => Ok(Reply::Op(op)),
        Ok(Reply::OfSlot { op, id }) if op.result => Ok(Reply::OfSlot { op, id }),
        Ok(Reply::Slot(slot)) if slot.grant().is_some() => Ok(Reply::Slot(slot)),
        Ok(Reply::Slot(slot)) => {
            let SlotReply { reason, retry_after_ms, detail, .. } = *slot;
            Err(Ok(OpReply { reason, retry_after_ms, detail, ..OpReply::default() }))
        }
        Ok(Reply::SlotQueued(_)) => Err(Ok(OpReply { reason: Some(Reason::Queued), ..OpReply::default() })),
        Ok(Reply::Op(op) | Reply::Queued { op, .. }) => Err(Ok(op)),
        Ok(Reply::Refused(refusal)) | Err(refusal) => Err(Err(refusal)),
        Ok(_) => Err(Ok(OpReply::default())),
    }
}
