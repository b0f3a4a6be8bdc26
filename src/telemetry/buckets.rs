//! The recommended buckets of the histograms.

/// The recommended buckets of each histogram: its name, and the upper bounds of its buckets in seconds.
///
/// Recorders for Prometheus need bounds that are chosen beforehand; without any, `metrics-exporter-prometheus` exports
/// summaries, whose quantiles can't be added up over processes, and the dashboard of the
/// [guide](crate::observability#dashboard-and-alerts) shows nothing.
///
/// - `watchlock_wait_seconds`: from 1 ms, about a write with a majority, to half an hour. A hand-over and an acquire of
///   a free lock end up in the first buckets, the wait for a slow holder in the last ones.
/// - `watchlock_hold_seconds`: from 10 ms to a day, for a critical section as well as a leader.
///
/// # Examples
///
/// The [recipe](crate::guide::recipes::prometheus) gives them to Prometheus. Other recorders have a call of their own:
///
/// ```
/// for (histogram, bounds) in watchlock::operate::HISTOGRAM_BUCKETS {
///     println!("{histogram}: up to {} s and more", bounds.last().expect("there are some"));
/// }
/// ```
pub const HISTOGRAM_BUCKETS: &[(&str, &[f64])] = &[
    (
        "watchlock_wait_seconds",
        &[
            0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0,
        ],
    ),
    (
        "watchlock_hold_seconds",
        &[
            0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0,
        ],
    ),
];
