//! The terms of one acquire: how long its hold lives without a renewal, whether it is renewed, how long the lock stays
//! taken at least, and how long it may be held.

use std::time::Duration;

use crate::{
    config::{Config, LEASE_LEAST, Limits},
    input::{InvalidInput, above, at_least, at_most, below, check_duration},
};

/// The terms of an acquire; unset ones are the client's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// `None`: the client's own.
    pub length: Option<Duration>,
    /// Whether nobody renews the hold.
    pub fixed: bool,
    /// The time after the grant before which the lock does not open, whatever becomes of its holder.
    pub at_least: Duration,
    /// Missing limits are the client's, unless the hold is `unlimited`.
    pub limits: Limits,
    /// Whether the hold lasts by its nature, so that the client's limits don't apply.
    pub unlimited: bool,
    /// Whether the hold always comes from the server and goes back to it, as a period counts from the time of its
    /// grant.
    pub by_server: bool,
    /// The time for which the lock stays with the client after its last release; `None`: the client's own.
    pub keep_idle: Option<Duration>,
}

/// The lease of a hold by its terms and its client's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Time that a renewal gives.
    pub length: Duration,
    /// Time that a grant gives to a waiter that has not yet shown that it is alive.
    pub claim: Duration,
    /// Pause between two renewals; `None`: nobody renews it.
    pub interval: Option<Duration>,
    /// Time left below which a renewal does not wait for its turn.
    pub urgent_below: Duration,
    /// The time after the grant before which the lock does not open: no longer than `length`.
    pub at_least: Duration,
    pub limits: Limits,
}

impl Terms {
    pub fn set_lease(&mut self, length: Duration) {
        (self.length, self.fixed) = (Some(length), false);
    }

    pub fn set_fixed(&mut self, length: Duration) {
        (self.length, self.fixed) = (Some(length), true);
    }

    /// Whether these terms are the same apart from the terms that apply after the release.
    pub(crate) fn are_like(&self, other: &Self) -> bool {
        let keep_idle = None;
        Self { keep_idle, ..*self } == Self { keep_idle, ..*other }
    }

    /// Returns for how long the lock stays with the client after its last release.
    pub fn keep_idle(&self, config: &Config) -> Duration {
        if !self.is_plain() {
            return Duration::ZERO;
        }
        self.keep_idle.unwrap_or(config.keep_idle)
    }

    /// Whether a task may take over a hold on these terms from another: it is renewed, and its release frees the lock.
    pub fn is_plain(&self) -> bool {
        !self.fixed && self.at_least.is_zero() && !self.by_server
    }

    /// Refuses terms that are out of bounds, or that don't go with the client's margins.
    pub fn check(&self, config: &Config) -> Result<(), InvalidInput> {
        check_duration("least time", self.at_least)?;
        self.limits.check()?;
        config.check_keep_idle(self.keep_idle(config))?;
        let Some(length) = self.length else {
            return Ok(());
        };
        if self.fixed {
            at_most(
                "time for which the lock stays taken at least",
                self.at_least,
                "fixed time",
                length,
            )?;
        }
        at_least("lease", length, LEASE_LEAST)?;
        check_duration("lease", length)?;
        // As the settings of the client: the holder of a claim lease has half of it to show that it is alive.
        let twice = config.skew_margin() * 2;
        above("lease", length, "twice the skew margin of the client", twice)?;
        below(
            "renewal interval",
            self.interval(config),
            "lease less the skew margin and the clock drift",
            config.usable(self.length(config)),
        )
    }

    /// Returns the lease by the client's settings.
    pub fn lease(&self, config: &Config) -> Lease {
        let length = self.length(config);
        Lease {
            length,
            claim: config.claim_lease().min(length),
            interval: (!self.fixed).then(|| self.interval(config)),
            // A hold with a short lease does not wait behind holds with a long one.
            urgent_below: length.max(config.lease) / 2,
            at_least: self.at_least,
            limits: self.limits.or(if self.unlimited {
                Limits::default()
            } else {
                config.limits
            }),
        }
    }

    /// Returns the length of the lease. It covers the time for which the lock stays taken at least, as a holder that
    /// dies releases nothing.
    fn length(&self, config: &Config) -> Duration {
        self.length.unwrap_or(config.lease).max(self.at_least)
    }

    /// Returns the pause between renewals: the same part of the lease as with the client's own.
    fn interval(&self, config: &Config) -> Duration {
        let (interval, length) = (config.renewal_interval(), self.length(config));
        if length == config.lease {
            return interval;
        }
        let part = interval.mul_f64(length.as_secs_f64() / config.lease.as_secs_f64());
        // Where a client renews at a tiny part of its lease, more renewals of a short one would only load the server.
        part.max(length / 50)
    }
}

impl Lease {
    /// Returns when a hold that was renewed or granted in full at `sent` is renewed next, if at all.
    pub fn next_renewal(&self, sent: tokio::time::Instant) -> Option<tokio::time::Instant> {
        self.interval.map(|interval| sent + interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const SECOND: Duration = Duration::from_secs(1);

    fn terms(length: Duration) -> Terms {
        let mut terms = Terms::default();
        terms.set_lease(length);
        terms
    }

    #[test]
    fn a_lease_is_renewed_at_the_same_part_of_it_whatever_its_length() {
        let config = Config::default();
        assert_eq!(Terms::default().lease(&config).length, 30 * SECOND);
        assert_eq!(Terms::default().lease(&config).interval, Some(6 * SECOND));
        let short = terms(3 * SECOND).lease(&config);
        assert_eq!((short.interval, short.claim), (Some(SECOND * 3 / 5), 3 * SECOND));
        let long = terms(3_600 * SECOND).lease(&config);
        assert_eq!((long.interval, long.claim), (Some(720 * SECOND), 5 * SECOND));
        let mut fixed = terms(3 * SECOND);
        fixed.set_fixed(10 * SECOND);
        assert_eq!(
            (fixed.lease(&config).length, fixed.lease(&config).interval),
            (10 * SECOND, None)
        );
    }

    #[test]
    fn terms_that_do_not_go_with_the_clients_margins_are_refused_with_value_and_bound() {
        let config = Config::default();
        let late = Config {
            renewal_interval: Some(28 * SECOND),
            ..Config::default()
        };
        let late = late.validate().unwrap();
        let for_ever = Terms {
            at_least: Duration::MAX,
            ..Terms::default()
        };
        let mut short = Terms::default();
        short.set_fixed(4 * SECOND);
        short.at_least = 5 * SECOND;
        let (mut at_once, mut endless) = (Terms::default(), Terms::default());
        at_once.limits.report = Some(Duration::ZERO);
        endless.limits.lose = Some(Duration::MAX);
        let cases = [
            (&config, at_once, ["warning limit of 0ns", "10ms"]),
            (&config, endless, ["limit of the hold of 184", "31622400s"]),
            (&config, terms(Duration::ZERO), ["0ns", "500ms"]),
            (&config, terms(2 * SECOND), ["lease of 2s", "margin of the client, 2s"]),
            (&config, terms(Duration::MAX), ["lease of 184", "31622400s"]),
            (&late, terms(10 * SECOND), ["interval of 9.3", "8.99s"]),
            (&config, for_ever, ["least time of 184", "31622400s"]),
            (&config, short, ["at least of 5s", "fixed time, 4s"]),
        ];
        for (config, terms, words) in cases {
            let message = terms.check(config).unwrap_err().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
        for length in [2_001, 30_000, 31_622_400_000] {
            terms(Duration::from_millis(length)).check(&config).unwrap();
        }
    }

    /// A holder that dies releases nothing, and the lock stays taken all the same.
    #[test]
    fn a_lease_covers_the_time_for_which_the_lock_stays_taken_at_least() {
        let config = Config::default();
        let lease_of = |least, length: Option<Duration>| {
            let mut terms = Terms {
                at_least: least,
                ..Terms::default()
            };
            length.into_iter().for_each(|length| terms.set_lease(length));
            terms.check(&config).unwrap();
            let lease = terms.lease(&config);
            (lease.length, lease.interval.unwrap())
        };
        assert_eq!(lease_of(300 * SECOND, None), (300 * SECOND, 60 * SECOND));
        assert_eq!(lease_of(300 * SECOND, Some(5 * SECOND)), (300 * SECOND, 60 * SECOND));
        assert_eq!(lease_of(20 * SECOND, None), (30 * SECOND, 6 * SECOND));
        // Equal terms are no contradiction.
        let mut fixed = Terms::default();
        fixed.set_fixed(20 * SECOND);
        fixed.at_least = 20 * SECOND;
        fixed.check(&config).unwrap();
    }

    #[test]
    fn the_limits_of_an_acquire_come_before_those_of_the_client() {
        let settings = Config {
            limits: Limits {
                report: Some(60 * SECOND),
                lose: Some(90 * SECOND),
            },
            ..Config::default()
        };
        let config = settings.validate().unwrap();
        let mut own = Terms::default();
        own.limits.report = Some(5 * SECOND);
        let limits = own.lease(&config).limits;
        assert_eq!((limits.report, limits.lose), (Some(5 * SECOND), Some(90 * SECOND)));
        let unlimited = Terms {
            unlimited: true,
            ..Terms::default()
        };
        assert_eq!(unlimited.lease(&config).limits, Limits::default());
    }
}
