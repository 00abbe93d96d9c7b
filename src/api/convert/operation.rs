//! OP: the operations on a lease or a pool. Which of the two a key is, the machine knows and the body does not say: what
//! either can be asked is read alike; `identity`, `unix_ms`, `id`, RESIZE and HOLDERS make it a command for pools.

use std::ops::RangeInclusive;
use std::sync::Arc;

use tenure_client::wire::{TTL_MS_DEFAULT, TTL_MS_MAX};

use super::INTEGER_LIMIT;
use super::create::{ID, SIZE, small, small_if_given};
use super::fields::{Fields, Invalid};
use super::json::Json;
use super::request::{DURATION_MS, FENCE, Query, Request, key, page_limit};
use crate::edge::Ask;
use crate::keyspace::{Acquire, AcquireSlot, Command, Holders, Key, TokenHash, token_hash};

/// All operations.
pub const OPERATIONS: [&str; 8] = ["ACQUIRE", "RENEW", "RELEASE", "HELD", "BREAK", "CHECK", "RESIZE", "HOLDERS"];

const OWNER_BYTES: RangeInclusive<usize> = 1..=256;
const TOKEN_BYTES: RangeInclusive<usize> = 1..=256;
const NOTE_BYTES: RangeInclusive<usize> = 0..=1024;
const REASON_BYTES: RangeInclusive<usize> = 1..=1024;
const WAIT_MS: RangeInclusive<u64> = 0..=86_400_000;
const UNIX_MS: RangeInclusive<u64> = 0..=INTEGER_LIMIT - 1;

const BY_OWNER: [&str; 9] =
    ["owner", "token", "ttl_ms", "wait_ms", "create", "note", "min_hold_ms", "delay_ms", "once"];
const BY_IDENTITY: [&str; 8] = ["identity", "token", "ttl_ms", "avoid", "unix_ms", "wait_ms", "note", "once"];

pub(super) fn operation(body: &Fields<'_>) -> Result<Request, Invalid> {
    let rule = || format!("must be one of {}", OPERATIONS.join(", "));
    let key = key(body)?;
    let Json::Text(name) = body.require("operation", rule)? else {
        let got = body.get("operation").map_or("nothing", Json::describe);
        return Err(Invalid::field("operation", format!("{}; got {got}", rule())));
    };
    let none = Json::Object(Vec::new());
    let json = body.get("args").unwrap_or(&none);
    let args = |known: &[&str]| Fields::open(json, "args", known);
    Ok(match name.as_ref() {
        "ACQUIRE" => acquire(key, json)?,
        "RENEW" => Request::Write(renew(key, &args(&["token", "ttl_ms", "fence", "unix_ms"])?)?),
        "RELEASE" => {
            let args = args(&["token", "fence"])?;
            let token = token(&key, &args)?;
            let fence = args.integer_if_given("fence", FENCE)?;
            Request::Write(Command::Release { key, token, fence })
        }
        "HELD" => {
            let args = args(&["token"])?;
            let token = args.text_if_given("token", TOKEN_BYTES)?.map(|token| token_hash(&key, token));
            Request::Read(Query::Held { key, token })
        }
        "BREAK" => Request::Write(break_grant(key, &args(&["id", "reason", "grace_ms", "fence"])?)?),
        "CHECK" => Request::Read(Query::Check { key, fence: args(&["fence"])?.integer("fence", FENCE)? }),
        "RESIZE" => Request::Write(resize(key, &args(&["size"])?)?),
        "HOLDERS" => Request::Read(Query::Holders { key, which: holders(&args(&["id", "all", "limit", "cursor"])?)? }),
        _ => return Err(Invalid::field("operation", format!("{} (upper case); got another string", rule()))),
    })
}

/// By `owner`: a lease, or an anonymous slot. By `identity`: that identity's slot. The two know other arguments.
fn acquire<'a>(key: Key, json: &'a Json<'a>) -> Result<Request, Invalid> {
    let given = |name: &str| match json {
        Json::Object(entries) => entries.iter().any(|(entry, _)| entry.0 == name),
        _ => false,
    };
    let (ask, wait_ms) = match (given("owner"), given("identity")) {
        (true, true) => {
            let rule = "must not stand beside args.identity: a slot is an identity's, or any slot for an owner";
            return Err(Invalid::field("args.owner", rule));
        }
        (_, true) => {
            let args = Fields::open(json, "args", &BY_IDENTITY)?;
            (Ask::from(by_identity(key, &args)?), wait_ms(&args)?)
        }
        (true, false) => {
            let args = Fields::open(json, "args", &BY_OWNER)?;
            (Ask::from(by_owner(key, &args)?), wait_ms(&args)?)
        }
        (false, false) => {
            let own = BY_IDENTITY.iter().filter(|name| !BY_OWNER.contains(name));
            Fields::open(json, "args", &BY_OWNER.iter().chain(own).copied().collect::<Vec<_>>())?;
            let rule = "is missing: say owner (who holds a lease, or any slot of a pool) or identity (whose slot of a \
                        pool), a string of 1..=256 bytes of UTF-8 without control characters";
            return Err(Invalid::field("args.owner", rule));
        }
    };
    Ok(if wait_ms == 0 { Request::Write(ask.into_command()) } else { Request::Wait { ask, wait_ms } })
}

fn wait_ms(args: &Fields<'_>) -> Result<u64, Invalid> {
    Ok(args.integer_if_given("wait_ms", WAIT_MS)?.unwrap_or(0))
}

fn by_owner(key: Key, args: &Fields<'_>) -> Result<Acquire, Invalid> {
    Ok(Acquire {
        owner: args.text("owner", OWNER_BYTES)?.into(),
        token: token(&key, args)?,
        ttl_ms: ttl_ms(args)?,
        create: args.flag_if_given("create")?.unwrap_or(false),
        note: args.text_if_given("note", NOTE_BYTES)?.map(Arc::from),
        min_hold_ms: args.integer_if_given("min_hold_ms", DURATION_MS)?,
        delay_ms: args.integer_if_given("delay_ms", DURATION_MS)?,
        once: args.flag_if_given("once")?.unwrap_or(false),
        key,
    })
}

fn by_identity(key: Key, args: &Fields<'_>) -> Result<AcquireSlot, Invalid> {
    Ok(AcquireSlot {
        identity: args.text("identity", OWNER_BYTES)?.into(),
        token: token(&key, args)?,
        ttl_ms: ttl_ms(args)?,
        avoid: small_if_given(args, "avoid", ID)?,
        unix_ms: args.integer_if_given("unix_ms", UNIX_MS)?,
        note: args.text_if_given("note", NOTE_BYTES)?.map(Arc::from),
        once: args.flag_if_given("once")?.unwrap_or(false),
        key,
    })
}

fn renew(key: Key, args: &Fields<'_>) -> Result<Command, Invalid> {
    let (token, ttl_ms) = (token(&key, args)?, ttl_ms(args)?);
    let fence = args.integer_if_given("fence", FENCE)?;
    Ok(match args.integer_if_given("unix_ms", UNIX_MS)? {
        None => Command::Renew { key, token, ttl_ms, fence },
        Some(unix_ms) => Command::RenewSlot { key, token, ttl_ms, fence, unix_ms },
    })
}

fn break_grant(key: Key, args: &Fields<'_>) -> Result<Command, Invalid> {
    let reason = args.text("reason", REASON_BYTES)?.into();
    let grace_ms = args.integer_if_given("grace_ms", DURATION_MS)?.unwrap_or(0);
    let fence = args.integer_if_given("fence", FENCE)?;
    Ok(match small_if_given(args, "id", ID)? {
        None => Command::Break { key, reason, grace_ms, fence },
        Some(id) => Command::BreakSlot { key, id, reason, grace_ms, fence },
    })
}

fn resize(key: Key, args: &Fields<'_>) -> Result<Command, Invalid> {
    let size = args.integer("size", SIZE)?;
    Ok(Command::Resize { key, size: small(args, "size", size)? })
}

fn holders(args: &Fields<'_>) -> Result<Holders, Invalid> {
    Ok(Holders {
        id: small_if_given(args, "id", ID)?,
        all: args.flag_if_given("all")?.unwrap_or(false),
        cursor: small_if_given(args, "cursor", ID)?,
        limit: page_limit(args)?,
    })
}

fn token(key: &Key, args: &Fields<'_>) -> Result<TokenHash, Invalid> {
    args.text("token", TOKEN_BYTES).map(|token| token_hash(key, token))
}

/// A wanted lifetime. Zero or negative is no error: the machine answers `ttl_not_positive`.
fn ttl_ms(args: &Fields<'_>) -> Result<i64, Invalid> {
    let rule = || format!("must be an integer of milliseconds, at most {TTL_MS_MAX}");
    match args.get("ttl_ms") {
        None => Ok(TTL_MS_DEFAULT.cast_signed()),
        // An `Integer` that is not above the limit fits: it came from 64 bits.
        Some(Json::Integer(value)) if *value <= i128::from(TTL_MS_MAX) => Ok(i64::try_from(*value).unwrap_or(i64::MIN)),
        Some(Json::Integer(value)) => Err(Invalid::field(args.full("ttl_ms"), format!("{}; got {value}", rule()))),
        Some(other) => Err(Invalid::field(args.full("ttl_ms"), format!("{}; got {}", rule(), other.describe()))),
    }
}
