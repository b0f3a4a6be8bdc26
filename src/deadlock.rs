//! Deadlocks: locks whose holders wait for each other, as several looks at their documents show.
//!
//! A client shows in the entries of a task's locks which lock that task has waited for ([`Awaited`]), and its renewals show
//! that anew. A lock is blocked if each of its holders waits for a blocked lock: that is found by taking away, again and
//! again, the locks of which one holder does not. All that is left leads to a circle.
//!
//! A single look proves nothing, as the documents are not read at one moment. An entry is that of one hold and never used
//! again, and a wait has a number of its own. So if both were seen in a look, and a later look shows that they were renewed
//! after another look had begun, they lasted from the first of these looks to the other. If all waits that block a lock
//! have such a look in common, they all lasted at its time.
//!
//! A task that waits for a lock that it holds itself shows nothing: it may have given that to another, as one does that
//! acquires permits for others.

use std::{
    collections::{HashMap, HashSet},
    fmt::{self, Write as _},
};

use crate::{
    inspect::LockInfo,
    protocol::{Awaited, Entry, ServerTime, State},
    truncated_debug::{MESSAGE_MOST, shown, shown_in_a_line, shown_up_to},
};

/// A deadlock: locks whose holders wait for each other. Unless one of them gives up, loses its lock or has more to do than
/// to wait, they do so for ever. A waiter ahead of one of them in a queue counts as one that never gives up: where it alone
/// keeps a holder from free permits, or a reader from other readers, the deadlock also ends with its wait.
///
/// Its `Display` is a sentence for people: ``"a" is held by web-1, who waits for "b"; ...``.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Deadlock {
    /// The locks, each with the one holder that waits for the next of them; the holder of the last waits for the first.
    pub locks: Vec<LockInfo>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = "deadlock: ".to_owned();
        let next = self.locks.iter().cycle().skip(1);
        for (position, (lock, next)) in self.locks.iter().zip(next).enumerate() {
            let [name, next] = [lock, next].map(|lock| shown_in_a_line(&lock.name));
            write!(line, "{}`{name}` is held by ", if position > 0 { "; " } else { "" })?;
            for holder in &lock.holders {
                write!(line, "{holder}")?;
                if let Some(reason) = &holder.owner.reason {
                    write!(line, " because of {}", shown(format_args!("{reason:?}")))?;
                }
            }
            write!(line, ", who waits for `{next}`")?;
        }
        shown_up_to(MESSAGE_MOST, line).fmt(f)
    }
}

/// Locks whose holders wait for each other: each, directly or through others, for all of these locks.
pub(crate) struct Knot<'a> {
    /// Their holders that wait for one of them. Each is part of a circle.
    pub(crate) held: Vec<(&'a str, &'a Entry)>,
    /// The locks for which they wait, directly or through others.
    behind: HashSet<&'a str>,
    /// Whether all that blocks them was there at one moment, which came after all looks that were counted.
    pub(crate) is_certain: bool,
}

impl Knot<'_> {
    /// Returns the shortest circle through this one of its holders.
    pub(crate) fn circle(&self, (name, holder): (&str, &Entry), locks: &HashMap<String, State>) -> Deadlock {
        let mut ways = vec![vec![(name, holder)]];
        let mut reached = HashSet::new();
        let mut at = 0;
        while let Some(way) = ways.get(at).cloned() {
            at += 1;
            let awaited = way.last().and_then(|(_, holder)| awaited_lock(holder));
            if awaited == Some(name) {
                return described(&way, locks);
            }
            if awaited.is_some_and(|awaited| reached.insert(awaited)) {
                let next = self.held.iter().filter(|(name, _)| Some(*name) == awaited);
                ways.extend(next.map(|next| way.iter().copied().chain([*next]).collect()));
            }
        }
        described(&[(name, holder)], locks)
    }
}

fn described(held: &[(&str, &Entry)], locks: &HashMap<String, State>) -> Deadlock {
    let described = held.iter().filter_map(|(name, holder)| {
        let state = locks.get(*name)?;
        let holders = vec![(*holder).clone()];
        let state = State {
            holders,
            ..state.clone()
        };
        Some(LockInfo::new(name, &state, state.at))
    });
    Deadlock {
        locks: described.collect(),
    }
}

/// What the looks so far have seen.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Their number.
    count: u64,
    /// The waits that the last of them saw, by the locks and tokens of their holders.
    seen: HashMap<(String, i64), Seen>,
}

#[derive(Debug)]
struct Seen {
    awaited: Awaited,
    /// The number of the renewal that has shown it last.
    as_of: i64,
    /// The first look that saw it, or the last in which it counted.
    first: u64,
    /// The last look after whose beginning it was still shown.
    last: u64,
    /// When it counted last.
    counted: Option<ServerTime>,
}

impl Looks {
    /// Takes in a look at these locks, which began after the one before had ended, and returns the knots in it.
    pub(crate) fn see<'a>(&mut self, locks: &'a HashMap<String, State>, now: ServerTime) -> Vec<Knot<'a>> {
        self.count += 1;
        let mut before = std::mem::take(&mut self.seen);
        for (name, state) in locks {
            for holder in live(state, now) {
                let Some((awaited, as_of)) = awaited(holder) else {
                    continue;
                };
                let key = (name.clone(), holder.token);
                let mut seen = before.remove(&key).filter(|seen| seen.awaited == *awaited);
                if let Some(seen) = seen.as_mut().filter(|seen| seen.as_of < as_of) {
                    (seen.as_of, seen.last) = (as_of, self.count - 1);
                }
                let seen = seen.unwrap_or_else(|| Seen {
                    awaited: awaited.clone(),
                    as_of,
                    first: self.count,
                    last: 0,
                    counted: None,
                });
                self.seen.insert(key, seen);
            }
        }
        let blocked = blocked(locks, now);
        let behind: HashMap<&str, HashSet<&str>> =
            blocked.iter().map(|name| (*name, behind(name, locks, now))).collect();
        let mut knots = Vec::new();
        let mut named = HashSet::new();
        for start in &blocked {
            let behind_it = &behind[start];
            if named.contains(start) || !behind_it.contains(start) {
                continue;
            }
            let tied =
                |name: &str| behind_it.contains(name) && behind.get(name).is_some_and(|back| back.contains(start));
            // Of what is behind it, as there can be many that have nothing to do with it.
            let mut knotted: Vec<&str> = behind_it.iter().copied().filter(|name| tied(name)).collect();
            knotted.sort_unstable();
            let mut held = Vec::new();
            for name in knotted {
                for holder in holders(name, locks, now) {
                    if awaited_lock(holder).is_some_and(tied) {
                        held.push((name, holder));
                        named.insert(name);
                    }
                }
            }
            knots.push(Knot {
                is_certain: self.is_certain(behind_it, locks, now),
                behind: behind_it.clone(),
                held,
            });
        }
        knots
    }

    /// Returns whether all holders of these locks have waited at the time of one look, the last counted one or a later, and
    /// had the time to give up since then: each client counts by itself.
    fn is_certain(&self, names: &HashSet<&str>, locks: &HashMap<String, State>, now: ServerTime) -> bool {
        let (mut first, mut last, mut counted, mut longest) = (0, u64::MAX, None, 0);
        for name in names {
            for holder in holders(name, locks, now) {
                let Some(seen) = self.seen.get(&((*name).to_owned(), holder.token)) else {
                    return false;
                };
                (first, last) = (first.max(seen.first), last.min(seen.last));
                (counted, longest) = (counted.max(seen.counted), longest.max(holder.lease));
            }
        }
        first <= last && counted.is_none_or(|counted| counted.plus_millis(longest / 5) <= now)
    }

    /// Counts the last look for a knot that was certain in it: it is again once all its waits were shown after that.
    pub(crate) fn note_counted(&mut self, knot: &Knot<'_>, now: ServerTime) {
        for ((name, _), seen) in &mut self.seen {
            if knot.behind.contains(name.as_str()) {
                (seen.first, seen.counted) = (self.count, Some(now));
            }
        }
    }
}

/// Returns the locks of which each holder waits for such a lock, in the order of their names.
fn blocked(locks: &HashMap<String, State>, now: ServerTime) -> Vec<&str> {
    let mut blocked: HashSet<&str> = locks.keys().map(String::as_str).collect();
    let mut moving = Vec::new();
    let mut behind = HashMap::<&str, HashSet<&str>>::new();
    for (name, state) in locks {
        let all: Option<Vec<&str>> = live(state, now).into_iter().map(awaited_lock).collect();
        match all.filter(|all| !all.is_empty() && all.iter().all(|awaited| locks.contains_key(*awaited))) {
            Some(all) => all.into_iter().for_each(|awaited| {
                behind.entry(awaited).or_default().insert(name);
            }),
            None => moving.push(name.as_str()),
        }
    }
    while let Some(name) = moving.pop() {
        if blocked.remove(name) {
            moving.extend(behind.remove(name).unwrap_or_default());
        }
    }
    let mut blocked: Vec<&str> = blocked.into_iter().collect();
    blocked.sort_unstable();
    blocked
}

/// Returns the locks that the holders of a blocked lock wait for, directly or through others.
fn behind<'a>(start: &'a str, locks: &'a HashMap<String, State>, now: ServerTime) -> HashSet<&'a str> {
    let mut behind = HashSet::new();
    let mut next = vec![start];
    while let Some(name) = next.pop() {
        for awaited in holders(name, locks, now).into_iter().filter_map(awaited_lock) {
            if behind.insert(awaited) {
                next.push(awaited);
            }
        }
    }
    behind
}

fn holders<'a>(name: &str, locks: &'a HashMap<String, State>, now: ServerTime) -> Vec<&'a Entry> {
    locks.get(name).map_or_else(Vec::new, |state| live(state, now))
}

fn live(state: &State, now: ServerTime) -> Vec<&Entry> {
    state.holders.iter().filter(|holder| holder.is_live(now)).collect()
}

/// Returns the lock that the holder waits for, and the number of the renewal that has shown it.
fn awaited(holder: &Entry) -> Option<(&Awaited, i64)> {
    let shown = holder
        .shown
        .as_ref()
        .filter(|_| !holder.is_kept() && !holder.is_detached())?;
    Some((shown.awaits.as_ref()?, shown.as_of))
}

/// Returns the name of the lock that the holder waits for.
pub(crate) fn awaited_lock(holder: &Entry) -> Option<&str> {
    awaited(holder).map(|(awaited, _)| awaited.lock.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{
        Shown,
        fixtures::{PERMITS, holder, lock},
    };

    const NOW: ServerTime = ServerTime(0);

    type Locks = HashMap<String, State>;

    /// Locks with holders, each of which waits for the lock of that name, or is at work; shown by this renewal.
    fn locks<const N: usize>(held: [(&str, &[Option<&str>]); N], as_of: i64) -> Locks {
        let state = |(number, (name, holders)): (usize, &(&str, &[Option<&str>]))| {
            let holders = holders.iter().enumerate().map(|(position, awaits)| {
                let token = i64::try_from(10 * number + position).unwrap();
                let awaits = awaits.map(|awaits| Awaited {
                    lock: awaits.to_owned(),
                    wait: token,
                });
                let shown = Some(Shown {
                    is_idle: false,
                    awaits,
                    as_of,
                });
                Entry {
                    shown,
                    ..holder(&format!("a-{token}"), token)
                }
            });
            ((*name).to_owned(), lock(PERMITS, holders, []))
        };
        held.iter().enumerate().map(state).collect()
    }

    /// The circles in these locks through each of the holders that wait for each other, by the names of their locks.
    fn circles(locks: &Locks) -> Vec<Vec<String>> {
        let knots = Looks::default().see(locks, NOW);
        let circles = knots
            .iter()
            .flat_map(|knot| knot.held.iter().map(|held| knot.circle(*held, locks)));
        circles
            .map(|circle| circle.locks.into_iter().map(|lock| lock.name).collect())
            .collect()
    }

    #[test]
    fn a_circle_is_found_if_all_that_hold_its_locks_wait() {
        let [a, b, c] = [Some("a"), Some("b"), Some("c")];
        let found = |held: [(&str, &[Option<&str>]); 3], expected: &[&[&str]]| {
            assert_eq!(circles(&locks(held, 1)), expected, "{held:?}");
        };
        found([("a", &[b]), ("b", &[a]), ("c", &[])], &[&["a", "b"], &["b", "a"]]);
        found(
            [("a", &[b]), ("b", &[c]), ("c", &[a])],
            &[&["a", "b", "c"], &["b", "c", "a"], &["c", "a", "b"]],
        );
        // One that waits behind a circle is no part of it.
        found([("a", &[b]), ("b", &[c]), ("c", &[b])], &[&["b", "c"], &["c", "b"]]);
        // Nobody waits for a lock that is free, or not there.
        found([("a", &[b]), ("b", &[]), ("c", &[Some("d")])], &[]);
        // Of several, one at work lets others in; if all wait, each is in a circle of its own.
        found([("a", &[b]), ("b", &[a, None]), ("c", &[a])], &[]);
        found(
            [("a", &[b]), ("b", &[c, a]), ("c", &[a])],
            &[&["a", "b"], &["b", "c", "a"], &["b", "a"], &["c", "a", "b"]],
        );
        found(
            [("a", &[b, b]), ("b", &[a]), ("c", &[])],
            &[&["a", "b"], &["a", "b"], &["b", "a"]],
        );
    }

    #[test]
    fn a_holder_that_nobody_has_or_whose_time_is_over_waits_for_nothing() {
        let [a, b] = [Some("a"), Some("b")];
        let crossing = || locks([("a", &[b]), ("b", &[a])], 1);
        assert_eq!(circles(&crossing()).len(), 2);
        let changed = |change: fn(&mut Entry)| {
            let mut locks = crossing();
            locks.get_mut("a").unwrap().holders.iter_mut().for_each(change);
            circles(&locks).is_empty()
        };
        assert!(changed(|holder| holder.released = Some(NOW)));
        assert!(changed(|holder| holder.id = "detached-1".to_owned()));
        assert!(changed(|holder| holder.until = NOW));
        assert!(changed(|holder| holder.shown = None));
    }

    #[test]
    fn a_circle_is_certain_once_all_its_waits_were_shown_again_after_a_look_that_saw_them_all() {
        let [a, b] = [Some("a"), Some("b")];
        let mut looks = Looks::default();
        let mut is_certain = |locks: &Locks| {
            let knots = looks.see(locks, NOW);
            knots.first().map(|knot| knot.is_certain)
        };
        let half = |renewed: &str| {
            let mut locks = locks([("a", &[b]), ("b", &[a])], 1);
            let shown = locks.get_mut(renewed).unwrap().holders[0].shown.as_mut();
            shown.unwrap().as_of = 2;
            locks
        };
        let both = |as_of| locks([("a", &[b]), ("b", &[a])], as_of);
        // `a` waits while `b` is at work.
        assert_eq!(is_certain(&locks([("a", &[b]), ("b", &[None])], 1)), None);
        assert_eq!(is_certain(&both(1)), Some(false));
        assert_eq!(is_certain(&both(1)), Some(false), "nothing was shown again");
        assert_eq!(is_certain(&half("a")), Some(false));
        assert_eq!(is_certain(&both(2)), Some(true));
        // Another wait for the same lock.
        let mut anew = both(3);
        let shown = anew.get_mut("a").unwrap().holders[0].shown.as_mut();
        shown.unwrap().awaits.as_mut().unwrap().wait += 100;
        assert_eq!(is_certain(&anew), Some(false));
        // One that is gone for a while.
        assert_eq!(is_certain(&both(4)), Some(false));
        assert_eq!(is_certain(&both(5)), Some(true));
        assert_eq!(is_certain(&locks([("a", &[b]), ("b", &[None])], 6)), None);
        assert_eq!(is_certain(&both(7)), Some(false));
        assert_eq!(is_certain(&both(8)), Some(true));
    }

    #[test]
    fn it_counts_again_once_all_its_waits_were_shown_again_a_fifth_of_the_longest_lease_later() {
        let [a, b] = [Some("a"), Some("b")];
        let mut looks = Looks::default();
        let both = |as_of| locks([("a", &[b]), ("b", &[a])], as_of);
        let fifth = both(1)["a"].holders[0].lease / 5;
        let mut counts = |locks: &Locks, now: i64| {
            let knots = looks.see(locks, ServerTime(now));
            let certain = knots.iter().filter(|knot| knot.is_certain);
            certain.map(|knot| looks.note_counted(knot, ServerTime(now))).count()
        };
        assert_eq!(counts(&both(1), 0), 0);
        assert_eq!(counts(&both(2), 1), 1);
        // The task of `a` has given up.
        let mut half = both(3);
        half.get_mut("a").unwrap().holders[0].shown = both(2)["a"].holders[0].shown.clone();
        assert_eq!(counts(&half, 1 + fifth), 0);
        assert_eq!(counts(&both(4), fifth), 0);
        assert_eq!(counts(&both(4), 1 + fifth), 1);
        assert_eq!(counts(&both(4), 1 + 2 * fifth), 0);
    }
}
