//! Streams that fell silent with their server, noticed by other commands.
//!
//! The driver sends the next `getMore` of a stream to the server that has its cursor. Once that server is gone, it
//! waits for it in server selection, for half a minute by default, and the stream is silent meanwhile. Silence alone
//! shows only after the await time. But the commands of the session learn of the new primary much earlier: one fails as
//! its server is no longer the primary or broke the connection, and a later one is answered. A stream that has said
//! nothing since the last failure is then given up, and resumed after its last event at the new primary. It may have
//! been opened after the first failure, by a server that was about to go.
//!
//! A session whose waiters only wait has no command under way that could fail. Its stream falls silent only if there
//! was news just as the server went: a `getMore` that the server has already is answered with an error. So once nothing
//! has followed some news for a second, the primary is asked which election it has won. If it differs from the
//! election when the stream was opened, the stream is resumed at the new primary too. The old one may still serve it,
//! as a secondary, so no closing is reported, and nobody polls meanwhile. The answer to a renewal names the election
//! too, so a client that holds locks finds out by itself.

use crate::error::ServerError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::super::Session;
use crate::store::{AWAIT_TIME, Elected};

/// Fail-overs as the commands of a session notice them.
#[derive(Debug, Default)]
pub(in crate::session) struct FailoverDetector {
    /// When the last command was sent that failed and that no answer has followed.
    failed_at: Mutex<Option<Instant>>,
    signs: watch::Sender<Signs>,
    /// A primary that does not answer is asked once in that time.
    question: Mutex<Question>,
}

/// Whether a primary is being asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Question {
    #[default]
    None,
    Asked,
    /// It is to be asked once more after that: a stream was opened or fell quiet since.
    AskedAgain,
}

/// The last signs of fail-overs, by which each stream is judged.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::session) struct Signs {
    /// There was a fail-over: a stream is suspect that has said nothing since.
    pub(in crate::session) failed_over: Option<Instant>,
    /// The election of the primary by its last answer, to the question or to a renewal, and when that was sent.
    pub(in crate::session) primary: Option<(Instant, Elected)>,
}

impl FailoverDetector {
    /// Notes how a command ended that was sent at that time. A late answer of an old primary makes nothing suspect
    /// that was heard of since.
    pub(in crate::session) fn note<T>(&self, sent: Instant, ended: Result<T, &ServerError>) {
        let mut failed_at = self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        match ended {
            Err(error) if error.lost_primary() => {
                *failed_at = (*failed_at).max(Some(sent));
            }
            Err(_) => {}
            // An answer to what was sent before may be the old primary's.
            Ok(_) => {
                if let Some(at) = failed_at.take_if(|at| *at < sent) {
                    self.signs.send_modify(|signs| signs.failed_over = Some(at));
                }
            }
        }
    }

    /// Notes which primary answered a renewal that was sent at that time. It reveals a fail-over during which no
    /// command has failed. Each stream compares this with the election of its own.
    ///
    /// Only if a primary was asked before: a router has no election, and may pass on those of its shards.
    pub(in crate::session) fn note_primary(&self, sent: Instant, elected: Elected) {
        if self.signs.borrow().primary.is_some() {
            self.answered(sent, elected);
        }
    }

    /// Notes an answer, unless one to a later command has come before it.
    fn answered(&self, sent: Instant, elected: Elected) {
        self.signs.send_if_modified(|signs| {
            let is_newer = signs.primary.is_none_or(|(asked, _)| asked < sent);
            if is_newer {
                signs.primary = Some((sent, elected));
            }
            is_newer
        });
    }

    fn question(&self) -> MutexGuard<'_, Question> {
        self.question.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the signs as they change.
    pub(in crate::session) fn signs(&self) -> watch::Receiver<Signs> {
        self.signs.subscribe()
    }
}

impl Session {
    /// Asks which primary there is, in the background, for a stream that was opened or is quiet. Nothing waits for the
    /// answer, and the primary is asked once at a time.
    pub(in crate::session) fn ask_for_primary(self: &Arc<Self>) {
        if !self.store.is_remote() {
            return;
        }
        {
            let mut question = self.failover_detector.question();
            if *question != Question::None {
                // What is answered to an earlier question says nothing of a later stream.
                *question = Question::AskedAgain;
                return;
            }
            *question = Question::Asked;
        }
        let (store, session, asked) = (self.store.clone(), Arc::downgrade(self), Instant::now());
        // In a task of its own: if it is not answered, it runs on by itself.
        let asking = self.spawn_for(async move { store.elected().await });
        self.spawn(async move {
            // After that, a stream that has lost its server is overdue and given up anyway; and a command that is never
            // answered must not keep the next stream from asking.
            let elected = timeout(AWAIT_TIME, asking).await;
            let Some(session) = session.upgrade() else { return };
            if let Ok(Ok(elected)) = elected {
                session.failover_detector.note(asked, elected.as_ref());
                if let Ok(Some(elected)) = elected {
                    session.failover_detector.answered(asked, elected);
                }
            }
            let question = std::mem::take(&mut *session.failover_detector.question());
            if question == Question::AskedAgain {
                session.ask_for_primary();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::decoding::error;

    #[tokio::test(start_paused = true)]
    async fn an_answer_after_a_fail_over_makes_the_streams_of_before_suspect() {
        const NOT_WRITABLE_PRIMARY: i32 = 10_107;
        const EXCEEDED_TIME: i32 = 50;
        let detector = FailoverDetector::default();
        let signs = detector.signs();
        let note = |ended: Result<(), ServerError>| detector.note(Instant::now(), ended.as_ref());
        note(Ok(()));
        note(Err(error(EXCEEDED_TIME)));
        note(Ok(()));
        assert_eq!(signs.borrow().failed_over, None);
        note(Err(error(NOT_WRITABLE_PRIMARY)));
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        let failed_at = Instant::now();
        note(Err(error(NOT_WRITABLE_PRIMARY)));
        note(Ok(()));
        assert_eq!(signs.borrow().failed_over, None, "it was not sent later");
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert_eq!(signs.borrow().failed_over, None, "there is no other primary so far");
        note(Ok(()));
        assert_eq!(signs.borrow().failed_over, Some(failed_at));
        // A server that stops may break its connections without a word.
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        let broke_at = Instant::now();
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        note(Err(mongodb::error::Error::from(broken).into()));
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        note(Ok(()));
        assert_eq!(signs.borrow().failed_over, Some(broke_at));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_renewal_tells_the_streams_of_its_primary() {
        let detector = FailoverDetector::default();
        let elected = |term: u8| Elected::from([term; 12]);
        let mut signs = detector.signs();
        let mut renewed = |sent, term| {
            detector.note_primary(sent, elected(term));
            let changed = signs.has_changed().unwrap();
            changed.then(|| signs.borrow_and_update().primary.unwrap())
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
        assert_eq!(detector.signs().borrow().primary, Some((after(5), elected(2))));
    }
}
