//! What holds of every plan that is made from a seed, and of what shrinking makes of it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Act, PROFILES, Plan, damages, shrink};

const SEEDS: std::ops::Range<u64> = 0..600;

/// The act's name in JSON.
fn kind(act: &Act) -> String {
    serde_json::to_value(act).unwrap().as_object().map_or_else(
        || serde_json::to_value(act).unwrap().as_str().unwrap().to_owned(),
        |object| object.keys().next().unwrap().clone(),
    )
}

#[test]
fn a_seed_has_one_plan() {
    for seed in SEEDS {
        assert_eq!(Plan::from_seed(seed), Plan::from_seed(seed));
        assert_ne!(Plan::from_seed(seed).acts, Plan::from_seed(seed + 12).acts, "seed {seed}");
    }
}

#[test]
fn a_plan_is_the_same_after_being_saved_and_loaded() {
    for seed in SEEDS.step_by(7) {
        let plan = Plan::from_seed(seed);
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
    }
    let path = std::env::temp_dir().join(format!("plan-{}.json", std::process::id()));
    let plan = Plan::from_seed(11);
    plan.save(&path).unwrap();
    assert_eq!(Plan::load(&path).unwrap(), plan);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn consecutive_seeds_have_every_profile() {
    let count = u64::try_from(PROFILES.len()).unwrap();
    for first in [0, 5, 1_000_003, u64::MAX - count] {
        let seen: BTreeSet<String> = (first..first + count).map(|seed| Plan::from_seed(seed).shape.profile).collect();
        assert_eq!(seen.len(), PROFILES.len(), "from {first}: {seen:?}");
    }
}

#[test]
fn a_hundred_seeds_have_every_act() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..100 {
        Plan::from_seed(seed).acts.iter().for_each(|timed| *counts.entry(kind(&timed.act)).or_default() += 1);
    }
    eprintln!("{counts:#?}");
    // As many as `Act` has variants: whoever adds one must plan it, too.
    assert_eq!(counts.len(), 23, "{counts:#?}");
    assert!(counts.values().all(|count| *count >= 3), "{counts:#?}");
}

#[test]
fn acts_stand_in_order_within_the_fault_phase() {
    for seed in SEEDS {
        let plan = Plan::from_seed(seed);
        assert!(plan.acts.is_sorted_by_key(|timed| timed.at_ms), "seed {seed}");
        assert!(plan.acts.iter().all(|timed| timed.at_ms < plan.shape.fault_ms), "seed {seed}");
        assert!((20_000..=40_000).contains(&plan.shape.fault_ms) && matches!(plan.shape.nodes, 3 | 5), "seed {seed}");
        assert!(!plan.acts.is_empty() && plan.acts.len() < 1_000, "seed {seed}: {} acts", plan.acts.len());
    }
}

#[test]
fn a_minority_is_damaged_at_most_and_only_what_is_down() {
    let mut damaged_plans = 0;
    for seed in SEEDS {
        let plan = Plan::from_seed(seed);
        let mut damaged = BTreeSet::new();
        for timed in &plan.acts {
            if let Act::Corrupt { node, .. } = timed.act {
                damaged.insert(node);
            }
        }
        assert!(u64::try_from(damaged.len()).unwrap() <= plan.shape.minority(), "seed {seed}: {damaged:?}");
        assert!(damaged.is_empty() || damages(&plan.shape.profile), "seed {seed}: {}", plan.shape.profile);
        damaged_plans += u64::from(!damaged.is_empty());
    }
    assert!(damaged_plans > SEEDS.end / 24, "{damaged_plans}");
}

#[test]
fn clocks_part_by_rho_at_most() {
    for seed in SEEDS {
        let rates: Vec<u64> = Plan::from_seed(seed)
            .acts
            .iter()
            .filter_map(|timed| if let Act::Rate { ppm, .. } = timed.act { Some(ppm) } else { None })
            // The clients' clock is true.
            .chain([1_000_000])
            .collect();
        let (least, most) = (rates.iter().min().unwrap(), rates.iter().max().unwrap());
        assert!(most * 100 <= least * 101, "seed {seed}: {least} and {most}");
    }
}

/// From when to when nodes were down by their plan, counting down nodes.
fn longest_without_majority_ms(plan: &Plan) -> u64 {
    let (mut down, mut since, mut longest) = (BTreeSet::new(), None, 0);
    for timed in &plan.acts {
        match timed.act {
            Act::Kill { node } | Act::PowerCut { node } | Act::Pause { node } => drop(down.insert(node)),
            Act::Start { node } | Act::Resume { node } => drop(down.remove(&node)),
            _ => {}
        }
        match (u64::try_from(down.len()).unwrap() > plan.shape.minority(), since) {
            (true, None) => since = Some(timed.at_ms),
            (false, Some(from)) => {
                longest = longest.max(timed.at_ms - from);
                since = None;
            }
            _ => {}
        }
    }
    longest
}

#[test]
fn majorities_are_lost_for_longer_than_t_and_a_lifetime() {
    let outlasted = (0..100)
        .map(Plan::from_seed)
        .filter(|plan| longest_without_majority_ms(plan) > plan.shape.longest_election_ms() + plan.shape.ttl_ms.1)
        .count();
    assert!(outlasted >= 10, "{outlasted} of 100");
}

/// Is every node cut off from all others, and the clients from all nodes, for twice T and more?
fn is_quietly_alone(plan: &Plan) -> bool {
    let (mut silent, mut alone, mut since) = (BTreeSet::<u64>::new(), BTreeSet::<u64>::new(), 0);
    plan.acts.iter().any(|timed| {
        match &timed.act {
            Act::Cut { way } if way.from == 0 => drop(silent.insert(way.to)),
            Act::Split { left } => {
                alone.extend(left.iter().filter(|_| left.len() == 1));
                since = timed.at_ms;
            }
            Act::HealNetwork => {
                let all = [silent.len(), alone.len()].map(|count| u64::try_from(count).unwrap() == plan.shape.nodes);
                (silent, alone) = (BTreeSet::new(), BTreeSet::new());
                return all == [true; 2] && timed.at_ms - since > 2 * plan.shape.longest_election_ms();
            }
            _ => {}
        }
        false
    })
}

/// Does a sync take longer than T at so many nodes that no entry is committed sooner?
fn is_crawling(plan: &Plan) -> bool {
    let mut slow = BTreeSet::new();
    plan.acts.iter().any(|timed| {
        if let Act::SlowDisk { node, sync_ms } = timed.act {
            if sync_ms > plan.shape.longest_election_ms() {
                slow.insert(node)
            } else {
                slow.remove(&node)
            };
        }
        u64::try_from(slow.len()).unwrap() > plan.shape.minority()
    })
}

#[test]
fn each_round_of_seeds_has_time_that_must_not_count() {
    let count = u64::try_from(PROFILES.len()).unwrap();
    for first in (0..SEEDS.end).step_by(PROFILES.len()) {
        let plans: Vec<Plan> = (first..first + count).map(Plan::from_seed).collect();
        assert!(plans.iter().any(is_quietly_alone), "from {first}");
        assert!(plans.iter().any(is_crawling), "from {first}");
    }
}

#[test]
fn most_of_what_is_killed_is_started_within_the_phase() {
    let (mut kills, mut left) = (0, 0);
    for seed in SEEDS {
        let mut down = BTreeSet::new();
        for timed in Plan::from_seed(seed).acts {
            match timed.act {
                Act::Kill { node } | Act::PowerCut { node } => {
                    kills += 1;
                    down.insert(node);
                }
                Act::Start { node } => drop(down.remove(&node)),
                _ => {}
            }
        }
        left += down.len();
    }
    assert!(left > 0 && left * 10 < kills, "{left} of {kills} left down");
}

#[test]
fn shrinking_ends_at_what_matters() {
    // A plan fails when it kills node 2 and, later, splits or pauses anything.
    let fails = |plan: &Plan| {
        let kill = plan.acts.iter().position(|timed| matches!(timed.act, Act::Kill { node: 2 }));
        let after = plan.acts.iter().rposition(|timed| matches!(timed.act, Act::Split { .. } | Act::Pause { .. }));
        kill.zip(after).is_some_and(|(kill, after)| kill < after)
    };
    let mut plan = (0..).map(Plan::from_seed).find(|plan| fails(plan) && plan.acts.len() > 20).unwrap();
    let mut rounds = 0;
    loop {
        let smaller = shrink::candidates(&plan).find(|plan| fails(plan));
        let Some(smaller) = smaller else { break };
        plan = smaller;
        rounds += 1;
        assert!(rounds < 200, "it does not end");
    }
    assert_eq!(plan.acts.len(), 2, "{plan:#?}");
    assert_eq!((plan.shape.clients, plan.shape.keys), (1, 1));
}
