//! Lines of golden scripts that concern pools: see [`super::script`].

use std::error::Error;
use std::sync::Arc;

use super::script::Args;
use super::text;
use crate::keyspace::{AcquireSlot, Command, Holders, OnConflict, PoolOptions, PoolUuid};

type Parsed<T> = Result<T, Box<dyn Error>>;

/// A wall clock, counted from the script's start.
fn unix_ms(args: &mut Args<'_>) -> Parsed<Option<u64>> {
    Ok(args.positive_ms("unix")?.map(|ms| text::START.plus_ms(ms).0))
}

fn id(args: &mut Args<'_>, name: &str) -> Parsed<Option<u32>> {
    Ok(args.number(name)?.map(u32::try_from).transpose()?)
}

pub(super) fn acquire(key: Arc<str>, args: &mut Args<'_>) -> Parsed<AcquireSlot> {
    Ok(AcquireSlot {
        identity: args.text("identity").ok_or("whose identity?")?,
        token: args.token(&key)?,
        key,
        ttl_ms: args.ms("ttl")?.unwrap_or(30_000),
        avoid: id(args, "avoid")?,
        unix_ms: unix_ms(args)?,
        note: args.text("note"),
        once: args.flag("once"),
    })
}

fn options(args: &mut Args<'_>) -> Parsed<PoolOptions> {
    let usual = PoolOptions::default();
    Ok(PoolOptions {
        size: id(args, "size")?.unwrap_or(usual.size),
        first: id(args, "first")?.unwrap_or(usual.first),
        quarantine_ms: args.positive_ms("quarantine")?.unwrap_or(usual.quarantine_ms),
        release_quarantine_ms: args.positive_ms("release_quarantine")?.unwrap_or(usual.release_quarantine_ms),
        ttl_ms_min: args.positive_ms("ttl_min")?.unwrap_or(usual.ttl_ms_min),
        ttl_ms_max: args.positive_ms("ttl_max")?.unwrap_or(usual.ttl_ms_max),
        on_conflict: match args.named.remove("on_conflict") {
            Some("reject") => OnConflict::Reject,
            None => OnConflict::Takeover,
            Some(other) => return Err(format!("on_conflict={other}?").into()),
        },
    })
}

/// A line as a command that only pools have, or as one that a pool has in its own form.
pub(super) fn command(name: &str, args: &mut Args<'_>) -> Parsed<Option<Command>> {
    let has = |args: &Args<'_>, named| args.named.contains_key(named);
    Ok(Some(match name {
        "create_pool" => Command::CreatePool { key: args.key()?, options: options(args)?, uuid: PoolUuid([0xAB; 16]) },
        "acquire" if has(args, "identity") => Command::AcquireSlot(acquire(args.key()?, args)?),
        "renew" if has(args, "unix") => {
            let (key, unix_ms) = (args.key()?, unix_ms(args)?.ok_or("which time?")?);
            let (token, fence) = (args.token(&key)?, args.number("fence")?);
            Command::RenewSlot { key, token, ttl_ms: args.ms("ttl")?.unwrap_or(30_000), fence, unix_ms }
        }
        "break" if has(args, "id") => Command::BreakSlot {
            key: args.key()?,
            id: id(args, "id")?.ok_or("which slot?")?,
            reason: args.text("reason").ok_or("why?")?,
            grace_ms: args.positive_ms("grace")?.unwrap_or(0),
            fence: args.number("fence")?,
        },
        "resize" => Command::Resize { key: args.key()?, size: id(args, "size")?.ok_or("which size?")? },
        _ => return Ok(None),
    }))
}

pub(super) fn holders(args: &mut Args<'_>) -> Parsed<Holders> {
    Ok(Holders {
        id: id(args, "id")?,
        all: args.flag("all"),
        cursor: id(args, "cursor")?,
        limit: usize::try_from(args.number("limit")?.unwrap_or(100))?,
    })
}
