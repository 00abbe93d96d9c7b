//! `tenure run` in a terminal: its keys mean the job, as if the shell had started that itself.
//!
//! `script` (bsdutils, everywhere where there is a shell) makes the terminal, and an interactive bash in it is the shell
//! with job control. What is awaited is computed by the shell, so that the echo of what was typed is not taken for it.

use std::io::Write as _;
use std::process::{ChildStdin, Command, Stdio};

use crate::harness::{Fresh, Process, SOON};

struct Terminal {
    process: Process,
    keys: ChildStdin,
    run: String,
}

impl Terminal {
    fn open(fresh: &Fresh) -> Self {
        let mut command = Command::new("script");
        command.args(["-qfec", "exec bash --norc --noprofile -i", "/dev/null"]);
        command.env("PS1", "").env("PS2", "").env("TERM", "dumb").stdin(Stdio::piped());
        let mut process = Process::start(command);
        let keys = process.stdin();
        let run = format!("{} --uri {} run --key k --ttl 10s", env!("CARGO_BIN_EXE_tenure"), fresh.node.uri());
        let mut terminal = Self { process, keys, run };
        terminal.line("bind 'set enable-bracketed-paste off' 2>/dev/null; echo ready:$((1+1))");
        terminal.shows("ready:2");
        terminal
    }

    /// Types a line.
    fn line(&mut self, text: &str) {
        // Not a carriage return: while the shell reads by itself that is none yet.
        self.press(&format!("{text}\n"));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Runs a job under a lease: a script without single quotes.
    fn run(&mut self, script: &str, after: &str) {
        let line = format!("{} -- sh -c '{script}'{after}", self.run);
        self.line(&line);
    }

    /// A job that was just started has the terminal: it has read from it.
    fn has_it(&mut self, shown: &str) {
        self.line("go");
        self.shows(shown);
    }

    /// Awaits a line that ends so.
    fn shows(&self, text: &str) {
        let found = self.process.lines.await_line(SOON, |line| line.trim_end().ends_with(text).then_some(()));
        assert!(found.is_some(), "{text:?} is not shown:\n{}", self.process.lines.text());
    }
}

#[test]
fn the_job_reads_and_is_told_of_the_windows_size() {
    let fresh = Fresh::start();
    let mut terminal = Terminal::open(&fresh);
    terminal.run("test -t 0 && echo up:$((1+1)) && read line && echo got:$line:$((1+1))", "; echo code:$?:");
    terminal.shows("up:2");
    terminal.line("hello");
    terminal.shows("got:hello:2");
    terminal.shows("code:0:");
    terminal.run(
        "trap \"echo winch:\\$((1+1))\" WINCH; read go; echo up:$((2+1)); stty cols 91; stty size",
        "; echo size:$?:",
    );
    terminal.has_it("up:3");
    terminal.shows("winch:2");
    terminal.shows("size:0:");
}

#[test]
fn an_interrupt_is_the_jobs() {
    let fresh = Fresh::start();
    let mut terminal = Terminal::open(&fresh);
    terminal.run("trap \"exit 7\" INT; read go; echo up:$((1+1)); read line", "; echo code:$?:");
    terminal.has_it("up:2");
    terminal.press("\u{3}");
    terminal.shows("code:7:");
    assert_eq!(fresh.node.get("k")["last"]["reason"], "released");
    // A job that lives on lives on.
    let lives_on = "trap \"echo int:\\$((2+1))\" INT; read go; echo up:$((2+1)); read line; read line; echo end:$line:";
    terminal.run(lives_on, "; echo code:$?:");
    terminal.has_it("up:3");
    terminal.press("\u{3}");
    terminal.shows("int:3");
    terminal.line("one");
    terminal.line("two");
    terminal.shows("code:0:");
}

#[test]
fn a_stopped_job_goes_on_in_the_foreground() {
    let fresh = Fresh::start();
    let mut terminal = Terminal::open(&fresh);
    terminal.run("read go; echo up:$((1+1)); read line; echo got:$line:", "; echo code:$?:");
    terminal.has_it("up:2");
    terminal.press("\u{1a}");
    // The code of a job that was stopped: the shell has the terminal again.
    terminal.shows("code:148:");
    terminal.line("jobs; echo here:$((3+1))");
    terminal.shows("here:4");
    terminal.line("fg; echo code:$?:");
    terminal.line("again");
    terminal.shows("got:again:");
    terminal.shows("code:0:");
    assert_eq!(fresh.node.get("k")["last"]["reason"], "released");
}

/// One that asked for the terminal just before it was given to it is seen as stopped only when it has it: it goes on. The
/// signal is its own here, since a shell that read too early cannot be had at will.
#[test]
fn a_job_that_asked_too_early_goes_on() {
    let fresh = Fresh::start();
    let mut terminal = Terminal::open(&fresh);
    terminal.run("read go; echo up:$((1+1)); kill -TTIN $$; read line; echo got:$line:", "; echo code:$?:");
    terminal.has_it("up:2");
    terminal.line("on");
    terminal.shows("got:on:");
    terminal.shows("code:0:");
}

#[test]
fn a_background_job_that_wants_to_read_waits_for_fg() {
    let fresh = Fresh::start();
    let mut terminal = Terminal::open(&fresh);
    terminal.run("echo up:$((1+1)); read line; echo got:$line:", " & echo started:$((1+1))");
    terminal.shows("started:2");
    terminal.shows("up:2");
    terminal.line("until jobs | grep -q Stopped; do sleep 0.05; done; echo stopped:$((1+1))");
    terminal.shows("stopped:2");
    terminal.line("fg; echo code:$?:");
    terminal.line("now");
    terminal.shows("got:now:");
    terminal.shows("code:0:");
}

/// An interrupt while it waits in line is for the run itself.
#[test]
fn an_interrupt_ends_the_wait() {
    let fresh = Fresh::start();
    let held = serde_json::json!({"owner": "other", "token": "t", "create": true, "ttl_ms": 600_000});
    fresh.node.op("k", "ACQUIRE", &held);
    let mut terminal = Terminal::open(&fresh);
    terminal.run = format!("{} --verbose --wait 10m", terminal.run);
    terminal.run("echo never", "; echo code:$?:");
    terminal.shows("waiting for at most 10m");
    terminal.press("\u{3}");
    terminal.shows("code:130:");
}
