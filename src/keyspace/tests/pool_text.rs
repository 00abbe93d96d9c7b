//! Replies and events of pools as the golden scripts show them: see [`super::text`]. Which pool it is, and its range, is
//! left out of grants; the model compares it.

use std::fmt::Write as _;

use tenure_cluster::Stamp;

use super::text::{Fields, ended, grant, ms, name, stamp};
use crate::keyspace::{HoldersPage, OnConflict, PoolOptions, PoolView, SlotOutcome, SlotReply, SlotView, Slotted};

pub fn slot(reply: &SlotReply) -> String {
    let outcome = match &reply.outcome {
        SlotOutcome::Granted(_) => "granted",
        SlotOutcome::Renewed(_) => "renewed",
        SlotOutcome::Lost => "lost",
        SlotOutcome::Nothing => "null",
    };
    let mut fields = Fields(outcome.to_owned());
    if let Some(reason) = reply.reason {
        write!(fields.0, " {}", name(reason)).unwrap();
    }
    if let Some(grant) = reply.grant() {
        fields.put("id", Some(grant.id)).put("fence", Some(grant.fence)).put("ttl", Some(ms(grant.ttl_ms)));
        fields.put("identity", grant.identity.as_ref()).put("floor", grant.floor_unix_ms.map(|ms| stamp(Stamp(ms))));
    }
    fields.put("yours", reply.yours.then_some("true")).put("ttl_raised", reply.ttl_raised.then_some("true"));
    let (left, fence) = (reply.prior.map(|prior| ms(prior.ttl_ms)), reply.prior.and_then(|prior| prior.fence));
    let took_over = fence.zip(left.as_ref()).map(|(fence, left)| format!("{fence}/{left}"));
    fields.put("took_over", took_over).put("prior", left.filter(|_| fence.is_none()));
    fields.put("retry_after", reply.retry_after_ms.map(ms));
    fields.text("detail", &reply.detail).0.clone()
}

fn options(options: &PoolOptions) -> String {
    let usual = PoolOptions::default();
    let mut fields = Fields(String::new());
    let unless = |value: u64, usual: u64| Some(value).filter(|value| *value != usual).map(ms);
    fields.put("first", Some(options.first).filter(|first| *first != usual.first));
    fields.put("quarantine", unless(options.quarantine_ms, usual.quarantine_ms));
    fields.put("release_quarantine", unless(options.release_quarantine_ms, usual.release_quarantine_ms));
    fields.put("ttl_min", unless(options.ttl_ms_min, usual.ttl_ms_min));
    fields.put("ttl_max", unless(options.ttl_ms_max, usual.ttl_ms_max));
    fields.put("on_conflict", (options.on_conflict == OnConflict::Reject).then_some("reject")).0.clone()
}

pub fn view(view: &PoolView) -> String {
    let mut fields = Fields(format!("{} pool version={}", view.key, view.version));
    fields.put("key_ttl", view.key_ttl_ms.map(ms)).put("size", Some(view.options.size));
    fields.put("held", Some(view.held)).put("quarantined", Some(view.quarantined)).put("free", Some(view.free));
    fields.put("acquirable_in", Some(ms(view.acquirable_in_ms)));
    fields.put("waiters", Some(view.waiters).filter(|waiters| *waiters > 0));
    fields.0.push_str(&options(&view.options));
    fields.0
}

fn slot_view(slot: &SlotView) -> String {
    let mut fields = Fields(slot.id.to_string());
    match &slot.grant {
        Some(one) => {
            write!(fields.0, " {}", grant(one)).unwrap();
            fields.put("identity", Some(slot.identity.as_deref().unwrap_or("-")));
        }
        None => {
            fields.put("free_in", Some(ms(slot.free_in_ms))).put("kept_for", slot.identity.as_ref());
        }
    }
    if let Some(last) = &slot.last {
        write!(fields.0, "\n      {}", ended(last)).unwrap();
    }
    fields.0
}

pub fn holders(page: &HoldersPage) -> String {
    let slots: String = page.slots.iter().map(|slot| format!("\n    {}", slot_view(slot))).collect();
    format!("cursor={:?}{slots}", page.cursor)
}

/// What an event tells of its slot; of a grant the answer too, where it says more than the event.
pub fn slotted(slotted: &Slotted) -> String {
    let mut fields = Fields(String::new());
    fields.put("slot", Some(slotted.id)).put("identity", Some(slotted.identity.as_deref().unwrap_or("-")));
    fields.put("held", slotted.held).0.clone()
}
