//! What this process knows of the server's clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::{config::Config, protocol::ServerTime, store::Exchange};

/// How long an exchange stays the reference although later ones were slower. Clocks drift by well under a
/// millisecond in that time; a new primary with another clock is the business of the skew margin.
const REFERENCE_AGE: Duration = Duration::from_secs(10);

/// Bounds on the server's clock, from the tightest exchange of late.
///
/// In an exchange the server read its clock after we sent and before we received. So the instant at which it reads a
/// given time lies between the send instant plus the difference and the receive instant plus the difference.
///
/// All of that holds while the server's clock goes on as ours does. Where an exchange shows that it did not, by more than
/// the margin that every deadline has for it, the clock was set, or is another primary's: a [`Jump`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ServerClock {
    reference: Option<Reading>,
    /// An earlier exchange, by which later ones are judged, so that many small steps are seen as well.
    base: Option<Reading>,
    /// When the last exchange began that said anything.
    heard_at: Option<Instant>,
    /// When it was last heard that the clock had been set ahead.
    ran_ahead_at: Option<Instant>,
}

/// The server read `now` between these instants.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    sent: Instant,
    received: Instant,
    now: ServerTime,
}

/// A server's clock that was set, or another server's, by which leases are reckoned now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Jump {
    /// At least by so much.
    pub(crate) by: Duration,
    /// Leases end earlier than was reckoned; otherwise later.
    pub(crate) ahead: bool,
}

impl ServerClock {
    /// Takes in an exchange; returns by how much it contradicts what was known, where that is more than the margin.
    pub(crate) fn note(&mut self, exchange: &Exchange, config: &Config) -> Option<Jump> {
        let seen = Reading {
            sent: exchange.sent,
            received: exchange.received,
            now: exchange.now?,
        };
        self.heard_at = self.heard_at.max(Some(seen.sent));
        // What comes late tells of a clock that may have been set since.
        let jump = self.base.filter(|base| base.sent < seen.sent);
        if let Some(jump) = jump.and_then(|base| base.contradicted_by(&seen, config)) {
            (self.reference, self.base) = (Some(seen), Some(seen));
            if jump.ahead {
                self.ran_ahead_at = Some(seen.received);
            }
            return Some(jump);
        }
        let tighter = self.reference.is_none_or(|known| {
            seen.received - seen.sent <= known.received - known.sent || seen.sent > known.sent + REFERENCE_AGE
        });
        if tighter {
            self.reference = Some(seen);
        }
        if self.base.is_none_or(|base| seen.sent > base.sent + config.lease) {
            self.base = self.reference;
        }
        None
    }

    /// The tightest exchange of late: when it was sent and received, and what the server read.
    #[cfg(test)]
    pub(crate) fn reference(&self) -> Option<(Instant, Instant, ServerTime)> {
        self.reference.map(|known| (known.sent, known.received, known.now))
    }

    /// Whether nothing was heard since then. Whoever asks is about to.
    pub(crate) fn is_stale(&mut self, since: Instant, now: Instant) -> bool {
        let stale = self.heard_at.is_none_or(|heard_at| heard_at < since);
        if stale {
            self.heard_at = Some(now);
        }
        stale
    }

    /// Whether the server's clock may have been set ahead since then.
    pub(crate) fn ran_ahead_since(&self, instant: Instant) -> bool {
        self.ran_ahead_at.is_some_and(|at| at >= instant)
    }

    /// What the server's clock surely shows then, or more; `None` before the first exchange.
    pub(crate) fn at_least(&self, instant: Instant) -> Option<ServerTime> {
        let Reading { received, now, .. } = self.reference?;
        let since = i64::try_from(instant.saturating_duration_since(received).as_millis()).unwrap_or(0);
        let before = i64::try_from(received.saturating_duration_since(instant).as_millis()).unwrap_or(i64::MAX);
        Some(ServerTime(
            now.0.saturating_add(since).saturating_sub(before).saturating_sub(1),
        ))
    }

    /// An instant at which the server's clock has not passed `time` yet, after that from which it is counted; `None` before
    /// the first exchange.
    pub(crate) fn until(&self, time: ServerTime) -> Option<(Instant, Instant)> {
        self.reference
            .map(|known| (known.sent, offset(known.sent, known.now, time)))
    }

    /// An instant at which the server's clock has reached `time`.
    pub(crate) fn after(&self, time: ServerTime) -> Option<Instant> {
        self.reference.map(|known| offset(known.received, known.now, time))
    }
}

impl Reading {
    /// By how much a later reading is out of what this one says, where that is more than the margin of a deadline.
    fn contradicted_by(&self, later: &Self, config: &Config) -> Option<Jump> {
        let passed = later.now.0.saturating_sub(self.now.0);
        let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        let most = later.received.saturating_duration_since(self.sent);
        let least = later.sent.saturating_duration_since(self.received);
        // Each of the two times is cut to milliseconds.
        let ahead = passed.saturating_sub(millis(most)).saturating_sub(2);
        let behind = millis(least).saturating_sub(passed).saturating_sub(2);
        let by = Duration::from_millis(u64::try_from(ahead.max(behind)).unwrap_or(0));
        (by > config.margin(most)).then_some(Jump { by, ahead: ahead > 0 })
    }
}

/// Whoever wrote a time further ahead than this meant that it never comes: all that is waited for comes before.
const NEVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// `instant` moved by the difference from `now` to `time`.
pub(crate) fn offset(instant: Instant, now: ServerTime, time: ServerTime) -> Instant {
    if time >= now {
        // Not every platform's clock has room for what a date can hold.
        instant + time.since(now).min(NEVER)
    } else {
        // Before the clock's own beginning there is nothing to tell apart.
        instant.checked_sub(now.since(time)).unwrap_or(instant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn exchange(sent: Instant, round_trip: u64, now: i64) -> Exchange {
        Exchange {
            sent,
            received: sent + Duration::from_millis(round_trip),
            now: Some(ServerTime(now)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_the_tightest_exchange_until_it_is_old() {
        let start = Instant::now();
        let config = Settings::default().validate().unwrap();
        let mut clock = ServerClock::default();
        assert_eq!(clock.until(ServerTime(0)), None);
        clock.note(&exchange(start, 2, 1_000), &config);
        clock.note(&exchange(start, 500, 1_400), &config);
        assert_eq!(
            clock.until(ServerTime(1_100)),
            Some((start, start + Duration::from_millis(100)))
        );
        assert_eq!(clock.after(ServerTime(1_100)), Some(start + Duration::from_millis(102)));
        assert!(clock.until(ServerTime(900)) <= Some((start, start)));

        let later = start + REFERENCE_AGE + Duration::from_millis(1);
        clock.note(&exchange(later, 500, 11_100), &config);
        assert_eq!(clock.until(ServerTime(11_100)), Some((later, later)));
    }

    /// The margin is 1 s and a thousandth of the time between the two.
    #[tokio::test(start_paused = true)]
    async fn a_clock_that_was_set_is_told_by_how_much() {
        let config = Settings::default().validate().unwrap();
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let ahead = |millis| {
            let by = Duration::from_millis(millis);
            Some(Jump { by, ahead: true })
        };
        let mut clock = ServerClock::default();
        assert_eq!(clock.note(&exchange(start, 10, 100_000), &config), None);
        // Within the margin, and what a slow answer leaves open.
        assert_eq!(clock.note(&exchange(at(5), 10, 106_000), &config), None);
        assert_eq!(clock.note(&exchange(at(6), 8_000, 114_900), &config), None);
        assert!(!clock.ran_ahead_since(start));
        assert_eq!(clock.note(&exchange(at(20), 10, 122_012), &config), ahead(2_000));
        assert!(clock.ran_ahead_since(at(20)) && !clock.ran_ahead_since(at(21)));
        // By what was heard of it last, from then on.
        assert_eq!(clock.until(ServerTime(123_012)), Some((at(20), at(21))));
        assert_eq!(clock.note(&exchange(at(21), 10, 123_012), &config), None);
        // What comes late is of the time before.
        assert_eq!(clock.note(&exchange(at(19), 2_500, 119_000), &config), None);
        // And back.
        let back = Duration::from_millis(2_990);
        let jump = Jump { by: back, ahead: false };
        assert_eq!(clock.note(&exchange(at(22), 10, 121_010), &config), Some(jump));
        assert!(!clock.ran_ahead_since(at(21)));

        // By small steps, each within the margin.
        let mut clock = ServerClock::default();
        let steps = (0..10).map(|step| exchange(at(2 * step), 10, 100_000 + 2_500 * i64::try_from(step).unwrap()));
        let jumps: Vec<Jump> = steps.filter_map(|step| clock.note(&step, &config)).collect();
        assert!(!jumps.is_empty() && jumps.iter().all(|jump| jump.ahead), "{jumps:?}");
    }
}
