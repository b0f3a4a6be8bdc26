//! The ends of the leases that a follower has seen, in order: no event reports that a lease is over.
//!
//! A follower of all names knows as many documents as the collection has. So what a batch of events costs must not
//! depend on their number, and no walk through them may hold up the locks of the client.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

use crate::{protocol::ServerTime, waitlist::clock::ServerClock};

#[derive(Debug, Default)]
pub(super) struct LeaseEnds {
    /// The end of the first lease in each document that has any.
    by_name: HashMap<String, ServerTime>,
    /// The same in order, without the names that rest.
    in_order: BTreeSet<(ServerTime, String)>,
    /// The names that are not read before an instant, although a lease may be over: their documents had not changed
    /// when they were read.
    resting: HashMap<String, Instant>,
    rests_in_order: BTreeSet<(Instant, String)>,
}

impl LeaseEnds {
    /// Notes the end of the first lease of a name; `None`: nobody holds it.
    pub(super) fn note(&mut self, name: &str, end: Option<ServerTime>) {
        let before = match end {
            Some(end) => self.by_name.insert(name.to_owned(), end),
            None => self.by_name.remove(name),
        };
        if let Some(before) = before {
            self.in_order.remove(&(before, name.to_owned()));
        }
        match end {
            Some(end) if !self.resting.contains_key(name) => {
                self.in_order.insert((end, name.to_owned()));
            }
            Some(_) => {}
            None => {
                if let Some(until) = self.resting.remove(name) {
                    self.rests_in_order.remove(&(until, name.to_owned()));
                }
            }
        }
    }

    /// Returns when the next lease is over of a name that does not rest.
    pub(super) fn next(&mut self, clock: &ServerClock, now: Instant) -> Option<Instant> {
        self.wake(now);
        let over = self.in_order.first().and_then(|(end, _)| clock.after(*end));
        let rested = self.rests_in_order.first().map(|(until, _)| *until);
        over.into_iter().chain(rested).min()
    }

    /// Returns names with a lease that is over, of those that do not rest: the first of them, at most so many.
    pub(super) fn over(&mut self, clock: &ServerClock, now: Instant, most: usize) -> Vec<String> {
        self.wake(now);
        let is_over = |end: ServerTime| clock.after(end).is_some_and(|over| over <= now);
        let over = self.in_order.iter().take_while(|(end, _)| is_over(*end));
        over.take(most).map(|(_, name)| name.clone()).collect()
    }

    /// Has a name rest if a lease of it is still over.
    pub(super) fn rest(&mut self, name: String, until: Instant, clock: &ServerClock, now: Instant) {
        let Some(&end) = self.by_name.get(&name) else { return };
        if clock.after(end).is_some_and(|over| over <= now) && self.in_order.remove(&(end, name.clone())) {
            self.rests_in_order.insert((until, name.clone()));
            self.resting.insert(name, until);
        }
    }

    /// Puts the names in order whose rest is over.
    fn wake(&mut self, now: Instant) {
        while self.rests_in_order.first().is_some_and(|(until, _)| *until <= now)
            && let Some((_, name)) = self.rests_in_order.pop_first()
        {
            self.resting.remove(&name);
            if let Some(end) = self.by_name.get(&name) {
                self.in_order.insert((*end, name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{config::Settings, protocol::Exchange};

    const SECOND: Duration = Duration::from_secs(1);

    /// A server's clock that says 100 s now, but for what it leaves for the time on the way.
    fn clock(now: Instant) -> ServerClock {
        let mut clock = ServerClock::default();
        let exchange = Exchange {
            sent: now,
            received: now,
            now: Some(ServerTime(100_000)),
        };
        clock.note(&exchange, &Settings::default().validate().unwrap());
        clock
    }

    #[test]
    fn a_lease_that_is_over_is_found_once_at_a_time() {
        let now = Instant::now();
        let (clock, mut ends) = (clock(now), LeaseEnds::default());
        ends.note("b", Some(ServerTime(98_000)));
        ends.note("a", Some(ServerTime(99_000)));
        ends.note("c", Some(ServerTime(103_000)));
        ends.note("d", Some(ServerTime(90_000)));
        ends.note("d", None);
        assert_eq!(ends.over(&clock, now, 1), ["b"]);
        assert_eq!(ends.over(&clock, now, 9), ["b", "a"]);
        // One was read, and its document says the same; the other was not read.
        ends.rest("b".into(), now + SECOND, &clock, now);
        assert_eq!(ends.over(&clock, now, 9), ["a"]);
        ends.note("a", Some(ServerTime(104_000)));
        // One whose lease goes on does not rest.
        ends.rest("a".into(), now + SECOND, &clock, now);
        assert_eq!(ends.over(&clock, now, 9), [""; 0]);
        assert_eq!(ends.next(&clock, now), Some(now + SECOND));
        assert_eq!(ends.over(&clock, now + SECOND, 9), ["b"]);
        ends.note("b", None);
        let third = ends.next(&clock, now + SECOND);
        assert!(third.is_some_and(|at| at >= now + 3 * SECOND), "{third:?}");
        assert_eq!(ends.over(&clock, now + 6 * SECOND, 9), ["c", "a"]);
    }

    #[test]
    fn a_name_that_is_held_anew_while_it_rests_is_found_after_its_rest() {
        let now = Instant::now();
        let (clock, mut ends) = (clock(now), LeaseEnds::default());
        ends.note("a", Some(ServerTime(90_000)));
        ends.rest("a".into(), now + SECOND, &clock, now);
        ends.note("a", Some(ServerTime(91_000)));
        assert_eq!(ends.over(&clock, now, 9), [""; 0]);
        assert_eq!(ends.over(&clock, now + SECOND, 9), ["a"]);
        ends.rest("a".into(), now + 2 * SECOND, &clock, now + SECOND);
        ends.note("a", None);
        assert_eq!(ends.next(&clock, now), None);
        ends.note("a", Some(ServerTime(92_000)));
        assert_eq!(ends.over(&clock, now, 9), ["a"]);
    }
}
