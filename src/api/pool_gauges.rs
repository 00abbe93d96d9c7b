//! How full the pools are, as gauges: of the first 100 in byte order of their keys, so that who makes many pools does not
//! drown what reads the page; and how many are left out.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::keyspace::{Key, Keyspace, PoolUse};

/// Pools that are told of, at most.
const POOLS_MAX: usize = 100;

/// How much of each pool is in use.
pub struct Pools {
    told: Vec<(Key, PoolUse)>,
    omitted: usize,
}

impl Pools {
    /// As of now.
    pub fn of(machine: &Keyspace) -> Self {
        let mut pools = machine.pools();
        let told = pools.by_ref().take(POOLS_MAX).map(|(key, used)| (Key::clone(key), used)).collect();
        Self { told, omitted: pools.count() }
    }

    /// Adds the gauges.
    pub fn register(&self, registry: &mut Registry) {
        let slots = Family::<[(&'static str, String); 2], Gauge<u64, AtomicU64>>::default();
        for (pool, PoolUse { held, quarantined, size }) in &self.told {
            // Those that are held beyond the end after a RESIZE count as if they stood within.
            let free = size.saturating_sub(*held).saturating_sub(*quarantined);
            for (state, count) in [("held", *held), ("quarantined", *quarantined), ("free", free)] {
                slots.get_or_create(&[("pool", pool.to_string()), ("state", state.to_owned())]).set(count.into());
            }
        }
        registry.register("pool_slots", "Slots of the first 100 pools in byte order, by state", slots);
        let mut gauge = |name: &str, help: &str, value: usize| {
            let gauge = Gauge::<u64, AtomicU64>::default();
            gauge.set(u64::try_from(value).unwrap_or(u64::MAX));
            registry.register(name, help, gauge);
        };
        gauge("pools", "Pools", self.told.len() + self.omitted);
        gauge("pools_omitted", "Pools that pool_slots leaves out", self.omitted);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use prometheus_client::encoding::text;
    use tenure_cluster::{Moment, Position, Stamp, StateMachine};

    use super::*;
    use crate::keyspace::{Acquire, Command, PoolOptions, PoolUuid, token_hash};

    fn page(commands: Vec<Command>) -> String {
        let (mut machine, mut events) = (Keyspace::default(), Vec::new());
        for (index, command) in (1..).zip(commands) {
            let at = Moment { stamp: Stamp(index), position: Position { index, ordinal: 0 }, wall_ms: 0 };
            machine.apply(&at, command, &mut events);
        }
        let (mut registry, mut out) = (Registry::default(), String::new());
        Pools::of(&machine).register(&mut registry);
        text::encode_registry(&mut out, &registry).unwrap();
        out
    }

    fn create(key: &str, size: u32) -> Command {
        let options = PoolOptions { size, ..PoolOptions::default() };
        Command::CreatePool { key: key.into(), options, uuid: PoolUuid::default() }
    }

    fn acquire(key: &str, token: &str) -> Command {
        Command::Acquire(Acquire {
            key: key.into(),
            owner: "o".into(),
            token: token_hash(key, token),
            ttl_ms: 60_000,
            create: false,
            note: None,
            min_hold_ms: None,
            delay_ms: None,
            once: false,
        })
    }

    #[test]
    fn slots_by_state() {
        let broken = Command::BreakSlot { key: "a\"b".into(), id: 1, reason: "r".into(), grace_ms: 0, fence: None };
        let text = page(vec![create("a\"b", 5), acquire("a\"b", "1"), acquire("a\"b", "2"), broken]);
        for line in [
            r#"pool_slots{pool="a\"b",state="held"} 1"#,
            r#"pool_slots{pool="a\"b",state="quarantined"} 1"#,
            r#"pool_slots{pool="a\"b",state="free"} 3"#,
            "pools 1",
            "pools_omitted 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }

    #[test]
    fn a_pool_that_shrank_below_what_is_held_has_nothing_free() {
        let resize = Command::Resize { key: "p".into(), size: 1 };
        let text = page(vec![create("p", 3), acquire("p", "1"), acquire("p", "2"), resize]);
        assert!(
            text.contains(r#"{pool="p",state="held"} 2"#) && text.contains(r#"{pool="p",state="free"} 0"#),
            "{text}"
        );
    }

    #[test]
    fn so_many_and_the_rest_is_counted() {
        let text = page((0..POOLS_MAX + 3).map(|n| create(&format!("{n:03}"), 1)).collect());
        assert_eq!(text.lines().filter(|line| line.contains("state=\"free\"")).count(), POOLS_MAX);
        assert!(text.contains(r#"pool="099""#) && !text.contains(r#"pool="100""#), "{text}");
        assert!(text.contains("\npools 103\n") && text.contains("\npools_omitted 3\n"), "{text}");
    }
}
