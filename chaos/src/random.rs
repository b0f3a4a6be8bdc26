//! Numbers that follow from a seed, today and after the next update of every dependency.

use std::{ops::Range, time::Duration};

/// SplitMix64: small, good enough to choose faults by, and ours to keep as it is.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates one of the many streams of numbers that one seed has.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xA24B_AED4_963E_E407));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number of the range, which must not be empty. The bias is far below anything that matters here.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        usize::try_from(self.within(0..length)).unwrap_or(0)
    }

    pub(crate) fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// Returns a number that is no further from zero than `most`.
    pub(crate) fn around_zero(&mut self, most: u64) -> i64 {
        let above = i64::try_from(self.within(0..2 * most + 1)).unwrap_or(0);
        above - i64::try_from(most).unwrap_or(0)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_seed_never_change() {
        let mut random = Random::new(7, 1);
        let numbers: Vec<u64> = (0..4).map(|_| random.within(0..1000)).collect();
        assert_eq!(numbers, [783, 904, 235, 16]);
        assert_ne!(Random::new(7, 1).next(), Random::new(7, 2).next());
    }
}
