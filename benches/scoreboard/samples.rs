//! Latencies and their quantiles.

use std::{fmt, time::Duration};

/// Latencies of one kind, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, latency: Duration) {
        self.0.push(latency.as_secs_f64() * 1e3);
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a place among a few hundred"
        )]
        let place = (last as f64 * part).round() as usize;
        sorted.get(place).copied().unwrap_or(f64::NAN)
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = (self.median(), self.quantile(0.99));
        write!(f, "p50 {p50:.3} ms, p99 {p99:.3} ms of {}", self.0.len())
    }
}

/// The latencies of a lock, and of the driver's commands that it needs at least, in alternate rounds.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    pub(crate) raw: Samples,
    pub(crate) lock: Samples,
}

impl Compared {
    /// Returns the ratio of the medians.
    pub(crate) fn ratio(&self) -> f64 {
        self.lock.median() / self.raw.median()
    }
}
