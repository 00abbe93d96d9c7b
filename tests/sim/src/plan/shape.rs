//! The sizes of a run, drawn from its seed.
//!
//! Small on purpose: with segments of a few KiB and a snapshot every few hundred entries, half a minute holds what takes
//! a real cluster weeks. Some plans are generous, so that the other way of living is seen too.

use std::ops::RangeInclusive;

use checker::Dice;

use super::Shape;

/// Which dice of a seed draw the shape.
const DICE: u64 = 1;
/// Election timeouts, milliseconds.
const ELECTION_TIMEOUT_MS: RangeInclusive<u64> = 150..=750;
/// The same where majorities are lost: T is below a second, after which a tick is due that hides how much was counted.
const SHORT_ELECTION_MS: RangeInclusive<u64> = 150..=300;
/// How long things go wrong.
const FAULT_MS: RangeInclusive<u64> = 20_000..=40_000;

pub(super) fn draw(seed: u64, profile: &str) -> Shape {
    let mut dice = Dice::new(seed, DICE);
    let nodes = if dice.percent(33) { 5 } else { 3 };
    let election_timeout_ms =
        dice.in_range(if profile == "partitions" { SHORT_ELECTION_MS } else { ELECTION_TIMEOUT_MS });
    // Heartbeats must have a chance: a hop is far below a third of the election timeout.
    let hop_least_us = dice.in_range(20..=300);
    let hop_us = (hop_least_us, hop_least_us + dice.in_range(50..=2_000));
    let (snapshot_log_bytes, log_margin_bytes, segment_bytes) = log_sizes(&mut dice, profile);
    Shape {
        profile: profile.to_owned(),
        nodes,
        fault_ms: dice.in_range(FAULT_MS),
        clients: u32::try_from(dice.in_range(12..=18)).unwrap(),
        keys: u32::try_from(dice.in_range(3..=7)).unwrap(),
        election_timeout_ms,
        request_timeout_ms: dice.in_range(2 * election_timeout_ms..=3_500),
        snapshot_log_bytes,
        log_margin_bytes,
        segment_bytes,
        sync_us: if dice.percent(70) { dice.in_range(50..=1_500) } else { dice.in_range(2_000..=8_000) },
        hop_us,
        ttl_ms: (dice.in_range(120..=500), dice.in_range(800..=3_500)),
    }
}

/// Bytes between snapshots, behind a snapshot, and of a segment.
fn log_sizes(dice: &mut Dice, profile: &str) -> (u64, u64, u64) {
    const KIB: u64 = 1024;
    if profile != "snapshots" && dice.percent(25) {
        return (dice.in_range(512..=2_048) * KIB, dice.in_range(256..=1_024) * KIB, 1_024 * KIB);
    }
    let snapshot = dice.in_range(6..=48) * KIB;
    (snapshot, dice.in_range(0..=snapshot / 2), dice.in_range(4..=64) * KIB)
}
