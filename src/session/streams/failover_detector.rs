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

use std::sync::Weak;

use tokio::time::{Instant, sleep};

use super::super::{Session, line::UNANSWERED};
use crate::{error::ServerError, store::Elected};

/// The last signs of fail-overs, by which each stream is judged.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::session) struct Signs {
    /// When the last command was sent that failed and that no answer has followed.
    pub(in crate::session) failed_at: Option<Instant>,
    /// There was a fail-over: a stream is suspect that has said nothing since.
    pub(in crate::session) failed_over: Option<Instant>,
    /// The election of the primary by its last answer, to the question or to a renewal, and when that was sent.
    pub(in crate::session) primary: Option<(Instant, Elected)>,
}

impl Signs {
    /// Notes how a command ended that was sent at that time; returns whether that shows a fail-over. A late answer of an
    /// old primary makes nothing suspect that was heard of since.
    pub(in crate::session) fn note<T>(&mut self, sent: Instant, ended: Result<T, &ServerError>) -> bool {
        match ended {
            Err(error) if error.lost_primary() => self.failed_at = self.failed_at.max(Some(sent)),
            Err(_) => {}
            // An answer to what was sent before may be the old primary's.
            Ok(_) => {
                let at = self.failed_at.take_if(|at| *at < sent);
                self.failed_over = at.or(self.failed_over);
                return at.is_some();
            }
        }
        false
    }

    /// Notes which primary answered a renewal that was sent at that time; returns whether that is news. It reveals a
    /// fail-over during which no command has failed. Each stream compares this with the election of its own.
    ///
    /// Only if a primary was asked before: a router has no election, and may pass on those of its shards.
    pub(in crate::session) fn note_primary(&mut self, sent: Instant, elected: Elected) -> bool {
        self.primary.is_some() && self.answered(sent, elected)
    }

    /// Notes an answer, unless one to a later command has come before it.
    fn answered(&mut self, sent: Instant, elected: Elected) -> bool {
        let is_newer = self.primary.is_none_or(|(asked, _)| asked < sent);
        if is_newer {
            self.primary = Some((sent, elected));
        }
        is_newer
    }
}

impl Session {
    /// Has the primary asked which it is, for a stream that was opened or is quiet.
    pub(in crate::session) fn ask_for_primary(&self) {
        if self.store.is_remote() {
            self.primary_wanted.notify_one();
        }
    }
}

/// Asks which primary there is whenever that is wanted: what is answered to an earlier question says nothing of a later
/// stream, and one that is never answered must not keep the next stream from asking. Ends with `None` when the session is
/// gone.
pub(super) async fn ask_for_primaries(weak: &Weak<Session>) -> Option<()> {
    let wanted = weak.upgrade()?.primary_wanted.clone();
    loop {
        wanted.notified().await;
        let (weak, session) = (weak.clone(), weak.upgrade()?);
        let store = session.store.clone();
        session.spawn(async move {
            let asked = Instant::now();
            let elected = store.elected().await;
            let Some(session) = weak.upgrade() else { return };
            session.signs.send_if_modified(|signs| {
                let is_sign = signs.note(asked, elected.as_ref());
                let primary = elected.ok().flatten();
                primary.is_some_and(|elected| signs.answered(asked, elected)) || is_sign
            });
        });
        drop(session);
        // At a primary that stands still, each waits for as long as the driver lets it.
        sleep(UNANSWERED).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, sync::Arc, time::Duration};

    use mongodb::{Client, bson::Document, options::ReadPreference};
    use tokio::sync::watch;

    use super::*;
    use crate::{
        config::Config,
        store::{LockLayout, MongoStore, Store, lock_layout::Paths},
        tests::decoding::error,
        wake_mode::WakeMode,
    };

    /// Each waits for a connection, as long as the driver lets it, and keeps the next stream from nothing.
    #[tokio::test]
    async fn a_primary_that_does_not_answer_is_asked_once_in_a_while() {
        let driver = Client::with_uri_str("mongodb://127.0.0.1:1").await.unwrap();
        let collection = driver.database("x").collection::<Document>("x");
        let place = LockLayout::in_documents(Some(collection.namespace()), "lock", None, &Paths::default()).unwrap();
        let store = Arc::new(MongoStore::in_place(&collection, place, ReadPreference::Primary));
        let config = Config::default();
        let session = Session::new(config, Store::Mongo(store.clone()), None, WakeMode::ChangeStream);
        session.start();
        // Each question that waits has the store.
        let before = Arc::strong_count(&store);
        let questions = || Arc::strong_count(&store) - before;
        for _ in 0..50 {
            session.ask_for_primary();
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(questions(), 1);
        sleep(UNANSWERED).await;
        assert_eq!(questions(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_after_a_fail_over_makes_the_streams_of_before_suspect() {
        const NOT_WRITABLE_PRIMARY: i32 = 10_107;
        const EXCEEDED_TIME: i32 = 50;
        let sender = watch::Sender::<Signs>::default();
        let signs = sender.subscribe();
        let note = |ended: Result<(), ServerError>| {
            sender.send_if_modified(|signs| signs.note(Instant::now(), ended.as_ref()));
        };
        note(Ok(()));
        note(Err(error(EXCEEDED_TIME)));
        note(Ok(()));
        assert_eq!(signs.borrow().failed_over, None);
        note(Err(error(NOT_WRITABLE_PRIMARY)));
        tokio::time::advance(Duration::from_secs(1)).await;
        let failed_at = Instant::now();
        note(Err(error(NOT_WRITABLE_PRIMARY)));
        note(Ok(()));
        assert_eq!(signs.borrow().failed_over, None, "it was not sent later");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(signs.borrow().failed_over, None, "there is no other primary so far");
        note(Ok(()));
        assert_eq!(signs.borrow().failed_over, Some(failed_at));
        // A server that stops may break its connections without a word.
        tokio::time::advance(Duration::from_secs(1)).await;
        let broke_at = Instant::now();
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        note(Err(mongodb::error::Error::from(broken).into()));
        tokio::time::advance(Duration::from_secs(1)).await;
        note(Ok(()));
        assert_eq!(signs.borrow().failed_over, Some(broke_at));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_renewal_tells_the_streams_of_its_primary() {
        let elected = |term: u8| Elected::from([term; 12]);
        let signs = RefCell::new(Signs::default());
        let renewed = |sent, term| {
            let is_news = signs.borrow_mut().note_primary(sent, elected(term));
            is_news.then(|| signs.borrow().primary.unwrap())
        };
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(renewed(begun, 1), None, "a router was never asked");
        signs.borrow_mut().answered(after(1), elected(1));
        assert_eq!(renewed(after(2), 1), Some((after(2), elected(1))));
        assert_eq!(renewed(after(4), 2), Some((after(4), elected(2))));
        assert_eq!(renewed(after(3), 1), None, "a late answer");
        // A stream that was heard of in between has not taken that one in.
        assert_eq!(renewed(after(5), 2), Some((after(5), elected(2))));
        signs.borrow_mut().answered(after(3), elected(1));
        assert_eq!(signs.borrow().primary, Some((after(5), elected(2))));
    }
}
