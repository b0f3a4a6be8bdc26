//! The number of change streams that a client may have open: they leave room in the connection pool, which is the
//! user's.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The streams of one client beside that of its locks, which always has room: those of its collections of documents
/// and of its observers. Shared by all sessions of the client.
#[derive(Debug)]
pub(crate) struct StreamBudget {
    room: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// Room for one stream, until it is dropped.
#[derive(Debug)]
pub(in crate::session) struct Permit(#[expect(dead_code, reason = "only held")] Option<OwnedSemaphorePermit>);

impl StreamBudget {
    /// Creates the budget of a client that may have `most` streams open, that of its locks among them.
    pub(crate) fn new(most: u32) -> Arc<Self> {
        let beside = most.saturating_sub(1);
        Arc::new(Self {
            room: Arc::new(Semaphore::new(
                usize::try_from(beside).unwrap_or(Semaphore::MAX_PERMITS),
            )),
            waiting: AtomicUsize::new(0),
        })
    }

    pub(in crate::session) fn try_acquire(&self) -> Option<Permit> {
        self.room
            .clone()
            .try_acquire_owned()
            .ok()
            .map(|permit| Permit(Some(permit)))
    }

    /// Waits for room. Cancel safe, except for its place among the waiting streams.
    pub(in crate::session) async fn acquire(&self) -> Permit {
        let _waits = Waits::begin(&self.waiting);
        // The semaphore is never closed.
        Permit(self.room.clone().acquire_owned().await.ok())
    }

    /// Whether another stream waits for room.
    pub(in crate::session) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// A count of one waiting stream, also if the future is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
