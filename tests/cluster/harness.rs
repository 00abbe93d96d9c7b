//! A cluster of real processes: each with its own data directory and addresses, one secret; killed with the test.
//!
//! All nodes of a start are spawned before any is waited for: none is ready without the others.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_client::{Client, HostClock, Options};

use crate::history::now_ns;
use crate::http::{Http, Response};
use crate::ports;
pub use crate::process::SOON;
use crate::process::{Process, eventually, pass, tenure};
pub use crate::seat::{Plan, Seat};

/// How often addresses are chosen anew when somebody else took one.
const PORT_TRIES: usize = 5;
/// For a page about a node: it answers at once, or is stopped. A loaded machine may keep it for a moment.
const PAGE_WITHIN: Duration = Duration::from_secs(5);
/// Between two tries of a call.
const PACE: Duration = Duration::from_millis(20);

/// When a node was killed.
#[derive(Clone, Copy)]
pub struct Killed {
    /// Before the signal.
    pub sent_ns: u64,
    /// After the process was gone: what is asked for from here on, it did not answer.
    pub dead_ns: u64,
}

/// A cluster under test.
pub struct Cluster {
    // Before the directory: nodes must be gone before their files are.
    seats: BTreeMap<u64, Seat>,
    plan: Plan,
    dir: TempDir,
}

impl Cluster {
    /// Starts a cluster and awaits that every node is ready.
    pub fn start(plan: Plan) -> Self {
        Self::start_seated(plan, |_| {})
    }

    /// The same, after `change` has seen the seats.
    pub fn start_seated(plan: Plan, change: impl Fn(&mut Seat)) -> Self {
        for attempt in 1.. {
            let mut cluster = Self::seated(plan.clone());
            cluster.seats.values_mut().for_each(&change);
            cluster.spawn_all();
            match cluster.try_listening() {
                Ok(()) => {
                    cluster.ids().into_iter().for_each(|id| cluster.await_ready(id));
                    return cluster;
                }
                Err(said) => assert!(attempt < PORT_TRIES && said.contains("cannot listen"), "no start: {said}"),
            }
        }
        unreachable!("the last attempt panics");
    }

    /// Chooses addresses and makes directories; starts nothing.
    pub fn seated(plan: Plan) -> Self {
        let dir = TempDir::new().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "the shared secret of a cluster under test\n").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let seat = |id| Seat {
            id,
            data: dir.path().join(format!("node-{id}")),
            client: ports::free(),
            peer: ports::free(),
            launcher: Vec::new(),
            flags: Vec::new(),
            environment: Vec::new(),
            process: None,
            stopped: false,
        };
        let seats = (1..=plan.nodes).map(|id| (id, seat(id))).collect();
        Self { seats, plan, dir }
    }

    /// All ids.
    pub fn ids(&self) -> Vec<u64> {
        self.seats.keys().copied().collect()
    }

    /// All ids but this one.
    pub fn others(&self, id: u64) -> Vec<u64> {
        self.ids().into_iter().filter(|other| *other != id).collect()
    }

    /// A node's place.
    pub fn seat(&self, id: u64) -> &Seat {
        &self.seats[&id]
    }

    /// A node's place, to be changed before its next start.
    pub fn seat_mut(&mut self, id: u64) -> &mut Seat {
        self.seats.get_mut(&id).unwrap()
    }

    /// The command that starts the node, the same at each start.
    pub fn command(&self, id: u64) -> Command {
        let seat = &self.seats[&id];
        let mut command = tenure();
        if let Some((first, rest)) = seat.launcher.split_first() {
            let program = command.get_program().to_owned();
            let environment: Vec<_> =
                command.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
            command = Command::new(first);
            command.args(rest).arg(program).stdin(std::process::Stdio::null());
            environment.iter().filter(|(_, value)| value.is_none()).for_each(|(name, _)| {
                command.env_remove(name);
            });
        }
        let peers: Vec<String> = self.seats.values().map(|seat| format!("{}={}", seat.id, seat.peer)).collect();
        command.arg("serve").arg("--data").arg(&seat.data);
        command.args(["--node-id", &id.to_string(), "--listen", &seat.client.to_string()]);
        if self.plan.nodes > 1 {
            command.args(["--peer-listen", &seat.peer.to_string(), "--peers", &peers.join(",")]);
            command.arg("--cluster-secret-file").arg(self.dir.path().join("secret"));
        }
        command.args(&self.plan.flags).args(&seat.flags);
        command.envs(seat.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts the node's process; awaits nothing.
    pub fn spawn(&mut self, id: u64) {
        let command = self.command(id);
        let seat = self.seat_mut(id);
        assert!(seat.process.is_none(), "node {id} runs already");
        seat.process = Some(Process::start(command));
        seat.stopped = false;
    }

    /// Starts every node that is not running; awaits nothing.
    pub fn spawn_all(&mut self) {
        for id in self.ids() {
            if self.seats[&id].process.is_none() {
                self.spawn(id);
            }
        }
    }

    /// Awaits the start line of every node; what was said by one that ended instead.
    pub fn try_listening(&mut self) -> Result<(), String> {
        self.ids().into_iter().try_for_each(|id| self.try_listening_at(id))
    }

    fn try_listening_at(&mut self, id: u64) -> Result<(), String> {
        let process = self.process(id);
        let until = Instant::now() + SOON;
        let started = |line: &str| line.starts_with("tenure://").then_some(());
        loop {
            if process.lines.await_line(Duration::from_millis(50), started).is_some() {
                return Ok(());
            }
            if let Some(status) = process.ended() {
                return Err(format!("node {id} ended, {status}: {}", process.rest()));
            }
            assert!(Instant::now() < until, "node {id}: no start line: {}", process.lines.text());
        }
    }

    /// Starts the node and awaits its start line.
    pub fn restart(&mut self, id: u64) {
        self.spawn(id);
        if let Err(said) = self.try_listening_at(id) {
            panic!("{said}");
        }
    }

    /// Starts every node that is not running and awaits that all are ready.
    pub fn restart_all(&mut self) {
        self.spawn_all();
        if let Err(said) = self.try_listening() {
            panic!("{said}");
        }
        self.ids().into_iter().for_each(|id| self.await_ready(id));
    }

    /// Awaits that the node says it is ready.
    pub fn await_ready(&mut self, id: u64) {
        let addr = self.seats[&id].client;
        let ready = || Some(page(addr, "/readyz").ok()?.status == 200).filter(|ready| *ready);
        let process = self.process(id);
        eventually(&format!("node {id} is ready"), || {
            if let Some(status) = process.ended() {
                panic!("node {id} ended, {status}: {}", process.rest());
            }
            ready()
        });
    }

    /// The node's process.
    pub fn process(&mut self, id: u64) -> &mut Process {
        self.seat_mut(id).process.as_mut().unwrap_or_else(|| panic!("node {id} does not run"))
    }

    /// SIGKILL, and awaits the end.
    pub fn kill(&mut self, id: u64) -> Killed {
        self.kill_these(&[id])
    }

    /// SIGKILL to these at once, and awaits their ends.
    pub fn kill_these(&mut self, ids: &[u64]) -> Killed {
        let sent_ns = now_ns();
        ids.iter().for_each(|id| self.process(*id).signal(Signal::KILL));
        ids.iter().for_each(|id| {
            self.end(*id);
        });
        Killed { sent_ns, dead_ns: now_ns() }
    }

    /// SIGKILL to all at once, and awaits their ends.
    pub fn kill_all(&mut self) {
        self.kill_these(&self.ids());
    }

    /// SIGTERM; awaits nothing.
    pub fn terminate(&mut self, id: u64) {
        self.process(id).signal(Signal::TERM);
    }

    /// Awaits the end of the node's process.
    pub fn end(&mut self, id: u64) -> ExitStatus {
        let mut process = self.seat_mut(id).process.take().unwrap_or_else(|| panic!("node {id} does not run"));
        process.end()
    }

    /// Awaits the end of the node's process; everything it said.
    pub fn last_words(&mut self, id: u64) -> (ExitStatus, String) {
        let mut process = self.seat_mut(id).process.take().unwrap_or_else(|| panic!("node {id} does not run"));
        let status = process.end();
        (status, process.rest())
    }

    /// SIGSTOP, and awaits that the process has stopped: until one of its threads has seen the signal, the others go on.
    pub fn stop(&mut self, id: u64) {
        let process = self.process(id);
        process.signal(Signal::STOP);
        waitid(WaitId::Pid(process.pid()), WaitIdOptions::STOPPED).unwrap();
        self.seat_mut(id).stopped = true;
    }

    /// SIGCONT.
    pub fn resume(&mut self, id: u64) {
        self.process(id).signal(Signal::CONT);
        self.seat_mut(id).stopped = false;
    }

    /// Removes the node's data; it must not run.
    pub fn wipe(&mut self, id: u64) {
        let seat = self.seat_mut(id);
        assert!(seat.process.is_none(), "node {id} runs");
        std::fs::remove_dir_all(&seat.data).unwrap();
    }

    /// Moves the node's data away, to be brought back later; it must not run.
    pub fn set_aside(&mut self, id: u64) {
        let seat = self.seat_mut(id);
        assert!(seat.process.is_none(), "node {id} runs");
        std::fs::rename(&seat.data, seat.data.with_extension("aside")).unwrap();
    }

    /// Puts the data that was set aside in the place of what the node has now.
    pub fn bring_back(&mut self, id: u64) {
        self.wipe(id);
        let seat = self.seat_mut(id);
        std::fs::rename(seat.data.with_extension("aside"), &seat.data).unwrap();
    }

    /// The node's `/v1/status`; `None` if it does not answer.
    pub fn status(&self, id: u64) -> Option<Value> {
        let response = page(self.seats[&id].client, "/v1/status").ok()?;
        (response.status == 200).then(|| response.json())
    }

    /// The node that leads and serves, by its own word; at once or not at all. Asks only nodes that run.
    pub fn leader_now(&self) -> Option<u64> {
        let up = self.seats.values().filter(|seat| seat.is_up());
        let said = up.filter_map(|seat| Some((seat.id, self.status(seat.id)?)));
        let leads = said.filter(|(_, status)| status["role"] == "leader" && status["ready"] == true);
        leads.max_by_key(|(_, status)| status["term"].as_u64()).map(|(id, _)| id)
    }

    /// Awaits that a node leads and serves.
    pub fn leader(&self) -> u64 {
        eventually("a node leads", || self.leader_now())
    }

    /// Awaits that another node than `old` leads and serves.
    pub fn leader_but(&self, old: u64) -> u64 {
        eventually("another node leads", || self.leader_now().filter(|id| *id != old))
    }

    /// All nodes' ids and addresses, for clients.
    pub fn endpoints(&self) -> Vec<(u64, SocketAddr)> {
        self.seats.values().map(|seat| (seat.id, seat.client)).collect()
    }

    /// All nodes, as a client takes them.
    pub fn uri(&self) -> String {
        let all: Vec<String> = self.seats.values().map(|seat| seat.client.to_string()).collect();
        format!("tenure://{}", all.join(","))
    }

    /// The product's client, which knows all nodes.
    pub fn client(&self) -> Client {
        Client::with(&self.uri().parse().unwrap(), Options::default(), std::sync::Arc::new(HostClock))
    }

    /// Sends a command to exactly this node; waits so long for its answer.
    pub fn ask(&self, id: u64, command: &str, body: &Value, within: Duration) -> io::Result<Response> {
        Http::connect_within(self.seats[&id].client, within)?.post(command, &body.to_string())
    }

    /// Sends a command to exactly this node: the answer, which must be one. An election is no failure: what surely did nothing
    /// is sent again, and what may have been done too where doing it twice is doing it once. For other commands where there
    /// may be one: [`crate::asker::Asker`].
    pub fn call(&self, id: u64, command: &str, body: &Value) -> Value {
        let until = Instant::now() + SOON;
        loop {
            let asked = self.ask(id, command, body, SOON);
            let response = asked.unwrap_or_else(|error| panic!("node {id} {command}: {error}"));
            let again = match response.status {
                200 => return response.json(),
                503 => response.json()["code"] == "unavailable",
                504 => bears_repetition(command, body),
                _ => false,
            };
            assert!(again && Instant::now() < until, "node {id} {command} {body}: {response:?}");
            pass(PACE);
        }
    }

    /// The same for an OP.
    pub fn op(&self, id: u64, key: &str, operation: &str, args: &Value) -> Value {
        self.call(id, "OP", &json!({"key": key, "operation": operation, "args": args}))
    }

    /// GET's result at exactly this node.
    pub fn get(&self, id: u64, key: &str) -> Value {
        self.call(id, "GET", &json!({"key": key}))["result"].take()
    }
}

/// A failing test shows what each node that runs says of itself; what it logged follows.
impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for seat in self.seats.values().filter(|seat| seat.is_up()) {
            let said = page(seat.client, "/v1/status").map(|response| response.body);
            eprintln!("--- node {}: {said:?}", seat.id);
        }
    }
}

/// Reads, and RENEW.
fn bears_repetition(command: &str, body: &Value) -> bool {
    let operation = if command == "OP" { body["operation"].as_str().unwrap() } else { command };
    ["GET", "SCAN", "TTL", "EXISTS", "HELD", "CHECK", "HOLDERS", "RENEW"].contains(&operation)
}

/// `GET path` of a node.
pub fn page(addr: SocketAddr, path: &str) -> io::Result<Response> {
    Http::connect_within(addr, PAGE_WITHIN)?.send("GET", path, &[], "")
}

/// How often a scenario is repeated: `TENURE_CLUSTER_ROUNDS`, or the suite's own number.
pub fn rounds(default: usize) -> usize {
    let given = std::env::var("TENURE_CLUSTER_ROUNDS").ok();
    given.map_or(default, |rounds| rounds.parse().expect("TENURE_CLUSTER_ROUNDS is a number"))
}

/// Milliseconds, whole.
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}
