//! `tenure run` while the cluster fails under it.
//!
//! FR-33: the loops of two hosts that run a job once a period, while leaders are killed: exactly one run a period.
//! Both hosts ask at the beginning of each period, as cron does, and wait for longer than an election takes. One of them
//! runs the job; the other is told that this period's run was, by the minimum hold, whichever leader has the lease.
//! A grant may come late by an election, and its window with it: so the hold is half of the period, and no more is waited.
//!
//! What the jobs themselves write down decides: each start and end, as one short append to one file of one clock.
//!
//! The suite does [`PERIODS`] periods with a kill in each. `TENURE_RUN_MINUTES=10` does as many minutes with a kill a minute.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::harness::{Cluster, Plan};
use crate::process::{Process, SOON, eventually, pass, stderr, tenure};

/// Periods of the suite.
const PERIODS: u32 = 3;
/// Their length: half of it is waited, for an election on a loaded machine.
const PERIOD: Duration = Duration::from_secs(20);
/// The second host's clock is that late.
const SKEW: Duration = Duration::from_millis(300);

/// One host's timer and its runs.
struct Host<'a> {
    uri: &'a str,
    log: &'a Path,
    skew: Duration,
}

impl Host<'_> {
    /// Asks once at the beginning of each period; the exit codes.
    fn run(&self, began: Instant, periods: u32) -> Vec<i32> {
        let at = |n: u32| began + PERIOD * n + self.skew;
        let mut codes = Vec::new();
        for n in 0..periods {
            pass(at(n).saturating_duration_since(Instant::now()));
            codes.push(self.once(n));
        }
        codes
    }

    fn once(&self, period: u32) -> i32 {
        let half = format!("{}ms", (PERIOD / 2).as_millis());
        let log = self.log.display();
        let job =
            format!("echo start {period} $(date +%s%N) >> {log}; sleep 0.2; echo end {period} $(date +%s%N) >> {log}");
        let mut command: Command = tenure();
        command.args(["--uri", self.uri, "run", "--key", "job", "--ttl", "10s", "--verbose"]);
        command.args(["--min-hold", &half, "--wait", &half]);
        let output = command.args(["--", "sh", "-c", &job]).output().unwrap();
        let code = output.status.code().unwrap_or_else(|| panic!("{}", output.status));
        eprintln!("period {period}, host +{:?}: {code}\n{}", self.skew, stderr(&output));
        code
    }
}

/// Starts and ends in the file's order: none overlaps another, and the periods of the starts.
fn judge(log: &Path) -> Vec<u32> {
    let text = fs::read_to_string(log).unwrap();
    let mut lines = text.lines().map(|line| {
        let mut words = line.split(' ');
        let (what, period, at) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        (what.to_owned(), period.parse::<u32>().unwrap(), at.parse::<u64>().unwrap())
    });
    let (mut periods, mut last_ns) = (Vec::new(), 0);
    while let Some((what, period, start_ns)) = lines.next() {
        assert!(what == "start" && start_ns > last_ns, "a run overlaps the one before: {text}");
        let (what, ended, end_ns) = lines.next().expect("a run without an end");
        assert!(what == "end" && ended == period && end_ns > start_ns, "a run overlaps the next: {text}");
        (last_ns, _) = (end_ns, periods.push(period));
    }
    periods
}

/// Kills the leader of now, and starts it again.
fn replace_leader(cluster: &mut Cluster) {
    let leader = cluster.leader();
    cluster.kill(leader);
    cluster.leader_but(leader);
    cluster.restart(leader);
    cluster.await_ready(leader);
}

#[test]
fn one_run_a_period_whoever_leads() {
    let minutes: u32 = std::env::var("TENURE_RUN_MINUTES").map_or(0, |text| text.parse().unwrap());
    let (periods, kill_every) = match minutes {
        0 => (PERIODS, PERIOD),
        minutes => (minutes * 3, Duration::from_secs(60)),
    };
    let mut cluster = Cluster::start(Plan::three());
    let dir = TempDir::new().unwrap();
    let (uri, log) = (cluster.uri(), dir.path().join("log"));
    let began = Instant::now();
    let (codes, kills) = std::thread::scope(|scope| {
        let hosts = [Duration::ZERO, SKEW].map(|skew| {
            let host = Host { uri: &uri, log: &log, skew };
            scope.spawn(move || host.run(began, periods))
        });
        let mut kills = 0;
        // At another place of each period: while it is asked for, while the job runs, while all is quiet.
        let places = [Duration::from_millis(20), Duration::from_millis(450), Duration::from_millis(1_500)];
        while kill_every * kills < PERIOD * periods {
            let at = began + kill_every * kills + places[kills as usize % places.len()];
            pass(at.saturating_duration_since(Instant::now()));
            replace_leader(&mut cluster);
            kills += 1;
        }
        (hosts.map(|host| host.join().unwrap()), kills)
    });
    let ran = judge(&log);
    assert_eq!(ran, (0..periods).collect::<Vec<_>>(), "one run in each period, no more: {codes:?}");
    for (n, both) in codes[0].iter().zip(&codes[1]).enumerate() {
        assert!(matches!(both, (0, 121) | (121, 0)), "period {n}: {both:?}");
    }
    assert!(kills > 1, "a test without a fault");
}

/// FR-22: nobody leads for a while, longer than a renewal can wait. The renewal is retried, the job does not notice, and
/// a leader is found again while the lease lives.
#[test]
fn a_time_without_a_leader_is_no_loss() {
    let mut cluster = Cluster::start(Plan::three());
    let dir = TempDir::new().unwrap();
    let (up, go) = (dir.path().join("up"), dir.path().join("go"));
    let job =
        format!("trap 'echo told' TERM; touch {}; until [ -e {} ]; do sleep 0.05; done", up.display(), go.display());
    let mut command = tenure();
    // Renewed at a sixth: most of the ttl is left for a renewal that gets no answer, and the next.
    command.args(["--uri", &cluster.uri(), "run", "--key", "k", "--ttl", "14900ms", "--grace", "0s", "--verbose"]);
    command.args(["--", "sh", "-c", &job]);
    let mut process = Process::start(command);
    eventually("the job is at work", || up.exists().then_some(()));
    let two = &cluster.ids()[..2];
    two.iter().for_each(|id| cluster.stop(*id));
    let said = |text: &'static str| move |line: &str| line.contains(text).then_some(());
    assert!(process.lines.await_line(SOON, said("retry: ")).is_some(), "{}", process.lines.text());
    two.iter().for_each(|id| cluster.resume(*id));
    assert!(process.lines.await_line(SOON, said("renewed again")).is_some(), "{}", process.lines.text());
    fs::write(&go, "").unwrap();
    assert_eq!(process.end().code(), Some(0));
    let said = process.rest();
    assert!(!said.contains("lost") && !said.contains("told"), "{said}");
}
