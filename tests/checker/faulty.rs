//! The checker against a store that has one fault: random clients in virtual time, answers that get lost, requests that
//! act late. Without a fault no seed is found guilty; with each of the faults the seeds are, by the rule it breaks.

use std::collections::{BTreeMap, BinaryHeap};

use super::*;

const SEEDS: u64 = 25;
const CLIENTS: u64 = 6;
const CALLS: usize = 600;
const TTL_MS: u64 = 300;
const EPOCH_MS: u64 = 5_000_000;
/// How far a fault in time is off.
const OFF_MS: u64 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Grants are given away before their deadline.
    EndsEarly,
    /// A read's state is old, and says so by its position.
    ReadsStale,
    /// A read's state is old, under the position of now.
    ReadsStaleInSecret,
    /// A read shows an end that is not in the log, by a clock that the next leader does not go on with.
    ReadsAhead,
    /// RELEASE is acknowledged and not done.
    ForgetsReleases,
    /// RENEW is acknowledged and not done.
    ForgetsRenewals,
    /// ACQUIRE is acknowledged and not done.
    ForgetsGrants,
    /// RENEW brings back what has ended.
    Revives,
    /// RENEW shortens.
    Shortens,
    /// Every grant has its whole ttl again, at some moment.
    RenewsAll,
    /// The fence is now and then the one before.
    RepeatsFences,
    /// So is the position.
    RepeatsPositions,
    /// The clock is 5 % fast.
    ClockRuns,
    /// The clock falls back at some moment.
    ClockFalls,
    /// A free key is refused.
    RefusesFree,
}

#[derive(Clone, Default)]
struct Key {
    grant: Option<(u64, u64, u64)>,
    last: Option<(u64, String)>,
}

impl Key {
    /// Ends the grant, (fence, token, deadline), if its time is over.
    fn settle(&mut self, clock_ms: u64) {
        if let Some((fence, ..)) = self.grant.filter(|(.., deadline)| clock_ms >= *deadline) {
            self.end(fence, "expired");
        }
    }

    fn end(&mut self, fence: u64, reason: &str) {
        self.grant = None;
        self.last = Some((fence, reason.to_owned()));
    }
}

/// The store, and what is on its way to it.
struct Store {
    fault: Fault,
    dice: Dice,
    keys: BTreeMap<String, Key>,
    /// States of a while ago: position, clock, keys.
    old: (u64, u64, BTreeMap<String, Key>),
    index: u64,
    fence: u64,
    upset: bool,
}

impl Store {
    fn clock_ms(&self, now_ns: u64) -> u64 {
        let ms = now_ns / 1_000_000;
        EPOCH_MS
            + match self.fault {
                Fault::ClockRuns => ms * 105 / 100,
                Fault::ClockFalls if self.upset => ms - OFF_MS,
                _ => ms,
            }
    }

    fn apply(&mut self, now_ns: u64, name: &str, operation: Operation) -> (Witness, Answer) {
        let clock_ms = self.clock_ms(now_ns);
        if now_ns > 2_000_000_000 && !self.upset {
            self.upset = true;
            if self.fault == Fault::RenewsAll {
                self.keys.values_mut().filter_map(|key| key.grant.as_mut()).for_each(|grant| grant.2 += TTL_MS);
            }
        }
        if clock_ms.abs_diff(self.old.1) >= OFF_MS {
            self.old = (self.index, clock_ms, self.keys.clone());
        }
        if operation == Operation::Get {
            return self.read(clock_ms, name);
        }
        let repeats = self.fault == Fault::RepeatsPositions && self.dice.percent(5);
        self.index += u64::from(!repeats);
        let answer = self.write(clock_ms, name, operation);
        let position = Position { index: self.index, ordinal: 0 };
        (Witness { position, clock_ms, term: 1 }, answer)
    }

    fn read(&mut self, clock_ms: u64, name: &str) -> (Witness, Answer) {
        let ahead = self.fault == Fault::ReadsAhead;
        let clock_ms = clock_ms + if ahead { self.dice.in_range(0..=OFF_MS) } else { 0 };
        let key = self.keys.get_mut(name);
        // What a read shows as ended is in the log first: a tick.
        let over = |key: &&mut Key| !ahead && key.grant.is_some_and(|(.., deadline)| clock_ms >= deadline);
        if let Some(key) = key.filter(over) {
            self.index += 1;
            key.settle(clock_ms);
        }
        let stale = matches!(self.fault, Fault::ReadsStale | Fault::ReadsStaleInSecret) && self.dice.percent(30);
        let (mut at, mut keys) = ((self.index, clock_ms), if stale { self.old.2.clone() } else { self.keys.clone() });
        if stale && self.fault == Fault::ReadsStale {
            at = (self.old.0, self.old.1);
        }
        let (index, clock_ms) = at;
        let witness = Witness { position: Position { index, ordinal: 0 }, clock_ms, term: 1 };
        let sight = keys.get_mut(name).map(|key| {
            key.settle(clock_ms);
            let held = key.grant.map(|(fence, _, deadline)| Live { fence, ttl_ms: deadline - clock_ms });
            Sight { held, last: key.last.clone() }
        });
        (witness, Answer::Seen(sight))
    }

    fn write(&mut self, clock_ms: u64, name: &str, operation: Operation) -> Answer {
        let early = if self.fault == Fault::EndsEarly { OFF_MS } else { 0 };
        let key = self.keys.entry(name.to_owned()).or_default();
        let revives = self.fault == Fault::Revives && matches!(operation, Operation::Renew { .. });
        if !revives {
            key.settle(clock_ms + early);
        }
        let no = |reason: &str, live| Answer::Refused { reason: reason.to_owned(), live, yours: false };
        let granted = |fence, deadline: u64| Answer::Granted(Live { fence, ttl_ms: deadline.saturating_sub(clock_ms) });
        match (operation, key.grant) {
            (Operation::Acquire { token, .. }, Some((fence, holder, deadline))) => {
                let live = Some(Live { fence, ttl_ms: deadline - clock_ms });
                Answer::Refused { reason: "held".to_owned(), live, yours: token == holder }
            }
            (Operation::Acquire { .. }, None) if self.fault == Fault::RefusesFree && self.dice.percent(10) => {
                no("held", None)
            }
            (Operation::Acquire { token, ttl_ms }, None) => {
                let repeats = self.fault == Fault::RepeatsFences && self.dice.percent(10);
                self.fence += u64::from(!repeats);
                let forgets = self.fault == Fault::ForgetsGrants && self.dice.percent(10);
                key.grant = Some((self.fence, token, clock_ms + ttl_ms)).filter(|_| !forgets);
                granted(self.fence, clock_ms + ttl_ms)
            }
            (Operation::Renew { token, ttl_ms, .. }, Some((fence, holder, deadline))) if token == holder => {
                let shortens = self.fault == Fault::Shortens;
                let next = if shortens { clock_ms + ttl_ms / 2 } else { deadline.max(clock_ms + ttl_ms) };
                let forgets = self.fault == Fault::ForgetsRenewals && self.dice.percent(20);
                key.grant = Some((fence, token, if forgets { deadline } else { next }));
                granted(fence, next)
            }
            (Operation::Release { token, .. }, Some((fence, holder, _))) if token == holder => {
                if !(self.fault == Fault::ForgetsReleases && self.dice.percent(10)) {
                    key.end(fence, "released");
                }
                Answer::Done
            }
            _ => no("not_held", None),
        }
    }
}

/// What is on its way: at `at_ns` it acts; the call is `None` for a copy that nobody waits for any more.
#[derive(PartialEq, Eq)]
struct Under {
    at_ns: u64,
    number: usize,
    key: String,
    operation: Operation,
    waits: Option<(u64, u64)>,
}

impl Ord for Under {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at_ns, other.number).cmp(&(self.at_ns, self.number))
    }
}

impl PartialOrd for Under {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A history of random clients of a store with this fault.
fn history(fault: Fault, seed: u64) -> Vec<Call> {
    let mut store = Store {
        fault,
        dice: Dice::new(seed, 1),
        keys: BTreeMap::new(),
        old: (0, EPOCH_MS, BTreeMap::new()),
        index: 0,
        fence: 0,
        upset: false,
    };
    let mut dice = Dice::new(seed, 2);
    let mut held: BTreeMap<u64, (String, u64, u64)> = BTreeMap::new();
    let (mut under, mut calls, mut number) = (BinaryHeap::new(), Vec::new(), 0);
    let mut ask =
        |under: &mut BinaryHeap<Under>, dice: &mut Dice, held: &BTreeMap<u64, (String, u64, u64)>, client, from_ns| {
            number += 1;
            // Some sleep over their deadline.
            let pause_ns = if dice.percent(10) { 350_000_000 } else { 40_000_000 };
            let invoked_ns = from_ns + dice.in_range(0..=pause_ns);
            let at_ns = invoked_ns + dice.in_range(100_000..=8_000_000);
            let (key, operation) = choose(dice, held.get(&client), number as u64);
            under.push(Under { at_ns, number, key, operation, waits: Some((client, invoked_ns)) });
        };
    (1..=CLIENTS).for_each(|client| ask(&mut under, &mut dice, &held, client, 1_000_000));
    while let Some(Under { at_ns, key, operation, waits, number }) = under.pop() {
        let (lost, late) = (waits.is_some() && dice.percent(4), dice.percent(50));
        let answered = (!(lost && late)).then(|| store.apply(at_ns, &key, operation));
        let Some((client, invoked_ns)) = waits else { continue };
        let returned_ns = at_ns + dice.in_range(100_000..=8_000_000);
        if lost && late {
            let at_ns = at_ns + dice.in_range(1_000_000..=400_000_000);
            under.push(Under { at_ns, number, key: key.clone(), operation, waits: None });
        }
        let outcome = match answered {
            Some((witness, answer)) if !lost => Outcome::Answered(witness, answer),
            _ if operation == Operation::Get => Outcome::Nothing,
            _ => Outcome::Unknown,
        };
        remember(&mut held, client, &key, operation, &outcome);
        let (node, client_number) = (1, u32::try_from(client).unwrap());
        let sent_ns = invoked_ns;
        calls.push(Call {
            client: client_number,
            node,
            key,
            operation,
            invoked_ns,
            sent_ns,
            returned_ns,
            repeated: false,
            outcome,
        });
        if calls.len() < CALLS {
            ask(&mut under, &mut dice, &held, client, returned_ns);
        }
    }
    calls
}

fn choose(dice: &mut Dice, held: Option<&(String, u64, u64)>, number: u64) -> (String, Operation) {
    let key = format!("k{}", dice.in_range(1..=2));
    match held {
        _ if dice.percent(30) => (key, Operation::Get),
        Some((key, token, fence)) if dice.percent(70) => {
            (key.clone(), Operation::Renew { token: *token, fence: *fence, ttl_ms: TTL_MS })
        }
        Some((key, token, fence)) => (key.clone(), Operation::Release { token: *token, fence: *fence }),
        None => (key, Operation::Acquire { token: number, ttl_ms: TTL_MS }),
    }
}

/// What a client believes to hold: key, token, fence.
fn remember(
    held: &mut BTreeMap<u64, (String, u64, u64)>,
    client: u64,
    key: &str,
    operation: Operation,
    outcome: &Outcome,
) {
    match (operation, outcome) {
        (Operation::Acquire { token, .. }, Outcome::Answered(_, Answer::Granted(live))) => {
            held.insert(client, (key.to_owned(), token, live.fence));
        }
        (Operation::Release { .. }, _) | (Operation::Renew { .. }, Outcome::Answered(_, Answer::Refused { .. })) => {
            held.remove(&client);
        }
        _ => {}
    }
}

#[test]
fn a_store_without_a_fault_is_never_found_guilty() {
    for seed in 0..SEEDS * 4 {
        let calls = history(Fault::None, seed);
        let found = check(&calls);
        assert!(found.is_empty(), "seed {seed}: {found:#?}");
        let lost = calls.iter().filter(|call| call.outcome == Outcome::Unknown).count();
        assert!(calls.len() >= CALLS && lost > 0, "seed {seed} tries little: {lost} lost of {}", calls.len());
    }
}

#[test]
fn every_fault_is_found() {
    let faults = [
        (Fault::EndsEarly, Rule::NotEarly),
        (Fault::ReadsStale, Rule::NeverStale),
        (Fault::ReadsStaleInSecret, Rule::EndedStaysEnded),
        (Fault::ReadsAhead, Rule::EndedStaysEnded),
        (Fault::ForgetsReleases, Rule::EndedStaysEnded),
        (Fault::ForgetsRenewals, Rule::DeadlinesStand),
        (Fault::ForgetsGrants, Rule::NotEarly),
        (Fault::Revives, Rule::EndedStaysEnded),
        (Fault::Shortens, Rule::DeadlinesStand),
        (Fault::RenewsAll, Rule::DeadlinesStand),
        (Fault::RepeatsFences, Rule::FencesGrow),
        (Fault::RepeatsPositions, Rule::PositionsAreUnique),
        (Fault::ClockRuns, Rule::ClockKeepsPace),
        (Fault::ClockFalls, Rule::ClockGrows),
        (Fault::RefusesFree, Rule::FreeIsGranted),
    ];
    for (fault, rule) in faults {
        let (mut guilty, mut rules) = (0, BTreeMap::new());
        for seed in 0..SEEDS {
            let found = check(&history(fault, seed));
            guilty += u64::from(found.iter().any(|violation| violation.rule == rule));
            found.iter().for_each(|violation| *rules.entry(violation.rule).or_insert(0) += 1);
        }
        eprintln!("{fault:?}: found by {guilty} of {SEEDS} seeds, {rules:?}");
        assert!(guilty > 0, "{fault:?} breaks {rule:?}, and only this is found: {rules:?}");
    }
}
