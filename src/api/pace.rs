//! How often an identity may ACQUIRE its slot of a pool at this node: 20 times at once, then 10 times a second. One client
//! in a hot loop is told so before it costs the cluster an entry each time.
//!
//! # Model
//! Of each (pool, identity) it is known when its allowance will be whole again; each ACQUIRE puts that off by a tenth of
//! a second, and what would put it off by more than two seconds is refused. Whoever has not asked for two seconds has its
//! whole allowance, and need not be remembered: there are two generations of two seconds and more, and the older one goes.
//!
//! # Not promised
//! Exactness: each node counts for itself; two identities may share an allowance (by 64 bits of a keyed hash); beyond
//! [`REMEMBERED_MAX`] identities within two seconds the rest is let through.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::problem::{Code, Problem};
use crate::keyspace::Command;

/// At once.
const AT_ONCE: u32 = 20;
/// After that, one in so long.
const EVERY: Duration = Duration::from_millis(100);
/// What makes an allowance whole again.
const WHOLE: Duration = Duration::from_secs(2);
/// Identities of one generation.
const REMEMBERED_MAX: usize = 65_536;

/// Everybody's allowance. See the module's head.
#[derive(Debug, Default)]
pub struct Pace {
    hasher: RandomState,
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    /// When the younger one began.
    began: Option<Instant>,
    /// When an allowance is whole again, of those who asked in this generation.
    young: HashMap<u64, Instant>,
    /// The same of the one before.
    old: HashMap<u64, Instant>,
}

impl Generations {
    fn turn(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        if now.saturating_duration_since(began) >= WHOLE {
            self.old = std::mem::take(&mut self.young);
            self.began = Some(now);
        }
    }

    /// Takes one; how long to wait if there is none.
    fn take(&mut self, who: u64, now: Instant) -> Result<(), Duration> {
        self.turn(now);
        let whole_at = self.young.get(&who).or_else(|| self.old.get(&who)).copied().unwrap_or(now).max(now);
        let then = whole_at + EVERY;
        let most = now + EVERY * AT_ONCE;
        if then > most {
            return Err(then - most);
        }
        if self.young.len() < REMEMBERED_MAX || self.young.contains_key(&who) {
            self.young.insert(who, then);
        }
        Ok(())
    }
}

impl Pace {
    /// Takes one ACQUIRE of `identity` from its allowance of `pool`; how long to wait if there is none left.
    fn take(&self, pool: &str, identity: &str, now: Instant) -> Result<(), Duration> {
        let who = self.hasher.hash_one((pool, identity));
        self.generations.lock().unwrap_or_else(PoisonError::into_inner).take(who, now)
    }

    /// The same, of an identity that asks by itself or in line.
    ///
    /// # Errors
    /// `rate_limited`, with how long to wait.
    pub fn admit(&self, pool: &str, identity: &str, now: Instant) -> Result<(), Problem> {
        self.take(pool, identity, now).map_err(|wait| {
            let wait_ms = wait.as_millis().max(1);
            let detail = format!(
                "this identity asks too often: {AT_ONCE} ACQUIRE at once and then 10 a second at one node; again in {wait_ms} ms"
            );
            Problem::new(Code::RateLimited, detail)
        })
    }

    /// The same, of all who ask by a command.
    ///
    /// # Errors
    /// `rate_limited`; of a BATCH with the item's index, and nothing of it is done.
    pub fn admit_all(&self, command: &Command, now: Instant) -> Result<(), Problem> {
        match command {
            Command::AcquireSlot(ask) => self.admit(&ask.key, &ask.identity, now),
            Command::Batch(items) | Command::AllOrNothing(items) => {
                items.iter().enumerate().try_for_each(|(index, item)| match item {
                    Command::AcquireSlot(ask) => self
                        .admit(&ask.key, &ask.identity, now)
                        .map_err(|problem| Problem { index: Some(index), ..problem }),
                    _ => Ok(()),
                })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::keyspace::{AcquireSlot, token_hash};

    const MS: Duration = Duration::from_millis(1);

    fn taken(pace: &Pace, identity: &str, now: Instant) -> usize {
        (0..1_000).take_while(|_| pace.take("ids", identity, now).is_ok()).count()
    }

    #[test]
    fn twenty_at_once_and_then_ten_a_second() {
        let (pace, start) = (Pace::default(), Instant::now());
        assert_eq!(taken(&pace, "a", start), 20);
        assert_eq!(pace.take("ids", "a", start), Err(EVERY));
        assert_eq!(pace.take("ids", "a", start + 99 * MS), Err(MS));
        assert_eq!(taken(&pace, "a", start + 100 * MS), 1);
        let mut in_ten_seconds = 0;
        for ms in 101..=10_100 {
            in_ten_seconds += usize::from(pace.take("ids", "a", start + ms * MS).is_ok());
        }
        assert_eq!(in_ten_seconds, 100);
        assert_eq!(taken(&pace, "a", start + 12_100 * MS), 20);
    }

    #[test]
    fn nobody_pays_for_another() {
        let (pace, now) = (Pace::default(), Instant::now());
        assert_eq!(taken(&pace, "a", now), 20);
        assert_eq!(taken(&pace, "b", now), 20);
        assert!(pace.take("other", "a", now).is_ok());
        assert!(pace.take("ids", "a", now).is_err());
    }

    #[test]
    fn what_is_forgotten_was_whole() {
        for step_ms in [1, 700, 1_999, 2_000, 2_001, 3_500] {
            let (pace, start) = (Pace::default(), Instant::now());
            // Generations turn while somebody else asks.
            let mut now = start;
            for n in 0..50_u32 {
                now = start + n * step_ms * MS;
                let _ = pace.take("ids", "other", now);
            }
            assert_eq!(taken(&pace, "a", now), 20);
            for ms in (100..=5_000).step_by(100) {
                let _ = pace.take("ids", "other", now + ms * MS);
                assert_eq!(taken(&pace, "a", now + ms * MS), 1, "{step_ms} {ms}");
            }
        }
    }

    #[test]
    fn memory_is_bounded_and_comes_back() {
        let (pace, start) = (Pace::default(), Instant::now());
        let remembered = || {
            let generations = pace.generations.lock().unwrap();
            (generations.young.len(), generations.old.len())
        };
        for n in 0..REMEMBERED_MAX + 10 {
            pace.take("ids", &n.to_string(), start).unwrap();
        }
        assert_eq!(remembered(), (REMEMBERED_MAX, 0));
        // Those who are remembered are still counted.
        assert_eq!(taken(&pace, "0", start), 19);
        pace.take("ids", "late", start + WHOLE).unwrap();
        assert_eq!(remembered(), (1, REMEMBERED_MAX));
        pace.take("ids", "later", start + 2 * WHOLE).unwrap();
        assert_eq!(remembered(), (1, 1));
    }

    #[test]
    fn each_item_of_a_batch_counts_and_is_named() {
        let (pace, now) = (Pace::default(), Instant::now());
        let ask = AcquireSlot {
            key: "ids".into(),
            identity: "a".into(),
            token: token_hash("ids", "t"),
            ttl_ms: 30_000,
            avoid: None,
            unix_ms: None,
            note: None,
            once: false,
        };
        let items = vec![Command::AcquireSlot(ask.clone()); 19];
        assert_eq!(pace.admit_all(&Command::Batch(items), now), Ok(()));
        let items = vec![Command::Persist { key: "ids".into() }, Command::AcquireSlot(ask.clone())];
        let items = [items.clone(), items].concat();
        let problem = pace.admit_all(&Command::AllOrNothing(items), now).unwrap_err();
        assert_eq!((problem.code, problem.index), (Code::RateLimited, Some(3)));
        assert!(problem.detail.ends_with("again in 100 ms"), "{}", problem.detail);
        assert_eq!(pace.admit_all(&Command::Persist { key: "ids".into() }, now), Ok(()));
        assert!(pace.admit_all(&Command::AcquireSlot(ask), now).is_err());
    }
}
