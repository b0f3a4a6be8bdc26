//! The bounds of this process on the server's clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    config::Config,
    input::DURATION_MOST,
    protocol::{Exchange, ServerTime},
};

/// Bounds on the server's clock, from the tightest recent exchange.
///
/// In an exchange the server read its clock after we sent and before we received. So the instant at which it reads a
/// given time lies between the send instant plus the difference and the receive instant plus the difference.
///
/// This holds while the server's clock runs as ours does. If an exchange contradicts that by more than the margin of
/// every deadline, the clock was set, or is another primary's: a [`Jump`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerClock {
    reference: Option<Reading>,
    /// An earlier exchange that later ones are compared with, so that many small steps are noticed too.
    base: Option<Reading>,
    /// When the last exchange with a server time began.
    heard_at: Option<Instant>,
    /// When a jump ahead of the clock was last noticed.
    ran_ahead_at: Option<Instant>,
}

/// A reading `now` of the server's clock, made between these instants.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    sent: Instant,
    received: Instant,
    now: ServerTime,
}

/// A jump of the server's clock: it was set, or another server's clock now counts the leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// By at least this much.
    pub by: Duration,
    /// Maximum time by which leases end earlier than calculated; `None`: they end later.
    pub ahead: Option<Duration>,
}

impl ServerClock {
    /// Notes an exchange; returns the contradiction with earlier ones, if it is more than the margin.
    pub fn note(&mut self, exchange: &Exchange, config: &Config) -> Option<Jump> {
        let seen = Reading {
            sent: exchange.sent,
            received: exchange.received,
            now: exchange.now?,
        };
        self.heard_at = self.heard_at.max(Some(seen.sent));
        // A late answer shows a clock that may have been set since.
        let jump = self.base.filter(|base| base.sent < seen.sent);
        if let Some(jump) = jump.and_then(|base| base.contradicted_by(&seen, config)) {
            (self.reference, self.base) = (Some(seen), Some(seen));
            if jump.ahead.is_some() {
                self.ran_ahead_at = Some(seen.received);
            }
            return Some(jump);
        }
        // Clocks drift by next to nothing in that time; a new primary with another clock is the business of the skew
        // margin.
        let tighter = self.reference.is_none_or(|known| {
            seen.received - seen.sent <= known.received - known.sent || seen.sent > known.sent + config.recent()
        });
        if tighter {
            self.reference = Some(seen);
        }
        if self.base.is_none_or(|base| seen.sent > base.sent + config.lease) {
            self.base = self.reference;
        }
        None
    }

    /// Returns the tightest recent exchange: when it was sent and received, and the server's reading.
    #[cfg(any(test, feature = "testing"))]
    pub fn reference(&self) -> Option<(Instant, Instant, ServerTime)> {
        self.reference.map(|known| (known.sent, known.received, known.now))
    }

    /// Whether there was no exchange about the clock since then. A caller that gets `true` is about to ask.
    pub fn is_stale(&mut self, since: Instant, now: Instant) -> bool {
        let stale = self.heard_at.is_none_or(|heard_at| heard_at < since);
        if stale {
            self.heard_at = Some(now);
        }
        stale
    }

    /// Whether the server's clock may have been set ahead since then.
    pub fn ran_ahead_since(&self, instant: Instant) -> bool {
        self.ran_ahead_at.is_some_and(|at| at > instant)
    }

    /// Returns a time that the server's clock has surely reached then; `None` before the first exchange.
    pub fn at_least(&self, instant: Instant) -> Option<ServerTime> {
        let Reading { received, now, .. } = self.reference?;
        let since = i64::try_from(instant.saturating_duration_since(received).as_millis()).unwrap_or(0);
        let before = i64::try_from(received.saturating_duration_since(instant).as_millis()).unwrap_or(i64::MAX);
        Some(ServerTime(
            now.0.saturating_add(since).saturating_sub(before).saturating_sub(1),
        ))
    }

    /// Returns an instant at which the server's clock has not passed `time` yet, after the instant from which it is
    /// counted; `None` before the first exchange.
    pub fn until(&self, time: ServerTime) -> Option<(Instant, Instant)> {
        self.reference
            .map(|known| (known.sent, offset(known.sent, known.now, time)))
    }

    /// Returns an instant at which the server's clock has reached `time`. A time in milliseconds is over when that clock
    /// shows the next one.
    pub fn after(&self, time: ServerTime) -> Option<Instant> {
        self.reference
            .map(|known| offset(known.received, known.now, time.plus_millis(1)))
    }
}

impl Reading {
    /// Returns by how much a later reading contradicts this one, if that is more than the margin of a deadline.
    fn contradicted_by(&self, later: &Self, config: &Config) -> Option<Jump> {
        let passed = later.now.0.saturating_sub(self.now.0);
        let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        let most = later.received.saturating_duration_since(self.sent);
        let least = later.sent.saturating_duration_since(self.received);
        // Each of the two times is cut to milliseconds.
        let ahead = passed.saturating_sub(millis(most)).saturating_sub(2);
        let behind = millis(least).saturating_sub(passed).saturating_sub(2);
        let by = Duration::from_millis(u64::try_from(ahead.max(behind)).unwrap_or(0));
        let at_most = passed.saturating_sub(millis(least)).saturating_add(2);
        let at_most = Duration::from_millis(u64::try_from(at_most).unwrap_or(0));
        (by > config.margin(most)).then_some(Jump {
            by,
            ahead: (ahead > 0).then_some(at_most),
        })
    }
}

/// Returns `instant` moved by the difference from `now` to `time`. No duration that is waited for is longer than input may
/// have.
pub fn offset(instant: Instant, now: ServerTime, time: ServerTime) -> Instant {
    if time >= now {
        // Not every platform's clock has room for all the dates of BSON.
        instant + time.since(now).min(DURATION_MOST)
    } else {
        // Instants before the clock's own beginning are all the same to us.
        instant.checked_sub(now.since(time)).unwrap_or(instant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn exchange(sent: Instant, round_trip: u64, now: i64) -> Exchange {
        Exchange::new(sent, sent + Duration::from_millis(round_trip), Some(ServerTime(now)))
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_the_tightest_exchange_until_it_is_old() {
        let start = Instant::now();
        let config = Config::default();
        let mut clock = ServerClock::default();
        assert_eq!(clock.until(ServerTime(0)), None);
        clock.note(&exchange(start, 2, 1_000), &config);
        clock.note(&exchange(start, 500, 1_400), &config);
        assert_eq!(
            clock.until(ServerTime(1_100)),
            Some((start, start + Duration::from_millis(100)))
        );
        assert_eq!(clock.after(ServerTime(1_100)), Some(start + Duration::from_millis(103)));
        assert!(clock.until(ServerTime(900)) <= Some((start, start)));

        // At that age it still counts.
        clock.note(&exchange(start + config.lease / 3, 500, 11_000), &config);
        assert_eq!(clock.after(ServerTime(1_100)), Some(start + Duration::from_millis(103)));
        let later = start + config.lease / 3 + Duration::from_millis(1);
        clock.note(&exchange(later, 500, 11_100), &config);
        assert_eq!(clock.until(ServerTime(11_100)), Some((later, later)));

        // However long a lease is.
        let settings = Config {
            lease: Duration::from_secs(86_400),
            ..Config::default()
        };
        let (config, mut clock) = (settings.validate().unwrap(), ServerClock::default());
        let later = start + Duration::from_millis(10_001);
        clock.note(&exchange(start, 2, 1_000), &config);
        clock.note(&exchange(later, 500, 11_100), &config);
        assert_eq!(clock.until(ServerTime(11_100)), Some((later, later)));
    }

    /// The margin is 1 s and a thousandth of the time between the two.
    #[tokio::test(start_paused = true)]
    async fn a_clock_that_was_set_is_told_by_how_much() {
        let config = Config::default();
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let ahead = |millis| {
            let by = Duration::from_millis(millis);
            // The two exchanges took ten milliseconds each, and their readings are cut.
            let ahead = Some(by + Duration::from_millis(24));
            Some(Jump { by, ahead })
        };
        let mut clock = ServerClock::default();
        assert_eq!(clock.note(&exchange(start, 10, 100_000), &config), None);
        // Within the margin, and what a slow answer leaves open.
        assert_eq!(clock.note(&exchange(at(5), 10, 106_000), &config), None);
        assert_eq!(clock.note(&exchange(at(6), 8_000, 114_900), &config), None);
        assert!(!clock.ran_ahead_since(start));
        assert_eq!(clock.note(&exchange(at(20), 10, 122_012), &config), ahead(2_000));
        assert!(clock.ran_ahead_since(at(20)) && !clock.ran_ahead_since(at(21)));
        // By the last exchange, from then on.
        assert_eq!(clock.until(ServerTime(123_012)), Some((at(20), at(21))));
        assert_eq!(clock.note(&exchange(at(21), 10, 123_012), &config), None);
        // A late answer belongs to the time before.
        assert_eq!(clock.note(&exchange(at(19), 2_500, 119_000), &config), None);
        // And back.
        let back = Duration::from_millis(2_990);
        let jump = Jump { by: back, ahead: None };
        assert_eq!(clock.note(&exchange(at(22), 10, 121_010), &config), Some(jump));
        assert!(!clock.ran_ahead_since(at(21)));

        // By small steps, each within the margin.
        let mut clock = ServerClock::default();
        let steps = (0..10).map(|step| exchange(at(2 * step), 10, 100_000 + 2_500 * i64::try_from(step).unwrap()));
        let jumps: Vec<Jump> = steps.filter_map(|step| clock.note(&step, &config)).collect();
        assert!(
            !jumps.is_empty() && jumps.iter().all(|jump| jump.ahead.is_some()),
            "{jumps:?}"
        );
    }

    /// The margin for 5 s is 1,005 ms. Each of the two readings is cut to milliseconds, which leaves open 2 ms more.
    #[tokio::test(start_paused = true)]
    async fn a_clock_counts_as_set_by_more_than_the_margin_and_in_an_exchange_that_began_later() {
        let config = Config::default();
        let start = Instant::now();
        let noted = |sent, now| {
            let mut clock = ServerClock::default();
            assert_eq!(clock.note(&exchange(start, 10, 100_000), &config), None);
            clock.note(&exchange(sent, 10, now), &config)
        };
        let later = start + Duration::from_millis(4_990);
        assert_eq!(noted(later, 106_007), None);
        let by = Duration::from_millis(1_006);
        let ahead = Some(Duration::from_millis(1_030));
        assert_eq!(noted(later, 106_008), Some(Jump { by, ahead }));
        // Of two that began at once none is the later one.
        assert_eq!(noted(start, 106_008), None);
    }

    #[tokio::test(start_paused = true)]
    async fn small_steps_add_up_for_the_length_of_a_lease() {
        let config = Config::default();
        let start = Instant::now();
        for (later, by) in [(30_000, Some(1_788)), (30_001, None)] {
            let mut clock = ServerClock::default();
            let mut note = |millis: u32, ahead: i64| {
                let sent = start + Duration::from_millis(millis.into());
                clock.note(&exchange(sent, 10, i64::from(millis) + ahead), &config)
            };
            assert_eq!((note(0, 0), note(later, 900)), (None, None));
            let jump = note(later + 1_000, 1_800);
            assert_eq!(jump.map(|jump| jump.by.as_millis()), by, "{later} ms later");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_asks_for_the_clock_unless_it_was_heard_of_since() {
        let config = Config::default();
        let now = Instant::now();
        let later = now + Duration::from_millis(1);
        let mut clock = ServerClock::default();
        assert!(clock.is_stale(now, now));
        assert!(!clock.is_stale(now, later), "another asks");
        assert!(clock.is_stale(later, later));
        let mut clock = ServerClock::default();
        clock.note(&exchange(now, 10, 1_000), &config);
        assert!(!clock.is_stale(now, later));
        assert!(clock.is_stale(later, later), "the exchange began before");
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_beyond_the_longest_duration_is_as_far_ahead_as_that() {
        let now = Instant::now();
        assert_eq!(offset(now, ServerTime(0), ServerTime(i64::MAX)), now + DURATION_MOST);
    }
}
