//! CREATE: a lease or a pool, each with options of its own.

use std::ops::RangeInclusive;

use super::fields::{Fields, Invalid};
use super::json::Json;
use super::request::{DURATION_MS, LIFETIME_MS, key};
use crate::keyspace::{Command, LeaseOptions, OnConflict, PoolOptions, PoolUuid};

const LEASE_OPTIONS: [&str; 3] = ["delay_ms", "min_hold_ms", "ttl_ms_max"];
const POOL_OPTIONS: [&str; 7] =
    ["size", "first", "quarantine_ms", "release_quarantine_ms", "ttl_ms_min", "ttl_ms_max", "on_conflict"];

/// Slots of a pool.
pub(super) const SIZE: RangeInclusive<u64> = 1..=65_536;
/// Ids of slots.
pub(super) const ID: RangeInclusive<u64> = 0..=u32::MAX as u64;
/// All ids there are.
const IDS: u64 = 1 << 32;
const QUARANTINE_MS: RangeInclusive<u64> = 0..=86_400_000;

/// A key of the type that the body names. `uuid` is for a pool.
pub(super) fn create(body: &Fields<'_>, uuid: PoolUuid) -> Result<Command, Invalid> {
    const RULE: &str = "must be \"lease\" or \"pool\"";
    let key = key(body)?;
    let none = Json::Object(Vec::new());
    let json = body.get("options").unwrap_or(&none);
    match body.require("type", || RULE.to_owned())? {
        Json::Text(name) if name == "lease" => Ok(Command::Create {
            key,
            options: lease(&options(json, &LEASE_OPTIONS, ("lease", "pool", &POOL_OPTIONS))?)?,
        }),
        Json::Text(name) if name == "pool" => {
            let options = pool(&options(json, &POOL_OPTIONS, ("pool", "lease", &LEASE_OPTIONS))?)?;
            Ok(Command::CreatePool { key, options, uuid })
        }
        Json::Text(_) => Err(Invalid::field("type", format!("{RULE}; got another string"))),
        other => Err(Invalid::field("type", format!("{RULE}; got {}", other.describe()))),
    }
}

/// Opens the options of a key of type `own`; who mixes them up with those of the `other` type is told so.
fn options<'a>(
    json: &'a Json<'a>,
    known: &[&str],
    (own, other, others): (&str, &str, &[&str]),
) -> Result<Fields<'a>, Invalid> {
    if let Json::Object(entries) = json {
        let foreign = |name: &str| others.contains(&name) && !known.contains(&name);
        if let Some((name, _)) = entries.iter().find(|(name, _)| foreign(&name.0)) {
            let rule = format!("is an option of a {other}, and this is a {own}; known: {}", known.join(", "));
            return Err(Invalid::field(format!("options.{}", name.0), rule));
        }
    }
    Fields::open(json, "options", known)
}

fn lease(options: &Fields<'_>) -> Result<LeaseOptions, Invalid> {
    Ok(LeaseOptions {
        delay_ms: options.integer_if_given("delay_ms", DURATION_MS)?.unwrap_or(0),
        min_hold_ms: options.integer_if_given("min_hold_ms", DURATION_MS)?.unwrap_or(0),
        ttl_ms_max: options.integer_if_given("ttl_ms_max", LIFETIME_MS)?,
    })
}

fn pool(options: &Fields<'_>) -> Result<PoolOptions, Invalid> {
    let default = PoolOptions::default();
    let size = small_if_given(options, "size", SIZE)?.unwrap_or(default.size);
    let first = small_if_given(options, "first", ID)?.unwrap_or(default.first);
    if u64::from(first) + u64::from(size) > IDS {
        let rule = format!("must be at most {} with {size} slots: ids end at 4294967295", IDS - u64::from(size));
        return Err(Invalid::field("options.first", rule));
    }
    let quarantine_ms = options.integer_if_given("quarantine_ms", QUARANTINE_MS)?.unwrap_or(default.quarantine_ms);
    let release_quarantine_ms =
        options.integer_if_given("release_quarantine_ms", QUARANTINE_MS)?.unwrap_or(default.release_quarantine_ms);
    let (ttl_ms_min, ttl_ms_max) = ttls(options, &default)?;
    let on_conflict = on_conflict(options)?;
    Ok(PoolOptions { size, first, quarantine_ms, release_quarantine_ms, ttl_ms_min, ttl_ms_max, on_conflict })
}

/// An integer whose range lies within 32 bits, or nothing.
pub(super) fn small_if_given(
    fields: &Fields<'_>,
    name: &str,
    range: RangeInclusive<u64>,
) -> Result<Option<u32>, Invalid> {
    fields.integer_if_given(name, range)?.map(|value| small(fields, name, value)).transpose()
}

/// A value in 32 bits.
pub(super) fn small(fields: &Fields<'_>, name: &str, value: u64) -> Result<u32, Invalid> {
    u32::try_from(value).map_err(|_| Invalid::field(fields.full(name), "is too large"))
}

/// `ttl_ms_min` and `ttl_ms_max`; whichever is given is to blame where they contradict each other.
fn ttls(options: &Fields<'_>, default: &PoolOptions) -> Result<(u64, u64), Invalid> {
    let given_min = options.integer_if_given("ttl_ms_min", LIFETIME_MS)?;
    let given_max = options.integer_if_given("ttl_ms_max", LIFETIME_MS)?;
    let (min, max) = (given_min.unwrap_or(default.ttl_ms_min), given_max.unwrap_or(default.ttl_ms_max));
    if min <= max {
        return Ok((min, max));
    }
    Err(match (given_min, given_max) {
        (Some(_), None) => {
            let rule = format!("must be at most ttl_ms_max, which is {max} unless given; got {min}");
            Invalid::field("options.ttl_ms_min", rule)
        }
        (None, _) => {
            let rule = format!("must be at least ttl_ms_min, which is {min} unless given; got {max}");
            Invalid::field("options.ttl_ms_max", rule)
        }
        (Some(_), Some(_)) => {
            Invalid::field("options.ttl_ms_max", format!("must be at least ttl_ms_min, {min}; got {max}"))
        }
    })
}

fn on_conflict(options: &Fields<'_>) -> Result<OnConflict, Invalid> {
    const RULE: &str = "must be \"takeover\" or \"reject\"";
    match options.get("on_conflict") {
        None => Ok(OnConflict::default()),
        Some(Json::Text(name)) if name == "takeover" => Ok(OnConflict::Takeover),
        Some(Json::Text(name)) if name == "reject" => Ok(OnConflict::Reject),
        Some(other) => {
            let got = if matches!(other, Json::Text(_)) { "another string" } else { other.describe() };
            Err(Invalid::field("options.on_conflict", format!("{RULE}; got {got}")))
        }
    }
}
