//! The readings for the observers of a session: of locks by their names, and beside them lists of all.

use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard, PoisonError, Weak},
    task::{self, Poll},
};

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    super::{Session, UserHandle, timer_queue::AT_A_TIME},
    inbox::{Inbox, Seen},
    observers::{Observers, Reading, Scope},
};
use crate::{
    backoff::{Backoff, LONGEST_PAUSE, REST},
    error::ServerError,
    protocol::Exchange,
    store::{Listed, Selection, Unreadable, View},
    telemetry,
};

/// The observations of some locks, in order.
#[derive(Debug)]
pub(crate) struct Observations {
    inbox: Arc<Inbox>,
    scope: Scope,
    session: UserHandle,
}

impl Observations {
    /// Observes until this is dropped or the client shuts down. The present states come first.
    ///
    /// The latest state always comes; states that last for less than a hop may be skipped. An error that the server
    /// would repeat ends the sequence.
    pub(crate) fn begin(session: UserHandle, scope: Scope) -> Self {
        let inbox = Arc::new(Inbox::new(matches!(scope, Scope::All)));
        if session.ensure_usable().is_ok() {
            session.start();
            session.observers().join(&scope, &inbox);
            session.need_stream();
        } else {
            inbox.end(None);
        }
        Self { inbox, scope, session }
    }

    /// Ends at once in a process that was forked, as nothing is observed there.
    pub(crate) fn poll_next(
        &self,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Result<(String, Seen), ServerError>>> {
        if self.session.is_forked() {
            return Poll::Ready(None);
        }
        self.inbox.poll(context)
    }

    /// Returns the next state; `None`: the client was shut down.
    pub(crate) async fn next(&mut self) -> Option<Result<(String, Seen), ServerError>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

impl Drop for Observations {
    fn drop(&mut self) {
        // In a fork, another thread of the parent's may have had the mutex.
        if !self.session.is_forked() {
            self.session.observers().leave(&self.scope, &self.inbox);
        }
    }
}

/// Runs until the session ends.
pub(in crate::session) async fn run(session: Weak<Session>, ended: CancellationToken) {
    tokio::select! {
        biased;
        () = ended.cancelled() => {}
        _ = async { tokio::join!(observe(&session, Reading::Names), observe(&session, Reading::List)) } => {}
    }
}

/// Reads what is to be read of this kind; ends with `None` when the session is gone.
async fn observe(weak: &Weak<Session>, reading: Reading) -> Option<()> {
    let ((least, pause), changed) = {
        let session = weak.upgrade()?;
        (session.config.poll_interval, session.observers().changed.clone())
    };
    let backoff = Backoff::between(pause, LONGEST_PAUSE.max(pause));
    let mut failing = backoff;
    // Nothing is read before the one, whatever the stream reports; where it reports nothing, all is read again at the other.
    let (mut rests_until, mut again_at) = (Instant::now(), Instant::now());
    loop {
        // Made before the look, so that no change is missed.
        let has_changed = changed.notified();
        let session = weak.upgrade()?;
        let now = Instant::now();
        let due_at = session.observers().due_at(reading, again_at, now);
        let due_at = due_at.map(|at| at.max(rests_until));
        if due_at.is_none_or(|at| at > now) {
            drop(session);
            match due_at {
                Some(at) => tokio::select! {
                    () = has_changed => {}
                    () = sleep_until(at) => {}
                },
                None => has_changed.await,
            }
            continue;
        }
        let read = match reading {
            Reading::Names => session.read_observed_names(again_at <= now).await,
            Reading::List => session.list_observed().await,
        };
        let (began, took) = (now, now.elapsed());
        let rest = if session.store.is_in_place() { REST } else { 1 };
        let (now, mut register) = (Instant::now(), session.observers());
        if reading == Reading::Names {
            register.end_names();
        }
        match read {
            Ok(()) => {
                failing = backoff;
                match reading {
                    // Half of the time at most, however often the stream is opened again or somebody else begins to observe;
                    // and less where no stream reports changes and the documents are the user's own, which can be large.
                    Reading::List => {
                        (rests_until, again_at) = (now + pause.max(took), now + pause.max(took * rest));
                    }
                    Reading::Names => {
                        if again_at <= began {
                            again_at = now + pause;
                        }
                        if register.has_all() {
                            // What is written meanwhile is read together.
                            rests_until = now + least;
                        }
                    }
                }
            }
            Err(error) if error.is_final() => register.end_all(Some(&error)),
            Err(error) => {
                rests_until = now + failing.failed();
                if reading == Reading::List {
                    register.list_failed();
                    // One that has said nothing may be there again soon.
                    if error.ran_out_of_time() {
                        (rests_until, again_at) = (rests_until.max(now + took), again_at.max(now + took * rest));
                    }
                }
            }
        }
    }
}

impl Session {
    pub(in crate::session) fn observers(&self) -> MutexGuard<'_, Observers> {
        self.observers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the observers, and then operators, once the mutex is released: a subscriber may end an observation.
    pub(in crate::session) fn tell_observers(&self, tell: impl FnOnce(&mut Observers)) {
        let untold = {
            let mut register = self.observers();
            tell(&mut register);
            std::mem::take(&mut register.untold)
        };
        for Unreadable { name, problem, .. } in untold {
            telemetry::unreadable(&name, &problem);
        }
    }

    async fn list_observed(self: &Arc<Self>) -> Result<(), ServerError> {
        let view = {
            let mut register = self.observers();
            register.begin_list();
            View::Committed(register.as_of)
        };
        let selection = Selection {
            // A free lock stays in a document of the user's own as long as the document does.
            held: self.store.is_in_place().then_some(true),
            ..Selection::default()
        };
        let sent = Instant::now();
        let Listed {
            found,
            unreadable,
            now,
            as_of,
            ..
        } = self.list(&selection, view).await?;
        let received = Instant::now();
        self.note(&Exchange::new(sent, received, now));
        let found = found.into_iter().map(|(name, state)| (name, Ok(Some(Arc::new(state)))));
        let unreadable = unreadable
            .into_iter()
            .map(|document| (document.name.clone(), Err(document)));
        let mut listed = BTreeMap::new();
        listed.extend(found.chain(unreadable));
        let clock = self.table().clock;
        let can_be_read = |document: &Unreadable| document.has_name() && self.store.has_place_of(&document.name);
        self.tell_observers(|register| {
            register.seen_as_of(as_of);
            register.listed(listed, can_be_read, &clock, received);
        });
        Ok(())
    }

    async fn read_observed_names(self: &Arc<Self>, again: bool) -> Result<(), ServerError> {
        let (names, view) = {
            let mut register = self.observers();
            let can_be_read = |name: &str| self.store.has_place_of(name);
            let names = register.begin_names(AT_A_TIME, again, can_be_read, Instant::now());
            (names, View::Committed(register.as_of))
        };
        if names.is_empty() {
            return Ok(());
        }
        let read = self.read_names(view, &names).await;
        let (mut documents, exchange) = match read {
            Ok(read) => read,
            Err(error) => {
                self.observers().unread.extend(names);
                return Err(error);
            }
        };
        let clock = self.table().clock;
        self.tell_observers(|register| {
            register.seen_as_of(exchange.logged_by);
            for name in &names {
                let seen = match documents.remove(name) {
                    Some(Ok(state)) => Ok(Some(Arc::new(state))),
                    Some(Err(malformed)) => Err(Unreadable::new(name.clone(), &malformed)),
                    None => Ok(None),
                };
                register.report(name, seen, &clock, exchange.received);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
