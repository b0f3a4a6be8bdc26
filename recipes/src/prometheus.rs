//! The library's numbers for Prometheus, served by the service itself.

use std::time::Duration;

use axum::{Router, routing::get};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::{MissedTickBehavior, interval};
use watchlock::operate::HISTOGRAM_BUCKETS;

/// Pause after which the recorder sums up what the histograms were given. Until then it keeps each value.
const UPKEEP: Duration = Duration::from_secs(5);

/// Returns a builder for a recorder whose histograms have the library's buckets.
///
/// In `main`, call its `install_recorder` before the first lock client is built: each client describes its numbers to
/// the recorder that there is, and gauges count from then on.
pub fn recorder() -> Result<PrometheusBuilder, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for (histogram, bounds) in HISTOGRAM_BUCKETS {
        builder = builder.set_buckets_for_metric(Matcher::Full(histogram.to_string()), bounds)?;
    }
    Ok(builder)
}

/// Returns the route `/metrics` for Prometheus, to be merged into the service's router.
pub fn metrics(handle: PrometheusHandle) -> Router {
    Router::new().route("/metrics", get(move || async move { handle.render() }))
}

/// Has the recorder sum up again and again: spawn it beside the server, or its memory grows between two scrapes.
pub async fn upkeep(handle: PrometheusHandle) {
    let mut due = interval(UPKEEP);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        handle.run_upkeep();
    }
}
