//! Calls into code of the user's, which may panic: a subscriber, a recorder.
//!
//! A panic there would end the task that calls: the heartbeat, and with it every lock of the client, or an operation, and
//! with it the name it is on. So it is caught at the call, and the task goes on.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
};

use tracing::{Span, error};

use super::TARGET;

/// Whether it has been told that an observer panics. One that does so once is likely to do so with every event.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Calls a subscriber or a recorder; `None` when it panicked.
pub(super) fn shielded<T>(call: impl FnOnce() -> T) -> Option<T> {
    // What is ours is not changed by the call.
    let called = catch_unwind(AssertUnwindSafe(call)).ok();
    if called.is_none() && !TOLD.swap(true, Ordering::Relaxed) {
        // The very subscriber that panicked may be the one that is told.
        let _ = catch_unwind(|| {
            error!(name: "watchlock.panicked", target: TARGET, "code of the user's panicked");
        });
    }
    called
}

/// Runs a future in a span, whose subscriber is called at each of its polls.
pub(super) async fn in_span<F: Future>(span: &Span, future: F) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|context| poll_in_span(span, future.as_mut(), context)).await
}

fn poll_in_span<F: Future>(span: &Span, future: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
    let _entered = Entered::new(span);
    future.poll(context)
}

/// A span that is entered; left when this is dropped, also by a panic of the future.
struct Entered<'a>(&'a Span);

impl<'a> Entered<'a> {
    fn new(span: &'a Span) -> Self {
        shielded(|| span.with_subscriber(|(id, subscriber)| subscriber.enter(id)));
        Self(span)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        shielded(|| self.0.with_subscriber(|(id, subscriber)| subscriber.exit(id)));
    }
}
