//! What the tasks of a contest saw, and whether it may be so.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::{Contest, SECTION};
use crate::verify::report::Check;

/// A hold, as its client saw it.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) name: String,
    pub(super) client: u64,
    pub(super) permits: u32,
    pub(super) token: i64,
    /// Read before the handle said that it was valid.
    pub(super) from: Instant,
    /// The same, at the end; a handle does not become valid again. So it was valid all the time from the one to the
    /// other.
    pub(super) until: Instant,
}

impl Hold {
    /// Says it in a line, with times since `begun`.
    fn line(&self, begun: Instant) -> String {
        let Self {
            name,
            client,
            permits,
            token,
            from,
            until,
        } = self;
        let [from, until] = [from, until].map(|at| at.saturating_duration_since(begun));
        format!("`{name}`: client {client} had {permits} permits under token {token} from {from:?} to {until:?}")
    }
}

/// Judges what the tasks of a contest have held.
pub(super) fn judge(contest: Contest, holds: Vec<Hold>) -> Check {
    let clients = holds.iter().map(|hold| hold.client).collect::<BTreeSet<_>>();
    let mut by_name: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in &holds {
        by_name.entry(&hold.name).or_default().push(hold);
    }
    let name = contest.name();
    for holds in by_name.values() {
        if let Some(evidence) = overlap(holds, contest.capacity()) {
            return Check::broken(SECTION, name, "holders at once beyond the lock's capacity").with(evidence);
        }
        if let Some(evidence) = tokens(holds, contest.capacity()) {
            return Check::broken(SECTION, name, "a fencing token did not rise").with(evidence);
        }
    }
    match holds.len() {
        0 => Check::skipped(SECTION, name, "nobody got a lock in the time of the check"),
        count => Check::kept(SECTION, name, format!("{count} holds of {} clients", clients.len())),
    }
}

/// Finds holders that were valid at once and have more permits than there are.
fn overlap(holds: &[&Hold], capacity: u32) -> Option<String> {
    let mut at_once: Vec<&Hold> = Vec::new();
    for hold in in_order(holds) {
        at_once.retain(|other| other.until > hold.from);
        at_once.push(hold);
        let taken: u32 = at_once.iter().map(|other| other.permits).sum();
        if at_once.len() > 1 && taken > capacity {
            let begun = at_once.first().map_or(hold.from, |first| first.from);
            return Some(lines(&at_once, begun));
        }
    }
    None
}

/// Finds a token that was issued twice, or that is smaller than that of a hold which had to end before.
fn tokens(holds: &[&Hold], capacity: u32) -> Option<String> {
    let sorted = in_order(holds);
    let begun = sorted.first()?.from;
    let mut by_token = BTreeMap::new();
    for hold in &sorted {
        if let Some(first) = by_token.insert(hold.token, *hold) {
            return Some(lines(&[first, *hold], begun));
        }
    }
    let mut by_end = sorted.clone();
    by_end.sort_by_key(|hold| hold.until);
    let mut ended = by_end.into_iter().peekable();
    // Of those that have ended, by their permits: the one with the largest token.
    let mut last: BTreeMap<u32, &Hold> = BTreeMap::new();
    for hold in sorted {
        while let Some(other) = ended.next_if(|other| other.until < hold.from) {
            let largest = last.entry(other.permits).or_insert(other);
            if largest.token < other.token {
                *largest = other;
            }
        }
        // Those that hold at once may learn of it in any order.
        let excludes = |first: &&&Hold| first.permits + hold.permits > capacity && first.token > hold.token;
        if let Some(first) = last.values().find(excludes) {
            return Some(lines(&[*first, hold], begun));
        }
    }
    None
}

fn in_order<'a>(holds: &[&'a Hold]) -> Vec<&'a Hold> {
    let mut sorted = holds.to_vec();
    sorted.sort_by_key(|hold| hold.from);
    sorted
}

fn lines(holds: &[&Hold], begun: Instant) -> String {
    let lines: Vec<String> = holds.iter().map(|hold| hold.line(begun)).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::{sync::LazyLock, time::Duration};

    use super::*;

    fn at(millis: u64) -> Instant {
        static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
        *BEGUN + Duration::from_millis(millis)
    }

    fn hold(permits: u32, token: i64, (from, until): (u64, u64)) -> Hold {
        Hold {
            name: "a".to_owned(),
            client: 1,
            permits,
            token,
            from: at(from),
            until: at(until),
        }
    }

    #[test]
    fn holders_at_once_and_tokens_that_do_not_rise_are_found() {
        let at_once = [hold(1, 1, (0, 5)), hold(1, 2, (4, 9))];
        for (verdict, contest, holds) in [
            ("Kept", Contest::Mutex, vec![hold(1, 1, (0, 5)), hold(1, 2, (5, 9))]),
            ("Broken", Contest::Mutex, at_once.to_vec()),
            ("Kept", Contest::Semaphore, at_once.to_vec()),
            (
                "Broken",
                Contest::Semaphore,
                (1..=4).map(|token| hold(1, token, (0, 9))).collect(),
            ),
            (
                "Broken",
                Contest::Mutex,
                vec![hold(1, 2, (0, 5)), hold(1, 1, (6, 9)), hold(1, 3, (10, 11))],
            ),
            (
                "Broken",
                Contest::Semaphore,
                vec![hold(1, 2, (0, 5)), hold(1, 2, (0, 9))],
            ),
            ("Skipped", Contest::Mutex, vec![]),
        ] {
            assert_eq!(format!("{:?}", judge(contest, holds).verdict), verdict, "{contest:?}");
        }
    }
}
