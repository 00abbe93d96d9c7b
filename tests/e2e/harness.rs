//! Nodes as real processes: started on port 0, their start line awaited, killed with the test. A failing test prints
//! what its nodes said.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::{Http, Response};

/// For anything that takes milliseconds on an idle machine: far beyond what a loaded one needs, so that only a hang fails.
pub const SOON: Duration = Duration::from_secs(30);

/// The binary under test.
pub fn tenure() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    // Whoever runs the tests may have these set; the tests' answers must not hang on it.
    for (name, _) in std::env::vars_os() {
        if name == "RUST_LOG" || name.as_encoded_bytes().starts_with(b"TENURE_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Lets real time pass, where time itself is the test's input: never to wait for something to happen.
#[expect(clippy::disallowed_methods, reason = "the one place where tests let real time pass")]
pub fn pass(duration: Duration) {
    thread::sleep(duration);
}

/// A stamp is whole milliseconds, rounded down: seen from outside, less than one is missing between two of them.
pub const STAMP: Duration = Duration::from_millis(1);

/// Asks `done` again and again until it says something, at most for [`SOON`].
pub fn eventually<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + SOON;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < until, "not within {SOON:?}: {what}");
        pass(Duration::from_millis(10));
    }
}

/// What a script starts in its background ignores SIGINT, and so do its children: no shell can trap it then. They get the
/// default from whoever handles it; here nobody listens to what the handler tells, and the tests go on ignoring it.
fn heed_interrupts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
        if u64::from_str_radix(mask, 16).unwrap() & (1 << (Signal::INT.as_raw() - 1)) != 0 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _entered = runtime.enter();
            let _handled = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).unwrap();
        }
    });
}

/// What a process has said so far, line by line.
#[derive(Clone, Default)]
pub struct Lines(Arc<(Mutex<Vec<String>>, Condvar)>);

type Follower = thread::JoinHandle<()>;

impl Lines {
    fn follow(&self, source: impl Read + Send + 'static) -> Follower {
        let lines = self.clone();
        thread::spawn(move || {
            for line in BufReader::new(source).lines().map_while(Result::ok) {
                lines.0.0.lock().unwrap().push(line);
                lines.0.1.notify_all();
            }
        })
    }

    /// Everything said so far.
    pub fn text(&self) -> String {
        self.0.0.lock().unwrap().join("\n")
    }

    /// Awaits a line in which `find` finds something; `None` after `within`.
    pub fn await_line<T>(&self, within: Duration, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        let until = Instant::now() + within;
        let mut lines = self.0.0.lock().unwrap();
        loop {
            if let Some(found) = lines.iter().find_map(|line| find(line)) {
                return Some(found);
            }
            let left = until.checked_duration_since(Instant::now())?;
            lines = self.0.1.wait_timeout(lines, left).unwrap().0;
        }
    }
}

/// A process that dies with the test.
pub struct Process {
    child: Child,
    pub lines: Lines,
    followers: Vec<Follower>,
}

impl Process {
    /// Starts `command` with its output followed.
    pub fn start(mut command: Command) -> Self {
        heed_interrupts();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = Lines::default();
        let followers = vec![lines.follow(child.stdout.take().unwrap()), lines.follow(child.stderr.take().unwrap())];
        Self { child, lines, followers }
    }

    /// Its standard input, where the command was given one.
    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Everything it said: once it has ended.
    pub fn rest(&mut self) -> String {
        self.followers.drain(..).for_each(|follower| follower.join().unwrap());
        self.lines.text()
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Awaits the end.
    pub fn end(&mut self) -> ExitStatus {
        eventually("the process ends", || self.ended())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- the process said:\n{}\n---", self.lines.text());
        }
    }
}

/// A running node.
pub struct Node {
    pub process: Process,
    pub addr: SocketAddr,
}

/// The command of a node on `data`, port chosen by the system.
pub fn serve(data: &Path) -> Command {
    let mut command = tenure();
    command.arg("serve").arg("--data").arg(data).args(["--listen", "127.0.0.1:0"]);
    command
}

impl Node {
    /// Starts a node on `data` and awaits its start line.
    pub fn start(data: &Path) -> Self {
        Self::start_command(serve(data))
    }

    /// Starts a node on `data` that must come back where it was: at an address of [`crate::ports`], which nobody else takes
    /// while it is away.
    pub fn start_at(data: &Path, addr: SocketAddr) -> Self {
        let mut command = tenure();
        command.arg("serve").arg("--data").arg(data).args(["--listen", &addr.to_string()]);
        Self::start_command(command)
    }

    /// Starts a node by `command` and awaits its start line.
    pub fn start_command(command: Command) -> Self {
        let mut process = Process::start(command);
        let address = |line: &str| {
            let from = line.find("127.0.0.1:")?;
            let rest = &line[from..];
            let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':')).unwrap_or(rest.len());
            rest[..end].parse::<SocketAddr>().ok().filter(|addr| addr.port() != 0)
        };
        let until = Instant::now() + SOON;
        loop {
            if let Some(addr) = process.lines.await_line(Duration::from_millis(100), address) {
                return Self { process, addr };
            }
            if let Some(status) = process.ended() {
                panic!("the node ended at its start: {status}");
            }
            assert!(Instant::now() < until, "no start line");
        }
    }

    /// `kill -9`, and awaits its end.
    pub fn kill(mut self) {
        self.process.signal(Signal::KILL);
        self.process.end();
    }

    /// SIGTERM, and awaits its end.
    pub fn stop(mut self) -> ExitStatus {
        self.process.signal(Signal::TERM);
        self.process.end()
    }

    pub fn uri(&self) -> String {
        format!("tenure://{}", self.addr)
    }

    pub fn http(&self) -> Http {
        Http::connect(self.addr).unwrap()
    }

    /// `POST /v1/{command}`: the whole response.
    pub fn post(&self, command: &str, body: &Value) -> Response {
        self.http().post(command, &body.to_string()).unwrap()
    }

    /// `POST /v1/{command}`: the answer, which must be one.
    pub fn call(&self, command: &str, body: &Value) -> Value {
        let response = self.post(command, body);
        assert_eq!(response.status, 200, "{command} {body}: {response:?}");
        response.json()
    }

    /// An OP: the answer, which must be one.
    pub fn op(&self, key: &str, operation: &str, args: &Value) -> Value {
        self.call("OP", &json!({"key": key, "operation": operation, "args": args}))
    }

    /// Awaits that nobody holds the lease.
    pub fn await_free(&self, key: &str) {
        eventually("the grant ends", || (self.op(key, "HELD", &json!({}))["result"] == false).then_some(()));
    }

    /// GET's result.
    pub fn get(&self, key: &str) -> Value {
        self.call("GET", &json!({"key": key}))["result"].take()
    }

    /// Every key as SCAN shows it.
    pub fn scan(&self) -> Vec<Value> {
        let (mut all, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let mut body = json!({"limit": 1000});
            if cursor != Value::Null {
                body["cursor"] = cursor;
            }
            let mut page = self.call("SCAN", &body)["result"].take();
            all.append(page["keys"].as_array_mut().unwrap());
            cursor = page["cursor"].take();
            if cursor == Value::Null {
                return all;
            }
        }
    }

    /// Runs the command line on this node.
    pub fn cli(&self, args: &[&str]) -> Output {
        tenure().arg("--uri").arg(self.uri()).args(args).output().unwrap()
    }
}

/// A node on a data directory of its own; both go with the test.
pub struct Fresh {
    // Before the directory: a node must be gone before its files are.
    pub node: Node,
    pub dir: TempDir,
}

impl Fresh {
    pub fn start() -> Self {
        let dir = TempDir::new().unwrap();
        Self { node: Node::start(&dir.path().join("data")), dir }
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// `kill -9` and start again on the same data.
    pub fn restart(self) -> Self {
        let Self { node, dir } = self;
        node.kill();
        Self { node: Node::start(&dir.path().join("data")), dir }
    }
}

/// Bytes of all files below `path`.
pub fn disk_bytes(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    let mut sum = 0;
    for entry in entries.map_while(Result::ok) {
        // A file may vanish while it is counted: then it counts nothing.
        let Ok(meta) = entry.metadata() else { continue };
        sum += if meta.is_dir() { disk_bytes(&entry.path()) } else { meta.len() };
    }
    sum
}

/// Standard output of a finished command, trimmed.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Standard error of a finished command, trimmed.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
