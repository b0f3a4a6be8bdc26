//! The type of all actions of this API.

/// An action of the async API, to be run on the calling thread: `Action<Acquire>` has the options of
/// [`Acquire`](crate::Acquire), and `run`.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// use std::time::Duration;
///
/// let handle = locks.mutex("invoice-42").acquire().timeout(Duration::from_secs(5)).reason("billing").run()?;
/// # handle.release()?;
/// # Ok(()) }
/// ```
///
/// It can't be awaited, as it would block the thread:
///
/// ```compile_fail,E0277
/// # async fn example(locks: watchlock::sync::LockClient) {
/// locks.mutex("invoice-42").acquire().await;
/// # }
/// ```
///
/// And an action of the async API can't be run on a thread of the runtime, where that would panic:
///
/// ```compile_fail,E0061
/// # async fn example(locks: watchlock::LockClient) {
/// locks.mutex("invoice-42").acquire().run();
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an action does nothing until it is run"]
pub struct Action<A> {
    pub(super) action: A,
}

impl<A> Action<A> {
    pub(super) fn new(action: A) -> Self {
        Self { action }
    }

    pub(super) fn with(self, set: impl FnOnce(A) -> A) -> Self {
        Self::new(set(self.action))
    }
}
