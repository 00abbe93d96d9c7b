//! A rolling restart: each node in turn gets SIGTERM and is started again, under clients that know all endpoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenure_client::wire::{AcquireArgs, Get, Op, ReleaseArgs, RenewArgs, Request, Token};
use tenure_client::{Answered, CallError, Client};

use crate::harness::{Cluster, Plan, rounds};
use crate::history::{History, now_ns};
use crate::load::last_reads;
use crate::process::eventually;
use checker::{Answer, Call, Live, Operation, Outcome, Position, Witness};

const CLIENTS: u32 = 8;
/// Longer than a call may take that is tried at one node after the other.
const TTL_MS: u64 = 30_000;

/// A client of the product, and the history of its calls.
struct Writer {
    number: u32,
    client: Client,
    history: History,
}

impl Writer {
    /// One call of the client, which may be several tries. It must have an answer.
    async fn call<R: Request>(&self, key: &str, operation: Operation, request: &R) -> Result<Answered, CallError> {
        let invoked_ns = now_ns();
        let answered = self.client.call(request).await?;
        let outcome = witness(&answered).map(|witness| Outcome::Answered(witness, answer(&answered)));
        self.history.record(Call {
            client: self.number,
            node: 0,
            key: key.to_owned(),
            operation,
            invoked_ns,
            sent_ns: answered.sent.ns,
            returned_ns: now_ns(),
            repeated: answered.repeated,
            outcome: outcome.expect("an answer without a witness"),
        });
        Ok(answered)
    }

    /// ACQUIRE, RENEW, GET, RELEASE of a key of its own, until told to stop; how often.
    async fn run(self, stop: Arc<AtomicBool>) -> Result<u64, String> {
        let key = format!("own-{}", self.number);
        let mut count = 0;
        while !(stop.load(Ordering::Relaxed) || self.history.is_full()) {
            let number = u64::from(self.number) << 32 | count;
            self.hold_once(&key, number)
                .await
                .map_err(|error| format!("client {} round {count}: {error}", self.number))?;
            count += 1;
        }
        Ok(count)
    }

    async fn hold_once(&self, key: &str, number: u64) -> Result<(), CallError> {
        let token = Token::from(format!("token-{number}"));
        let args = AcquireArgs {
            owner: format!("client-{}", self.number),
            token: token.clone(),
            ttl_ms: i64::try_from(TTL_MS).ok(),
            wait_ms: None,
            create: Some(true),
            note: None,
            min_hold_ms: None,
            delay_ms: None,
            // A late copy of an ACQUIRE in doubt must not grant again after the RELEASE.
            once: Some(true),
        };
        let operation = Operation::Acquire { token: number, ttl_ms: TTL_MS };
        let acquired = self.call(key, operation, &Op::new(key, args)).await?;
        let fence = acquired.answer.fence().expect("a key of its own is granted, or held by this token");
        assert!(acquired.answer.is_true() || acquired.answer.yours(), "{acquired:?}");
        let args = RenewArgs { token: token.clone(), ttl_ms: i64::try_from(TTL_MS).ok(), fence: Some(fence) };
        let renewed =
            self.call(key, Operation::Renew { token: number, fence, ttl_ms: TTL_MS }, &Op::new(key, args)).await?;
        assert!(renewed.answer.is_true(), "a held lease is renewed: {renewed:?}");
        self.call(key, Operation::Get, &Get { key: key.to_owned() }).await?;
        let args = ReleaseArgs { token, fence: Some(fence) };
        let released = self.call(key, Operation::Release { token: number, fence }, &Op::new(key, args)).await?;
        assert!(released.answer.is_true() || released.repeated, "a held lease is released: {released:?}");
        Ok(())
    }
}

fn witness(answered: &Answered) -> Option<Witness> {
    let witness = &answered.witness;
    let position = Position::parse(witness.position.as_deref()?)?;
    Some(Witness { position, clock_ms: witness.clock_ms?, term: witness.term? })
}

fn answer(answered: &Answered) -> Answer {
    let answer = &answered.answer;
    if answer.result.is_object() || answer.result.is_null() {
        return Answer::Seen(crate::session::sight(&answer.result));
    }
    let live = answer.fence().zip(answer.ttl_ms()).map(|(fence, ttl_ms)| Live { fence, ttl_ms });
    match (answer.is_true(), live) {
        (true, Some(live)) => Answer::Granted(live),
        (true, None) => Answer::Done,
        (false, live) => {
            Answer::Refused { reason: answer.reason().unwrap_or_default().to_owned(), live, yours: answer.yours() }
        }
    }
}

/// Not one command fails: the leader hands over before it drains, and the client goes on elsewhere.
#[test]
fn a_rolling_restart_fails_no_command() {
    let mut cluster = Cluster::start(Plan::three());
    let history = History::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (1..=CLIENTS)
        .map(|number| {
            let writer = Writer { number, client: cluster.client(), history: history.clone() };
            runtime.spawn(writer.run(Arc::clone(&stop)))
        })
        .collect();
    let restarted = Instant::now();
    for _ in 0..rounds(1) {
        for id in cluster.ids() {
            let goes_on = |more: usize| {
                let until = history.len() + more;
                eventually("the clients go on", || (history.len() >= until).then_some(()));
            };
            goes_on(100);
            cluster.terminate(id);
            assert!(cluster.end(id).success(), "node {id} drains");
            goes_on(50);
            cluster.restart(id);
            cluster.await_ready(id);
        }
    }
    let each = restarted.elapsed() / u32::try_from(rounds(1) * cluster.ids().len()).unwrap();
    eprintln!("rolling restart: {} ms for each node, its start included", each.as_millis());
    let calls = history.calls();
    let longest = calls.iter().map(|call| (call.returned_ns - call.invoked_ns) / 1_000_000).max();
    eprintln!("rolling restart: the longest of {} commands took {} ms", calls.len(), longest.unwrap_or_default());
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        // A timeout is made inside the runtime whose timer it uses.
        let ended = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), client).await });
        let ended = ended.expect("a client hangs");
        let count = ended.unwrap().unwrap_or_else(|failed| panic!("a command failed: {failed}"));
        assert!(count > 10, "a client did little: {count}");
    }
    last_reads(&cluster.endpoints(), &history);
    history.judge("rolling-restart");
    cluster.states_are_equal();
}
