//! The check whether something has grown: the median of the last quarter of its readings against that of the second.
//!
//! The first quarter is left out, as caches, pools and allocators fill then; the third only stands between. Medians,
//! as what counts is not the one reading that caught a moment's work.

use std::fmt;

/// The growth that the last quarter may show over the second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    /// In percent of the second quarter.
    pub(super) percent: u64,
    /// The addition to that: the least that is not noise.
    pub(super) and: u64,
}

/// The result for one figure.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    what: &'static str,
    unit: &'static str,
    second: u64,
    last: u64,
    most: u64,
}

impl Verdict {
    /// `None`: there are too few readings to have quarters.
    pub(super) fn on(what: &'static str, unit: &'static str, readings: &[u64], bound: Bound) -> Option<Self> {
        let quarter = readings.len() / 4;
        let second = median(readings.get(quarter..2 * quarter)?)?;
        let last = median(&readings[readings.len() - quarter..])?;
        Some(Self {
            what,
            unit,
            second,
            last,
            most: second + second * bound.percent / 100 + bound.and,
        })
    }

    pub(super) fn is_flat(&self) -> bool {
        self.last <= self.most
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            unit,
            second,
            last,
            most,
        } = self;
        let verdict = if self.is_flat() { "flat" } else { "IT GREW" };
        write!(
            f,
            "{what:<24} {second:>8} {unit} in the second quarter, {last:>8} in the last, at most {most:>8}: {verdict}"
        )
    }
}

fn median(readings: &[u64]) -> Option<u64> {
    let mut sorted = readings.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound = Bound { percent: 10, and: 5 };

    fn is_flat(readings: impl IntoIterator<Item = u64>) -> bool {
        let readings: Vec<u64> = readings.into_iter().collect();
        Verdict::on("it", "", &readings, BOUND).unwrap().is_flat()
    }

    #[test]
    fn what_grows_is_told_from_what_fills_up() {
        assert!(is_flat((0..400).map(|reading| 100 * reading.min(99))));
        assert!(!is_flat((0..400).map(|reading| 1_000 + reading)));
        // A single high reading is none.
        assert!(is_flat((0..400).map(|reading| if reading == 390 {
            9_999
        } else {
            100
        })));
        // At the bound, and beyond it.
        assert!(is_flat((0..8).map(|reading| if reading < 4 { 100 } else { 115 })));
        assert!(!is_flat((0..8).map(|reading| if reading < 4 { 100 } else { 116 })));
    }

    #[test]
    fn too_few_readings_say_nothing() {
        assert!(Verdict::on("it", "", &[1, 2, 3], BOUND).is_none());
        assert!(Verdict::on("it", "", &[1, 2, 3, 4], BOUND).is_some());
    }
}
