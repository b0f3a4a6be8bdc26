//! Which task acquires, holds and waits.

use std::{
    future::poll_fn,
    task::Poll,
    thread::{self, ThreadId},
};

/// A task, told apart by tokio's number of it and by its waker, which differs between the futures of a
/// `FuturesUnordered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Task {
    /// `Err`: it is none of tokio's, but what a thread blocks on.
    id: Result<tokio::task::Id, ThreadId>,
    waker: usize,
}

impl Task {
    /// Returns the task that polls this.
    pub(super) async fn current() -> Self {
        poll_fn(|context| {
            Poll::Ready(Self {
                id: tokio::task::try_id().ok_or_else(|| thread::current().id()),
                waker: context.waker().data().addr(),
            })
        })
        .await
    }
}
