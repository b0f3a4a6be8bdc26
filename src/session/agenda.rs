//! The heartbeat's work, in the order in which it is due.
//!
//! A client can hold a hundred thousand locks. So nothing here walks through them all: due work is found at the front
//! of an ordered set, in steps of a bounded size, and the session's mutex is released between them.
//!
//! A renewal that puts off a hold's times does not update the agenda. So a hold that seems due is compared with its
//! own times, and put in its right place where it is not due. A caller that brings a time *forward* must report it
//! ([`Agenda::update`]).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use tokio::time::Instant;

use super::hold::{Hold, Schedule};

/// Maximum number of names or holds processed while the session's mutex is held: some tenths of a millisecond.
pub(super) const AT_A_TIME: usize = 500;

/// Number of renewals in vain after which the commands don't get smaller any more.
const IN_VAIN_MOST: u32 = 5;

/// A group of holds that are renewed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Queue {
    /// Less than half of the lease is left, or of the client's own where that is longer: mostly holds on a claim lease,
    /// and those with a short lease. Both are too short to wait for their turn.
    Urgent,
    /// All others that have no renewal on its way.
    First,
    /// This many renewals were not answered.
    InVain(u32),
    /// As far as we know, the hold is part of an open transaction of the user's, and would hold up the other holds of
    /// its command.
    Guarded,
    /// The server refused to renew them.
    Refused,
}

/// The holds of a session, with the due times of these and of the lines.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// The names of lines, by when these want to be asked for an operation.
    lines: BTreeSet<(Instant, Arc<str>)>,
    lines_due_at: HashMap<Arc<str>, Instant>,
    /// By their numbers, which rise: the oldest first.
    holds: BTreeMap<u64, PlannedHold>,
    /// Holds to renew, by when.
    renewals: BTreeMap<Queue, BTreeSet<(Instant, u64)>>,
    /// When each hold wants attention: it is over unless it is renewed, its renewal is overdue, or it is held too long.
    ends: BTreeSet<(Instant, u64)>,
    overdue: Overdue,
}

/// The holds whose renewals are overdue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Overdue {
    pub(super) count: usize,
    /// When the first of them is over unless it is renewed.
    pub(super) first_end: Option<Instant>,
}

#[derive(Debug)]
struct PlannedHold {
    hold: Arc<Hold>,
    renewal: Option<(Queue, Instant)>,
    end: Option<Instant>,
    overdue: bool,
}

impl Agenda {
    /// Sets when the line of `name` is due: it wants to be asked for an operation then; `None`: not at all.
    pub(super) fn plan_line(&mut self, name: &str, at: Option<Instant>) {
        let before = self.lines_due_at.get(name).copied();
        if before == at {
            return;
        }
        let name: Arc<str> = match self.lines_due_at.remove_entry(name) {
            Some((name, before)) => {
                self.lines.remove(&(before, name.clone()));
                name
            }
            None => name.into(),
        };
        if let Some(at) = at {
            self.lines.insert((at, name.clone()));
            self.lines_due_at.insert(name, at);
        }
    }

    pub(super) fn came(&mut self, hold: &Arc<Hold>, now: Instant) {
        let entry = PlannedHold {
            hold: hold.clone(),
            renewal: None,
            end: None,
            overdue: false,
        };
        self.holds.insert(hold.number, entry);
        self.update(hold, now);
    }

    pub(super) fn gone(&mut self, hold: &Hold) {
        if let Some(entry) = self.holds.remove(&hold.number) {
            self.overdue.change(entry.overdue, false, None);
            self.unplace(hold.number, entry.renewal, entry.end);
        }
    }

    /// Puts a hold in its place after its times changed.
    pub(super) fn update(&mut self, hold: &Hold, now: Instant) {
        let number = hold.number;
        let Some(entry) = self.holds.get_mut(&number) else {
            return;
        };
        let (renewal, end, overdue) = place(hold, now);
        let was_overdue = std::mem::replace(&mut entry.overdue, overdue);
        self.overdue.change(was_overdue, overdue, Some(hold.deadline()));
        let before = (entry.renewal, entry.end);
        if before == (renewal, Some(end)) {
            return;
        }
        (entry.renewal, entry.end) = (renewal, Some(end));
        self.unplace(number, before.0, before.1);
        if let Some((queue, at)) = renewal {
            self.renewals.entry(queue).or_default().insert((at, number));
        }
        self.ends.insert((end, number));
    }

    fn unplace(&mut self, number: u64, renewal: Option<(Queue, Instant)>, end: Option<Instant>) {
        if let Some((queue, at)) = renewal
            && let Some(waiting) = self.renewals.get_mut(&queue)
        {
            waiting.remove(&(at, number));
        }
        if let Some(end) = end {
            self.ends.remove(&(end, number));
        }
    }

    /// Takes the names whose lines are due now, up to `most`.
    pub(super) fn take_due_lines(&mut self, now: Instant, most: usize) -> Vec<Arc<str>> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some((at, _)) = self.lines.first()
            && *at <= now
            && let Some((_, name)) = self.lines.pop_first()
        {
            self.lines_due_at.remove(&name);
            taken.push(name);
        }
        taken
    }

    pub(super) fn overdue(&self) -> Overdue {
        self.overdue
    }

    /// Takes the holds that are over now and were not let go of, those whose renewals are overdue, and those that are
    /// held too long; looks at `most` at most. The caller puts those that are still held back by [`Agenda::update`].
    pub(super) fn take_over(&mut self, now: Instant, most: usize) -> Vec<Arc<Hold>> {
        let mut over = Vec::new();
        for _ in 0..most {
            let Some((_, number)) = self.ends.first().copied().filter(|(at, _)| *at <= now) else {
                break;
            };
            let Some(hold) = self.holds.get(&number).map(|entry| entry.hold.clone()) else {
                self.ends.pop_first();
                continue;
            };
            if hold.schedule().attend_at > now {
                self.update(&hold, now);
                continue;
            }
            // Letting go of the hold takes it out of its line, and thereby out of here.
            self.ends.pop_first();
            if let Some(entry) = self.holds.get_mut(&number) {
                entry.end = None;
            }
            over.push(hold);
        }
        over
    }

    /// Whether any hold of a queue is due.
    pub(super) fn is_due(&self, queue: Queue, by: Instant) -> bool {
        let first = self.renewals.get(&queue).and_then(BTreeSet::first);
        first.is_some_and(|(at, _)| *at <= by)
    }

    /// Counts the holds of a queue that are due, no further than `most`.
    pub(super) fn count_due(&self, queue: Queue, by: Instant, most: usize) -> usize {
        let waiting = self.renewals.get(&queue).into_iter().flatten();
        waiting.take_while(|(at, _)| *at <= by).take(most).count()
    }

    /// Takes the holds of a queue that are due by then, the first first. The caller puts them back by
    /// [`Agenda::update`].
    pub(super) fn take_due(&mut self, queue: Queue, by: Instant, most: usize, now: Instant) -> Vec<Arc<Hold>> {
        let mut due = Vec::new();
        while due.len() < most {
            let waiting = self.renewals.get(&queue).and_then(BTreeSet::first).copied();
            let Some((at, number)) = waiting.filter(|(at, _)| *at <= by) else {
                break;
            };
            if let Some(waiting) = self.renewals.get_mut(&queue) {
                waiting.remove(&(at, number));
            }
            let Some(entry) = self.holds.get_mut(&number) else {
                continue;
            };
            entry.renewal = None;
            let hold = entry.hold.clone();
            match place(&hold, now).0 {
                Some((still, at)) if still == queue && at <= by => due.push(hold),
                _ => self.update(&hold, now),
            }
        }
        due
    }

    /// Returns the queues of repeated renewals, the one with the earliest due hold first.
    pub(super) fn repeated(&self, by: Instant) -> Vec<Queue> {
        let queues = self.renewals.iter().filter_map(|(queue, waiting)| {
            let (at, _) = waiting.first()?;
            let repeated = !matches!(queue, Queue::Urgent | Queue::First);
            (repeated && *at <= by).then_some((*at, *queue))
        });
        let mut queues: Vec<(Instant, Queue)> = queues.collect();
        queues.sort_unstable();
        queues.into_iter().map(|(_, queue)| queue).collect()
    }

    /// Returns when something is due next. `room` returns from when a queue has room for a renewal, if it has any.
    pub(super) fn next(&self, room: impl Fn(Queue) -> Option<Instant>) -> Option<Instant> {
        let lines = self.lines.first().map(|(at, _)| *at);
        let ends = self.ends.first().map(|(at, _)| *at);
        let renewals = self.renewals.iter().filter_map(|(queue, waiting)| {
            let (at, _) = waiting.first()?;
            room(*queue).map(|from| from.max(*at))
        });
        lines.into_iter().chain(ends).chain(renewals).min()
    }

    pub(super) fn len(&self) -> usize {
        self.holds.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let lines = self.lines.is_empty() && self.lines_due_at.is_empty();
        let renewals = self.renewals.values().all(BTreeSet::is_empty);
        self.holds.is_empty() && self.ends.is_empty() && lines && renewals
    }

    /// Returns the hold that was granted first.
    pub(super) fn oldest(&self) -> Option<&Arc<Hold>> {
        self.holds.first_key_value().map(|(_, entry)| &entry.hold)
    }

    /// Returns the next holds after the one of that number, in the order of their grants.
    pub(super) fn after(&self, number: u64, most: usize) -> Vec<Arc<Hold>> {
        let range = (Bound::Excluded(number), Bound::Unbounded);
        let holds = self.holds.range(range).take(most);
        holds.map(|(_, entry)| entry.hold.clone()).collect()
    }
}

impl Overdue {
    /// Notes whether a hold that ends at `end` is one of them.
    fn change(&mut self, before: bool, after: bool, end: Option<Instant>) {
        self.count = self.count + usize::from(after) - usize::from(before);
        if self.count == 0 {
            self.first_end = None;
        } else if after && !before {
            self.first_end = self.first_end.into_iter().chain(end).min();
        }
    }
}

/// Returns the queue of a hold with its time, when the hold wants attention, and whether its renewal is overdue.
fn place(hold: &Hold, now: Instant) -> (Option<(Queue, Instant)>, Instant, bool) {
    let Schedule {
        renew_at,
        end,
        attend_at,
        overdue,
        in_vain,
        guarded,
        refused,
    } = hold.schedule();
    let queue = if refused {
        Queue::Refused
    } else if guarded {
        Queue::Guarded
    } else if in_vain > 0 {
        Queue::InVain(in_vain.min(IN_VAIN_MOST))
    } else if end.saturating_duration_since(now) < hold.lease.urgent_below {
        Queue::Urgent
    } else {
        Queue::First
    };
    (renew_at.map(|at| (queue, at)), attend_at, overdue)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        config::Settings,
        hold_options::Terms,
        protocol::Kind,
        waitlist::{Grant, How, deadline::Deadline},
    };

    const LEASE: Duration = Duration::from_secs(30);

    fn hold(number: u32, renew_at: Instant, end: Instant) -> Arc<Hold> {
        let grant = Grant {
            token: 1,
            granted_as: 1,
            used: (Kind::Mutex, 1),
            permits: 1,
            lease: Terms::default().lease(&Settings::default().unchecked()),
            deadline: Deadline::at(end),
            renew_at: Some(renew_at),
            how: How::AtOnce,
        };
        Arc::new(Hold::new(format!("a-{number}"), format!("lock {number}"), &grant))
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_comes_in_order_and_no_more_of_it_than_is_asked_for() {
        let now = Instant::now();
        let mut agenda = Agenda::default();
        let holds: Vec<_> = (0..100_u32)
            .map(|number| hold(number, now + seconds(100 - u64::from(number)), now + 4 * LEASE))
            .collect();
        for hold in &holds {
            agenda.came(hold, now);
        }
        assert_eq!(agenda.next(|_| Some(now)), Some(now + seconds(1)));
        assert!(agenda.take_due(Queue::First, now, 10, now).is_empty());
        let numbers = |taken: Vec<Arc<Hold>>| -> Vec<u64> { taken.iter().map(|hold| hold.number).collect() };
        let last: Vec<u64> = holds.iter().rev().map(|hold| hold.number).collect();
        assert_eq!(
            numbers(agenda.take_due(Queue::First, now + seconds(50), 10, now)),
            last[..10]
        );
        assert_eq!(
            numbers(agenda.take_due(Queue::First, now + seconds(50), 100, now)),
            last[10..50]
        );
        // A hold that a renewal has put off meanwhile is found in its new place, and one that was taken, where it is
        // put back.
        holds[49].renewed(Deadline::at(now + 5 * LEASE), now + seconds(194));
        agenda.update(&holds[99], now);
        let due = agenda.take_due(Queue::First, now + seconds(51), 100, now);
        assert_eq!(numbers(due), [holds[99].number]);
        // By age, whatever is due.
        assert_eq!(
            numbers(agenda.after(0, 3)),
            [holds[0].number, holds[1].number, holds[2].number]
        );
        assert_eq!(numbers(agenda.after(holds[98].number, 3)), [holds[99].number]);
        for hold in &holds {
            agenda.gone(hold);
        }
        assert!(agenda.is_empty(), "{agenda:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_moves_with_what_becomes_of_its_renewals() {
        let now = Instant::now();
        let mut agenda = Agenda::default();
        let hold = hold(1, now, now + LEASE);
        agenda.came(&hold, now);
        assert!(agenda.is_due(Queue::First, now));
        let number = hold.renewing(now);
        agenda.update(&hold, now);
        assert_eq!(agenda.repeated(now), [Queue::InVain(1)]);
        hold.failed(number, now, true);
        agenda.update(&hold, now);
        assert!(agenda.is_due(Queue::First, now) && agenda.repeated(now).is_empty());
        hold.refused(|_, _| Duration::ZERO);
        agenda.update(&hold, now);
        assert_eq!(agenda.repeated(now), [Queue::Refused]);
        hold.renewed(Deadline::at(now + LEASE + seconds(1)), now - seconds(6));
        hold.note_guarded(now);
        agenda.update(&hold, now);
        assert_eq!(agenda.repeated(now), [Queue::Guarded]);
        hold.note_no_transaction_before(now + seconds(1));
        // Most of its lease is over.
        let late = now + seconds(20);
        agenda.update(&hold, late);
        assert!(agenda.is_due(Queue::Urgent, late));
        assert_eq!(agenda.overdue().count, 0);
        assert_eq!(agenda.take_over(late, 10).len(), 1, "its renewal is overdue");
        hold.note_if_overdue(late);
        agenda.update(&hold, late);
        assert_eq!(agenda.overdue().first_end, Some(hold.deadline()));
        assert!(agenda.take_over(late, 10).is_empty());
        let over = now + LEASE + seconds(1);
        tokio::time::advance(LEASE + seconds(1)).await;
        assert_eq!(agenda.take_over(over, 10).len(), 1);
        assert!(agenda.take_over(over, 10).is_empty());
        agenda.gone(&hold);
        assert!(agenda.is_empty() && agenda.overdue().count == 0, "{agenda:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_is_due_once_at_the_last_time_that_was_said() {
        let now = Instant::now();
        let mut agenda = Agenda::default();
        agenda.plan_line("x", Some(now + seconds(5)));
        agenda.plan_line("x", Some(now + seconds(2)));
        agenda.plan_line("y", Some(now + seconds(1)));
        agenda.plan_line("y", None);
        assert_eq!(agenda.next(|_| Some(now)), Some(now + seconds(2)));
        assert!(agenda.take_due_lines(now, 10).is_empty());
        assert_eq!(agenda.take_due_lines(now + seconds(9), 10), ["x".into()]);
        assert!(agenda.is_empty(), "{agenda:?}");
    }
}
