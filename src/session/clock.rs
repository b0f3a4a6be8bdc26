//! What this process knows of the server's clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::{protocol::ServerTime, store::Exchange};

/// How long an exchange stays the reference although later ones were slower. Clocks drift by well under a
/// millisecond in that time; a new primary with another clock is the business of the skew margin.
const REFERENCE_AGE: Duration = Duration::from_secs(10);

/// Bounds on the server's clock, from the tightest exchange of late.
///
/// In an exchange the server read its clock after we sent and before we received. So the instant at which it reads a
/// given time lies between the send instant plus the difference and the receive instant plus the difference.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    reference: Option<(Instant, Instant, ServerTime)>,
}

impl ServerClock {
    pub(crate) fn note(&mut self, exchange: &Exchange) {
        let Some(now) = exchange.now else { return };
        let tighter = self.reference.is_none_or(|(sent, received, _)| {
            exchange.received - exchange.sent <= received - sent || exchange.sent > sent + REFERENCE_AGE
        });
        if tighter {
            self.reference = Some((exchange.sent, exchange.received, now));
        }
    }

    /// An instant at which the server's clock has not passed `time` yet; `None` before the first exchange.
    pub(crate) fn before(&self, time: ServerTime) -> Option<Instant> {
        self.reference.map(|(sent, _, now)| offset(sent, now, time))
    }

    /// An instant at which the server's clock has reached `time`.
    pub(crate) fn after(&self, time: ServerTime) -> Option<Instant> {
        self.reference.map(|(_, received, now)| offset(received, now, time))
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
        let mut clock = ServerClock::default();
        assert_eq!(clock.before(ServerTime(0)), None);
        clock.note(&exchange(start, 2, 1_000));
        clock.note(&exchange(start, 500, 1_400));
        assert_eq!(
            clock.before(ServerTime(1_100)),
            Some(start + Duration::from_millis(100))
        );
        assert_eq!(clock.after(ServerTime(1_100)), Some(start + Duration::from_millis(102)));
        assert!(clock.before(ServerTime(900)) <= Some(start));

        let later = start + REFERENCE_AGE + Duration::from_millis(1);
        clock.note(&exchange(later, 500, 20_000));
        assert_eq!(clock.before(ServerTime(20_000)), Some(later));
    }
}
