//! Bugs put in on purpose: each must be found, within so many seeds, by a law that is about it. One that is not is a hole in
//! the simulator. And without any, the same seeds are silent.
//!
//! The seeds are the same each time, so what this tells changes only with the sources.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tenure_cluster::planted::Bug;

use super::args::Args;
use super::failure::broken;
use super::sweep::{Job, Sweep, Swept};
use super::trial::Trial;

/// All of them.
const BUGS: [Bug; 39] = [
    Bug::WallClockStamps,
    Bug::AckBeforeSync,
    Bug::NoTickBeforeExpiredRead,
    Bug::OldStateAfterTick,
    Bug::NoLeadershipAtAppend,
    Bug::QuorumGapCounts,
    Bug::StuckDiskGapCounts,
    Bug::CrashPathOnSilence,
    Bug::DeadlineFromAnswer,
    Bug::FenceResetBySnapshot,
    Bug::VoteLostByPurge,
    Bug::TornGroupRefused,
    Bug::DamageCut,
    Bug::StaleFollowerRead,
    Bug::RenewByOwner,
    Bug::KeyTtlEndsGrant,
    Bug::UnknownRetried,
    Bug::GrantToDetached,
    Bug::PlaceLostByRepeat,
    Bug::UndeliveredAfterHeard,
    Bug::StaleDetach,
    Bug::WaitersForgottenBySnapshot,
    Bug::AwayIgnored,
    Bug::DetachedAfterAnswer,
    Bug::QuarantineSkipped,
    Bug::QuarantineForgottenBySnapshot,
    Bug::SupersededRenews,
    Bug::SupersededForgottenBySnapshot,
    Bug::ClaimSurvivesAnother,
    Bug::BreakKeepsClaim,
    Bug::AvoidedGivenAgain,
    Bug::IdentityHoldsTwice,
    Bug::ResizeCutsLive,
    Bug::IdBeyondTheEnd,
    Bug::FloorForgotten,
    Bug::PriorToldOnce,
    Bug::AvoidNotCounted,
    Bug::OlderAskWaitsOn,
    Bug::KeyTtlEndsQuarantine,
];

/// So many seeds are run without a bug first.
const SILENT: u64 = 100;
/// Where the seeds begin.
const BASE: u64 = 0;

/// Which laws may name `bug`, and within how many seeds one of them must.
fn expected(bug: Bug) -> (&'static [&'static str], u64) {
    match bug {
        Bug::WallClockStamps => {
            (&["ClockKeepsPace", "NotEarly", "OneHolder", "OutagesGiveBack", "StuckTimeStands"], 200)
        }
        // What is lost was told: whoever looks next sees other events, and positions that were used before.
        Bug::AckBeforeSync => {
            (&["NothingIsLost", "AckedIsLogged", "LogsAgree", "VoteStands", "EventsAgree", "PositionsGrow"], 200)
        }
        Bug::NoTickBeforeExpiredRead => (&["EndedStaysEnded"], 200),
        Bug::OldStateAfterTick => (&["EndedStaysEnded", "NeverStale"], 200),
        Bug::NoLeadershipAtAppend => (&["NotEarly", "OneHolder", "ClockKeepsPace", "StuckTimeStands"], 400),
        Bug::QuorumGapCounts => (&["OutagesGiveBack"], 200),
        Bug::StuckDiskGapCounts => (&["StuckTimeStands", "OutagesGiveBack"], 200),
        Bug::CrashPathOnSilence => (&["GoneIsGone"], 200),
        Bug::DeadlineFromAnswer => (&["OneHolder", "NotEarly"], 200),
        Bug::FenceResetBySnapshot => (&["FencesGrow", "StatesAgree"], 200),
        Bug::VoteLostByPurge => (&["VoteStands"], 200),
        Bug::TornGroupRefused => (&["StartsAgain"], 200),
        Bug::DamageCut => (&["DamageIsRefused"], 200),
        Bug::StaleFollowerRead => (&["NeverStale"], 200),
        Bug::RenewByOwner => (&["TokensOnly", "DeadlinesStand"], 200),
        Bug::KeyTtlEndsGrant => (&["NotEarly", "OneHolder"], 200),
        Bug::UnknownRetried => (&["AppliedOnce"], 200),
        Bug::GrantToDetached => (&["FirstComeFirst"], 200),
        Bug::PlaceLostByRepeat => (&["PlacesStand", "FirstComeFirst"], 200),
        Bug::UndeliveredAfterHeard => (&["UndeliveredIsUnheard"], 200),
        Bug::StaleDetach => (&["WaitsEndOnce", "UndeliveredIsUnheard"], 200),
        Bug::WaitersForgottenBySnapshot => (&["StatesAgree", "NobodyWaitsForFree"], 200),
        Bug::AwayIgnored => (&["EdgesLapse"], 200),
        Bug::DetachedAfterAnswer => (&["OneHolder", "NotEarly"], 200),
        Bug::QuarantineSkipped => (&["QuarantineStands"], 200),
        Bug::QuarantineForgottenBySnapshot => (&["StatesAgree", "QuarantineStands"], 200),
        Bug::SupersededRenews => (&["SupersededStaysOut"], 200),
        Bug::SupersededForgottenBySnapshot => (&["StatesAgree", "SupersededStaysOut"], 200),
        Bug::ClaimSurvivesAnother => (&["IdsInOrder", "QuarantineStands"], 200),
        Bug::BreakKeepsClaim => (&["QuarantineStands", "IdsInOrder"], 200),
        Bug::AvoidedGivenAgain => (&["QuarantineStands", "IdsInOrder"], 200),
        Bug::IdentityHoldsTwice => (&["OneSlotOfIdentity"], 200),
        Bug::ResizeCutsLive => (&["LostIsLost", "EndsAreTold", "NotEarly"], 200),
        Bug::IdBeyondTheEnd => (&["IdsInRange"], 200),
        Bug::FloorForgotten => (&["FloorStands"], 200),
        Bug::PriorToldOnce | Bug::AvoidNotCounted | Bug::OlderAskWaitsOn => (&["TakeoversStand"], 200),
        Bug::KeyTtlEndsQuarantine => (&["QuarantineStands"], 200),
    }
}

/// What came of the search for one bug.
#[derive(Debug, Serialize)]
struct Found {
    bug: String,
    /// The laws that were broken in the first run that broke one which is about the bug; that one first. Empty: none did.
    laws: Vec<String>,
    /// Those that are not about the bug, and were broken in runs before that.
    before: Vec<String>,
    /// The bug was found by the last of so many.
    seeds: u64,
    limit: u64,
    simulated_s: f64,
    wall_s: f64,
}

impl Found {
    fn row(&self) -> String {
        let law = self.laws.first().map_or("NOT FOUND", String::as_str);
        let Self { bug, before, seeds, limit, simulated_s, wall_s, .. } = self;
        let before = if before.is_empty() { String::new() } else { format!("  after {}", before.join(", ")) };
        format!("{bug:<24} {law:<28} {seeds:>6} {limit:>6} {simulated_s:>12.0} {wall_s:>8.1}{before}")
    }
}

/// Searches for the bug of that name, or for all.
pub fn run(args: &Args, name: &str) -> Result<bool> {
    if !cfg!(feature = "planted") {
        bail!("--planted: build with `--features sim/planted`");
    }
    let bugs = if name == "all" { BUGS.to_vec() } else { vec![named(name)?] };
    if !silent(args) {
        return Ok(false);
    }
    println!("{:<24} {:<28} {:>6} {:>6} {:>12} {:>8}", "bug", "found by", "seeds", "limit", "simulated s", "s");
    let mut all = Vec::new();
    for bug in bugs {
        let found = search(args, bug, Trial::new());
        println!("{}", found.row());
        all.push(found);
    }
    if args.json {
        println!("{}", serde_json::to_string(&all)?);
    }
    let missed: Vec<_> = all.iter().filter(|found| found.laws.is_empty()).map(|found| found.bug.as_str()).collect();
    if !missed.is_empty() {
        println!("FAIL planted: not found: {}", missed.join(", "));
    }
    Ok(missed.is_empty())
}

fn named(name: &str) -> Result<Bug> {
    let found = BUGS.into_iter().find(|bug| format!("{bug:?}").eq_ignore_ascii_case(name));
    found.with_context(|| format!("--planted: there is no {name:?}; there are {BUGS:?}"))
}

/// Without a bug there is nothing to find.
fn silent(args: &Args) -> bool {
    let swept = sweep(args, Trial::new(), args.silent.unwrap_or(SILENT), &[]);
    for failed in &swept.failed {
        let seed = failed.job.plan.seed;
        print!("FAIL planted: seed {seed:#x} has no bug, and\n{}", broken(&failed.tried.outcome.violations));
    }
    println!("no bug: {} seeds, {} failed", swept.totals.runs, swept.totals.failed);
    swept.failed.is_empty()
}

/// Runs the first `seeds` until one breaks one of `laws`; any, if none is named.
fn sweep(args: &Args, trial: Trial, seeds: u64, laws: &'static [&'static str]) -> Swept {
    let base = args.from.unwrap_or(BASE);
    let sweep = Sweep { trial, jobs: args.jobs(), failures_max: 1, laws, until: None, at_least: 0 };
    sweep.run((0..seeds).map(|n| Job::seed(base.wrapping_add(n))), Some(seeds))
}

fn search(args: &Args, bug: Bug, trial: Trial) -> Found {
    let from = Instant::now();
    let (about, limit) = expected(bug);
    let swept = sweep(args, Trial { bug: Some(bug), ..trial }, limit, about);
    let first = swept.failed.iter().find(|failed| failed.is_named(about));
    let place = first.map_or(limit, |failed| failed.place);
    let mut laws: Vec<_> = first.map(|failed| failed.tried.laws()).unwrap_or_default();
    laws.sort_by_key(|law| about.iter().position(|other| other == law).unwrap_or(usize::MAX));
    let before: BTreeSet<_> =
        swept.failed.iter().filter(|failed| failed.place < place).flat_map(|failed| failed.tried.laws()).collect();
    Found {
        bug: format!("{bug:?}"),
        laws: laws.into_iter().map(str::to_owned).collect(),
        before: before.into_iter().map(str::to_owned).collect(),
        seeds: first.map_or(limit, |failed| failed.place + 1),
        limit,
        simulated_s: swept.totals.simulated_s(),
        wall_s: from.elapsed().as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use sim::judge::Violation;
    use sim::plan::Plan;
    use sim::run::{Options, Outcome};

    use super::*;

    fn found(run: fn(&Plan, &Options) -> Outcome) -> Found {
        let args = Args::parse_from(["sim", "--planted", "--jobs", "3"]);
        search(&args, Bug::QuorumGapCounts, Trial { run, bug: None, run_max: Duration::from_secs(60) })
    }

    fn broken_from(plan: &Plan, seed: u64, laws: &[&str]) -> Outcome {
        let broken = laws.iter().filter(|_| plan.seed >= seed);
        let violations = broken.map(|law| Violation { law: (*law).to_owned(), detail: String::new() }).collect();
        Outcome { violations, simulated_ms: 60_000, ..Outcome::default() }
    }

    #[test]
    fn each_is_there_once_and_has_a_law() {
        assert_eq!(BUGS.into_iter().collect::<BTreeSet<_>>().len(), BUGS.len());
        assert!(BUGS.into_iter().all(|bug| !expected(bug).0.is_empty() && expected(bug).1 > 0));
        assert_eq!(named("damagecut").unwrap(), Bug::DamageCut);
        assert!(named("Damage").unwrap_err().to_string().contains("DamageCut"));
    }

    #[test]
    fn the_law_that_is_about_it_is_told_first() {
        let found = found(|plan, _| broken_from(plan, 11, &["EndedStaysEnded", "OneHolder", "OutagesGiveBack"]));
        assert_eq!((found.laws[0].as_str(), found.before.len(), found.seeds), ("OutagesGiveBack", 0, 12));
        assert!(found.row().contains(" OutagesGiveBack "), "{}", found.row());
    }

    #[test]
    fn another_law_does_not_end_the_search_and_is_shown() {
        let found = found(|plan, _| {
            let law = if plan.seed < 7 { "EndedStaysEnded" } else { "OutagesGiveBack" };
            broken_from(plan, 3, &[law])
        });
        assert_eq!((found.laws.as_slice(), found.seeds), (["OutagesGiveBack".to_owned()].as_slice(), 8));
        assert!(found.row().ends_with("after EndedStaysEnded"), "{}", found.row());
    }

    #[test]
    fn what_its_law_does_not_show_is_not_found() {
        let missed = found(|plan, _| broken_from(plan, u64::MAX, &["OutagesGiveBack"]));
        assert_eq!((missed.laws.len(), missed.seeds, missed.simulated_s), (0, 200, 12_000.0));
        assert!(missed.row().contains("NOT FOUND"), "{}", missed.row());
        let named_by_others = found(|plan, _| broken_from(plan, 0, &["OneHolder"]));
        assert_eq!((named_by_others.laws.len(), named_by_others.before), (0, vec!["OneHolder".to_owned()]));
    }

    #[cfg(feature = "planted")]
    #[test]
    fn a_bug_is_put_into_its_run_alone() {
        use tenure_cluster::planted::has;
        let run: fn(&Plan, &Options) -> Outcome =
            |_, _| Outcome { trace_hash: u64::from(has(Bug::DamageCut)), ..Outcome::default() };
        let hash = |bug| {
            let trial = Trial { run, bug, run_max: Duration::from_secs(60) };
            trial.alone(&Plan::from_seed(1), &Options::default()).outcome.trace_hash
        };
        assert_eq!([hash(Some(Bug::DamageCut)), hash(None), hash(Some(Bug::RenewByOwner))], [1, 0, 0]);
    }
}
