//! Claims of the user's own documents: a task claims any document that is free.
//!
//! A lock of a known name is waited for in the queue of its document. A claim asks for any document that is free, so
//! it has no document to stand in line at. It tries, and when none is free it tries again as soon as one may have
//! become free. The change stream reports releases, and documents that came or changed; ends of leases are reckoned
//! from the documents. Of the tasks of one client that claim the same, only one tries at a time once none is free: the
//! others wait behind it, first come, first served.

mod attempt;
mod claim_loop;
mod filter;
mod orphan_search;
pub(crate) mod skip_list;

use std::{
    any::TypeId,
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use mongodb::bson::{Bson, Document};
use scopeguard::ScopeGuard;
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use super::{Session, hold::Hold};
use crate::{
    error::{AcquireError, ServerError},
    hold_options::{Lease, Terms},
    protocol::Owner,
    store::{Wanted, name},
};
pub(super) use attempt::grant_of;
use filter::{Filter, KNOWN_MOST};
use orphan_search::Orphan;
use skip_list::{SkipList, Why};

/// The type as which documents are read, and what is wanted.
type Key = (TypeId, Vec<u8>);

/// The state that all claims of one session share.
#[derive(Debug, Default)]
pub(super) struct Claims {
    filters: Mutex<HashMap<Key, Arc<Filter>>>,
    skip_list: Mutex<SkipList>,
    /// Sent whenever a document may have become free: whether the stream reports the next one that does.
    freed: watch::Sender<bool>,
    orphans: Mutex<Vec<Orphan>>,
}

impl Claims {
    /// Returns the state of the claims that want this, as this type.
    fn filter(&self, wanted: Wanted, of: TypeId) -> Arc<Filter> {
        let mut filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (of, key(&wanted));
        if filters.len() >= KNOWN_MOST && !filters.contains_key(&key) {
            // That costs each of them a scan when it is used again.
            filters.retain(|_, filter| Arc::strong_count(filter) > 1);
        }
        filters
            .entry(key)
            .or_insert_with(|| Arc::new(Filter::new(wanted, of)))
            .clone()
    }

    fn skip_list(&self) -> MutexGuard<'_, SkipList> {
        self.skip_list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orphans(&self) -> MutexGuard<'_, Vec<Orphan>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no entry of a claim is searched for.
    pub(super) fn have_no_orphans(&self) -> bool {
        self.orphans().is_empty()
    }
}

/// Returns what is wanted as a key.
fn key(wanted: &Wanted) -> Vec<u8> {
    let mut key = Vec::new();
    key.extend(wanted.attempts_most.unwrap_or_default().to_le_bytes());
    for part in [Some(&wanted.filter), wanted.sort.as_ref()].into_iter().flatten() {
        // The driver refuses what can't be written, in any state.
        let _ = part.to_writer(&mut key);
    }
    key
}

/// A claim of any documents that are free, with the outcome of its attempts so far.
#[derive(Debug)]
pub(crate) struct Claiming {
    session: Arc<Session>,
    filter: Arc<Filter>,
    owner: Owner,
    lease: Lease,
    /// Maximum number of documents.
    most: usize,
    /// Whether it has passed over a document that can't be claimed.
    has_passed: AtomicBool,
    response: Mutex<Response>,
}

/// The last that a claim has heard of the server.
#[derive(Debug)]
enum Response {
    /// It was not asked so far.
    NotAsked,
    /// It was asked then, and has said nothing since.
    Silence(Instant),
    Error(ServerError),
    Answer,
}

/// The hold of a claimed document, which is given back when this is dropped; the user's part of the document; and how often
/// it was claimed, this time included, if its claims are counted.
pub(crate) type ClaimedDocument = (GivenBack, Document, Option<i64>);

/// A hold, with what gives it back.
type GivenBack = ScopeGuard<Arc<Hold>, Box<dyn FnOnce(Arc<Hold>) + Send>>;

impl Session {
    /// Returns a claim of so many documents at most, which are read as this type.
    pub(crate) fn claiming(
        self: &Arc<Self>,
        wanted: Wanted,
        of: TypeId,
        owner: Owner,
        terms: Terms,
        most: usize,
    ) -> Arc<Claiming> {
        Arc::new(Claiming {
            session: self.clone(),
            filter: self.claims.filter(wanted, of),
            owner,
            lease: terms.lease(&self.config),
            most,
            has_passed: AtomicBool::new(false),
            response: Mutex::new(Response::NotAsked),
        })
    }

    /// Notes that a document may be free now, and whether the stream reports the next one that becomes free.
    pub(in crate::session) fn note_freed(&self, is_reported: bool) {
        self.claims.freed.send_replace(is_reported);
    }

    /// Whether a task waits for a document to become free.
    pub(in crate::session) fn is_claiming(&self) -> bool {
        self.claims.freed.receiver_count() > 0
    }
}

impl Claiming {
    /// Claims documents; where none is free, waits or returns none.
    ///
    /// Cancel safe: documents claimed at the moment the future is dropped are given back.
    pub(crate) async fn claim(self: &Arc<Self>, waits: bool) -> Result<Vec<ClaimedDocument>, AcquireError> {
        let session = &self.session;
        session.ensure_usable()?;
        let (claiming, (mut to, claimed)) = (self.clone(), oneshot::channel());
        // It has turns for which other claims wait. So it runs in a task of its own, which ends with the future: the
        // caller may not poll that for a while.
        session.spawn(async move {
            tokio::select! {
                biased;
                () = to.closed() => {}
                claimed = claiming.run(waits) => drop(to.send(claimed)),
            }
        });
        tokio::select! {
            biased;
            () = session.closing.cancelled() => Err(session.why_closed()),
            stands_still = session.stands_still() => Err(stands_still.into()),
            claimed = claimed => match claimed {
                // Of a client that takes nothing new, that says nothing of the documents.
                Ok(Ok(claimed)) if claimed.is_empty() && session.takes_nothing_new() => Err(session.why_closed()),
                Ok(claimed) => claimed,
                // The sender is dropped without an answer only when the session's runtime ends.
                Err(_) => Err(ServerError::runtime_ended().into()),
            },
        }
    }

    /// Fails with its last error, unless the server has answered since; `None`: there was no time for an answer.
    pub(crate) fn check_answered(&self) -> Result<(), Option<ServerError>> {
        match &*self.response() {
            Response::Answer => Ok(()),
            Response::Error(error) => Err(Some(error.clone())),
            Response::Silence(since) => {
                let silent_for = Some(since.elapsed()).filter(|silent_for| silent_for.as_millis() > 0);
                Err(silent_for.map(ServerError::unanswered))
            }
            // The task that has the turn was asked in its place.
            Response::NotAsked => self.filter.found().map(drop).ok_or(None),
        }
    }

    /// Whether the last claim that wanted the same found a document, so that there may be more, or was not answered.
    pub(crate) fn may_be_free(&self) -> bool {
        self.filter.found() != Some(false)
    }

    /// Whether the lost answer of an earlier claim may be why nothing is free.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.session.may_have_orphans_in(&self.filter)
    }

    /// Leaves a document that can't be read out of the coming claims for a while.
    pub(crate) fn pass_over(&self, id: Bson, why: Why) {
        self.session.pass_over(self.filter.of, id, why, true);
        self.passed();
    }

    /// Notes that a document was claimed and could be read.
    pub(crate) fn was_read(&self, id: &Bson) {
        self.session.claims.skip_list().forget(self.filter.of, name::of_id(id));
    }

    /// Notes that a document was passed over, which may hold up all claims.
    fn passed(&self) {
        self.has_passed.store(true, Ordering::Relaxed);
        self.filter.ask_for_scan();
    }

    fn response(&self) -> MutexGuard<'_, Response> {
        self.response.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    fn wanting(n: i32) -> Wanted {
        Wanted {
            filter: doc! { "n": n },
            sort: None,
            attempts_most: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_filters_are_known_unless_more_are_in_use() {
        let claims = Claims::default();
        let used = claims.filter(wanting(-1), TypeId::of::<()>());
        for n in 0..1_000 {
            drop(claims.filter(wanting(n), TypeId::of::<()>()));
        }
        let known = claims.filters.lock().unwrap().len();
        assert!((2..=KNOWN_MOST).contains(&known), "{known}");
        assert!(Arc::ptr_eq(&used, &claims.filter(wanting(-1), TypeId::of::<()>())));
    }
}
