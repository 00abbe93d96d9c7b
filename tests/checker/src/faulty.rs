//! The checker against a store that has one fault. Without a fault no seed is found guilty; with each of the faults the
//! seeds are, by the rule it breaks.

use std::collections::BTreeMap;

use super::random::history;
use super::store::Fault;
use super::*;

const SEEDS: u64 = 25;
const CALLS: usize = 600;

#[test]
fn a_store_without_a_fault_is_never_found_guilty() {
    for seed in 0..SEEDS * 4 {
        let calls = history(Fault::None, seed, CALLS);
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
        (Fault::LifetimesEndGrants, Rule::NotEarly),
        (Fault::KeysGoEarly, Rule::NothingIsLost),
        (Fault::KeysStay, Rule::LifetimesStand),
        (Fault::KeysExpireEarly, Rule::LifetimesStand),
        (Fault::RenewsByOwner, Rule::TokensOnly),
    ];
    for (fault, rule) in faults {
        let (mut guilty, mut rules) = (0, BTreeMap::new());
        for seed in 0..SEEDS {
            let found = check(&history(fault, seed, CALLS));
            guilty += u64::from(found.iter().any(|violation| violation.rule == rule));
            found.iter().for_each(|violation| *rules.entry(violation.rule).or_insert(0) += 1);
        }
        eprintln!("{fault:?}: found by {guilty} of {SEEDS} seeds, {rules:?}");
        assert!(guilty > 0, "{fault:?} breaks {rule:?}, and only this is found: {rules:?}");
    }
}
