//! Golden scripts: `scripts/*` beside the code, run by `goldenscript`. `UPDATE_GOLDENFILES=1 cargo test` writes the
//! answers anew; a reviewer reads the difference.
//!
//! A command of a script is one log entry of its own: timers fire, then the command is applied. A line of the answer is
//! `command → reply`, a line with `*` an event. Time stands still but for:
//! - `wait 5s`: time passes and an entry without a command (a tick) comes in, as when a timer is due;
//! - `stall 5s`: time passes, and no timer fires until the next `wait`: a backlog that cleaning has not reached.
//!
//! `wait_for` is an ACQUIRE that waits (`for=10m`), by `request=7` at `edge=1.1` (node and life; that is the default);
//! `detach` and `cancel` name the same, `presence` and `away` an edge.
//!
//! Of a pool (`pool_script`): `create_pool`, `resize` and `holders`; `acquire` and `wait_for` with an `identity=` ask for its
//! slot, without for an anonymous one; `unix=5s` is a holder's wall clock, counted from the script's start as stamps are.
//!
//! Reads lean on the last applied stamp; `ahead=5s` sets the leader's clock ahead of it. `batch` gathers the commands up
//! to `end` into one, and so does `all` (all or nothing). `restart` saves and loads; `set fence=`, `set keys_max=` and `set queue_max= waiters_max=`
//! are hooks of the test. A token is a
//! name, and so is the owner unless given.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use goldenscript::Command as Line;
use tenure_cluster::{Moment, NeedsTick, Position, ReadAt, StateMachine};

use super::{pool_script, pool_text, text};
use crate::keyspace::{
    Acquire, Attach, Command, EdgeId, Event, Keyspace, LeaseOptions, TokenHash, Wait, WaitSlot, token_hash,
};

type Answer = Result<String, Box<dyn Error>>;

/// One script's machine, and the clock and log position that a cluster would keep.
#[derive(Default)]
struct Script {
    keyspace: Keyspace,
    at: Moment,
    stalled: bool,
    /// Commands of the BATCH that is being gathered, and whether all must be done.
    batch: Option<(Vec<Command>, bool)>,
}

/// A line's arguments by name; positional ones are taken in order.
pub(super) struct Args<'a> {
    words: Vec<&'a str>,
    pub named: BTreeMap<&'a str, &'a str>,
}

impl<'a> Args<'a> {
    fn of(line: &'a Line) -> Result<Self, Box<dyn Error>> {
        let mut args = line.consume_args();
        let words = std::iter::from_fn(|| args.next_pos()).collect();
        let named = std::iter::from_fn(|| args.next_key()).collect();
        args.reject_next()?;
        Ok(Self { words, named })
    }

    pub fn key(&mut self) -> Result<Arc<str>, Box<dyn Error>> {
        if self.words.is_empty() { Err("which key?".into()) } else { Ok(Arc::from(self.words.remove(0))) }
    }

    pub fn text(&mut self, name: &str) -> Option<Arc<str>> {
        self.named.remove(name).map(Arc::from)
    }

    pub fn flag(&mut self, name: &str) -> bool {
        self.named.remove(name) == Some("true")
    }

    pub fn number(&mut self, name: &str) -> Result<Option<u64>, Box<dyn Error>> {
        Ok(self.named.remove(name).map(str::parse).transpose()?)
    }

    pub fn ms(&mut self, name: &str) -> Result<Option<i64>, Box<dyn Error>> {
        self.named.remove(name).map(duration_ms).transpose()
    }

    pub fn positive_ms(&mut self, name: &str) -> Result<Option<u64>, Box<dyn Error>> {
        Ok(self.ms(name)?.map(u64::try_from).transpose()?)
    }

    pub fn token(&mut self, key: &str) -> Result<TokenHash, Box<dyn Error>> {
        Ok(token_hash(key, self.named.remove("token").ok_or("whose token?")?))
    }

    pub fn edge(&mut self) -> Result<EdgeId, Box<dyn Error>> {
        let edge = self.named.remove("edge").unwrap_or("1.1");
        let (node, incarnation) = edge.split_once('.').ok_or("which life?")?;
        Ok(EdgeId { node: node.parse()?, incarnation: incarnation.parse()? })
    }

    pub fn attach(&mut self) -> Result<Attach, Box<dyn Error>> {
        Ok(Attach { edge: self.edge()?, request: self.number("request")?.ok_or("which request?")? })
    }

    fn end(self) -> Result<(), Box<dyn Error>> {
        if self.words.is_empty() && self.named.is_empty() {
            return Ok(());
        }
        Err(format!("not understood: {:?} {:?}", self.words, self.named).into())
    }
}

fn duration_ms(text: &str) -> Result<i64, Box<dyn Error>> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let (digits, unit) = units
        .iter()
        .find_map(|(suffix, unit)| {
            text.strip_suffix(suffix).filter(|d| d.parse::<i64>().is_ok()).map(|digits| (digits, unit))
        })
        .ok_or_else(|| format!("{text}: which unit?"))?;
    Ok(digits.parse::<i64>()? * unit)
}

fn acquire(key: Arc<str>, args: &mut Args<'_>) -> Result<Acquire, Box<dyn Error>> {
    let name = *args.named.get("token").ok_or("whose token?")?;
    Ok(Acquire {
        token: args.token(&key)?,
        key,
        owner: args.text("owner").unwrap_or_else(|| Arc::from(name)),
        ttl_ms: args.ms("ttl")?.unwrap_or(30_000),
        create: args.flag("create"),
        note: args.text("note"),
        min_hold_ms: args.positive_ms("min_hold")?,
        delay_ms: args.positive_ms("delay")?,
        once: args.flag("once"),
    })
}

/// A line as a command of waiting.
fn waiting(name: &str, args: &mut Args<'_>) -> Result<Option<Command>, Box<dyn Error>> {
    Ok(Some(match name {
        "presence" => Command::Presence { edge: args.edge()? },
        "away" => Command::Away { edge: args.edge()? },
        "wait_for" => {
            let wait_ms = args.positive_ms("for")?.unwrap_or(600_000);
            let attach = args.attach()?;
            if args.named.contains_key("identity") {
                let ask = pool_script::acquire(args.key()?, args)?;
                return Ok(Some(Command::WaitSlot(WaitSlot { ask, wait_ms, attach })));
            }
            Command::Wait(Wait { ask: acquire(args.key()?, args)?, wait_ms, attach })
        }
        "detach" | "cancel" => {
            let key = args.key()?;
            let (token, attach) = (args.token(&key)?, args.attach()?);
            if name == "detach" {
                Command::Detach { key, token, attach }
            } else {
                Command::Cancel { key, token, attach }
            }
        }
        _ => return Ok(None),
    }))
}

/// A line as a command of the log, `None` if it is something else.
fn command(name: &str, args: &mut Args<'_>) -> Result<Option<Command>, Box<dyn Error>> {
    if name == "del" {
        let keys = std::mem::take(&mut args.words).into_iter().map(Arc::from).collect();
        return Ok(Some(Command::Del { keys, fence: args.number("fence")? }));
    }
    if let Some(command) = pool_script::command(name, args)? {
        return Ok(Some(command));
    }
    if let Some(command) = waiting(name, args)? {
        return Ok(Some(command));
    }
    if !["create", "acquire", "renew", "release", "break", "expire", "persist"].contains(&name) {
        return Ok(None);
    }
    let key = args.key()?;
    Ok(Some(match name {
        "create" => {
            let options = LeaseOptions {
                delay_ms: args.positive_ms("delay")?.unwrap_or(0),
                min_hold_ms: args.positive_ms("min_hold")?.unwrap_or(0),
                ttl_ms_max: args.positive_ms("ttl_max")?,
            };
            Command::Create { key, options }
        }
        "acquire" => Command::Acquire(acquire(key, args)?),
        "renew" => {
            let (token, fence) = (args.token(&key)?, args.number("fence")?);
            Command::Renew { key, token, ttl_ms: args.ms("ttl")?.unwrap_or(30_000), fence }
        }
        "release" => Command::Release { token: args.token(&key)?, key, fence: args.number("fence")? },
        "break" => {
            let reason = args.text("reason").ok_or("why?")?;
            let grace_ms = args.positive_ms("grace")?.unwrap_or(0);
            Command::Break { key, reason, grace_ms, fence: args.number("fence")? }
        }
        "expire" => Command::Expire { key, ttl_ms: args.positive_ms("ttl")?.ok_or("how long?")? },
        _ => Command::Persist { key },
    }))
}

/// HELD, CHECK and GET as items of a BATCH.
fn read_item(name: &str, args: &mut Args<'_>) -> Result<Command, Box<dyn Error>> {
    let key = args.key()?;
    Ok(match name {
        "get" => Command::Get { key },
        "held" if args.named.is_empty() => Command::Held { key, token: None },
        "held" => Command::Held { token: Some(args.token(&key)?), key },
        "check" => Command::Check { key, fence: args.number("fence")?.ok_or("which fence?")? },
        _ => return Err(format!("{name}: no such command in a batch").into()),
    })
}

impl Script {
    /// Time passes.
    fn pass(&mut self, duration: &str) -> Result<(), Box<dyn Error>> {
        self.at.stamp = self.at.stamp.plus_ms(u64::try_from(duration_ms(duration)?)?);
        Ok(())
    }

    /// One log entry.
    fn entry(&mut self, command: Option<Command>) -> String {
        self.at.position.index += 1;
        self.at.wall_ms = self.at.stamp.ms_since(text::START);
        let mut events: Vec<Event> = Vec::new();
        if !self.stalled {
            self.keyspace.advance(&self.at, &mut events);
        }
        let reply = command.map(|command| text::reply(&self.keyspace.apply(&self.at, command, &mut events)));
        let events: String = events.iter().map(|event| format!("\n  {}", text::event(event))).collect();
        format!("{}{events}", reply.unwrap_or_default())
    }

    fn restart(&mut self) -> String {
        let mut bytes = Vec::new();
        self.keyspace.save(&mut bytes).unwrap();
        self.keyspace = Keyspace::load(&mut bytes.as_slice()).unwrap();
        let mut again = Vec::new();
        self.keyspace.save(&mut again).unwrap();
        assert_eq!(bytes, again);
        "same state".to_owned()
    }

    fn read(&self, name: &str, args: &mut Args<'_>) -> Result<Result<String, NeedsTick>, Box<dyn Error>> {
        let ahead = args.positive_ms("ahead")?.unwrap_or(0);
        let at = ReadAt { applied: self.at.stamp, now: self.at.stamp.plus_ms(ahead) };
        if name == "scan" {
            let (prefix, cursor) = (args.text("prefix").unwrap_or_default(), args.text("cursor"));
            let limit = usize::try_from(args.number("limit")?.unwrap_or(100))?;
            return Ok(self.keyspace.scan(&prefix, cursor.as_deref(), limit, at).map(|page| text::page(&page)));
        }
        let standing = |reply: Result<_, _>| reply.map_or_else(|why| text::refusal(&why), text::standing);
        let key = args.key()?;
        Ok(match name {
            "get" => self.keyspace.get(&key, at).map(|shown| shown.map_or("null".to_owned(), |one| text::shown(&one))),
            "held" => {
                let token = if args.named.is_empty() { None } else { Some(args.token(&key)?) };
                self.keyspace.held(&key, token, at).map(standing)
            }
            "check" => {
                let fence = args.number("fence")?.ok_or("which fence?")?;
                self.keyspace.check(&key, fence, at).map(standing)
            }
            "holders" => {
                let which = pool_script::holders(args)?;
                let page = self.keyspace.holders(&key, &which, at);
                page.map(|page| page.map_or_else(|why| text::refusal(&why), |page| pool_text::holders(&page)))
            }
            "exists" => self.keyspace.exists(&key, at).map(|exists| exists.to_string()),
            "ttl" => self.keyspace.key_ttl(&key, at).map(text::key_ttl),
            _ => return Err(format!("{name}: no such command").into()),
        })
    }

    fn stats(&self) -> String {
        let machine = &self.keyspace;
        let (keys, grants, wake) = (machine.keys(), machine.grants(), machine.wake().map(text::stamp));
        let longest = text::ms(machine.longest_ttl_ms());
        let edges: String = machine.edges().map(|edge| format!(" {}.{}", edge.node, edge.incarnation)).collect();
        let waiting = match machine.waiters() {
            0 => String::new(),
            waiters => format!(" waiters={waiters} edges:{edges}"),
        };
        format!("keys={keys} grants={grants} wake={wake:?} longest_ttl={longest}{waiting}")
    }

    fn control(&mut self, name: &str, args: &mut Args<'_>) -> Result<Option<String>, Box<dyn Error>> {
        Ok(Some(match name {
            "wait" => {
                self.pass(&args.key()?)?;
                self.stalled = false;
                let events = self.entry(None);
                format!("now {}{events}", text::stamp(self.at.stamp))
            }
            "stall" => {
                self.pass(&args.key()?)?;
                self.stalled = true;
                format!("now {}", text::stamp(self.at.stamp))
            }
            "restart" => self.restart(),
            "set" => {
                if let Some(fence) = args.number("fence")? {
                    self.keyspace.fence = fence;
                }
                if let Some(keys_max) = args.number("keys_max")? {
                    self.keyspace = self.keyspace.clone().with_keys_max(usize::try_from(keys_max)?);
                }
                if let Some(queue_max) = args.number("queue_max")? {
                    let waiters_max = args.number("waiters_max")?.ok_or("how many in all?")?;
                    let (queue_max, waiters_max) = (usize::try_from(queue_max)?, usize::try_from(waiters_max)?);
                    self.keyspace = self.keyspace.clone().with_waiters_max(queue_max, waiters_max);
                }
                String::new()
            }
            "stats" => self.stats(),
            "batch" | "all" => {
                self.batch = Some((Vec::new(), name == "all"));
                String::new()
            }
            "end" => {
                let (commands, all) = self.batch.take().ok_or("no batch")?;
                self.entry(Some(if all { Command::AllOrNothing(commands) } else { Command::Batch(commands) }))
            }
            _ => return Ok(None),
        }))
    }
}

impl goldenscript::Runner for Script {
    type Command = Line;

    fn start_script(&mut self) -> Result<(), Box<dyn Error>> {
        self.at = Moment { stamp: text::START, position: Position::default(), wall_ms: 0 };
        Ok(())
    }

    fn run(&mut self, line: &Line, _: &goldenscript::Context) -> Answer {
        let mut args = Args::of(line)?;
        let name = line.name.as_str();
        let answer = if let Some(answer) = self.control(name, &mut args)? {
            answer
        } else if let Some((batch, _)) = &mut self.batch {
            let item = command(name, &mut args)?.map_or_else(|| read_item(name, &mut args), Ok)?;
            batch.push(item);
            String::new()
        } else if let Some(command) = command(name, &mut args)? {
            self.entry(Some(command))
        } else {
            self.read(name, &mut args)?.unwrap_or_else(|NeedsTick| "needs a tick".to_owned())
        };
        args.end()?;
        let space = if answer.starts_with('\n') { "" } else { " " };
        Ok(if answer.is_empty() { answer } else { format!("{line} →{space}{answer}") })
    }
}

#[test]
fn scripts_answer_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/keyspace/scripts");
    let mut scripts: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    assert!(!scripts.is_empty());
    for script in scripts {
        goldenscript::run(&mut Script::default(), &script)
            .unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    }
}
