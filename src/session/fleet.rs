//! Whether the holders of the whole fleet can afford change streams, or read their locks instead.
//!
//! Each open stream is woken by every write of the replica set. So the streams of holders cost the server a time that
//! can be reckoned: clients that hold, times writes a second, times the measured cost of one stream and write. The
//! writes are in every answer for free: the time in the server's log counts the writes of its second. The clients are
//! counted, seldom, in the newest documents. All clients of a fleet see the same two numbers, whatever each of them does
//! at the moment, so they decide alike. What is decided concerns only streams that nothing but holds needs.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Session, Table, admin::ONCE, hold_check::VERIFY_EVERY, timer_queue::AT_A_TIME};
use crate::{
    backoff::Backoff,
    config::Config,
    protocol::{Exchange, ServerTime},
    store::{COUNTED_MOST, LogTime},
    wake_mode::HoldWatch,
};

/// Time of the server's processor, in seconds, that one open change stream costs for each write of the set. Measured with
/// 32 streams beside 1,000 writes a second, on two cores: 23 µs. Where writes come singly it is two to three times that,
/// as the server wakes for each (`docs/scaling.md`).
const STREAM_AND_WRITE: f64 = 25e-6;

/// The same for a read, and for each held lock in it. Measured in a closed loop, two runs: 197 and 226 µs for one lock,
/// 5.2 and 5.4 ms for a thousand.
const READ: f64 = 200e-6;
const READ_OF_EACH: f64 = 5e-6;

/// Shortest pause between two readings of a client's holds in place of a stream.
const READ_EVERY: Duration = Duration::from_millis(250);

/// Time within which a measured rate has mostly replaced the one before: a burst of a second says little about the next
/// minute.
const SMOOTHED_OVER: f64 = 5.0;

/// Pauses between two counts of the clients that hold: short at first, as a fleet that was rolled out grows.
const COUNTS: Backoff = Backoff::between(Duration::from_secs(10), Duration::from_secs(5 * 60));

/// What a session knows of its fleet.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    /// The recent number of writes of the set in a second, and as of when.
    writes: Option<(f64, Instant)>,
    /// The clients that hold, as they were counted last; at least this one.
    clients: Option<u64>,
    /// When they are counted again, and the number of counts so far.
    count_at: Option<Instant>,
    counts: u32,
    /// Whether holders read their locks rather than follow a stream.
    pub(super) reads: bool,
}

impl Fleet {
    /// Notes that the log of the server was at `logged` when its clock showed `server`.
    fn note_rate(&mut self, logged: LogTime, server: ServerTime, now: Instant) {
        let into = server.0 - i64::from(logged.time) * 1_000;
        // Too soon after the beginning of a second a few writes look like many; and a log that is not of this second
        // nor of the one before was written by another clock.
        if !(100..2_000).contains(&into) {
            return;
        }
        let rate = f64::from(logged.increment) * 1_000.0 / into as f64;
        let (before, weight) = self.writes.map_or((rate, 1.0), |(before, at)| {
            let since = now.saturating_duration_since(at).as_secs_f64();
            (before, since / (since + SMOOTHED_OVER))
        });
        self.writes = Some((before + (rate - before) * weight, now));
    }

    /// Whether nothing has shown the writes of the set since then, and they matter.
    pub(super) fn is_unseen_since(&self, since: Instant, config: &Config) -> bool {
        let is_known = self.writes.is_some_and(|(_, at)| at > since);
        !is_known && matches!(config.hold_watch, HoldWatch::Budget { .. })
    }

    /// Returns the pause between two readings of so many holds.
    pub(super) fn read_every(&self, config: &Config, holds: usize) -> Duration {
        match config.hold_watch {
            HoldWatch::Reads(pause) => pause,
            // The reads keep to the budget too.
            HoldWatch::Budget { millicores } if self.reads => {
                let fleet = self.clients() * cost_of_reading(holds) / cores(millicores);
                READ_EVERY.max(Duration::try_from_secs_f64(fleet).unwrap_or(READ_EVERY))
            }
            _ => VERIFY_EVERY,
        }
    }

    /// Whether the clients that hold are to be counted now; the caller counts them.
    pub(super) fn must_count(&mut self, config: &Config, now: Instant) -> bool {
        let HoldWatch::Budget { millicores } = config.hold_watch else {
            return false;
        };
        // No count exceeds the number of locks that it goes through.
        let matters = f64::from(COUNTED_MOST) * self.stream() > cores(millicores);
        let must_count = matters && self.count_at.is_none_or(|at| now >= at);
        if must_count {
            self.counts = self.counts.saturating_add(1);
            self.count_at = Some(now + COUNTS.after(self.counts).pause());
        }
        must_count
    }

    /// Decides anew between streams and reads. The streams come back once they would cost half of the budget, so that holders
    /// don't go to and fro.
    pub(super) fn decide(&mut self, config: &Config) {
        self.reads = match config.hold_watch {
            HoldWatch::Stream => false,
            HoldWatch::Reads(_) => true,
            HoldWatch::Budget { millicores } => {
                let cost = self.clients() * self.stream();
                let bound = cores(millicores);
                cost > if self.reads { bound / 2.0 } else { bound }
            }
            _ => self.reads,
        };
    }

    /// Returns the time of the server's processor, in seconds, that one stream costs in a second.
    fn stream(&self) -> f64 {
        self.writes.map_or(0.0, |(rate, _)| rate) * STREAM_AND_WRITE
    }

    fn clients(&self) -> f64 {
        self.clients.unwrap_or(1).max(1) as f64
    }
}

/// Returns the time of the server's processor, in seconds, for a reading of as many of the holds as go together.
fn cost_of_reading(holds: usize) -> f64 {
    READ + READ_OF_EACH * holds.min(AT_A_TIME) as f64
}

fn cores(millicores: u32) -> f64 {
    f64::from(millicores) / 1_000.0
}

impl Session {
    /// Notes the time in the log by which a command was done that wrote so many documents. These don't count: they are
    /// all in the time just before it.
    pub(super) fn note_log(&self, exchange: &Exchange, written: u64) {
        if written > 0 {
            self.note_in_time();
        }
        let Table { fleet, clock, .. } = &mut *self.table();
        if let Some((mut logged, server)) = exchange.logged_by.zip(clock.at_least(exchange.received)) {
            let written = u32::try_from(written).unwrap_or(u32::MAX);
            logged.increment = logged.increment.saturating_sub(written);
            fleet.note_rate(logged, server, exchange.received);
        }
    }

    /// Decides anew whether this client's holders need a stream; counts the fleet before, if that is due.
    pub(super) fn consider_fleet(self: &Arc<Self>) {
        let must_count = {
            let fleet = &mut self.table().fleet;
            fleet.decide(&self.config);
            self.config.may_stream() && fleet.must_count(&self.config, Instant::now())
        };
        self.show_mode();
        if must_count {
            let session = self.clone();
            self.spawn(async move {
                if let Ok(clients) = session.store.clients_that_hold(ONCE).await {
                    session.table().fleet.clients = Some(clients);
                    session.consider_fleet();
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn config(hold_watch: HoldWatch) -> Config {
        Config {
            hold_watch,
            ..Config::default()
        }
    }

    fn logged(time: u32, increment: u32) -> LogTime {
        LogTime { time, increment }
    }

    /// A fleet in which this many clients hold, on a set with so many writes a second.
    fn fleet(clients: u64, rate: f64, now: Instant) -> Fleet {
        Fleet {
            clients: Some(clients),
            writes: Some((rate, now)),
            ..Fleet::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_of_writes_is_read_off_the_log() {
        let now = Instant::now();
        let rate = |(time, increment), server| {
            let mut fleet = Fleet::default();
            fleet.note_rate(logged(time, increment), ServerTime(server), now);
            fleet.writes.map(|(rate, _)| rate.round())
        };
        assert_eq!(rate((100, 250), 100_500), Some(500.0));
        assert_eq!(rate((100, 5), 100_100), Some(50.0));
        // Nothing was written since the second before.
        assert_eq!(rate((99, 1), 100_000), Some(1.0));
        // The second has just begun; its writes can't be told from one burst.
        assert_eq!(rate((100, 9), 100_099), None);
        // Clocks that differ say nothing.
        assert_eq!(rate((101, 9), 100_500), None);
        assert_eq!(rate((98, 9), 100_500), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_does_not_decide_for_a_quiet_set() {
        let mut fleet = Fleet::default();
        let begun = Instant::now();
        for second in 0..30_u32 {
            let (time, increment) = (100 + second, if second == 20 { 5_000 } else { 10 });
            let at = begun + Duration::from_secs(second.into());
            let server = ServerTime(i64::from(time) * 1_000 + 500);
            fleet.note_rate(logged(time, increment), server, at);
        }
        let (rate, _) = fleet.writes.unwrap();
        assert!(rate < 500.0, "{rate}");
    }

    #[tokio::test(start_paused = true)]
    async fn streams_are_for_small_fleets_or_quiet_sets() {
        let budget = config(HoldWatch::default());
        let now = Instant::now();
        let cases = [
            (10, 390.0, false),
            (10, 410.0, true),
            (100, 39.0, false),
            (100, 41.0, true),
            (1, 3_900.0, false),
        ];
        for (clients, rate, reads) in cases {
            let mut fleet = fleet(clients, rate, now);
            fleet.decide(&budget);
            assert_eq!(fleet.reads, reads, "{clients}, {rate}");
        }
        for (watch, reads) in [(HoldWatch::Stream, false), (HoldWatch::Reads(READ_EVERY), true)] {
            for rate in [0.0, 100_000.0] {
                let mut fleet = fleet(100, rate, now);
                fleet.decide(&config(watch));
                assert_eq!(fleet.reads, reads, "{watch:?}, {rate}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_fleet_is_counted_seldom_and_only_where_it_matters() {
        let budget = config(HoldWatch::default());
        let now = Instant::now();
        assert!(
            !fleet(1, 0.39, now).must_count(&budget, now),
            "not even ten thousand would cost too much"
        );
        let mut busy = fleet(1, 500.0, now);
        assert!(!busy.must_count(&config(HoldWatch::Stream), now));
        let mut is_counted = |second| busy.must_count(&budget, now + Duration::from_secs(second));
        let counted: Vec<u64> = (0..2_000).filter(|second| is_counted(*second)).collect();
        assert_eq!(counted, [0, 10, 30, 70, 150, 310, 610, 910, 1_210, 1_510, 1_810]);
    }
}
