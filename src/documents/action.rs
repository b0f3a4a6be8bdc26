//! Acquires of documents, and claims.

use std::{any::TypeId, fmt, marker::PhantomData, sync::Arc, time::Duration};

use mongodb::bson::{Bson, Document};
use scopeguard::ScopeGuard;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{
    DocumentLocks, ItemLocks,
    elements::ElementPlace,
    handle::{self, HeldItem, Item},
};
use crate::{
    contention::Contention,
    error::{AcquireError, InvalidInput, ServerError},
    handle::{
        owned::OwnedHold,
        target::{Count, One, Target},
    },
    input::{check_count, check_document},
    locks::{
        acquire::{Acquire, CanAcquire, Got, Patience},
        options::Options,
        request::Share,
    },
    name::LockName,
    protocol::Kind,
    session::{CLAIMED_MOST, Claiming, SKIPPED_AT_ONCE, UserHandle},
    store::{Wanted, read_as},
    telemetry::Attempt,
    truncated_debug::Brief,
    waitlist::answers::TRY_FOR,
    world::{Sealed, World},
};

impl<K: Item<Value: DeserializeOwned + Send + Sync + 'static> + 'static> CanAcquire for K {
    async fn ask(request: Self::Request, options: Options) -> Result<Got<Self>, AcquireError> {
        acquire_and_read(request, options).await
    }
}

/// Acquires a lock in a document, and reads what was locked: in the rest of the timeout, or in the time of a try. On an
/// error of the reading the lock is released again. A timeout of zero asks once, and takes as long as that takes.
async fn acquire_and_read<K: Item<Value: DeserializeOwned>>(
    (locks, id): (ItemLocks<K>, Bson),
    options: Options,
) -> Result<Got<K>, AcquireError> {
    let (session, name) = locks.place(&id)?;
    let timeout = options.timeout.filter(|timeout| !timeout.is_zero());
    let tries = options.tries;
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let array = locks.element.as_ref().map(|element| &*element.array);
    let missing = |name| match array.map(str::to_owned) {
        None => AcquireError::NoDocument { name },
        Some(array) => AcquireError::NoElement { name, array },
    };
    let share = Share::one_of(1, session.clone(), LockName::new(name.clone()), Kind::Document);
    let own = share.acquire(options).await.map_err(|error| match error {
        AcquireError::NoDocument { name } => missing(name),
        error => error,
    })?;
    let (begun, reading) = (Instant::now(), session.fetch(&name));
    // A try has had its answer, however late: the reading has as long.
    let found = match until.or(tries.then(|| begun + TRY_FOR)) {
        Some(until) => tokio::time::timeout_at(until, reading).await.ok(),
        None => Some(reading.await),
    };
    let Some(found) = found else {
        // The lock may have been granted when the timeout was all but over.
        let silent_for = Some(begun.elapsed()).filter(|silent_for| silent_for.as_millis() > 0);
        return Err(AcquireError::Unanswered {
            name,
            waited: timeout.unwrap_or_default(),
            contention: None,
            error: silent_for.map(ServerError::unanswered),
        });
    };
    match (&found?[..], array) {
        ([], _) => Err(missing(name)),
        (found @ [_, _, ..], Some(array)) => Err(AcquireError::AmbiguousElement {
            name,
            array: array.to_owned(),
            matched: found.len(),
        }),
        ([found, ..], _) => read(own, id, found, locks.element.clone(), None),
    }
}

/// Returns the hold with what it locks; something unreadable is released with the hold.
fn read<V: DeserializeOwned>(
    own: OwnedHold,
    id: Bson,
    found: &Document,
    element: Option<Arc<ElementPlace>>,
    attempt: Option<i64>,
) -> Result<(OwnedHold, HeldItem<V>), AcquireError> {
    match read_as(found) {
        Ok(value) => Ok((
            own,
            HeldItem {
                id,
                value,
                attempt,
                element,
            },
        )),
        Err(cause) => Err(AcquireError::Unreadable {
            name: own.name.clone(),
            cause,
        }),
    }
}

/// Any free document that matches a filter: see [`DocumentLocks::claim`](crate::documents::DocumentLocks::claim). With
/// [`Several`](crate::action::Several), as many as are free, up to a number:
/// [`DocumentLocks::claim_many`](crate::documents::DocumentLocks::claim_many).
pub struct Claim<T, C = One> {
    locks: DocumentLocks<T>,
    wanted: Wanted,
    /// Maximum number of documents.
    most: usize,
    of: PhantomData<fn() -> C>,
}

impl<T, C> Claim<T, C> {
    pub(super) fn new(locks: DocumentLocks<T>, filter: Document, most: usize) -> Self {
        Self {
            locks,
            most,
            of: PhantomData,
            wanted: Wanted {
                filter,
                sort: None,
                attempts_most: None,
            },
        }
    }
}

impl<T, C> Sealed for Claim<T, C> {}

impl<T, C: Count> Target for Claim<T, C> {
    type Held = handle::Document<T>;
    type Count = C;
    type Request = Self;
    type Data = HeldItem<T>;
}

/// # Claims
impl<T, C: Count, P: Patience, W: World> Acquire<Claim<T, C>, P, W> {
    /// Sets which of the documents comes first, as in the driver's `find_one_and_update`.
    pub fn sort(mut self, sort: Document) -> Self {
        self.request.wanted.sort = Some(sort);
        self
    }

    /// Claims only documents that were claimed fewer than `most` times, and counts this claim; at least 1.
    ///
    /// The server counts in the atomic step of the claim, in the field `attempts` of the document's lock: a worker that
    /// dies has used up its attempt, and so has a claim that was dropped or timed out just as it was granted, or whose
    /// answer is lost, as at a fail-over. Claims with a limit share one count, even if their limits differ; others
    /// don't count. Claims pass over a document that was claimed `most` times: a
    /// [dead letter](crate::guide::documents#attempts-and-dead-letters).
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": 7, "sent": false }).await?;
    /// # let outbox = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// for attempt in 1..=2 {
    ///     let message = outbox.claim(doc! { "sent": false }).max_attempts(2).await?;
    ///     assert_eq!(message.attempt(), Some(attempt));
    ///     message.release().await?; // It could not be sent.
    /// }
    /// assert!(outbox.try_claim(doc! { "sent": false }).max_attempts(2).await?.is_none());
    ///
    /// let dead = memory.find(doc! { "sent": false, "watchlock.attempts": { "$gte": 2 } }).await?;
    /// outbox.clear_attempts(dead[0].get("_id").unwrap().clone()).await?;
    /// assert!(outbox.try_claim(doc! { "sent": false }).max_attempts(2).await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn max_attempts(mut self, most: u32) -> Self {
        self.request.wanted.attempts_most = Some(most.into());
        self
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static, C: Count> CanAcquire for Claim<T, C> {
    async fn ask(request: Self, options: Options) -> Result<C::Of<Got<Self>>, AcquireError> {
        let (timeout, tries) = (options.timeout, options.tries);
        let waits = !tries && timeout != Some(Duration::ZERO);
        let attempt = request.attempt(&options, waits)?;
        let name = format!("a document of {}", request.locks.collection);
        let unanswered = |error| AcquireError::Unanswered {
            name: name.clone(),
            waited: timeout.unwrap_or_default(),
            contention: None,
            error,
        };
        let claiming = async {
            if tries && timeout == Some(Duration::ZERO) {
                return Err(unanswered(None));
            }
            let session = request.locks.session()?;
            let (wanted, owner) = (request.wanted.clone(), session.config.owner(options.reason));
            let claiming = session.claiming(wanted, TypeId::of::<T>(), owner, options.terms, request.most);
            let claim = claim_readable(&session, &claiming, waits);
            let claimed = match timeout.filter(|timeout| !timeout.is_zero()) {
                // Dropping a claim releases a document that it got at that moment.
                Some(timeout) => tokio::time::timeout(timeout, claim).await.ok(),
                None => Some(claim.await),
            };
            match (claimed.transpose()?, claiming.check_answered()) {
                (Some(claimed), _) if tries || !claimed.is_empty() => Ok(claimed),
                (_, Err(error)) => Err(unanswered(error)),
                (None, _) if claiming.is_in_doubt() => Err(unanswered(Some(ServerError::overdue()))),
                // Others had the turn for as long, or a try was to be repeated.
                (None, _) if tries || claiming.may_be_free() => Err(unanswered(None)),
                _ => Err(AcquireError::Timeout {
                    name: name.clone(),
                    waited: timeout.unwrap_or_default(),
                    contention: None,
                }),
            }
        };
        let claimed = attempt
            .follow(claiming, |claimed| {
                claimed.iter().map(|(own, _)| own.hold().granted()).collect()
            })
            .await?;
        C::of(claimed).ok_or_else(|| AcquireError::Held {
            name: name.clone(),
            contention: Box::new(Contention::behind(0)),
        })
    }
}

impl<T: DeserializeOwned, C> Claim<T, C> {
    /// Checks a claim before anything is sent, and begins to observe it.
    fn attempt(&self, options: &Options, waits: bool) -> Result<Attempt, AcquireError> {
        let Wanted {
            filter,
            sort,
            attempts_most,
        } = &self.wanted;
        check_document("the filter of the claim", filter)?;
        let sort = sort.as_ref();
        sort.map_or(Ok(()), |sort| check_document("the sort of the claim", sort))?;
        if attempts_most.is_some_and(|most| most < 1) {
            return Err(InvalidInput::new("max_attempts is 0; it must be at least 1").into());
        }
        check_count("claim", self.most, "documents at most", 1..=CLAIMED_MOST)?;
        options.check(&self.locks.session()?.config)?;
        let reason = options.reason.as_deref();
        Ok(Attempt::begin(None, None, Kind::Document, 1, waits, reason))
    }
}

/// Claims documents that can be read; those that can't are released, and others claimed.
async fn claim_readable<T: DeserializeOwned>(
    session: &UserHandle,
    claiming: &Arc<Claiming>,
    waits: bool,
) -> Result<Vec<(OwnedHold, HeldItem<T>)>, AcquireError> {
    let mut unreadable = None;
    for _ in 0..SKIPPED_AT_ONCE {
        let given = match (claiming.claim(waits).await, unreadable.take()) {
            // No other document is left.
            (Err(AcquireError::Unclaimable { .. }), Some(unreadable)) => return Err(unreadable),
            (given, _) => given?,
        };
        let mut claimed = Vec::with_capacity(given.len());
        for (hold, document, attempt) in given {
            let own = OwnedHold::new(session.clone(), ScopeGuard::into_inner(hold));
            let id = document.get("_id").cloned().unwrap_or(Bson::Null);
            match read(own, id.clone(), &document, None, attempt) {
                Ok(read) => {
                    claiming.was_read(&id);
                    claimed.push(read);
                }
                Err(error) => {
                    // It was released when it was dropped.
                    if let AcquireError::Unreadable { cause, .. } = &error {
                        claiming.pass_over(id, cause.clone());
                    }
                    unreadable = Some(error);
                }
            }
        }
        if unreadable.is_none() || !claimed.is_empty() {
            return Ok(claimed);
        }
    }
    unreadable.map_or(Ok(Vec::new()), Err)
}

impl<T, C> Clone for Claim<T, C> {
    fn clone(&self) -> Self {
        Self {
            locks: self.locks.clone(),
            wanted: self.wanted.clone(),
            ..*self
        }
    }
}

impl<T, C> fmt::Debug for Claim<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("locks", &self.locks)
            .field("wanted", &Brief(&self.wanted))
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}
