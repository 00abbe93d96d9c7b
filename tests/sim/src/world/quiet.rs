//! When nothing goes wrong for a while: does every node answer at once, at the first try, does the cluster clock go on as
//! fast as true time, and does one who waits behind many who are gone hold as soon as it is its turn?
//!
//! While things go wrong nobody can say how long anything may take, and a client that tries again hides what is slow:
//! so a wake-up that was lost, or a clock that stands still without a cause, shows here alone. All clocks are true, all
//! nodes run, the last slow sync is over, and what is asked here is the only load, written down nowhere but in the log.

use std::sync::Arc;
use std::time::Duration;

use tenure::keyspace::{Acquire, Command, Reply, Shown, token_hash};

use super::World;
use crate::runtime::{self, WORLD};

/// How often each node is asked.
const ROUNDS: u64 = 3;
/// What is held meanwhile ends so soon.
const TTL_MS: u64 = 400;
/// Syncs that a command may wait for, one after the other, and hops; a read waits for a tick besides.
const SYNCS: u64 = 8;
const HOPS: u64 = 16;
/// And what timers and the order of tasks add.
const SLACK_MS: u64 = 60;
/// The clock is at most so much slower than true time, percent: two clocks, and rounding, of which none is off now.
const SLOW_PERCENT: u64 = 1;
/// So many wait before one that lives, and go: half of them before the lease is given back, half as it is.
const DEAD: u64 = 16;
/// For so long at most.
const CROWD_MS: u64 = 5_000;
const MS: u64 = 1_000_000;

impl World {
    /// Acquires a key at each node that runs, reads it there, and reads it again when it has ended. A line for each thing
    /// that was not answered at once, or told another time than it is.
    pub async fn be_quiet(&self) -> Vec<String> {
        let by_ns = self.state().sites.values().map(|site| site.pace.syncs_until_ns()).max().unwrap_or(0);
        runtime::sleep(Duration::from_nanos(by_ns.saturating_sub(runtime::now_ns()))).await;
        let shape = &self.0.shape;
        let prompt_ms = (SYNCS * shape.sync_us + HOPS * shape.hop_us.1) / 1_000 + SLACK_MS;
        let patience = Duration::from_millis(shape.request_timeout_ms);
        let (mut lines, mut first) = (Vec::new(), None::<(u64, u64)>);
        for round in 0..ROUNDS {
            for (node, _) in self.nodes() {
                let key = format!("quiet-{round}-{node}");
                let asked_ns = runtime::now_ns();
                let held = self
                    .submit(node, acquire(&key), patience)
                    .await
                    .is_ok_and(|it| matches!(it.reply, Reply::Op(reply) if reply.result));
                self.is_prompt("ACQUIRE", node, asked_ns, prompt_ms, held, &mut lines);
                // Stamps are whole milliseconds.
                runtime::sleep(Duration::from_millis(TTL_MS + 5)).await;
                let asked_ns = runtime::now_ns();
                let of_key = key.clone();
                let read = move |machine: &crate::judge::Watched, at| machine.keyspace().get(&of_key, at);
                let seen = self.read(node, read, patience).await;
                let clock_ms = seen.as_ref().ok().map(|seen| seen.witness.clock.0);
                let ended =
                    seen.is_ok_and(|seen| seen.value.and_then(Shown::lease).is_some_and(|view| view.grant.is_none()));
                self.is_prompt("a read of what has ended", node, asked_ns, prompt_ms, ended, &mut lines);
                let Some(clock_ms) = clock_ms else { continue };
                let now_ms = runtime::now_ns() / MS;
                let (began_ms, began_clock_ms) = *first.get_or_insert((now_ms, clock_ms));
                let (passed_ms, on_clock_ms) = (now_ms - began_ms, clock_ms.saturating_sub(began_clock_ms));
                if on_clock_ms + prompt_ms + passed_ms * SLOW_PERCENT / 100 < passed_ms {
                    lines.push(format!("the clock went on by {on_clock_ms} ms in {passed_ms} quiet ms"));
                }
            }
        }
        for (node, _) in self.nodes() {
            lines.extend(self.pass_over_the_dead(node, prompt_ms).await);
        }
        self.0.coverage.add("quiet_rounds", ROUNDS);
        lines
    }

    /// Whoever waits at `node` behind a crowd that is gone holds soon after the lease is given back: who went before is
    /// passed over; who goes in that moment is granted it and returns it, for the word of each is under way by then.
    async fn pass_over_the_dead(&self, node: u64, prompt_ms: u64) -> Option<String> {
        let (key, ids) = (format!("quiet-crowd-{node}"), self.ids());
        let (patience, prompt) = (Duration::from_millis(CROWD_MS), Duration::from_millis(prompt_ms));
        self.submit(node, Command::Acquire(ask(&key, "holder", CROWD_MS)), patience).await.ok()?;
        for (who, at) in (0..DEAD).zip(ids.iter().cycle().copied()) {
            let (world, ask) = (self.clone(), ask(&key, &format!("{who}"), TTL_MS));
            let goes = if who < DEAD / 2 { prompt } else { 2 * prompt };
            runtime::spawn_on(WORLD, async move {
                tokio::select! { biased;
                    _ = world.wait(at, ask, CROWD_MS, patience) => {}
                    () = runtime::sleep(goes) => world.0.coverage.fired("quiet_dead"),
                }
            });
        }
        // All stand before the one that lives.
        runtime::sleep(prompt).await;
        let given_back = async {
            // A hop later than the last of them went: no node may take a client for there that is not.
            runtime::sleep(prompt + Duration::from_micros(self.0.shape.hop_us.1)).await;
            let release = Command::Release { key: key.as_str().into(), token: token_hash(&key, "holder"), fence: None };
            let asked_ns = runtime::now_ns();
            drop(self.submit(node, release, patience).await);
            asked_ns
        };
        let live = async {
            let came = self.wait(node, ask(&key, "live", TTL_MS), CROWD_MS, patience).await;
            (came.is_ok_and(|it| matches!(it.reply, Reply::Op(reply) if reply.result)), runtime::now_ns())
        };
        let ((held, at_ns), asked_ns) = futures_util::future::join(live, given_back).await;
        let took_ms = at_ns.saturating_sub(asked_ns) / MS;
        let late = !held || took_ms > 2 * prompt_ms;
        late.then(|| format!("behind {DEAD} who went, node {node}: held {held}, {took_ms} ms after the release"))
    }

    fn is_prompt(&self, what: &str, node: u64, asked_ns: u64, prompt_ms: u64, right: bool, lines: &mut Vec<String>) {
        let took_ms = (runtime::now_ns() - asked_ns) / MS;
        if !right || took_ms > prompt_ms {
            let how = if right { "late" } else { "wrong, or not at all" };
            lines.push(format!(
                "{what} at node {node} was answered {how}, {took_ms} ms later, while nothing went wrong"
            ));
        }
    }
}

fn acquire(key: &str) -> Command {
    Command::Acquire(ask(key, "quiet", TTL_MS))
}

fn ask(key: &str, token: &str, ttl_ms: u64) -> Acquire {
    Acquire {
        key: key.into(),
        owner: Arc::from("quiet"),
        token: token_hash(key, token),
        ttl_ms: i64::try_from(ttl_ms).unwrap_or(i64::MAX),
        create: true,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: true,
    }
}
