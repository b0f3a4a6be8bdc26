//! The deadline of a hold, on this machine's monotonic clock: until then it is surely ours.
//!
//! The server ends a lease on its own wall clock. A holder must be done before that, although it can't see that clock.
//! So it counts from an instant at which the server's clock had surely come no further than is known, and stops
//! earlier by two margins ([`Config::margin`]). The *skew margin* covers that the next primary's clock may be ahead of
//! the one that began the lease. The *drift* covers that the two clocks don't run equally fast, so it grows with the
//! counted time.
//!
//! When the server's clock turns out to have been set ahead, all deadlines come earlier by as much
//! ([`Jump::ahead`](super::clock::Jump)).
//!
//! Only this file takes the margins off an end; [`Config::usable`] is the same rule for the length of a lease, where
//! there is no instant yet: settings are checked by it, and renewals planned.

use std::time::Duration;

use tokio::time::Instant;

use super::clock::{ServerClock, offset};
use crate::{
    config::{Config, millis},
    protocol::{Exchange, ServerTime},
};

/// Returns the deadline for an answer that shows the entry as a holder until `until`; `None` if nothing is known of the
/// server's clock.
///
/// The server read its clock after we sent, so counting from the send instant is on the safe side. From now on the
/// lease is no longer than the requested one, whatever the document says.
pub fn of_answer(
    exchange: &Exchange,
    until: ServerTime,
    lease: Duration,
    clock: &ServerClock,
    now: Instant,
    config: &Config,
) -> Option<Instant> {
    let sent = exchange.sent;
    let by_answer = exchange.now.map(|read| (sent, offset(sent, read, until)));
    // A repeated command is answered from the server's record of it, which has no time. And that clock may have been set
    // ahead while the answer was on its way.
    let by_clock = clock.until(until);
    let by_clock = by_clock.filter(|_| by_answer.is_none() || clock.ran_ahead_since(sent));
    let (from, end) = by_answer.into_iter().chain(by_clock).min_by_key(|(_, end)| *end)?;
    Some(before(from, end.min(now + lease), config))
}

/// Returns the deadline for an event of a grant that was written at `at`, by the server's clock, on this claim lease;
/// `None` if nothing is known of that clock.
///
/// The grant is older than its event, so the claim can't run longer than from now on, wherever the server's clock
/// was set since we last heard of it.
pub(crate) fn of_event(
    at: ServerTime,
    claim: Duration,
    clock: &ServerClock,
    now: Instant,
    config: &Config,
) -> Option<Instant> {
    let (from, end) = clock.until(at.plus_millis(millis(claim)))?;
    Some(before(from, end.min(now + claim), config))
}

/// Returns the deadline for a renewal that is sent now, if it is acknowledged, and the server's clock was not set ahead
/// meanwhile: the server counts the lease from a later time.
pub fn of_renewal(sent: Instant, lease: Duration, config: &Config) -> Instant {
    before(sent, sent + lease, config)
}

/// Returns the deadline for a reading that shows the holder until `until`, after a renewal that was sent at `renewed` and
/// acknowledged; `None` if the reading does not show the server's clock.
///
/// The reading may show a later renewal that is not committed yet: the acknowledged one is, and no more.
pub fn of_reading(
    exchange: &Exchange,
    until: ServerTime,
    renewed: Instant,
    lease: Duration,
    config: &Config,
) -> Option<Instant> {
    let end = offset(exchange.sent, exchange.now?, until).min(renewed + lease);
    Some(before(renewed.min(exchange.sent), end, config))
}

/// Returns the deadline of a lease that ends at `end`, if the clocks agreed at `from`.
fn before(from: Instant, end: Instant, config: &Config) -> Instant {
    let margin = config.margin(end.saturating_duration_since(from));
    // A lease that ended before the clock began is over in any case.
    end.checked_sub(margin).unwrap_or(from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn config(lease: Duration) -> Config {
        Config {
            lease,
            ..Config::default()
        }
        .validate()
        .unwrap()
    }

    /// The server's clock goes faster by a thousandth, and the next primary's is ahead by the skew margin.
    #[tokio::test(start_paused = true)]
    async fn a_lease_of_any_length_ends_here_before_it_ends_on_a_clock_that_drifts() {
        let sent = Instant::now();
        let exchange = Exchange::new(
            sent,
            sent + Duration::from_millis(2),
            Some(ServerTime(1_700_000_000_000)),
        );
        let mut clock = ServerClock::default();
        clock.note(&exchange, &config(DAY));
        for lease in [Duration::from_millis(500), Duration::from_secs(30), DAY, 366 * DAY] {
            let config = config(lease);
            let until = ServerTime(1_700_000_000_000).plus_millis(millis(config.lease));
            let given_away = |lease: Duration| sent + lease.mul_f64(1.0 / 1.001) - config.skew_margin();
            let answer = of_answer(&exchange, until, config.lease, &clock, sent, &config).unwrap();
            let late = Exchange { now: None, ..exchange };
            let late = of_answer(&late, until, config.lease, &clock, sent, &config).unwrap();
            let renewal = of_renewal(sent, lease, &config);
            let reading = of_reading(&exchange, until, sent, lease, &config).unwrap();
            for deadline in [answer, late, renewal, reading] {
                assert!(deadline <= given_away(lease), "{lease:?}: {:?}", deadline - sent);
                assert!(deadline > sent + lease.mul_f64(0.89));
            }
            let event = of_event(
                ServerTime(1_700_000_000_000),
                config.claim_lease(),
                &clock,
                sent,
                &config,
            )
            .unwrap();
            assert!(event <= given_away(config.claim_lease()));
            assert!(event > sent + config.claim_lease() / 2);
        }
    }

    /// A client that waits for days seldom learns of the server's clock.
    #[tokio::test(start_paused = true)]
    async fn an_event_is_reckoned_with_the_drift_since_the_clock_was_heard_of() {
        let config = config(366 * DAY);
        let mut clock = ServerClock::default();
        let sent = Instant::now();
        let begun = ServerTime(1_700_000_000_000);
        clock.note(&Exchange::new(sent, sent, Some(begun)), &config);
        tokio::time::advance(DAY / 24).await;
        let now = Instant::now();
        // An hour on a clock that is slower than ours.
        let at = begun.plus_millis(3_600_000 - 3_600);
        let event = of_event(at, config.claim_lease(), &clock, now, &config).unwrap();
        let most = now + config.claim_lease() - config.skew_margin() - Duration::from_millis(3_600);
        assert!(event <= most, "{:?}", event - now);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_counts_by_the_clock_that_was_set_ahead_while_it_was_on_its_way() {
        let config = config(Duration::from_secs(30));
        let millis = Duration::from_millis;
        let mut clock = ServerClock::default();
        let begun = 1_700_000_000_000;
        let exchange =
            |sent: Instant, ahead: i64| Exchange::new(sent, sent + millis(2), Some(ServerTime(begun + ahead)));
        let sent = Instant::now();
        assert_eq!(clock.note(&exchange(sent, 0), &config), None);
        let until = ServerTime(begun + 30_000);
        let deadline = |clock: &ServerClock| {
            let now = Instant::now();
            of_answer(&exchange(sent, 0), until, config.lease, clock, now, &config).unwrap()
        };
        let before = deadline(&clock);
        tokio::time::advance(millis(1_000)).await;
        let jump = clock.note(&exchange(Instant::now(), 6_000), &config).unwrap();
        let earlier = before - deadline(&clock);
        assert!((millis(4_980)..millis(5_020)).contains(&earlier), "{earlier:?}");
        // What deadlines are shortened by is no less.
        assert!(Some(earlier) <= jump.ahead, "{jump:?}");
    }
}
