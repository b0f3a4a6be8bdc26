//! The one table of a session's timers: the lines and holds for which something is due, in the order of time.
//!
//! A client can hold a hundred thousand locks. So nothing here walks through them all: due work is found at the front
//! of an ordered set, in steps of a bounded size, and the session's mutex is released between them. Only the report that
//! renewals are overdue counts them at once, and it comes once until they are in time again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    ops::Bound,
    sync::Arc,
};

use tokio::time::Instant;

use super::hold::Hold;

/// Maximum number of locks in one command, and of those dealt with while the session's mutex is held: a few hundred
/// kilobytes, some milliseconds of the server's time, and half a millisecond of the client's.
pub(super) const AT_A_TIME: usize = 1_000;

/// Things that are due, each at one time.
#[derive(Debug)]
pub(super) struct TimerQueue<T> {
    queue: BTreeSet<(Instant, T)>,
    times: HashMap<T, Instant>,
}

impl<T> Default for TimerQueue<T> {
    fn default() -> Self {
        let (queue, times) = (BTreeSet::new(), HashMap::new());
        Self { queue, times }
    }
}

impl<T: Clone + Hash + Ord> TimerQueue<T> {
    /// Sets when a thing is due; `None`: not at all.
    pub(super) fn set(&mut self, thing: T, at: Option<Instant>) {
        if let Some(before) = self.times.remove(&thing) {
            self.queue.remove(&(before, thing.clone()));
        }
        if let Some(at) = at {
            self.times.insert(thing.clone(), at);
            self.queue.insert((at, thing));
        }
    }

    /// Returns the first thing, and when it is due.
    pub(super) fn first(&self) -> Option<&(Instant, T)> {
        self.queue.first()
    }

    /// Takes the things that are due by then, up to `most`.
    pub(super) fn take(&mut self, by: Instant, most: usize) -> Vec<T> {
        let mut taken = Vec::new();
        while taken.len() < most
            && self.first().is_some_and(|(at, _)| *at <= by)
            && let Some((_, thing)) = self.queue.pop_first()
        {
            self.times.remove(&thing);
            taken.push(thing);
        }
        taken
    }
}

/// What is due for a hold: attention, or a renewal, by the way in which it goes out. One that is well has its turn as
/// usual, and if that does not come in time, as an urgent one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// A renewal after the usual one that is on its way.
    Usual,
    /// One beside others: there is too little time left to wait.
    Urgent,
    /// One beside others, and apart from those that are well: the last one was not answered or was refused, or a
    /// transaction of the user's holds it up.
    Apart,
    /// The hold is over unless it is renewed, or it is held too long.
    Attention,
    /// Its renewal is overdue.
    Overdue,
}

impl Due {
    /// The renewals.
    pub(super) const RENEWALS: [Self; 3] = [Self::Urgent, Self::Usual, Self::Apart];
}

/// All timers of a session, with the holds that they are for.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Names whose lines want to be asked for an operation.
    lines: TimerQueue<Arc<str>>,
    /// The numbers of holds, by what is due.
    due: [TimerQueue<u64>; 5],
    /// By their numbers, which rise: the oldest first.
    holds: BTreeMap<u64, Arc<Hold>>,
}

impl Timers {
    /// Sets when the line of `name` wants to be asked for an operation; `None`: not at all.
    pub(super) fn plan_line(&mut self, name: &str, at: Option<Instant>) {
        if self.lines.times.get(name).copied() != at {
            self.lines.set(name.into(), at);
        }
    }

    pub(super) fn came(&mut self, hold: &Arc<Hold>) {
        self.holds.insert(hold.number, hold.clone());
        self.update(hold);
    }

    pub(super) fn gone(&mut self, hold: &Hold) {
        let number = hold.number;
        self.holds.remove(&number);
        self.due.iter_mut().for_each(|queue| queue.set(number, None));
    }

    /// Whether the hold has come, and not gone.
    pub(super) fn has(&self, hold: &Hold) -> bool {
        self.holds.contains_key(&hold.number)
    }

    /// Sets the timers of a hold after its times changed.
    pub(super) fn update(&mut self, hold: &Hold) {
        if self.has(hold) {
            for (queue, at) in self.due.iter_mut().zip(hold.schedule()) {
                queue.set(hold.number, at);
            }
        }
    }

    /// Takes the names whose lines are due now.
    pub(super) fn take_lines(&mut self, now: Instant) -> Vec<Arc<str>> {
        self.lines.take(now, AT_A_TIME)
    }

    /// Takes the holds for which this is due by then. The caller puts those that go on back by [`Timers::update`].
    pub(super) fn take(&mut self, due: Due, by: Instant) -> Vec<Arc<Hold>> {
        let taken = self.due[due as usize].take(by, AT_A_TIME);
        taken
            .iter()
            .filter_map(|number| self.holds.get(number).cloned())
            .collect()
    }

    /// Takes these holds, for which this is due.
    pub(super) fn take_these(&mut self, due: Due, holds: &[Arc<Hold>]) {
        let queue = &mut self.due[due as usize];
        holds.iter().for_each(|hold| queue.set(hold.number, None));
    }

    /// Returns the holds for which this is due by then, the first one first.
    pub(super) fn due(&self, due: Due, by: Instant) -> impl Iterator<Item = &Arc<Hold>> {
        let queue = self.due[due as usize].queue.iter();
        let due = queue.take_while(move |(at, _)| *at <= by);
        due.filter_map(|(_, number)| self.holds.get(number))
    }

    /// Returns the hold for which this is due first, and when.
    pub(super) fn first(&self, due: Due) -> Option<(Instant, &Arc<Hold>)> {
        let (at, number) = self.due[due as usize].first()?;
        Some((*at, self.holds.get(number)?))
    }

    /// Returns when a line or the attention to a hold is due next.
    pub(super) fn next(&self) -> Option<Instant> {
        let line = self.lines.first().map(|(at, _)| *at);
        line.into_iter()
            .chain(self.first(Due::Attention).map(|(at, _)| at))
            .min()
    }

    /// Returns the number of holds.
    pub(super) fn len(&self) -> usize {
        self.holds.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_empty = self.lines.queue.is_empty() && self.holds.is_empty();
        is_empty && self.due.iter().all(|queue| queue.queue.is_empty())
    }

    /// Returns the hold that was granted first.
    pub(super) fn oldest(&self) -> Option<&Arc<Hold>> {
        self.holds.first_key_value().map(|(_, hold)| hold)
    }

    /// Returns the next holds after the one of that number, in the order of their grants.
    pub(super) fn after(&self, number: u64) -> Vec<Arc<Hold>> {
        let range = (Bound::Excluded(number), Bound::Unbounded);
        let holds = self.holds.range(range).take(AT_A_TIME);
        holds.map(|(_, hold)| hold.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        config::Config,
        hold_options::Terms,
        protocol::Kind,
        waitlist::{Grant, How},
    };

    const LEASE: Duration = Duration::from_secs(30);

    fn hold(number: u32, renew_at: Instant, end: Instant) -> Arc<Hold> {
        let grant = Grant {
            token: 1,
            granted_as: 1,
            used: (Kind::Mutex, 1),
            permits: 1,
            lease: Terms::default().lease(&Config::default()),
            deadline: end,
            renew_at: Some(renew_at),
            how: How::AtOnce,
        };
        Arc::new(Hold::new(format!("a-{number}"), format!("lock {number}"), &grant))
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_moves_with_what_becomes_of_its_renewals() {
        let now = Instant::now();
        let mut timers = Timers::default();
        let hold = hold(1, now, now + LEASE);
        timers.came(&hold);
        let due = |timers: &Timers, by| {
            let is_due = |turn: &Due| timers.first(*turn).is_some_and(|(at, _)| at <= by);
            Due::RENEWALS.into_iter().filter(is_due).collect::<Vec<_>>()
        };
        let turns = |timers: &Timers| due(timers, now + LEASE);
        assert_eq!(turns(&timers), [Due::Urgent, Due::Usual]);
        hold.upkeep().sent(now, now);
        timers.update(&hold);
        assert_eq!(turns(&timers), [Due::Apart]);
        hold.upkeep().failed(now, true, now);
        timers.update(&hold);
        assert_eq!(turns(&timers), [Due::Urgent, Due::Usual]);
        assert!(hold.upkeep().refused(Instant::now()));
        assert!(!hold.upkeep().refused(Instant::now()));
        timers.update(&hold);
        assert_eq!(turns(&timers), [Due::Apart]);
        hold.upkeep().acknowledged(now + LEASE + seconds(1), now - seconds(6));
        timers.update(&hold);
        assert_eq!(turns(&timers), [Due::Urgent, Due::Usual]);
        hold.upkeep().guarded_at = Some(now);
        timers.update(&hold);
        assert_eq!(turns(&timers), [Due::Apart]);
        hold.upkeep().no_transaction_before(now + seconds(1));
        timers.update(&hold);
        // Most of its lease is over.
        let late = now + seconds(20);
        assert_eq!(due(&timers, late), [Due::Urgent, Due::Usual]);
        assert_eq!([now, late].map(|by| timers.due(Due::Overdue, by).count()), [0, 1]);
        assert!(timers.take(Due::Attention, late).is_empty());
        let over = now + LEASE + seconds(1);
        assert_eq!(timers.take(Due::Attention, over).len(), 1);
        assert!(timers.take(Due::Attention, over).is_empty());
        timers.gone(&hold);
        assert!(timers.is_empty(), "{timers:?}");
    }
}
