//! Documents of the user's own with locks in them: a holder reads, changes and deletes the document around its lock, and
//! learns why a hold is over that the server denies.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use mongodb::{bson::Document, options::UpdateModifications};
use tokio::time::{sleep, timeout};

use super::{Session, admin::ONCE, hedged_read::Cost, hold::Hold, in_flight::patience, line::UNANSWERED};
use crate::{
    backoff::Backoff,
    error::ServerError,
    protocol::wake,
    status::{Lost, LostReason},
    store::Store,
};

/// Maximum time for a change of a held document, however long its lease is: far longer than a transaction of another
/// program may usually keep a document from being written (a minute), and a limit that every server accepts.
const CHANGED_WITHIN: Duration = Duration::from_secs(600);

impl Session {
    /// Reads what is locked under the name: the user's part of a document, or the elements that have the key in it.
    pub(crate) async fn fetch(self: &Arc<Self>, name: &str) -> Result<Vec<Document>, ServerError> {
        let fetch = |store: Store, name: String| async move { store.fetch(&name).await };
        self.read(Cost::Large, name.to_owned(), fetch).await
    }

    /// Changes the user's part of a held document, or a held element, and returns it; `None` when it is no longer held,
    /// or there is not exactly one element with the key.
    pub(crate) async fn change(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        update: UpdateModifications,
    ) -> Result<Option<Document>, ServerError> {
        let (store, held, within) = (self.store.clone(), hold.clone(), time_to_change(hold));
        let operation = self.ids.operation();
        let changing = async move {
            let (holder, signed) = ((held.id.as_str(), held.granted_as), (&operation[..], false));
            store.change(&held.name, holder, &update, signed, within).await
        };
        // It can take its time; only the driver repeats it.
        self.in_time(within, changing).await
    }

    /// Changes the user's part of a held document and releases the lock by the same write, and reports whether it did.
    /// `false`: it is no longer held, or others wait for it, and nothing was written.
    ///
    /// It is repeated until it is answered: the write removes the entry that it needs, so it is applied once at most.
    /// Where an earlier try may have been applied, the document shows whether it was. Await it in a task that nobody
    /// drops; what is not answered in time runs on in a task of its own.
    pub(crate) async fn change_and_release(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        update: UpdateModifications,
    ) -> Result<bool, ServerError> {
        let (session, held, within) = (self.clone(), hold.clone(), time_to_change(hold));
        let operation = self.ids.operation();
        let changing = async move {
            let (holder, signed) = ((held.id.as_str(), held.granted_as), (&operation[..], true));
            let (mut backoff, mut in_doubt) = (Backoff::default(), None);
            loop {
                let changed = session.store.change(&held.name, holder, &update, signed, within).await;
                match (changed, in_doubt) {
                    (Ok(Some(_)), _) => break Ok(true),
                    (Ok(None), None) => break Ok(false),
                    (Ok(None), Some(error)) => break session.was_released_by(&held, &operation, error).await,
                    (Err(error), _) if error.is_final() => break Err(error),
                    (Err(error), _) => match held.lost_reason() {
                        // Whoever has taken it has found its entry there, if it was not another grant that was taken.
                        Some(LostReason::Broken | LostReason::Adopted) => {
                            break session.was_released_by(&held, &operation, error).await;
                        }
                        Some(_) => break Err(error),
                        None => in_doubt = Some(error),
                    },
                }
                sleep(backoff.failed()).await;
            }
        };
        let mut ending = Box::pin(self.end_by(hold, changing));
        timeout(within, ending.as_mut()).await.unwrap_or_else(|_| {
            self.spawn(ending.map(drop));
            Err(ServerError::unanswered(within))
        })
    }

    /// Ends a hold by a write that takes its entry out, with the document or without; it returns whether it did.
    fn end_by(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        writing: impl Future<Output = Result<bool, ServerError>> + Send + 'static,
    ) -> impl Future<Output = Result<bool, ServerError>> + Send + 'static {
        let (session, held) = (self.clone(), hold.clone());
        async move {
            held.begin_deleting();
            let done = writing.await;
            if matches!(done, Ok(true)) {
                // Nothing has to leave.
                session.update(&held.name, None, |lines, _| {
                    lines.line(&held.name).waitlist.forget(&held.id)
                });
            }
            held.end_deleting(matches!(done, Ok(true)));
            session.let_go_if_over(&held);
            if done.is_err() {
                // It may have been applied all the same.
                session.verify(vec![held.clone()]);
            }
            held.report_end();
            done
        }
    }

    /// Reads whether a write of this operation has released the hold, after a try that was not answered with this error;
    /// the error again if the document does not show it.
    async fn was_released_by(
        self: &Arc<Self>,
        hold: &Hold,
        operation: &str,
        unanswered: ServerError,
    ) -> Result<bool, ServerError> {
        let Some((state, _)) = self.inspect(&hold.name).await? else {
            return Err(unanswered);
        };
        if wake::left(&state.wake, operation).is_some() {
            return Ok(true);
        }
        match state.holders.iter().any(|holder| hold.is(holder)) {
            // Others wait for it; the earlier try may still be applied when they have given up.
            true => Err(unanswered),
            false => match state.was_taken(hold.granted_as) {
                Some(true) => Ok(false),
                // Before its lease ends, nobody else removes an entry, but this client's own shutdown and limit.
                Some(false) if hold.lost_reason().is_none() => Ok(true),
                _ => Err(unanswered),
            },
        }
    }

    /// Reads whether a hold that the server denied is held, and returns its loss if it is lost.
    pub(crate) async fn verified(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<(), Lost> {
        let (session, held) = (self.clone(), hold.clone());
        // If the task is stopped or the server does not answer, the caller knows no more than before.
        let _ = self
            .spawn_for(async move { session.verify_together(&[held]).await })
            .await;
        hold.lost_reason().map_or(Ok(()), |reason| Err(hold.lost_as(reason)))
    }

    /// Forgets how often a document was claimed; `false` if that is not counted.
    pub(crate) async fn clear_attempts(self: &Arc<Self>, name: &str) -> Result<bool, ServerError> {
        let (store, name) = (self.store.clone(), name.to_owned());
        let clearing = async move { store.clear_attempts(&name, ONCE).await };
        self.in_time(patience(ONCE), clearing).await
    }

    /// Deletes a held document; `false` when it is no longer held.
    pub(crate) async fn delete(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<bool, ServerError> {
        let (store, held, within) = (self.store.clone(), hold.clone(), time_to_change(hold));
        let deleting = async move { store.delete(&held.name, (&held.id, held.granted_as), within).await };
        self.in_time(within, self.end_by(hold, deleting)).await
    }

    /// Notes that the server denies a hold: looks up why, and ends it.
    pub(crate) async fn give_up(self: &Arc<Self>, hold: &Arc<Hold>) -> Lost {
        // If the server does not answer, the hold ends all the same.
        let _ = self.verified(hold).await;
        if hold.is_being_deleted() {
            // Another write of its holder may be why, as its answer shows.
            let _ = timeout(UNANSWERED, hold.lost()).await;
        }
        hold.lose(LostReason::Expired);
        self.let_go_if_over(hold);
        hold.lost_as(hold.lost_reason().unwrap_or(LostReason::Expired))
    }
}

/// Returns the time for a change of a held document. It can take its time; only the driver repeats it.
fn time_to_change(hold: &Hold) -> Duration {
    hold.length().min(CHANGED_WITHIN)
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use mongodb::bson::doc;
    use scopeguard::ScopeGuard;

    use super::{
        super::fixtures::{self, ONE, OTHER},
        *,
    };
    use crate::{
        client::LockClient,
        config::Config,
        hold_options::Terms,
        store::{Connection, LockLayout, MemoryDocuments, MemoryStore, Wanted, lock_layout::Paths},
        wake_mode::WakeMode,
    };

    /// Of two deletions at once, the answer of the one that was late may come first.
    #[tokio::test(start_paused = true)]
    async fn a_holder_that_is_denied_beside_its_own_deletion_hears_of_that() {
        let (config, store) = (Config::default(), Store::Memory(Arc::default()));
        let session = Session::new(config, store, None, WakeMode::ChangeStream);
        let held = LockClient::new(session.clone()).mutex("x").acquire().await.unwrap();
        let hold = held.hold().clone();
        hold.begin_deleting();
        let (denied, of) = (session.clone(), hold.clone());
        let denied = tokio::spawn(async move { denied.give_up(&of).await });
        sleep(UNANSWERED / 2).await;
        assert_eq!(hold.lost_reason(), None);
        hold.end_deleting(true);
        assert_eq!(denied.await.unwrap().reason, LostReason::Released);
    }

    /// That it was gone counted for nothing until then, as that write might have been why.
    #[tokio::test(start_paused = true)]
    async fn a_hold_that_was_gone_when_its_own_write_did_not_end_it_is_lost() {
        let documents = Arc::new(MemoryDocuments::default());
        documents.insert(doc! { "_id": 1 }).unwrap();
        let place = LockLayout::in_documents(None, "lock", None, &Paths::default()).unwrap();
        let store = MemoryStore::new(documents.clone(), place, Connection::default());
        let session = Session::new(
            Config::default(),
            Store::Memory(Arc::new(store)),
            None,
            WakeMode::ChangeStream,
        );
        let wanted = Wanted {
            filter: doc! {},
            sort: None,
            attempts_most: None,
        };
        let (of, owner) = (TypeId::of::<()>(), session.config.owner(None));
        let claiming = session.claiming(wanted, of, owner, Terms::default(), 1);
        let (claimed, ..) = claiming.claim(false).await.unwrap().remove(0);
        let hold = ScopeGuard::into_inner(claimed);
        let writing = async move {
            documents.replace(&doc! { "_id": 1 }, doc! { "n": 1 }).unwrap();
            sleep(UNANSWERED).await;
            Ok(false)
        };
        assert!(!session.end_by(&hold, writing).await.unwrap());
        assert_eq!(hold.lost_reason(), Some(LostReason::Deleted));
    }

    /// At once: another may hold the lock by then, and nothing reads what the waitlist has forgotten.
    #[tokio::test(start_paused = true)]
    async fn a_hold_that_its_own_write_ended_without_an_answer_is_lost() {
        let memory = fixtures::memory();
        let [(_, session), (_, other)] = [ONE, OTHER].map(|id| fixtures::client(&memory, id, Config::default()));
        let held = LockClient::new(session.clone()).mutex("x").acquire().await.unwrap();
        let hold = held.hold().clone();
        // Its stream is open by then.
        sleep(UNANSWERED * 2).await;
        let (store, of) = (session.store.clone(), hold.clone());
        let writing = async move {
            let deleted = store.delete(&of.name, (&of.id, of.granted_as), UNANSWERED).await;
            assert!(deleted.unwrap());
            sleep(UNANSWERED).await;
            Err(ServerError::unanswered(UNANSWERED))
        };
        session.end_by(&hold, writing).await.unwrap_err();
        assert_eq!(hold.lost_reason(), Some(LostReason::Deleted));
        let _taken = LockClient::new(other).mutex("x").acquire().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_without_an_answer_is_in_doubt_after_a_later_holder_was_put_out_too() {
        for breaks in [0, 1, 2] {
            let memory = fixtures::memory();
            let (_, session) = fixtures::client(&memory, ONE, Config::default());
            let (_, other) = fixtures::client(&memory, OTHER, Config::default());
            let other = LockClient::new(other);
            let held = LockClient::new(session.clone()).mutex("x").acquire().await.unwrap();
            for _ in 0..breaks {
                other.break_lock("x").await.unwrap();
                drop(other.mutex("x").acquire().await.unwrap());
            }
            assert_eq!(held.lost_reason(), None, "it has not heard of it");
            let released = session
                .was_released_by(held.hold(), "x.1", ServerError::overdue())
                .await;
            match breaks {
                1 => assert!(!released.unwrap()),
                _ => assert!(released.is_err(), "after {breaks} breaks"),
            }
        }
    }
}
