//! The body of each command, as `docs/api.md` lists it, and what it becomes. CREATE stands in `create`, OP in
//! `operation`, BATCH in `batch`.

use std::ops::RangeInclusive;
use std::sync::Arc;

use tenure_client::wire::TTL_MS_MAX;

use super::fields::{Fields, Invalid, text};
use super::json::Json;
use super::{INTEGER_LIMIT, batch, create, operation};
use crate::edge::Ask;
use crate::keyspace::{Command, Holders, Key, PoolUuid, TokenHash};

const KEY_BYTES: RangeInclusive<usize> = 1..=1024;
const PREFIX_BYTES: RangeInclusive<usize> = 0..=1024;
pub(super) const DURATION_MS: RangeInclusive<u64> = 0..=TTL_MS_MAX;
pub(super) const LIFETIME_MS: RangeInclusive<u64> = 1..=TTL_MS_MAX;
const NODE_ID: RangeInclusive<u64> = 1..=INTEGER_LIMIT - 1;
pub(super) const FENCE: RangeInclusive<u64> = 1..=INTEGER_LIMIT - 1;
const PAGE_LIMIT: RangeInclusive<u64> = 1..=1000;
const PAGE_LIMIT_DEFAULT: u64 = 100;
/// Keys of one DEL and items of one BATCH.
const ITEMS_MAX: usize = 1000;

/// The commands of `POST /v1/{COMMAND}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Make a key.
    Create,
    /// An operation on a lease or a pool.
    Op,
    /// A key's snapshot.
    Get,
    /// A key's type.
    Type,
    /// Is there such a key?
    Exists,
    /// Give a key a lifetime.
    Expire,
    /// A key's remaining lifetime.
    Ttl,
    /// Take a key's lifetime away.
    Persist,
    /// Delete keys.
    Del,
    /// List keys.
    Scan,
    /// Several commands in one entry.
    Batch,
}

impl Kind {
    const ALL: [(&'static str, Self); 11] = [
        ("CREATE", Self::Create),
        ("OP", Self::Op),
        ("GET", Self::Get),
        ("TYPE", Self::Type),
        ("EXISTS", Self::Exists),
        ("EXPIRE", Self::Expire),
        ("TTL", Self::Ttl),
        ("PERSIST", Self::Persist),
        ("DEL", Self::Del),
        ("SCAN", Self::Scan),
        ("BATCH", Self::Batch),
    ];

    /// The command of that name; names are upper case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// All names, for people.
    pub fn names() -> String {
        Self::ALL.map(|(name, _)| name).join(", ")
    }
}

/// A command that keeps every rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Goes through the log.
    Write(Command),
    /// OP ACQUIRE with `wait_ms` above 0: the edge gives it its `Attach`.
    Wait {
        /// What is asked for.
        ask: Ask,
        /// How long to wait for it: 1..=86 400 000.
        wait_ms: u64,
    },
    /// Never logged.
    Read(Query),
}

impl Request {
    /// What it is counted as: the operation of an OP, else the command.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Write(command) => match command {
                Command::Create { .. } => "CREATE",
                Command::Acquire(_) => "ACQUIRE",
                Command::Renew { .. } => "RENEW",
                Command::Release { .. } => "RELEASE",
                Command::Break { .. } => "BREAK",
                Command::Expire { .. } => "EXPIRE",
                Command::Persist { .. } => "PERSIST",
                Command::Del { .. } => "DEL",
                Command::Batch(_) => "BATCH",
                Command::Get { .. } => "GET",
                Command::Held { .. } => "HELD",
                Command::Check { .. } => "CHECK",
                Command::CreatePool { .. } => "CREATE",
                Command::AcquireSlot(_) | Command::WaitSlot(_) => "ACQUIRE",
                Command::RenewSlot { .. } => "RENEW",
                Command::BreakSlot { .. } => "BREAK",
                Command::Resize { .. } => "RESIZE",
                Command::Wait(_) => "ACQUIRE",
                Command::AllOrNothing(_) => "BATCH",
                Command::Detach { .. } | Command::Cancel { .. } | Command::Presence { .. } | Command::Away { .. } => "",
            },
            Self::Wait { .. } => "ACQUIRE",
            Self::Read(query) => match query {
                Query::Held { .. } => "HELD",
                Query::Check { .. } => "CHECK",
                Query::Holders { .. } => "HOLDERS",
                Query::Get(_) => "GET",
                Query::Type(_) => "TYPE",
                Query::Exists(_) => "EXISTS",
                Query::Ttl(_) => "TTL",
                Query::Scan { .. } => "SCAN",
            },
        }
    }
}

/// A read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// OP HELD.
    Held {
        /// The lease or pool.
        key: Key,
        /// Is it this one's?
        token: Option<TokenHash>,
    },
    /// OP CHECK.
    Check {
        /// The lease or pool.
        key: Key,
        /// Is this the fence of a live grant?
        fence: u64,
    },
    /// OP HOLDERS.
    Holders {
        /// The pool.
        key: Key,
        /// Which of its slots.
        which: Holders,
    },
    /// GET.
    Get(Key),
    /// TYPE.
    Type(Key),
    /// EXISTS.
    Exists(Key),
    /// TTL.
    Ttl(Key),
    /// SCAN.
    Scan {
        /// Keys that start with it.
        prefix: String,
        /// Keys strictly after it.
        cursor: Option<String>,
        /// At most so many, 1..=1000.
        limit: usize,
    },
}

/// Reads the body of a `kind`. A pool that it makes gets the uuid `drawn`; each pool of a BATCH another one, made of it.
///
/// # Errors
/// [`Invalid`], naming the field and the rule.
pub fn request(kind: Kind, body: &[u8], drawn: PoolUuid) -> Result<Request, Invalid> {
    let json = parsed(body, "{\"key\":\"example\"}")?;
    match kind {
        Kind::Batch => batch::commands(&json, drawn).map(Request::Write),
        _ => single(kind, &json, &[], drawn),
    }
}

/// The body of an operator's request that names a node: `{"node_id": 3}`.
///
/// # Errors
/// [`Invalid`], naming the field and the rule.
pub fn node_id(body: &[u8]) -> Result<u64, Invalid> {
    let json = parsed(body, "{\"node_id\":3}")?;
    Fields::open(&json, "", &["node_id"])?.integer("node_id", NODE_ID)
}

fn parsed<'a>(body: &'a [u8], example: &str) -> Result<Json<'a>, Invalid> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Invalid::body(format!("the body is empty; send a JSON object, e.g. {example}")));
    }
    // serde_json's text ends with line and column.
    serde_json::from_slice(body).map_err(|error| Invalid::body(format!("the body is not valid JSON: {error}")))
}

/// A command by itself (`envelope` empty) or an item of a BATCH (`envelope` = its `command` field).
pub(super) fn single<'a>(
    kind: Kind,
    json: &'a Json<'a>,
    envelope: &[&str],
    drawn: PoolUuid,
) -> Result<Request, Invalid> {
    let fields = |known: &[&str]| Fields::open(json, "", &[envelope, known].concat());
    let only_key = || fields(&["key"]).and_then(|body| key(&body));
    Ok(match kind {
        Kind::Create => Request::Write(create::create(&fields(&["key", "type", "options"])?, drawn)?),
        Kind::Op => operation::operation(&fields(&["key", "operation", "args"])?)?,
        Kind::Get => Request::Read(Query::Get(only_key()?)),
        Kind::Type => Request::Read(Query::Type(only_key()?)),
        Kind::Exists => Request::Read(Query::Exists(only_key()?)),
        Kind::Ttl => Request::Read(Query::Ttl(only_key()?)),
        Kind::Persist => Request::Write(Command::Persist { key: only_key()? }),
        Kind::Expire => {
            let body = fields(&["key", "ttl_ms"])?;
            Request::Write(Command::Expire { key: key(&body)?, ttl_ms: body.integer("ttl_ms", LIFETIME_MS)? })
        }
        Kind::Del => Request::Write(del(&fields(&["keys", "fence"])?)?),
        Kind::Scan => Request::Read(scan(&fields(&["prefix", "limit", "cursor"])?)?),
        Kind::Batch => return Err(Invalid::field("command", "must not be BATCH inside a BATCH")),
    })
}

pub(super) fn key(body: &Fields<'_>) -> Result<Key, Invalid> {
    body.text("key", KEY_BYTES).map(Arc::from)
}

fn del(body: &Fields<'_>) -> Result<Command, Invalid> {
    const RULE: &str = "must be an array of 1..=1000 keys";
    let items = array(body, "keys", RULE)?;
    let keys = items
        .iter()
        .enumerate()
        .map(|(n, json)| text(json, || format!("keys[{n}]"), &KEY_BYTES).map(Arc::from))
        .collect::<Result<_, _>>()?;
    Ok(Command::Del { keys, fence: body.integer_if_given("fence", FENCE)? })
}

fn scan(body: &Fields<'_>) -> Result<Query, Invalid> {
    Ok(Query::Scan {
        prefix: body.text_if_given("prefix", PREFIX_BYTES)?.unwrap_or_default().to_owned(),
        cursor: body.text_if_given("cursor", KEY_BYTES)?.map(str::to_owned),
        limit: page_limit(body)?,
    })
}

/// How many a page of a list holds at most.
pub(super) fn page_limit(fields: &Fields<'_>) -> Result<usize, Invalid> {
    let limit = fields.integer_if_given("limit", PAGE_LIMIT)?.unwrap_or(PAGE_LIMIT_DEFAULT);
    usize::try_from(limit).map_err(|_| Invalid::field(fields.full("limit"), "is too large"))
}

/// An array of 1..=1000 items.
pub(super) fn array<'a>(body: &Fields<'a>, name: &str, rule: &str) -> Result<&'a [Json<'a>], Invalid> {
    match body.require(name, || rule.to_owned())? {
        Json::Array(items) if (1..=ITEMS_MAX).contains(&items.len()) => Ok(items),
        Json::Array(items) => Err(Invalid::field(name, format!("{rule}; got {}", items.len()))),
        other => Err(Invalid::field(name, format!("{rule}; got {}", other.describe()))),
    }
}
