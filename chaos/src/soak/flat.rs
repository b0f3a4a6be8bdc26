//! The check whether something has grown: the median of the last quarter of its readings against that of the second.
//!
//! The first quarter is left out, as caches, pools and allocators fill then; the third only stands between. Medians,
//! as what counts is not the one reading that caught a moment's work. Where work piles up on a busy machine and is done
//! later, the least reading of a quarter counts instead: what has grown does not go below it any more.

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
        Self::by(median, what, unit, readings, bound)
    }

    /// Returns the same by the least reading of each quarter.
    pub(super) fn on_the_least(what: &'static str, unit: &'static str, readings: &[u64], bound: Bound) -> Option<Self> {
        Self::by(|quarter| quarter.iter().copied().min(), what, unit, readings, bound)
    }

    fn by(
        of: impl Fn(&[u64]) -> Option<u64>,
        what: &'static str,
        unit: &'static str,
        readings: &[u64],
        bound: Bound,
    ) -> Option<Self> {
        let quarter = readings.len() / 4;
        let second = of(readings.get(quarter..2 * quarter)?)?;
        let last = of(&readings[readings.len() - quarter..])?;
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
    fn what_piles_up_and_is_done_later_has_not_grown() {
        let verdict = |readings: &[u64]| Verdict::on_the_least("it", "", readings, BOUND).unwrap();
        // The tasks of a soak beside a compiler.
        let piled_up = [
            137, 148, 160, 201, 265, 329, 142, 151, 231, 314, 183, 239, 332, 321, 183, 244, 297, 135, 131, 132,
        ];
        assert!(verdict(&piled_up).is_flat());
        let grown: Vec<u64> = piled_up
            .iter()
            .zip(0..)
            .map(|(reading, more)| reading + 4 * more)
            .collect();
        assert!(!verdict(&grown).is_flat());
    }

    #[test]
    fn too_few_readings_say_nothing() {
        assert!(Verdict::on("it", "", &[1, 2, 3], BOUND).is_none());
        assert!(Verdict::on("it", "", &[1, 2, 3, 4], BOUND).is_some());
    }
}
