//! Replies and events as the golden scripts show them. Times are durations; stamps count from the script's start.

use std::fmt::Write as _;

use tenure_cluster::Stamp;

use crate::keyspace::{
    Attach, Ended, Event, GrantView, KeyTtl, LeaseOptions, OpReply, Page, Refusal, Reply, Shown, Standing, View,
};

use super::pool_text;

/// The stamp at which every script starts.
pub const START: Stamp = Stamp(1_000_000_000);

pub fn ms(ms: u64) -> String {
    if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") }
}

pub fn stamp(stamp: Stamp) -> String {
    ms(stamp.ms_since(START))
}

/// A name as the wire has it.
pub(super) fn name(value: impl std::fmt::Debug) -> String {
    let mut snake = String::new();
    for letter in format!("{value:?}").chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

/// ` name=value` for what is there.
pub(super) struct Fields(pub String);

impl Fields {
    pub fn put(&mut self, name: &str, value: Option<impl std::fmt::Display>) -> &mut Self {
        if let Some(value) = value {
            write!(self.0, " {name}={value}").unwrap();
        }
        self
    }

    pub fn text(&mut self, name: &str, value: &Option<std::sync::Arc<str>>) -> &mut Self {
        self.put(name, value.as_ref().map(|text| format!("{text:?}")))
    }
}

pub fn attach(attach: Attach) -> String {
    format!("{}.{}:{}", attach.edge.node, attach.edge.incarnation, attach.request)
}

pub fn standing(standing: Standing) -> String {
    reply(&Reply::from(standing))
}

pub fn refusal(refusal: &Refusal) -> String {
    match refusal {
        Refusal::TtlAboveMax { max } => format!("refused: ttl_above_max {}", ms(*max)),
        Refusal::SizeAboveMax { max } => format!("refused: size_above_max {max}"),
        Refusal::NotForPool(argument) => format!("refused: not_for_pool {}", name(argument)),
        Refusal::KeysMax { max } => format!("refused: keys_max {max}"),
        other => format!("refused: {}", name(other)),
    }
}

pub fn op(reply: &OpReply) -> String {
    let mut fields = Fields(reply.result.to_string());
    if let Some(reason) = reply.reason {
        write!(fields.0, " {}", name(reason)).unwrap();
    }
    fields.put("yours", reply.yours.then_some("true")).put("fence", reply.fence).put("owner", reply.owner.as_ref());
    fields.put("ttl", reply.ttl_ms.map(ms)).put("retry_after", reply.retry_after_ms.map(ms));
    fields.text("detail", &reply.detail).0.clone()
}

pub(super) fn grant(grant: &GrantView) -> String {
    let mut fields = Fields(String::from("held:"));
    fields.put("fence", Some(grant.fence)).put("owner", Some(&grant.owner)).put("ttl", Some(ms(grant.ttl_ms)));
    fields.put("held_for", Some(ms(grant.held_for_ms))).put("acquired_wall", Some(grant.acquired_wall_ms));
    fields.text("note", &grant.note).text("broken", &grant.broken).0.clone()
}

pub(super) fn ended(ended: &Ended) -> String {
    let mut fields = Fields(format!("last: {}", name(ended.reason)));
    fields.put("fence", Some(ended.fence)).put("owner", Some(&ended.owner)).put("at", Some(stamp(ended.at)));
    fields.text("detail", &ended.detail).0.clone()
}

fn options(options: &LeaseOptions) -> String {
    let mut fields = Fields(String::new());
    fields.put("delay", Some(options.delay_ms).filter(|ms| *ms > 0).map(ms));
    fields.put("min_hold", Some(options.min_hold_ms).filter(|ms| *ms > 0).map(ms));
    fields.put("ttl_max", options.ttl_ms_max.map(ms)).0.clone()
}

pub fn view(view: &View) -> String {
    let mut fields = Fields(format!("{} version={}", view.key, view.version));
    fields.put("key_ttl", view.key_ttl_ms.map(ms)).put("auto_created", view.auto_created.then_some("true"));
    fields.put("acquirable_in", Some(ms(view.acquirable_in_ms)));
    fields.put("waiters", Some(view.waiters).filter(|waiters| *waiters > 0));
    fields.0.push_str(&options(&view.options));
    for line in [view.grant.as_ref().map(grant), view.last.as_ref().map(ended)].into_iter().flatten() {
        write!(fields.0, "\n    {line}").unwrap();
    }
    fields.0
}

pub fn shown(shown: &Shown) -> String {
    match shown {
        Shown::Lease(one) => view(one),
        Shown::Pool(one) => pool_text::view(one),
    }
}

pub fn key_ttl(ttl: KeyTtl) -> String {
    match ttl {
        KeyTtl::NoKey => "-2 (no key)".to_owned(),
        KeyTtl::Endless => "-1 (no end)".to_owned(),
        KeyTtl::Remaining(remaining) => ms(remaining),
    }
}

pub fn page(page: &Page) -> String {
    let mut text = format!("cursor={:?}", page.cursor);
    for one in &page.views {
        write!(text, "\n  {}", shown(one)).unwrap();
    }
    text
}

pub fn reply(reply: &Reply) -> String {
    match reply {
        Reply::Done { result, reason } => {
            reason.map_or(result.to_string(), |reason| format!("{result} {}", name(reason)))
        }
        Reply::Deleted(keys) => keys.to_string(),
        Reply::Op(reply) => op(reply),
        Reply::View(None) => "null".to_owned(),
        Reply::View(Some(one)) => view(one),
        Reply::Refused(why) => refusal(why),
        Reply::Queued { op: reply, place } => format!("{} ahead={} waiters={}", op(reply), place.ahead, place.waiters),
        Reply::NotAll { index, why } => {
            format!("not all: item {index} {}", why.as_ref().map_or_else(refusal, op))
        }
        Reply::Slot(one) => pool_text::slot(one),
        Reply::SlotQueued(place) => format!("null queued ahead={} waiters={}", place.ahead, place.waiters),
        Reply::OfSlot { op: reply, id } => format!("{} slot={id}", op(reply)),
        Reply::PoolView(one) => pool_text::view(one),
        Reply::Batch(replies) => replies.iter().map(|one| format!("\n  {}", self::reply(one))).collect(),
    }
}

pub fn event(event: &Event) -> String {
    let mut fields = Fields(format!("* {} {}", name(event.kind), event.key));
    fields.put("fence", event.fence).put("owner", event.owner.as_ref());
    fields.put("last_renewed", event.last_renewed.map(stamp)).text("detail", &event.detail);
    // What only waiters' edges and watchers need; the model compares it for all.
    let told = event.attach.and(event.ttl_ms);
    fields.put("ttl", told.map(ms)).put("request", event.attach.map(attach)).put("reason", event.reason.map(name));
    if let Some(slot) = &event.slot {
        fields.0.push_str(&pool_text::slotted(slot));
    }
    fields.0
}
