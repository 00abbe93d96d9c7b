//! Random clients of a [`Store`] in virtual time: answers get lost, requests act late.

use std::collections::{BTreeMap, BinaryHeap};

use super::store::{Fault, Store, TTL_MS};
use super::*;

const CLIENTS: u64 = 6;

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

/// A history of so many calls of random clients of a store with this fault.
pub(super) fn history(fault: Fault, seed: u64, calls_max: usize) -> Vec<Call> {
    let mut store = Store::new(fault, seed);
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
        if calls.len() < calls_max {
            ask(&mut under, &mut dice, &held, client, returned_ns);
        }
    }
    calls
}

fn choose(dice: &mut Dice, held: Option<&(String, u64, u64)>, number: u64) -> (String, Operation) {
    let key = format!("k{}", dice.in_range(1..=2));
    match held {
        _ if dice.percent(30) => (key, Operation::Get),
        _ if dice.percent(12) => (key, outside(dice, held.map(|(.., fence)| *fence))),
        Some((key, token, fence)) if dice.percent(70) => {
            (key.clone(), Operation::Renew { token: *token, fence: *fence, ttl_ms: TTL_MS })
        }
        Some((key, token, fence)) => (key.clone(), Operation::Release { token: *token, fence: *fence }),
        None => (key, Operation::Acquire { token: number, ttl_ms: TTL_MS }),
    }
}

/// What is done to a key by somebody who does not hold it.
fn outside(dice: &mut Dice, fence: Option<u64>) -> Operation {
    match dice.in_range(0..=19) {
        0..=8 => Operation::Expire { ttl_ms: dice.in_range(TTL_MS / 2..=TTL_MS * 2) },
        9..=11 => Operation::Persist,
        12..=17 => Operation::Trespass { fence, ttl_ms: TTL_MS },
        18 => Operation::Break,
        _ => Operation::Delete,
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
        (Operation::Renew { .. }, Outcome::Answered(_, Answer::Refused { reason, .. })) if reason == "key_expired" => {}
        (Operation::Release { .. }, _) | (Operation::Renew { .. }, Outcome::Answered(_, Answer::Refused { .. })) => {
            held.remove(&client);
        }
        _ => {}
    }
}
