//! Which kinds of faults a plan is made of. The seed chooses in rotation, so that any [`PROFILES`]`.len()` consecutive
//! seeds have each once.

use checker::Dice;

use super::schedule::Schedule;
use super::{Act, Shape, Timed, Way};

/// All of them.
pub const PROFILES: [&str; 12] = [
    "calm",
    "kills",
    "power_cuts",
    "partitions",
    "flapping",
    "clocks",
    "stalls",
    "slow_network",
    "disks",
    "damage",
    "snapshots",
    "mixed",
];

/// Which dice of a seed draw the acts.
const DICE: u64 = 2;
/// Before anything goes wrong, so that there is something to lose.
const QUIET_MS: std::ops::RangeInclusive<u64> = 300..=1_500;
/// Acts of a plan at most: enough for all profiles by far.
const ACTS_MAX: usize = 1_000;

pub(super) fn of(seed: u64) -> &'static str {
    let count = u64::try_from(PROFILES.len()).unwrap();
    PROFILES[usize::try_from(seed % count).unwrap()]
}

/// May plans of this profile damage a log, so that a node refuses to run on it?
#[must_use]
pub fn damages(profile: &str) -> bool {
    matches!(profile, "damage" | "mixed")
}

/// What goes wrong in the plan of a seed.
pub(super) fn acts(seed: u64, profile: &str, shape: &Shape) -> Vec<Timed> {
    let mut schedule = Schedule::new(Dice::new(seed, DICE), shape);
    let mut at_ms = schedule.dice.in_range(QUIET_MS);
    if matches!(profile, "clocks" | "mixed") {
        schedule.change_rates(0);
    }
    if let Some(over_ms) = first(&mut schedule, profile, at_ms) {
        at_ms = over_ms + pause_ms(&mut schedule, profile);
    }
    while at_ms < shape.fault_ms {
        let over_ms = match profile {
            "mixed" => {
                let other = PROFILES[usize::try_from(schedule.dice.in_range(1..=10)).unwrap()];
                episode(&mut schedule, other, at_ms)
            }
            profile => episode(&mut schedule, profile, at_ms),
        };
        // In a mixed plan the next begins before this one is over.
        let next_ms = if profile == "mixed" { at_ms + over_ms.saturating_sub(at_ms) / 2 } else { over_ms };
        at_ms = next_ms.max(at_ms) + pause_ms(&mut schedule, profile);
    }
    let mut acts = schedule.finish();
    acts.truncate(ACTS_MAX);
    acts
}

/// Between two episodes: now and then so short that the cluster has no time to come to itself.
fn pause_ms(schedule: &mut Schedule<'_>, profile: &str) -> u64 {
    match profile {
        "calm" => schedule.dice.in_range(3_000..=9_000),
        _ if schedule.dice.percent(30) => schedule.dice.in_range(10..=300),
        _ => schedule.dice.in_range(500..=2_500),
    }
}

/// What each plan of the profile begins with, so that any round of seeds has it; tells when it is over.
fn first(schedule: &mut Schedule<'_>, profile: &str, at_ms: u64) -> Option<u64> {
    match profile {
        "partitions" => Some(schedule.quiet_outage(at_ms)),
        "flapping" => Some(schedule.forsaken(at_ms)),
        "disks" => Some(schedule.crawling_disks(at_ms)),
        "stalls" => Some(schedule.stale_stamp(at_ms)),
        _ => None,
    }
}

/// One episode of the profile from `at_ms`; tells when it is over.
fn episode(schedule: &mut Schedule<'_>, profile: &str, at_ms: u64) -> u64 {
    let choice = schedule.dice.in_range(0..=99);
    match profile {
        "calm" => {
            schedule.hand_over(at_ms);
            at_ms
        }
        "kills" | "power_cuts" => crashes(schedule, profile == "power_cuts", at_ms, choice),
        "partitions" => partitions(schedule, at_ms, choice),
        "flapping" => {
            let for_ms = schedule.dice.in_range(1_000..=5_000);
            schedule.flapping(at_ms, for_ms)
        }
        "clocks" => clocks(schedule, at_ms, choice),
        "stalls" => stalls(schedule, at_ms, choice),
        "slow_network" => {
            let for_ms = schedule.dice.in_range(2_000..=7_000);
            if choice < 65 { schedule.bad_weather(at_ms, for_ms) } else { schedule.slow_ways(at_ms, for_ms) }
        }
        "disks" => disks(schedule, at_ms, choice),
        "damage" => damage(schedule, at_ms, choice),
        _ => snapshots(schedule, at_ms, choice),
    }
}

fn crashes(schedule: &mut Schedule<'_>, power: bool, at_ms: u64, choice: u64) -> u64 {
    let (all, one) = (schedule.shape.nodes, schedule.node());
    match choice {
        0..30 => {
            let down_ms = schedule.span_ms();
            schedule.crash(at_ms, &[one], power, down_ms)
        }
        30..45 => {
            let (nodes, down_ms) = (schedule.majority(), schedule.outlasting_ms());
            schedule.crash(at_ms, &nodes, power, down_ms)
        }
        45..60 => {
            let (nodes, down_ms) = (schedule.some_nodes(all), schedule.span_ms());
            schedule.crash(at_ms, &nodes, power, down_ms)
        }
        60..75 => schedule.cascade(at_ms, power),
        75..85 => {
            // Down, up, down again while it catches up.
            let up_ms = schedule.crash(at_ms, &[one], power, 30);
            let again_ms = up_ms + schedule.dice.in_range(1..=400);
            let down_ms = schedule.span_ms();
            schedule.crash(again_ms, &[one], power, down_ms)
        }
        85..93 => {
            schedule.hand_over(at_ms);
            let kill_ms = at_ms + schedule.dice.in_range(0..=60);
            let down_ms = schedule.span_ms();
            schedule.crash(kill_ms, &[one], power, down_ms)
        }
        _ => {
            // A minority stays down while others come and go.
            let (nodes, down_ms) = (schedule.some_nodes(schedule.shape.minority()), schedule.outlasting_ms());
            schedule.crash(at_ms, &nodes, power, down_ms);
            let second_ms = schedule.short_ms();
            schedule.crash(at_ms + down_ms / 2, &[one], power, second_ms).max(at_ms + down_ms)
        }
    }
}

fn partitions(schedule: &mut Schedule<'_>, at_ms: u64, choice: u64) -> u64 {
    match choice {
        0..15 => schedule.quiet_outage(at_ms),
        15..30 => schedule.split_in_turn(at_ms),
        30..40 => {
            let (count, for_ms) = (schedule.shape.minority(), schedule.long_ms());
            let left = schedule.some_nodes(count);
            schedule.split(at_ms, left, for_ms)
        }
        40..52 => {
            // No part is a majority: each node alone.
            let for_ms = schedule.outlasting_ms();
            for node in 1..=schedule.shape.nodes {
                schedule.put(at_ms, Act::Split { left: vec![node] });
            }
            schedule.put(at_ms + for_ms, Act::HealNetwork);
            at_ms + for_ms
        }
        52..65 => schedule.shifting_splits(at_ms),
        65..85 => {
            let for_ms = schedule.long_ms();
            schedule.one_way(at_ms, for_ms)
        }
        85..91 => schedule.mute_in_turn(at_ms),
        91..96 => schedule.forsaken(at_ms),
        _ => {
            // The node that the clients no longer reach goes on among its peers.
            let (node, for_ms) = (schedule.node(), schedule.long_ms());
            schedule.cut(at_ms, Way { from: 0, to: node }, for_ms);
            schedule.cut(at_ms, Way { from: node, to: 0 }, for_ms);
            at_ms + for_ms
        }
    }
}

fn clocks(schedule: &mut Schedule<'_>, at_ms: u64, choice: u64) -> u64 {
    match choice {
        0..35 => schedule.change_rates(at_ms),
        35..70 => schedule.wall_jump(at_ms),
        70..85 => {
            // The leader changes, so that another clock counts.
            schedule.wall_jump(at_ms);
            schedule.hand_over(at_ms);
        }
        _ => {
            let (node, down_ms) = (schedule.node(), schedule.short_ms());
            schedule.wall_jump(at_ms);
            return schedule.crash(at_ms, &[node], false, down_ms);
        }
    }
    at_ms + 200
}

fn stalls(schedule: &mut Schedule<'_>, at_ms: u64, choice: u64) -> u64 {
    match choice {
        0..15 => {
            let (nodes, for_ms) = (schedule.some_nodes(schedule.shape.nodes), schedule.dice.in_range(2_000..=8_000));
            schedule.stall(at_ms, &nodes, for_ms)
        }
        15..40 => schedule.stale_stamp(at_ms),
        40..45 => {
            let (node, for_ms) = (schedule.node(), schedule.dice.in_range(1_000..=6_000));
            schedule.stall(at_ms, &[node], for_ms)
        }
        45..70 => schedule.pause_in_turn(at_ms),
        70..80 => {
            let (nodes, for_ms) = (schedule.majority(), schedule.outlasting_ms());
            schedule.pause(at_ms, &nodes, for_ms)
        }
        80..90 => {
            let (nodes, for_ms) = (schedule.some_nodes(schedule.shape.nodes), schedule.span_ms());
            schedule.pause(at_ms, &nodes, for_ms)
        }
        _ => {
            let (node, for_ms) = (schedule.node(), schedule.short_ms());
            schedule.hand_over(at_ms);
            schedule.pause(at_ms + 5, &[node], for_ms)
        }
    }
}

fn disks(schedule: &mut Schedule<'_>, at_ms: u64, choice: u64) -> u64 {
    let (one, for_ms) = (schedule.node(), schedule.dice.in_range(1_000..=5_000));
    match choice {
        0..20 => {
            let sync_ms = schedule.dice.in_range(1..=schedule.shape.election_timeout_ms);
            schedule.slow_disk(at_ms, &[one], sync_ms, for_ms)
        }
        20..35 => schedule.stuck_disk(at_ms),
        35..45 => schedule.crawling_disks(at_ms),
        45..65 => schedule.full_disk(at_ms, &[one], for_ms),
        65..75 => {
            let (nodes, for_ms) = (schedule.majority(), schedule.outlasting_ms());
            schedule.full_disk(at_ms, &nodes, for_ms)
        }
        75..92 => schedule.failing_disk(at_ms),
        _ => {
            // The power goes while syncs are slow: much is not synced yet.
            let (nodes, down_ms) = (schedule.some_nodes(schedule.shape.nodes), schedule.short_ms());
            let sync_ms = schedule.dice.in_range(20..=200);
            schedule.slow_disk(at_ms, &nodes, sync_ms, for_ms);
            schedule.crash(at_ms + for_ms / 2, &nodes, true, down_ms).max(at_ms + for_ms)
        }
    }
}

fn damage(schedule: &mut Schedule<'_>, at_ms: u64, choice: u64) -> u64 {
    // The first comes late enough to find a log, and in time to be seen.
    let first_ms = at_ms.max(schedule.shape.fault_ms / 6);
    match choice {
        0..60 => schedule.damage(first_ms),
        60..80 => {
            let (node, power, down_ms) = (schedule.node(), schedule.dice.percent(50), schedule.short_ms());
            schedule.crash(at_ms, &[node], power, down_ms)
        }
        80..90 => {
            let for_ms = schedule.dice.in_range(1_000..=3_000);
            schedule.bad_weather(at_ms, for_ms)
        }
        _ => schedule.failing_disk(at_ms),
    }
}

/// A follower falls so far behind that it needs a snapshot, and things go wrong while it gets one.
fn snapshots(schedule: &mut Schedule<'_>, at_ms: u64, choice: u64) -> u64 {
    let (node, behind_ms) = (schedule.node(), schedule.dice.in_range(3_000..=8_000));
    let back_ms = match choice {
        0..50 => schedule.crash(at_ms, &[node], choice < 25, behind_ms),
        50..80 => schedule.split(at_ms, vec![node], behind_ms),
        _ => schedule.pause(at_ms, &[node], behind_ms),
    };
    let during_ms = back_ms + schedule.dice.in_range(0..=500);
    match schedule.dice.in_range(0..=5) {
        0 => {
            let (power, down_ms) = (schedule.dice.percent(60), schedule.short_ms());
            schedule.crash(during_ms, &[node], power, down_ms)
        }
        1 => {
            // Everyone, so that what was installed must be on the disk.
            let (nodes, down_ms) = (schedule.some_nodes(schedule.shape.nodes), schedule.short_ms());
            schedule.crash(during_ms, &nodes, true, down_ms)
        }
        2 => {
            let other = schedule.node();
            let down_ms = schedule.span_ms();
            schedule.crash(during_ms, &[other], false, down_ms)
        }
        3 => {
            let for_ms = schedule.short_ms();
            schedule.slow_ways(back_ms.saturating_sub(50), 2_000).max(schedule.one_way(during_ms, for_ms))
        }
        4 => {
            schedule.hand_over(back_ms);
            schedule.hand_over(during_ms);
            during_ms
        }
        _ => back_ms,
    }
}
