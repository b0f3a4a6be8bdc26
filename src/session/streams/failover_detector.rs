//! Streams that fell silent with their server, noticed by other commands.
//!
//! The driver sends the next `getMore` of a stream to the server that has its cursor. Once that server is gone, it
//! waits for it in server selection, for half a minute by default, and the stream is silent meanwhile. Silence alone
//! shows only after the await time. One that is no longer the primary may go on with the stream, and have no news for
//! it.
//!
//! So the primary is asked which election it has won: once a stream was opened, at once and a moment later; a moment
//! after it has told news; and when a command has failed as its server is no longer the primary or broke the connection. A session whose waiters only wait has no
//! command under way that could fail, and its stream falls silent if there was news just as the server went: a
//! `getMore` that the server has already is answered with an error. The answer to a renewal names the election too, so
//! a client that holds locks finds out by itself. A stream that was opened under another election is opened anew at the
//! new primary. The old one may still serve it, as a secondary, so no closing is reported, and nobody polls meanwhile.

use std::sync::{Arc, Weak};

use tokio::time::{Instant, sleep};

use super::super::{Session, line::UNANSWERED};
use crate::{error::ServerError, store::Elected};

/// The election of the primary by its last answer, to the question or to a renewal, and when that was sent.
pub(in crate::session) type Primary = (Instant, Elected);

/// Notes an answer, unless one to a later command has come before it; returns whether it did.
fn note(known: &mut Option<Primary>, sent: Instant, elected: Elected) -> bool {
    let is_newer = known.is_none_or(|(asked, _)| asked < sent);
    if is_newer {
        *known = Some((sent, elected));
    }
    is_newer
}

impl Session {
    /// Has the primary asked which it is, a moment later.
    pub(in crate::session) fn ask_for_primary(&self) {
        if self.store.is_remote() {
            self.primary_wanted.notify_one();
        }
    }

    /// Asks the primary which it is.
    pub(super) fn ask_primary_at_once(self: &Arc<Self>) {
        if !self.store.is_remote() {
            return;
        }
        let (weak, store) = (Arc::downgrade(self), self.store.clone());
        self.spawn(async move {
            let asked = Instant::now();
            let Ok(Some(elected)) = store.elected().await else {
                return;
            };
            let Some(session) = weak.upgrade() else { return };
            session.primary.send_if_modified(|known| note(known, asked, elected));
        });
    }

    /// Notes how a command has failed, which may show a fail-over.
    pub(in crate::session) fn note_failure(&self, error: &ServerError) {
        if error.lost_primary() {
            self.ask_for_primary();
        }
    }

    /// Notes which primary answered a renewal that was sent at that time.
    ///
    /// Only if a primary was asked before: a router has no election, and may pass on those of its shards.
    pub(in crate::session) fn note_primary(&self, sent: Instant, elected: Elected) {
        self.primary
            .send_if_modified(|known| known.is_some() && note(known, sent, elected));
    }
}

/// Asks which primary there is whenever that is wanted: what is answered to an earlier question says nothing of a later
/// stream, and one that is never answered must not keep the next stream from asking. Ends with `None` when the session is
/// gone.
pub(super) async fn ask_for_primaries(weak: &Weak<Session>) -> Option<()> {
    let wanted = weak.upgrade()?.primary_wanted.clone();
    loop {
        wanted.notified().await;
        // Its server may go just after the news. And at a primary that stands still, each question waits for as long as
        // the driver lets it.
        sleep(UNANSWERED).await;
        weak.upgrade()?.ask_primary_at_once();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{config::Config, session::fixtures::unreachable, store::Store, wake_mode::WakeMode};

    /// Each waits for a connection, as long as the driver lets it, and keeps the next stream from nothing.
    #[tokio::test]
    async fn a_primary_that_does_not_answer_is_asked_once_in_a_while() {
        let (store, session) = unreachable().await;
        session.start();
        // Each question that waits has the store.
        let before = Arc::strong_count(&store);
        let questions = || Arc::strong_count(&store) - before;
        for _ in 0..50 {
            session.ask_for_primary();
            sleep(Duration::from_millis(1)).await;
        }
        for asked in 0..3 {
            assert_eq!(questions(), asked);
            sleep(UNANSWERED).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_answer_tells_the_streams_of_its_primary() {
        let session = Session::new(
            Config::default(),
            Store::Memory(Arc::default()),
            None,
            WakeMode::ChangeStream,
        );
        let elected = |term: u8| Elected::from([term; 12]);
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        session.note_primary(begun, elected(1));
        assert_eq!(*session.primary.borrow(), None, "a router was never asked");
        session.primary.send_replace(Some((after(1), elected(1))));
        // The last of them is a late answer.
        for (sent, term, known) in [(2, 1, (2, 1)), (4, 2, (4, 2)), (3, 1, (4, 2))] {
            session.note_primary(after(sent), elected(term));
            assert_eq!(*session.primary.borrow(), Some((after(known.0), elected(known.1))));
        }
    }
}
