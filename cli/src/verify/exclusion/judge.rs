//! What the tasks of a contest saw, and whether it may be so.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::Contest;
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

/// A mutex that was broken.
#[derive(Clone, Debug)]
pub(super) struct Break {
    pub(super) name: String,
    /// Read before the break was sent.
    pub(super) at: Instant,
    /// It ended all holds under smaller tokens. Unknown if it was not answered.
    pub(super) below: Option<i64>,
}

impl Break {
    /// Returns whether it may have ended a hold, whose client learns of that a hop later.
    fn may_have_ended(&self, hold: &Hold) -> bool {
        // The latest answer to a break.
        const ANSWERED: Duration = Duration::from_secs(30);
        let is_below = self
            .below
            .map_or(hold.from < self.at + ANSWERED, |below| hold.token < below);
        self.name == hold.name && is_below
    }
}

/// What the tasks of a contest have recorded.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) holds: Vec<Hold>,
    pub(super) breaks: Vec<Break>,
    pub(super) counted: u64,
}

/// Judges what the tasks of a contest have recorded.
pub(super) fn judge(contest: Contest, record: Record, sum: u64) -> Check {
    let Record {
        mut holds,
        breaks,
        counted,
    } = record;
    let count = holds.len();
    let clients = holds.iter().map(|hold| hold.client).collect::<BTreeSet<_>>();
    // A break takes the lock from a holder that learns of it a hop later: the promise does not cover that hop.
    for hold in &mut holds {
        let ended = breaks.iter().filter(|broken| broken.may_have_ended(hold));
        if let Some(at) = ended.map(|broken| broken.at).min() {
            hold.until = hold.until.min(at);
        }
    }
    // These began in that hop.
    holds.retain(|hold| hold.from <= hold.until);
    let mut by_name: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in &holds {
        by_name.entry(&hold.name).or_default().push(hold);
    }
    let name = contest.name();
    for holds in by_name.values() {
        if let Some(evidence) = overlap(holds, contest.capacity()) {
            return Check::broken(name, "holders at once beyond the lock's capacity").with(evidence);
        }
        if let Some(evidence) = tokens(holds, contest.capacity()) {
            return Check::broken(name, "a fencing token did not rise").with(evidence);
        }
    }
    // Holders that were interrupted may have counted, too.
    if matches!(contest, Contest::Mutex | Contest::Documents) && sum < counted {
        let found = format!("{counted} holders have counted up one after the other, and {sum} is the number");
        return Check::broken(name, found);
    }
    if count == 0 {
        return Check::skipped(name, "nobody got a lock in the time of the check");
    }
    let broken = match breaks.len() {
        0 => String::new(),
        count => format!(", {count} breaks"),
    };
    let found = format!("{count} holds of {} clients{broken}", clients.len());
    Check::kept(name, found)
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
    use std::sync::LazyLock;

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

    fn judged(contest: Contest, holds: Vec<Hold>, breaks: Vec<Break>) -> Check {
        let record = Record {
            holds,
            breaks,
            counted: 0,
        };
        judge(contest, record, 0)
    }

    #[test]
    fn holders_at_once_are_found() {
        let verdict = |contest, holds, breaks| format!("{:?}", judged(contest, holds, breaks).verdict);
        let after = vec![hold(1, 1, (0, 5)), hold(1, 2, (5, 9))];
        assert_eq!(verdict(Contest::Mutex, after, vec![]), "Kept");
        let at_once = || vec![hold(1, 1, (0, 5)), hold(1, 2, (4, 9))];
        assert_eq!(verdict(Contest::Mutex, at_once(), vec![]), "Broken");
        assert_eq!(verdict(Contest::Semaphore, at_once(), vec![]), "Kept");
        // Of a lock that was broken meanwhile, or after the break that ended an earlier hold.
        let broken = |millis, below| Break {
            name: "a".to_owned(),
            at: at(millis),
            below,
        };
        assert_eq!(verdict(Contest::TakenAway, at_once(), vec![broken(3, Some(2))]), "Kept");
        assert_eq!(verdict(Contest::TakenAway, at_once(), vec![broken(3, None)]), "Kept");
        assert_eq!(
            verdict(Contest::TakenAway, at_once(), vec![broken(3, Some(1))]),
            "Broken"
        );
        // The first learned of its grant when the second had the lock already.
        let late = vec![hold(1, 1, (6, 7)), hold(1, 2, (4, 9))];
        assert_eq!(verdict(Contest::TakenAway, late, vec![broken(3, Some(2))]), "Kept");
        let many = (1..=4).map(|token| hold(1, token, (0, 9))).collect();
        assert_eq!(verdict(Contest::Semaphore, many, vec![]), "Broken");
    }

    #[test]
    fn tokens_that_do_not_rise_are_found() {
        let holds = [hold(1, 2, (0, 5)), hold(1, 1, (6, 9)), hold(1, 3, (10, 11))];
        assert!(tokens(&holds.iter().collect::<Vec<_>>(), 1).is_some());
        let twice = [hold(1, 2, (0, 5)), hold(1, 2, (0, 9))];
        assert!(tokens(&twice.iter().collect::<Vec<_>>(), 9).is_some());
        let risen = [hold(1, 1, (0, 5)), hold(1, 2, (6, 9))];
        assert!(tokens(&risen.iter().collect::<Vec<_>>(), 1).is_none());
    }

    #[test]
    fn a_lost_count_is_found() {
        let record = || Record {
            holds: vec![hold(1, 1, (0, 5))],
            counted: 3,
            ..Record::default()
        };
        assert_eq!(format!("{:?}", judge(Contest::Mutex, record(), 2).verdict), "Broken");
        assert_eq!(format!("{:?}", judge(Contest::Mutex, record(), 3).verdict), "Kept");
    }
}
