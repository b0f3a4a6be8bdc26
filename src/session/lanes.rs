//! The lanes in which operations are on their way, so that those that hang don't block the others.
//!
//! Few operations are on their way at once, as the pool is the user's; [`admission`](super::admission) finds out how
//! many. An operation without a prompt answer moves to a slot of the slow lane. Next time it begins there. An operation
//! that was not done in time again and again is most likely held up by its own document, such as by a transaction that
//! has written it. The server may try it for long, so it has a lane of its own: whoever was slow for a moment waits
//! behind no such operation. Two more slots are for entries that leave, so that a release gets through even when
//! everything else hangs.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use super::admission::{Admission, Admitted};
use crate::waitlist::TimedOut;

/// Maximum number of slow operations beside the prompt ones: those without a prompt answer, or not done in time when
/// they were last sent. Each can occupy a connection of the pool for as long as the server may try.
const SLOW_AT_ONCE: usize = 4;

/// Maximum number of operations that were not done in time again and again, beside all of these. The server may try
/// each for ten seconds.
const STUCK_AT_ONCE: usize = 2;

/// Number of tries in a row that were not done in time, after which an operation is stuck. A server that stood still
/// for a second makes two of them.
const STUCK_AFTER: u32 = 3;

/// Maximum number of operations with leaving entries beside all of these.
const LEAVES_AT_ONCE: usize = 2;

/// Age up to which a wait for a slot shows that the client is busy: several answer times.
const BUSY: Duration = Duration::from_millis(50);

/// The slots of a session's operations.
#[derive(Debug)]
pub(super) struct Lanes {
    prompt: Admission,
    slow: Semaphore,
    stuck: Semaphore,
    leaves: Semaphore,
    begun: Instant,
    /// When an operation last had to wait for a prompt slot, in microseconds from the beginning.
    waited: AtomicU64,
}

/// Whether others may wait for an operation to be through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Nobody but who sent it.
    Usual,
    /// It has entries that leave: others may get the lock by it.
    Leaving,
}

/// A slot for an operation that is on its way.
///
/// Only held.
pub(super) enum Slot<'a> {
    /// It must be left to others once the answer is not prompt.
    Prompt {
        _admitted: Admitted<'a>,
    },
    Other {
        _permit: SemaphorePermit<'a>,
    },
}

impl<'a> Slot<'a> {
    async fn other(lane: &'a Semaphore) -> Option<Self> {
        // It is never closed.
        lane.acquire().await.ok().map(|permit| Self::Other { _permit: permit })
    }

    pub(super) fn is_prompt(&self) -> bool {
        matches!(self, Self::Prompt { .. })
    }
}

impl Lanes {
    /// Creates them; at most so many prompt operations are ever on their way at once.
    pub(super) fn new(most: usize) -> Self {
        Self {
            prompt: Admission::new(most),
            slow: Semaphore::new(SLOW_AT_ONCE),
            stuck: Semaphore::new(STUCK_AT_ONCE),
            leaves: Semaphore::new(LEAVES_AT_ONCE),
            begun: Instant::now(),
            waited: AtomicU64::new(0),
        }
    }

    /// Waits for a slot.
    pub(super) async fn enter(&self, urgency: Urgency, timed_out: TimedOut) -> Option<Slot<'_>> {
        match timed_out.overdue {
            0 => {}
            1..STUCK_AFTER if urgency == Urgency::Leaving => return self.slow_or_leaving().await,
            1..STUCK_AFTER => return self.slow().await,
            _ => return Slot::other(&self.stuck).await,
        }
        if self.prompt.is_full() {
            self.waited.fetch_max(self.micros(Instant::now()), Ordering::Relaxed);
        }
        let prompt = async {
            let admitted = self.prompt.enter().await;
            admitted.map(|admitted| Slot::Prompt { _admitted: admitted })
        };
        if urgency == Urgency::Usual {
            return prompt.await;
        }
        tokio::select! {
            biased;
            slot = prompt => slot,
            slot = Slot::other(&self.leaves) => slot,
        }
    }

    /// Waits for a slot of the slow lane.
    pub(super) async fn slow(&self) -> Option<Slot<'_>> {
        Slot::other(&self.slow).await
    }

    async fn slow_or_leaving(&self) -> Option<Slot<'_>> {
        tokio::select! {
            biased;
            slot = self.slow() => slot,
            slot = Slot::other(&self.leaves) => slot,
        }
    }

    /// Whether operations have had to wait for others just now.
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        let waited = self.waited.load(Ordering::Relaxed);
        waited > 0 && Duration::from_micros(self.micros(now).saturating_sub(waited)) <= BUSY
    }

    /// Whether no prompt operation is on its way; slow ones don't count.
    pub(super) fn is_quiet(&self) -> bool {
        self.prompt.is_quiet()
    }

    /// Notes that an operation was not answered.
    pub(super) fn unanswered(&self) {
        self.prompt.unanswered();
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begun).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::{sleep, timeout};

    use super::*;

    /// Forty documents that a transaction has written: the server tries each for longer every time.
    #[tokio::test(start_paused = true)]
    async fn an_operation_that_was_slow_once_waits_behind_none_that_is_stuck() {
        let lanes = Arc::new(Lanes::new(6));
        for _ in 0..40 {
            let lanes = lanes.clone();
            tokio::spawn(async move {
                for overdue in 0.. {
                    let timed_out = TimedOut { overdue, unanswered: 0 };
                    let slot = lanes.enter(Urgency::Leaving, timed_out).await;
                    sleep(Duration::from_millis(200 << overdue.min(5))).await;
                    drop(slot);
                }
            });
        }
        // Each of them has been tried three times by then.
        sleep(Duration::from_secs(20)).await;
        for urgency in [Urgency::Usual, Urgency::Leaving] {
            for overdue in 0..STUCK_AFTER {
                let slot = lanes.enter(urgency, TimedOut { overdue, unanswered: 0 });
                let entered = timeout(Duration::from_millis(1), slot).await;
                assert!(entered.is_ok(), "{urgency:?}, {overdue}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leaving_entry_gets_through_when_all_others_hang() {
        let lanes = Lanes::new(6);
        let mut hanging = Vec::new();
        for overdue in [0, 1] {
            let timed_out = TimedOut { overdue, unanswered: 0 };
            while let Ok(slot) = timeout(Duration::from_millis(1), lanes.enter(Urgency::Usual, timed_out)).await {
                hanging.push(slot);
            }
        }
        assert_eq!(hanging.len(), 6 + SLOW_AT_ONCE);
        for overdue in [0, 1] {
            let slot = lanes.enter(Urgency::Leaving, TimedOut { overdue, unanswered: 0 });
            hanging.push(timeout(Duration::from_millis(1), slot).await.expect("it leaves"));
        }
    }
}
