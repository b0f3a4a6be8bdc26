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
//! has followed some news for a second, the primary is asked which election it has won. If that is another than when
//! the stream was opened, the stream is taken up at the new primary as well. The old one may still serve it, as a
//! secondary: so that is done without a word, and nobody polls meanwhile. The answer to a renewal names the election too,
//! so a client that holds locks finds out by itself.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::super::Session;
use crate::store::{AWAIT_TIME, Elected, StoreError};

/// Time for which the answer of the primary is awaited. Later a stream that has lost its server is overdue, and given
/// up for that; and the next one is not kept from asking by a command that is never answered.
const OF_USE: std::time::Duration = AWAIT_TIME;

/// Fail-overs as the commands of a session notice them.
#[derive(Debug, Default)]
pub(in crate::session) struct Suspicion {
    /// When the last command was sent that failed and that no answer has followed.
    failed_at: Mutex<Option<Instant>>,
    /// A stream is suspect that has said nothing since.
    since: watch::Sender<Option<Instant>>,
    /// The last answer of a primary that was asked which election it has won, and when it was asked.
    elected: watch::Sender<Option<(Instant, Elected)>>,
    /// Whether a primary is being asked: one that does not answer is asked once in that time.
    asking: AtomicBool,
    /// Whether one is to be asked once more after that: a stream was opened since.
    ask_again: AtomicBool,
}

/// A sign of the server of a session's streams.
#[derive(Debug)]
pub(in crate::session) enum Sign {
    /// There was a fail-over: a stream is suspect that has said nothing since.
    FailedOver(Instant),
    /// The primary that was asked at that time has won this election.
    Primary(Instant, Elected),
}

/// The signs of a session, as they come.
pub(in crate::session) struct Signs {
    since: watch::Receiver<Option<Instant>>,
    elected: watch::Receiver<Option<(Instant, Elected)>>,
}

impl Signs {
    /// Waits for the next sign; `None` when the session is gone. Cancel safe: no sign is lost when the future is
    /// dropped.
    pub(in crate::session) async fn next(&mut self) -> Option<Sign> {
        tokio::select! {
            since = changed(&mut self.since) => since.map(Sign::FailedOver),
            elected = changed(&mut self.elected) => elected.map(|(asked, elected)| Sign::Primary(asked, elected)),
        }
    }
}

async fn changed<T: Copy>(value: &mut watch::Receiver<Option<T>>) -> Option<T> {
    value.changed().await.ok()?;
    *value.borrow_and_update()
}

impl Suspicion {
    /// Takes in how a command ended that was sent at that time. A late answer of an old primary makes nothing suspect
    /// that was heard of since.
    pub(in crate::session) fn note<T>(&self, sent: Instant, ended: Result<T, &StoreError>) {
        let mut failed_at = self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        match ended {
            Err(error) if error.lost_primary() => {
                *failed_at = (*failed_at).max(Some(sent));
            }
            Err(_) => {}
            // An answer to what was sent before may be the old primary's.
            Ok(_) => {
                if let Some(at) = failed_at.take_if(|at| *at < sent) {
                    self.since.send_replace(Some(at));
                }
            }
        }
    }

    /// Takes in which primary answered a renewal that was sent at that time. It tells of a fail-over that no command has
    /// met with.
    ///
    /// Only if a primary was asked before: a router, which has no election, passes on those of its shards.
    pub(in crate::session) fn note_primary(&self, sent: Instant, elected: Elected) {
        self.elected.send_if_modified(|last| {
            let is_another = last.is_some_and(|(asked, known)| known != elected && asked < sent);
            if is_another {
                *last = Some((sent, elected));
            }
            is_another
        });
    }

    pub(in crate::session) fn signs(&self) -> Signs {
        Signs {
            since: self.since.subscribe(),
            elected: self.elected.subscribe(),
        }
    }
}

impl Session {
    /// Asks which primary there is, in the background, for a stream that was opened or is quiet. Nothing waits for the
    /// answer, and the primary is asked once at a time.
    pub(in crate::session) fn ask_for_primary(self: &Arc<Self>) {
        if !self.store.is_remote() {
            return;
        }
        if self.suspicion.asking.swap(true, Ordering::Relaxed) {
            // What is answered to an earlier question says nothing of a later stream.
            self.suspicion.ask_again.store(true, Ordering::Relaxed);
            return;
        }
        let (store, session, asked) = (self.store.clone(), Arc::downgrade(self), Instant::now());
        // In a task of its own: if it is not answered, it runs on by itself.
        let asking = self.spawn_for(async move { store.elected().await });
        self.spawn(async move {
            let elected = timeout(OF_USE, asking).await;
            let Some(session) = session.upgrade() else { return };
            session.suspicion.asking.store(false, Ordering::Relaxed);
            if let Ok(Ok(Ok(Some(elected)))) = elected {
                session.suspicion.elected.send_replace(Some((asked, elected)));
            }
            if session.suspicion.ask_again.swap(false, Ordering::Relaxed) {
                session.ask_for_primary();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proofs::fuzzing::decoding::error;

    #[tokio::test(start_paused = true)]
    async fn an_answer_after_a_fail_over_makes_the_streams_of_before_suspect() {
        const NOT_WRITABLE_PRIMARY: i32 = 10_107;
        const EXCEEDED_TIME: i32 = 50;
        let suspicion = Suspicion::default();
        let since = suspicion.since.subscribe();
        let note = |ended: Result<(), StoreError>| suspicion.note(Instant::now(), ended.as_ref());
        note(Ok(()));
        note(Err(error(EXCEEDED_TIME)));
        note(Ok(()));
        assert_eq!(*since.borrow(), None);
        note(Err(error(NOT_WRITABLE_PRIMARY)));
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        let failed_at = Instant::now();
        note(Err(error(NOT_WRITABLE_PRIMARY)));
        note(Ok(()));
        assert_eq!(*since.borrow(), None, "it was not sent later");
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert_eq!(*since.borrow(), None, "there is no other primary so far");
        note(Ok(()));
        assert_eq!(*since.borrow(), Some(failed_at));
        // A server that stops may break its connections without a word.
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        let broke_at = Instant::now();
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        note(Err(mongodb::error::Error::from(broken).into()));
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        note(Ok(()));
        assert_eq!(*since.borrow(), Some(broke_at));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_by_another_primary_than_the_last_is_a_sign() {
        let suspicion = Suspicion::default();
        let elected = |term: u8| Elected([term; 12].into());
        let mut signs = suspicion.elected.subscribe();
        let mut renewed = |sent, term| {
            suspicion.note_primary(sent, elected(term));
            let changed = signs.has_changed().unwrap();
            signs.borrow_and_update();
            changed
        };
        let begun = Instant::now();
        assert!(!renewed(begun, 1), "a router was never asked");
        let after = |seconds| begun + std::time::Duration::from_secs(seconds);
        suspicion.elected.send_replace(Some((after(1), elected(1))));
        // Seen by the streams that were open then.
        renewed(after(2), 1);
        assert!(!renewed(after(3), 1));
        assert!(renewed(after(4), 2));
        assert!(!renewed(after(5), 2));
        assert!(!renewed(after(3), 1), "a late answer");
        assert_eq!(*suspicion.elected.borrow(), Some((after(4), elected(2))));
    }
}
