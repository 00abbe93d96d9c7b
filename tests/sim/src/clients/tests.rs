//! Clients against a keyspace without a cluster: what they do to it is judged by the same rules as in a whole run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use checker::{Answer, Call, Operation, Outcome, Rule};

use super::board::{CALLS_MAX, KEY_CALLS_MAX};
use super::fake::{Fake, Fault};
use super::{Clients, Notes, beliefs};
use crate::plan::{Plan, Shape};
use crate::runtime;

/// What is left of a run.
struct Run {
    notes: Notes,
    /// Of the work, without the end.
    worked: usize,
    lines: Vec<String>,
    applied: Vec<String>,
}

fn shape(seed: u64) -> Shape {
    Shape { profile: "calm".to_owned(), nodes: 3, ..Plan::from_seed(seed).shape }
}

fn run(fault: Fault, seed: u64, ms: u64) -> Run {
    runtime::simulate(seed, async move {
        let fake = Fake::new(fault, seed);
        let clients = Clients::start_at(&fake, &shape(seed), seed);
        runtime::sleep(Duration::from_millis(ms)).await;
        clients.stop().await;
        let worked = clients.notes.calls.lock().unwrap().len();
        let lines = clients.finish_at(&fake).await;
        Run { notes: clients.notes.clone(), worked, lines, applied: fake.applied() }
    })
}

/// Of leases: who was taken over from a slot only the log tells.
fn two_hold(notes: &Notes) -> Vec<String> {
    let all = beliefs::overlaps(notes, &BTreeMap::new()).into_iter();
    all.filter(|(law, _)| *law == "OneHolder").map(|(_, line)| line).collect()
}

fn calls(run: &Run) -> Vec<Call> {
    run.notes.calls.lock().unwrap().clone()
}

#[test]
fn a_right_store_is_never_found_guilty() {
    for seed in 0..12 {
        let run = run(Fault::None, seed, 15_000);
        let violations = checker::check(&calls(&run));
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
        assert_eq!(two_hold(&run.notes), [""; 0], "seed {seed}");
        assert_eq!(run.lines, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn equal_seeds_give_equal_notes() {
    let (one, other) = (run(Fault::None, 5, 8_000), run(Fault::None, 5, 8_000));
    assert_eq!(calls(&one), calls(&other));
    assert_eq!(*one.notes.beliefs.lock().unwrap(), *other.notes.beliefs.lock().unwrap());
    assert_ne!(calls(&one), calls(&run(Fault::None, 6, 8_000)));
}

#[test]
fn no_two_tries_have_one_command() {
    for seed in 0..4 {
        let applied = run(Fault::None, seed, 30_000).applied;
        let different: BTreeSet<&String> = applied.iter().collect();
        assert_eq!(different.len(), applied.len(), "seed {seed}");
    }
}

/// What was asked, and how it was answered, in a word each.
fn kinds(calls: &[Call]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in calls {
        let operation = format!("{:?}", call.operation);
        let operation = operation.split(' ').next().unwrap().to_owned();
        let outcome = match &call.outcome {
            Outcome::Answered(_, Answer::Refused { reason, yours, .. }) if *yours => format!("yours {reason}"),
            Outcome::Answered(_, Answer::Refused { reason, .. }) => reason.clone(),
            Outcome::Answered(_, Answer::Seen(sight)) => {
                sight.as_ref().map_or("absent", |sight| if sight.held.is_some() { "held" } else { "free" }).to_owned()
            }
            Outcome::Answered(_, Answer::Granted(_)) => "granted".to_owned(),
            Outcome::Answered(_, Answer::Done) => "done".to_owned(),
            Outcome::Nothing => "nothing".to_owned(),
            Outcome::Unknown => "unknown".to_owned(),
        };
        *counts.entry(format!("{operation} {outcome}")).or_default() += 1;
    }
    counts
}

#[test]
fn everything_is_tried_and_answered_in_every_way() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..8 {
        let run = run(Fault::None, seed, 30_000);
        eprintln!("seed {seed}: {} calls", run.worked);
        assert!((1_200..=7_000).contains(&run.worked), "seed {seed}: {} calls in 30 s", run.worked);
        kinds(&calls(&run)).into_iter().for_each(|(kind, count)| *counts.entry(kind).or_default() += count);
    }
    eprintln!("{counts:#?}");
    let wanted = [
        "Acquire granted",
        "Acquire held",
        "Acquire yours ",
        "Acquire token_used",
        "Acquire key_expired",
        "Acquire unknown",
        "Renew granted",
        "Renew not_held",
        "Renew expired",
        "Renew broken",
        "Renew key_expired",
        "Renew unknown",
        "Release done",
        "Release unknown",
        "Trespass not_held",
        "Expire done",
        "Expire key_expired",
        "Persist done",
        "Break done",
        "Delete done",
        "Get held",
        "Get free",
        "Get absent",
    ];
    let missing: Vec<_> = wanted.iter().filter(|kind| !counts.contains_key(**kind)).collect();
    assert!(missing.is_empty(), "never seen: {missing:?}");
}

#[test]
fn calls_are_limited_per_key_and_per_run() {
    let run = run(Fault::None, 3, 200_000);
    assert!(run.worked <= usize::try_from(CALLS_MAX).unwrap(), "{}", run.worked);
    let mut keys: BTreeMap<String, usize> = BTreeMap::new();
    for call in calls(&run).into_iter().take(run.worked) {
        *keys.entry(call.key).or_default() += 1;
    }
    assert!(
        keys.len() > 20 && keys.values().all(|count| *count <= usize::try_from(KEY_CALLS_MAX).unwrap()),
        "{keys:?}"
    );
}

#[test]
fn short_keys_are_linearizable_by_search() {
    let found = checker::cross_check(&calls(&run(Fault::None, 1, 20_000)));
    assert!(found.violations.is_empty() && found.judged > 0 && found.too_long <= found.judged, "{found:#?}");
}

#[test]
fn a_clock_that_runs_makes_two_holders() {
    let guilty = (0..6).filter(|seed| !two_hold(&run(Fault::ClockRuns, *seed, 15_000).notes).is_empty());
    assert!(guilty.count() > 0, "5 % is more than rho, and nobody held twice");
}

#[test]
fn a_token_that_counts_for_nothing_is_found() {
    let violations = checker::check(&calls(&run(Fault::AnyToken, 2, 15_000)));
    assert!(violations.iter().any(|violation| violation.rule == Rule::TokensOnly), "{violations:#?}");
}

#[test]
fn a_store_that_does_not_come_back_is_told() {
    let run = run(Fault::Dies { after_ms: 5_000 }, 4, 6_000);
    assert!(run.lines.iter().any(|line| line.contains("no node answers a read")), "{:#?}", run.lines);
    assert!(run.lines.iter().any(|line| line.contains("not granted")), "{:#?}", run.lines);
}

#[test]
fn an_operators_break_excuses_and_nothing_else_does() {
    let notes = Notes::default();
    let belief = |fence, from_ns, until_ns| super::Belief {
        client: 1,
        key: "k".to_owned(),
        fence,
        sent_ns: from_ns,
        from_ns,
        until_ns,
    };
    notes.begin(belief(1, 100, 500));
    let second = notes.begin(belief(2, 400, 900));
    assert_eq!(two_hold(&notes).len(), 1);
    let at = |invoked_ns, returned_ns, outcome| Call {
        client: 2,
        node: 1,
        key: "k".to_owned(),
        operation: Operation::Break,
        invoked_ns,
        sent_ns: invoked_ns,
        returned_ns,
        repeated: false,
        outcome,
    };
    notes.calls.lock().unwrap().push(at(450, 460, Outcome::Unknown));
    assert_eq!(two_hold(&notes).len(), 1, "it came too late to end the first before the second began");
    notes.calls.lock().unwrap().push(at(300, 310, Outcome::Nothing));
    assert_eq!(two_hold(&notes).len(), 1, "it had no effect");
    notes.calls.lock().unwrap().push(at(300, 310, Outcome::Unknown));
    assert_eq!(two_hold(&notes), [""; 0]);
    notes.calls.lock().unwrap().clear();
    notes.end(second, 350);
    assert_eq!(two_hold(&notes), [""; 0]);
}

#[cfg(feature = "planted")]
#[test]
fn a_deadline_from_the_answer_makes_two_holders() {
    use tenure_cluster::planted::{Bug, plant};
    plant(Some(Bug::DeadlineFromAnswer));
    let guilty = (0..6).filter(|seed| !two_hold(&run(Fault::None, *seed, 15_000).notes).is_empty()).count();
    plant(None);
    assert!(guilty > 0, "nobody held twice");
}
