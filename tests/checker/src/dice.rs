//! Choices that a seed repeats.

use std::ops::RangeInclusive;

/// Chooses, as its seed says (splitmix64).
pub struct Dice(u64);

impl Dice {
    /// Those of the `n`th of many that have one seed.
    pub fn new(seed: u64, n: u64) -> Self {
        Self(seed.wrapping_mul(1_000_003).wrapping_add(n))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// One of the range.
    pub fn in_range(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.next() % (range.end() - range.start() + 1)
    }

    /// True in so many of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}
