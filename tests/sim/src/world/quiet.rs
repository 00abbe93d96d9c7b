//! When nothing goes wrong for a while: does every node answer at once, at the first try, and does the cluster clock go
//! on as fast as true time?
//!
//! While things go wrong nobody can say how long anything may take, and a client that tries again hides what is slow:
//! so a wake-up that was lost, or a clock that stands still without a cause, shows here alone. All clocks are true, all
//! nodes run, the last slow sync is over, and what is asked here is the only load, written down nowhere but in the log.

use std::sync::Arc;
use std::time::Duration;

use tenure::keyspace::{Acquire, Command, Reply, token_hash};

use super::World;
use crate::runtime;

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
                let ended = seen.is_ok_and(|seen| seen.value.is_some_and(|view| view.grant.is_none()));
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
        self.0.coverage.add("quiet_rounds", ROUNDS);
        lines
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
    Command::Acquire(Acquire {
        key: key.into(),
        owner: Arc::from("quiet"),
        token: token_hash(key, "quiet"),
        ttl_ms: TTL_MS as i64,
        create: true,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: true,
    })
}
