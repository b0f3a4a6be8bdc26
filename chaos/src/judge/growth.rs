//! Growth: in normal use, what a server and its clients use stays the same, however long it goes on.
//!
//! The median of the readings of the last quarter of a soak is compared with that of the second. The first quarter is left
//! out, as caches, pools and allocators fill then; the third only stands between. Medians, as what counts is not the one
//! reading that caught a moment's work. Where work piles up on a busy machine and is done later, the least reading of a
//! quarter counts instead: what has grown does not go below it any more.

use std::{collections::BTreeMap, fmt};

use super::{Case, Promise, Violation};
use crate::{
    client::{LEASE, RETENTION},
    clock::{Moment, SECOND},
    history::History,
    journal::Note,
};

/// Maximum delay of the removal of a document whose time is over, with the pause between two looks that the servers have.
const PURGED: u64 = 10 * SECOND;

/// The growth that the last quarter may show over the second: in percent, and the addition to that, which is noise. Of
/// connections it is what five pools of ten have: one fills in a moment of need, at any time, and never shrinks.
const BOUNDS: [(&str, u64, u64); 7] = [
    ("client memory, KB", 10, 8_192),
    ("client tasks", 10, 15),
    ("server heap, KB", 10, 8_192),
    ("server cursors", 10, 10),
    ("server connections", 10, 50),
    ("server sessions", 10, 30),
    ("documents", 20, 100),
];

/// The result for one figure.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) what: String,
    second: u64,
    last: u64,
    most: u64,
    until: Moment,
}

impl Verdict {
    pub(crate) fn is_flat(&self) -> bool {
        self.last <= self.most
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            second,
            last,
            most,
            ..
        } = self;
        let verdict = if self.is_flat() { "flat" } else { "IT GREW" };
        write!(
            f,
            "{what:<34} {second:>8} in the second quarter, {last:>8} in the last, at most {most:>8}: {verdict}"
        )
    }
}

/// Checks that nothing has grown.
pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let verdicts = verdicts(case.history).into_iter();
    let grown = verdicts
        .filter(|verdict| !verdict.is_flat())
        .map(|verdict| Violation::new(Promise::Flat, verdict.until, None, verdict.to_string()));
    grown.collect()
}

/// Judges every figure of a soak. Of clients, those that were there from the beginning to the end.
pub(crate) fn verdicts(history: &History) -> Vec<Verdict> {
    let of_servers = history.journal.iter().filter_map(|entry| match &entry.note {
        Note::Reading { figures } => Some((entry.at, figures)),
        _ => None,
    });
    let at = of_servers.clone().map(|(at, _)| at);
    let (Some(from), Some(until)) = (at.clone().min(), at.max()) else {
        return Vec::new();
    };
    let of_clients = history
        .readings
        .iter()
        .map(|(client, at, figures)| (client.as_str(), *at, figures));
    let mut series: BTreeMap<(&str, &str), Vec<(Moment, u64)>> = BTreeMap::new();
    for (of, at, figures) in of_servers.map(|(at, figures)| ("", at, figures)).chain(of_clients) {
        for (figure, value) in figures.iter().filter(|_| at <= until) {
            series.entry((of, figure)).or_default().push((at, *value));
        }
    }
    let quarter = (until - from) / 4;
    // With the eighth that is kept in reserve. None is removed before, so a shorter quarter could not tell.
    let until_removed = SECOND * ((RETENTION + LEASE).as_secs() * 9 / 8) + PURGED;
    let is_told = |figure: &str| figure != "documents" || quarter >= until_removed;
    let lives = |readings: &[(Moment, u64)]| {
        let (first, last) = (
            readings.first().map_or(until, |(at, _)| *at),
            readings.last().map_or(from, |(at, _)| *at),
        );
        first <= from + quarter / 2 && last >= until - quarter / 2
    };
    let judged = series
        .into_iter()
        .filter(|((_, figure), readings)| is_told(figure) && lives(readings));
    judged
        .filter_map(|((of, figure), readings)| {
            let (_, percent, and) = *BOUNDS.iter().find(|(name, ..)| *name == figure)?;
            let within = |from: Moment, to: Moment| {
                let mut values: Vec<u64> = readings
                    .iter()
                    .filter(|(at, _)| (from..=to).contains(at))
                    .map(|(_, value)| *value)
                    .collect();
                values.sort_unstable();
                let place = if figure == "client tasks" { 0 } else { values.len() / 2 };
                values.get(place).copied()
            };
            let second = within(from + quarter, from + 2 * quarter)?;
            let last = within(from + 3 * quarter, until)?;
            Some(Verdict {
                what: format!("{figure} {of}").trim_end().to_owned(),
                second,
                last,
                most: second + second * percent / 100 + and,
                until,
            })
        })
        .collect()
}
