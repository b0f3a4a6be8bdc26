//! Streams that fell silent with their server, noticed by the election of the primary.
//!
//! The driver sends the next `getMore` of a stream to the server that has its cursor. Once that server is gone, it
//! waits for it in server selection, for half a minute by default, and the stream is silent meanwhile. Silence alone
//! shows only after the await time.
//!
//! A stream falls silent only if there was news just as the server went: a `getMore` that the server has already is
//! answered with an error. So once nothing has followed some news for a second, the primary is asked which election it
//! has won. If it differs from the election when the stream was opened, the stream is resumed after its last event at
//! the new primary. The old one may still serve it, as a secondary, so no closing is reported, and nobody polls
//! meanwhile. The answer to a renewal names the election too, so a client that holds locks finds out by itself.
//!
//! A router has no election: its streams are given up when they are overdue.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::super::Session;
use crate::store::{AWAIT_TIME, Elected};

/// The election of the primary as a session knows it.
#[derive(Debug, Default)]
pub(in crate::session) struct FailoverDetector {
    /// By its last answer, to the question or to a renewal, and when that was sent.
    primary: watch::Sender<Option<(Instant, Elected)>>,
    /// Whether a primary is being asked. One that does not answer is asked once at a time.
    is_asking: AtomicBool,
}

impl FailoverDetector {
    /// Notes which primary answered a renewal that was sent at that time. It reveals a fail-over during which no
    /// command has failed. Each stream compares this with the election of its own.
    ///
    /// Only if a primary was asked before: a router has no election, and may pass on those of its shards.
    pub(in crate::session) fn note_primary(&self, sent: Instant, elected: Elected) {
        if self.primary.borrow().is_some() {
            self.answered(sent, elected);
        }
    }

    /// Notes an answer, unless one to a later command has come before it.
    fn answered(&self, sent: Instant, elected: Elected) {
        self.primary.send_if_modified(|primary| {
            let is_newer = primary.is_none_or(|(asked, _)| asked < sent);
            if is_newer {
                *primary = Some((sent, elected));
            }
            is_newer
        });
    }

    /// Returns the election as it changes.
    pub(in crate::session) fn primary(&self) -> watch::Receiver<Option<(Instant, Elected)>> {
        self.primary.subscribe()
    }
}

impl Session {
    /// Asks which primary there is, in the background, for a stream that was opened or is quiet. Nothing waits for the
    /// answer. A stream that is opened beside a question does not go by that, and asks when it is quiet.
    pub(in crate::session) fn ask_for_primary(self: &Arc<Self>) {
        if !self.store.is_remote() || self.failover_detector.is_asking.swap(true, Ordering::Relaxed) {
            return;
        }
        let (store, session, asked) = (self.store.clone(), Arc::downgrade(self), Instant::now());
        // In a task of its own: if it is not answered, it runs on by itself.
        let asking = self.spawn_for(async move { store.elected().await });
        self.spawn(async move {
            // After that, a stream that has lost its server is overdue and given up anyway; and a command that is never
            // answered must not keep the next stream from asking.
            let elected = timeout(AWAIT_TIME, asking).await;
            let Some(session) = session.upgrade() else { return };
            if let Ok(Ok(Ok(Some(elected)))) = elected {
                session.failover_detector.answered(asked, elected);
            }
            session.failover_detector.is_asking.store(false, Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_renewal_tells_the_streams_of_its_primary() {
        let detector = FailoverDetector::default();
        let elected = |term: u8| Elected::from([term; 12]);
        let mut primary = detector.primary();
        let mut renewed = |sent, term| {
            detector.note_primary(sent, elected(term));
            let changed = primary.has_changed().unwrap();
            changed.then(|| primary.borrow_and_update().unwrap())
        };
        let begun = Instant::now();
        let after = |seconds| begun + std::time::Duration::from_secs(seconds);
        assert_eq!(renewed(begun, 1), None, "a router was never asked");
        detector.answered(after(1), elected(1));
        assert_eq!(renewed(after(2), 1), Some((after(2), elected(1))));
        assert_eq!(renewed(after(4), 2), Some((after(4), elected(2))));
        assert_eq!(renewed(after(3), 1), None, "a late answer");
        // A stream that was heard of in between has not taken that one in.
        assert_eq!(renewed(after(5), 2), Some((after(5), elected(2))));
        detector.answered(after(3), elected(1));
        assert_eq!(*detector.primary().borrow(), Some((after(5), elected(2))));
    }
}
