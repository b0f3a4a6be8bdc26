//! Traces with the waiting times of locks, for any backend of OpenTelemetry.

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracerProvider, SpanExporter},
};
use tracing::{Level, Subscriber};
use tracing_subscriber::{Layer as _, filter::Targets, layer::SubscriberExt as _, registry};

/// Returns a subscriber that exports spans, and the provider behind it.
///
/// In `main`, make the subscriber the global default; at the end call the provider's `shutdown`, which sends what is
/// left. The exporter for a collector is `opentelemetry_otlp::SpanExporter`.
pub fn exporting(
    service: &'static str,
    exporter: impl SpanExporter + 'static,
) -> (impl Subscriber + Send + Sync, SdkTracerProvider) {
    let provider = SdkTracerProvider::builder()
        .with_resource(Resource::builder().with_service_name(service).build())
        .with_batch_exporter(exporter)
        .build();
    // DEBUG adds the events of grants and releases. The span `watchlock.acquire` and all troubles are INFO or above.
    let wanted = Targets::new()
        .with_default(Level::INFO)
        .with_target("watchlock", Level::DEBUG);
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer(service));
    (registry().with(layer.with_filter(wanted)), provider)
}
