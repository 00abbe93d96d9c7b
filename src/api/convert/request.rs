//! The body of each command, as `docs/api.md` lists it, and what it becomes.

use std::ops::RangeInclusive;
use std::sync::Arc;

use tenure_client::wire::{TTL_MS_DEFAULT, TTL_MS_MAX};

use super::INTEGER_LIMIT;
use super::fields::{Fields, Invalid, text};
use super::json::Json;
use crate::keyspace::{Acquire, Command, Key, LeaseOptions, TokenHash, token_hash};

const KEY_BYTES: RangeInclusive<usize> = 1..=1024;
const OWNER_BYTES: RangeInclusive<usize> = 1..=256;
const TOKEN_BYTES: RangeInclusive<usize> = 1..=256;
const NOTE_BYTES: RangeInclusive<usize> = 0..=1024;
const REASON_BYTES: RangeInclusive<usize> = 1..=1024;
const PREFIX_BYTES: RangeInclusive<usize> = 0..=1024;
const DURATION_MS: RangeInclusive<u64> = 0..=TTL_MS_MAX;
const LIFETIME_MS: RangeInclusive<u64> = 1..=TTL_MS_MAX;
const WAIT_MS: RangeInclusive<u64> = 0..=86_400_000;
const NODE_ID: RangeInclusive<u64> = 1..=INTEGER_LIMIT - 1;
const FENCE: RangeInclusive<u64> = 1..=INTEGER_LIMIT - 1;
const SCAN_LIMIT: RangeInclusive<u64> = 1..=1000;
const SCAN_LIMIT_DEFAULT: u64 = 100;
/// Keys of one DEL and items of one BATCH.
const ITEMS_MAX: usize = 1000;

/// The commands of `POST /v1/{COMMAND}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Make a key.
    Create,
    /// An operation on a lease.
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
        ask: Acquire,
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
                Command::Wait(_) => "ACQUIRE",
                Command::AllOrNothing(_) => "BATCH",
                Command::Detach { .. } | Command::Cancel { .. } | Command::Presence { .. } | Command::Away { .. } => "",
            },
            Self::Wait { .. } => "ACQUIRE",
            Self::Read(query) => match query {
                Query::Held { .. } => "HELD",
                Query::Check { .. } => "CHECK",
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
        /// The lease.
        key: Key,
        /// Is it this one's?
        token: Option<TokenHash>,
    },
    /// OP CHECK.
    Check {
        /// The lease.
        key: Key,
        /// Is this the live grant's fence?
        fence: u64,
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

/// Reads the body of a `kind`.
///
/// # Errors
/// [`Invalid`], naming the field and the rule.
pub fn request(kind: Kind, body: &[u8]) -> Result<Request, Invalid> {
    let json = parsed(body, "{\"key\":\"example\"}")?;
    match kind {
        Kind::Batch => batch(&json).map(Request::Write),
        _ => single(kind, &json, &[]),
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
fn single<'a>(kind: Kind, json: &'a Json<'a>, envelope: &[&str]) -> Result<Request, Invalid> {
    let fields = |known: &[&str]| Fields::open(json, "", &[envelope, known].concat());
    let only_key = || fields(&["key"]).and_then(|body| key(&body));
    Ok(match kind {
        Kind::Create => Request::Write(create(&fields(&["key", "type", "options"])?)?),
        Kind::Op => operation(&fields(&["key", "operation", "args"])?)?,
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

fn key(body: &Fields<'_>) -> Result<Key, Invalid> {
    body.text("key", KEY_BYTES).map(Arc::from)
}

fn create(body: &Fields<'_>) -> Result<Command, Invalid> {
    let key = key(body)?;
    const RULE: &str = "must be \"lease\"";
    match body.require("type", || RULE.to_owned())? {
        Json::Text(name) if name == "lease" => {}
        Json::Text(name) if name == "pool" => {
            return Err(Invalid::field("type", "\"pool\" is not served by this version; it must be \"lease\""));
        }
        Json::Text(_) => return Err(Invalid::field("type", format!("{RULE}; got another string"))),
        other => return Err(Invalid::field("type", format!("{RULE}; got {}", other.describe()))),
    }
    let options = match body.get("options") {
        None => LeaseOptions::default(),
        Some(json) => {
            let options = Fields::open(json, "options", &["delay_ms", "min_hold_ms", "ttl_ms_max"])?;
            LeaseOptions {
                delay_ms: options.integer_if_given("delay_ms", DURATION_MS)?.unwrap_or(0),
                min_hold_ms: options.integer_if_given("min_hold_ms", DURATION_MS)?.unwrap_or(0),
                ttl_ms_max: options.integer_if_given("ttl_ms_max", LIFETIME_MS)?,
            }
        }
    };
    Ok(Command::Create { key, options })
}

fn operation(body: &Fields<'_>) -> Result<Request, Invalid> {
    const RULE: &str = "must be one of ACQUIRE, RENEW, RELEASE, HELD, BREAK, CHECK";
    let key = key(body)?;
    let Json::Text(name) = body.require("operation", || RULE.to_owned())? else {
        let got = body.get("operation").map_or("nothing", Json::describe);
        return Err(Invalid::field("operation", format!("{RULE}; got {got}")));
    };
    let none = Json::Object(Vec::new());
    let json = body.get("args").unwrap_or(&none);
    let args = |known: &[&str]| Fields::open(json, "args", known);
    Ok(match name.as_ref() {
        "ACQUIRE" => acquire(key, &args(&ACQUIRE_ARGS)?)?,
        "RENEW" => {
            let args = args(&["token", "ttl_ms", "fence"])?;
            let (token, ttl_ms) = (token(&key, &args)?, ttl_ms(&args)?);
            let fence = args.integer_if_given("fence", FENCE)?;
            Request::Write(Command::Renew { key, token, ttl_ms, fence })
        }
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
        "BREAK" => {
            let args = args(&["reason", "grace_ms", "fence"])?;
            let reason = args.text("reason", REASON_BYTES)?.into();
            let grace_ms = args.integer_if_given("grace_ms", DURATION_MS)?.unwrap_or(0);
            let fence = args.integer_if_given("fence", FENCE)?;
            Request::Write(Command::Break { key, reason, grace_ms, fence })
        }
        "CHECK" => Request::Read(Query::Check { key, fence: args(&["fence"])?.integer("fence", FENCE)? }),
        _ => return Err(Invalid::field("operation", format!("{RULE} (upper case); got another string"))),
    })
}

const ACQUIRE_ARGS: [&str; 9] =
    ["owner", "token", "ttl_ms", "wait_ms", "create", "note", "min_hold_ms", "delay_ms", "once"];

fn acquire(key: Key, args: &Fields<'_>) -> Result<Request, Invalid> {
    let owner = args.text("owner", OWNER_BYTES)?.into();
    let token = token(&key, args)?;
    let ttl_ms = ttl_ms(args)?;
    let wait_ms = args.integer_if_given("wait_ms", WAIT_MS)?.unwrap_or(0);
    let ask = Acquire {
        owner,
        token,
        ttl_ms,
        create: args.flag_if_given("create")?.unwrap_or(false),
        note: args.text_if_given("note", NOTE_BYTES)?.map(Arc::from),
        min_hold_ms: args.integer_if_given("min_hold_ms", DURATION_MS)?,
        delay_ms: args.integer_if_given("delay_ms", DURATION_MS)?,
        once: args.flag_if_given("once")?.unwrap_or(false),
        key,
    };
    Ok(if wait_ms == 0 { Request::Write(Command::Acquire(ask)) } else { Request::Wait { ask, wait_ms } })
}

fn token(key: &Key, args: &Fields<'_>) -> Result<TokenHash, Invalid> {
    args.text("token", TOKEN_BYTES).map(|token| token_hash(key, token))
}

/// A wanted lifetime. Zero or negative is no error: the machine answers false `ttl_not_positive`.
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
    let limit = body.integer_if_given("limit", SCAN_LIMIT)?.unwrap_or(SCAN_LIMIT_DEFAULT);
    Ok(Query::Scan {
        prefix: body.text_if_given("prefix", PREFIX_BYTES)?.unwrap_or_default().to_owned(),
        cursor: body.text_if_given("cursor", KEY_BYTES)?.map(str::to_owned),
        limit: usize::try_from(limit).map_err(|_| Invalid::field("limit", "is too large"))?,
    })
}

fn batch<'a>(json: &'a Json<'a>) -> Result<Command, Invalid> {
    let body = Fields::open(json, "", &["commands", "all_or_nothing"])?;
    let all_or_nothing = body.flag_if_given("all_or_nothing")?.unwrap_or(false);
    let items = array(&body, "commands", "must be an array of 1..=1000 commands")?;
    let item = if all_or_nothing { whole_item } else { batch_item };
    let commands = items.iter().enumerate().map(|(index, json)| item(json).map_err(|e| e.in_item(index)));
    let commands = commands.collect::<Result<_, _>>()?;
    Ok(if all_or_nothing { Command::AllOrNothing(commands) } else { Command::Batch(commands) })
}

/// One item of a BATCH that is done as a whole or not at all.
fn whole_item<'a>(json: &'a Json<'a>) -> Result<Command, Invalid> {
    const RULE: &str = "must be ACQUIRE, RENEW or RELEASE in a BATCH with all_or_nothing";
    match batch_item(json)? {
        command @ (Command::Acquire(_) | Command::Renew { .. } | Command::Release { .. }) => Ok(command),
        Command::Held { .. } | Command::Check { .. } | Command::Break { .. } => Err(Invalid::field("operation", RULE)),
        _ => Err(Invalid::field("command", "must be OP in a BATCH with all_or_nothing: ACQUIRE, RENEW or RELEASE")),
    }
}

/// One item: `{"command":…, …its body}`.
fn batch_item<'a>(json: &'a Json<'a>) -> Result<Command, Invalid> {
    const RULE: &str = "must be one of CREATE, OP, EXPIRE, PERSIST, DEL, GET";
    let Json::Object(entries) = json else {
        return Err(Invalid::field("commands", format!("must hold JSON objects; got {}", json.describe())));
    };
    let kind = match entries.iter().find(|(name, _)| name.0 == "command").map(|(_, json)| json) {
        Some(Json::Text(name)) => Kind::named(name),
        Some(other) => return Err(Invalid::field("command", format!("{RULE}; got {}", other.describe()))),
        None => return Err(Invalid::field("command", format!("is missing: it {RULE}"))),
    };
    let kind = kind
        .filter(|kind| matches!(kind, Kind::Create | Kind::Op | Kind::Expire | Kind::Persist | Kind::Del | Kind::Get));
    let kind = kind.ok_or_else(|| Invalid::field("command", RULE))?;
    match single(kind, json, &["command"])? {
        Request::Write(command) => Ok(command),
        Request::Read(Query::Get(key)) => Ok(Command::Get { key }),
        Request::Read(Query::Held { key, token }) => Ok(Command::Held { key, token }),
        Request::Read(Query::Check { key, fence }) => Ok(Command::Check { key, fence }),
        Request::Wait { .. } => Err(Invalid::field("args.wait_ms", "must be 0 in a BATCH: nothing waits there")),
        Request::Read(_) => Err(Invalid::field("command", RULE)),
    }
}

/// An array of 1..=1000 items.
fn array<'a>(body: &Fields<'a>, name: &str, rule: &str) -> Result<&'a [Json<'a>], Invalid> {
    match body.require(name, || rule.to_owned())? {
        Json::Array(items) if (1..=ITEMS_MAX).contains(&items.len()) => Ok(items),
        Json::Array(items) => Err(Invalid::field(name, format!("{rule}; got {}", items.len()))),
        other => Err(Invalid::field(name, format!("{rule}; got {}", other.describe()))),
    }
}
