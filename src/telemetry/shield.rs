//! Calls into the user's code, which may panic: a subscriber, a recorder, a handler of the driver's events.
//!
//! A panic there would end the calling task: the heartbeat, and with it every lock of the client; or an operation, and
//! with it the name that it is on. So it is caught at the call, and the task goes on.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
};

use tracing::{Span, error};

use super::TARGET;

/// Whether a panicking observer has been reported. An observer that panics once is likely to do so with every event.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Makes a call into somebody else's code, which changes no state of ours by itself; returns `None` if it panicked.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    let (mut call, mut returned) = (Some(call), None);
    catch(&mut || returned = call.take().map(|call| call()));
    returned
}

/// Makes the call. It is one function for all calls: catching a panic takes more code than most of them.
fn catch(call: &mut dyn FnMut()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
}

/// Calls a subscriber or a recorder; returns `None` if it panicked.
pub(super) fn shielded<T>(call: impl FnOnce() -> T) -> Option<T> {
    let returned = caught(call);
    if returned.is_none() {
        report();
    }
    returned
}

fn report() {
    if !REPORTED.swap(true, Ordering::Relaxed) {
        // The subscriber that panicked may itself receive this event.
        let _ = catch_unwind(|| {
            error!(name: "watchlock.panicked", target: TARGET, "a tracing subscriber or metrics recorder panicked");
        });
    }
}

/// Runs a future in a span, whose subscriber is called at each poll. The span is left even by a panic of the future.
pub(super) async fn in_span<T>(span: &Span, mut future: Pin<&mut (dyn Future<Output = T> + Send)>) -> T {
    poll_fn(|context| {
        shielded(|| span.with_subscriber(|(id, subscriber)| subscriber.enter(id)));
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        shielded(|| span.with_subscriber(|(id, subscriber)| subscriber.exit(id)));
        polled.unwrap_or_else(|panic| resume_unwind(panic))
    })
    .await
}
