//! Actions that lock documents.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    time::Duration,
};

use mongodb::bson::{Bson, Document};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{DocumentHandle, DocumentLocks};
use crate::{
    brief::Brief,
    error::{AcquireError, ServerError},
    handle::LockHandle,
    input::{check_attempts, check_document, check_text, check_timeout},
    locks::acquire::{Acquire, Share, TryAcquire},
    name::LockName,
    protocol::Kind,
    session::{ClaimedDocument, Claiming, PASSED_AT_ONCE, UserHandle, documents::DocumentSession},
    store::{StoreError, Wanted, read_as},
    telemetry::Attempt,
    terms::Terms,
    waitlist::Patience,
};

pub(super) type ActionFuture<O> = Pin<Box<dyn Future<Output = Result<O, AcquireError>> + Send>>;

/// The options of an acquire, of a document or of an element, and of a claim.
#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    pub(super) timeout: Option<Duration>,
    pub(super) reason: Option<String>,
    pub(super) terms: Terms,
}

/// Adds the options to an action that has them in its field `options`; what the timeout is differs.
macro_rules! with_options {
    ($action:ident, $(#[$timeout:meta])*) => {
        impl<T> $action<T> {
            $(#[$timeout])*
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.options.timeout = Some(timeout);
                self
            }

            /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
            pub fn reason(mut self, reason: impl Into<String>) -> Self {
                self.options.reason = Some(reason.into());
                self
            }

            /// Gives this hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
            pub fn lease(mut self, lease: Duration) -> Self {
                self.options.terms.set_lease(lease);
                self
            }

            /// Holds the lock for `length` and no longer; see [`Acquire::fixed`](crate::Acquire::fixed).
            pub fn fixed(mut self, length: Duration) -> Self {
                self.options.terms.set_fixed(length);
                self
            }

            /// Reports the hold if it lasts longer than `most`; see [`Acquire::max_hold`](crate::Acquire::max_hold).
            pub fn max_hold(mut self, most: Duration) -> Self {
                self.options.terms.set_max_hold(most);
                self
            }

            /// Loses the lock when it has been held for `limit`; see
            /// [`Acquire::lose_after`](crate::Acquire::lose_after).
            pub fn lose_after(mut self, limit: Duration) -> Self {
                self.options.terms.set_lose_after(limit);
                self
            }
        }
    };
}

pub(super) use with_options;

/// A lock in a document that is to be acquired with these options.
pub(super) struct DocumentAcquiring<'a> {
    session: &'a UserHandle<DocumentSession>,
    name: String,
    options: &'a Options,
    until: Option<Instant>,
}

impl<'a> DocumentAcquiring<'a> {
    /// The timeout begins now.
    pub(super) fn new((session, name): (&'a UserHandle<DocumentSession>, String), options: &'a Options) -> Self {
        Self {
            session,
            name,
            options,
            until: deadline(options.timeout),
        }
    }

    /// Waits for the lock.
    pub(super) async fn wait(&self) -> Result<LockHandle, AcquireError> {
        let mut acquire = Acquire::new(share(self.session, self.name.clone())).on(self.options.terms);
        if let Some(timeout) = self.options.timeout {
            acquire = acquire.timeout(timeout);
        }
        if let Some(reason) = &self.options.reason {
            acquire = acquire.reason(reason);
        }
        acquire.await
    }

    /// Returns the same as a try.
    pub(super) fn at_once(&self) -> TryAcquire {
        let mut acquire = TryAcquire::new(share(self.session, self.name.clone())).on(self.options.terms);
        if let Some(timeout) = self.options.timeout {
            acquire = acquire.timeout(timeout);
        }
        if let Some(reason) = &self.options.reason {
            acquire = acquire.reason(reason);
        }
        acquire
    }

    /// Reads what was locked in the rest of the timeout.
    pub(super) async fn in_time<R>(
        &self,
        reading: impl Future<Output = Result<R, ServerError>>,
    ) -> Result<R, AcquireError> {
        let begun = Instant::now();
        let read = match self.until {
            Some(until) => tokio::time::timeout_at(until, reading).await.ok(),
            None => Some(reading.await),
        };
        match read {
            Some(read) => Ok(read?),
            None => Err(AcquireError::Unanswered {
                name: self.name.clone(),
                waited: self.options.timeout.unwrap_or_default(),
                contention: None,
                error: Some(StoreError::unanswered(begun.elapsed()).into()),
            }),
        }
    }
}

/// An acquire of one document that waits for its turn; await it. Made by [`DocumentLocks::acquire`].
#[must_use = "an acquire does nothing until it is awaited"]
pub struct AcquireDocument<T> {
    locks: DocumentLocks<T>,
    id: Bson,
    options: Options,
}

impl<T> AcquireDocument<T> {
    pub(super) fn new(locks: DocumentLocks<T>, id: Bson) -> Self {
        let options = Options::default();
        Self { locks, id, options }
    }
}

with_options! {
    AcquireDocument,
    /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
}

impl<T: DeserializeOwned + Send + Sync + 'static> IntoFuture for AcquireDocument<T> {
    type Output = Result<DocumentHandle<T>, AcquireError>;
    type IntoFuture = ActionFuture<DocumentHandle<T>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let acquiring = DocumentAcquiring::new(self.locks.place(&self.id)?, &self.options);
            let handle = acquiring.wait().await?;
            fetched(&acquiring, handle, self.id.clone()).await
        })
    }
}

/// An acquire of one document that does not wait; await it. Made by [`DocumentLocks::try_acquire`].
#[must_use = "a try does nothing until it is awaited"]
pub struct TryAcquireDocument<T> {
    locks: DocumentLocks<T>,
    id: Bson,
    options: Options,
}

impl<T> TryAcquireDocument<T> {
    pub(super) fn new(locks: DocumentLocks<T>, id: Bson) -> Self {
        let options = Options::default();
        Self { locks, id, options }
    }
}

with_options! {
    TryAcquireDocument,
    /// Gives up if the server has not answered after `timeout`; see
    /// [`TryAcquire::timeout`](crate::TryAcquire::timeout).
}

impl<T: DeserializeOwned + Send + Sync + 'static> TryAcquireDocument<T> {
    /// Tries, and fails with [`AcquireError::Held`], which names the holder, if the document is locked. Set other
    /// options first.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, like [`DocumentLocks::acquire`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(events: watchlock::DocumentLocks<mongodb::bson::Document>) {
    /// match events.try_acquire(42).or_held().await {
    ///     Ok(event) => println!("ours: {}", event.document()),
    ///     Err(error) => println!("{error}"),
    /// }
    /// # }
    /// ```
    pub async fn or_held(self) -> Result<DocumentHandle<T>, AcquireError> {
        let acquiring = DocumentAcquiring::new(self.locks.place(&self.id)?, &self.options);
        let handle = acquiring.at_once().or_held().await?;
        fetched(&acquiring, handle, self.id.clone()).await
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> IntoFuture for TryAcquireDocument<T> {
    type Output = Result<Option<DocumentHandle<T>>, AcquireError>;
    type IntoFuture = ActionFuture<Option<DocumentHandle<T>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let acquiring = DocumentAcquiring::new(self.locks.place(&self.id)?, &self.options);
            match acquiring.at_once().await? {
                Some(handle) => fetched(&acquiring, handle, self.id.clone()).await.map(Some),
                None => Ok(None),
            }
        })
    }
}

fn share(session: &UserHandle<DocumentSession>, name: String) -> Share {
    Share {
        session: session.alone(),
        name: LockName::new(name),
        kind: Kind::Document,
        capacity: 1,
        permits: 1,
    }
}

/// Returns the end of a timeout that begins now. A timeout of zero asks once, and takes as long as that takes.
fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    Instant::now().checked_add(timeout.filter(|timeout| !timeout.is_zero())?)
}

/// Reads the document in the rest of the timeout; on a timeout it is released again.
async fn fetched<T: DeserializeOwned>(
    acquiring: &DocumentAcquiring<'_>,
    handle: LockHandle,
    id: Bson,
) -> Result<DocumentHandle<T>, AcquireError> {
    let name = handle.name().to_owned();
    let session = acquiring.session;
    match acquiring.in_time(session.fetch(&name)).await? {
        Some(document) => read(session, handle, id, &document),
        None => Err(AcquireError::NoDocument { name }),
    }
}

/// Returns the handle with its document; an unreadable document is released with the handle.
fn read<T: DeserializeOwned>(
    session: &UserHandle<DocumentSession>,
    handle: LockHandle,
    id: Bson,
    document: &Document,
) -> Result<DocumentHandle<T>, AcquireError> {
    match read_as(document) {
        Ok(document) => Ok(DocumentHandle::new(session.clone(), handle, id, document)),
        Err(cause) => Err(AcquireError::Unreadable {
            name: handle.name().to_owned(),
            cause,
        }),
    }
}

/// A claim that waits for a free document; await it. Made by [`DocumentLocks::claim`].
#[must_use = "a claim does nothing until it is awaited"]
pub struct Claim<T> {
    locks: DocumentLocks<T>,
    wanted: Wanted,
    options: Options,
}

impl<T> Claim<T> {
    pub(super) fn new(locks: DocumentLocks<T>, filter: Document) -> Self {
        Self {
            locks,
            wanted: Wanted {
                filter,
                sort: None,
                attempts_most: None,
            },
            options: Options::default(),
        }
    }

    /// Sets which of the documents comes first, as in the driver's `find_one_and_update`.
    pub fn sort(mut self, sort: Document) -> Self {
        self.wanted.sort = Some(sort);
        self
    }

    /// Claims only documents that were claimed fewer than `most` times, and counts this claim; at least 1.
    ///
    /// The server counts in the atomic step of the claim, in the field `attempts` of the document's lock: a worker that
    /// dies has used up its attempt, and so has a claim that was dropped or timed out just as it was granted. Only
    /// claims with a limit count; they share one count, even if their limits differ. [`DocumentHandle::attempt`] is the
    /// number of this one.
    ///
    /// A document that was claimed `most` times and still matches is a dead letter: claims with this limit pass over
    /// it. The event `watchlock.last_attempt` reports each last claim. A find in the collection returns the dead
    /// letters, and [`DocumentLocks::clear_attempts`] lets one be claimed again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": 7, "sent": false })?;
    /// # let outbox = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// for attempt in 1..=2 {
    ///     let message = outbox.claim(doc! { "sent": false }).max_attempts(2).await?;
    ///     assert_eq!(message.attempt(), Some(attempt));
    ///     message.release().await?; // It could not be sent.
    /// }
    /// assert!(outbox.try_claim(doc! { "sent": false }).max_attempts(2).await?.is_none());
    ///
    /// let dead = memory.find(doc! { "sent": false, "watchlock.attempts": { "$gte": 2 } })?;
    /// outbox.clear_attempts(dead[0].get("_id").unwrap().clone()).await?;
    /// assert!(outbox.try_claim(doc! { "sent": false }).max_attempts(2).await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn max_attempts(mut self, most: u32) -> Self {
        self.wanted.attempts_most = Some(most.into());
        self
    }
}

with_options! {
    Claim,
    /// Gives up after `timeout`; at most 366 days. Zero asks once.
    ///
    /// The error is [`AcquireError::Timeout`] if no matching document was free, and [`AcquireError::Unanswered`] if the
    /// server did not answer.
}

impl<T: DeserializeOwned + Send + Sync + 'static> IntoFuture for Claim<T> {
    type Output = Result<DocumentHandle<T>, AcquireError>;
    type IntoFuture = ActionFuture<DocumentHandle<T>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let timeout = self.options.timeout;
            let waits = timeout != Some(Duration::ZERO);
            let patience = if waits { Patience::Wait } else { Patience::Try };
            let attempt = attempt(&self.locks, &self.wanted, &self.options, patience)?;
            let claiming = async move {
                let name = self.locks.collection.to_string();
                // Until the first answer comes.
                let mut failing = timeout.map(|timeout| StoreError::unanswered(timeout).into());
                let claiming = claim(&self.locks, self.wanted, self.options, patience, &mut failing);
                let claimed = match timeout.filter(|_| waits) {
                    // Dropping a claim releases a document that it got at that moment.
                    Some(timeout) => tokio::time::timeout(timeout, claiming).await.unwrap_or(Ok(None)),
                    None => claiming.await,
                };
                let (name, waited) = (format!("a document of {name}"), timeout.unwrap_or_default());
                match (claimed?, failing) {
                    (Some(handle), _) => Ok(handle),
                    (None, None) => Err(AcquireError::Timeout {
                        name,
                        waited,
                        contention: None,
                    }),
                    (None, error) => Err(AcquireError::Unanswered {
                        name,
                        waited,
                        contention: None,
                        error,
                    }),
                }
            };
            attempt.follow(claiming, |handle| Some(handle.granted())).await
        })
    }
}

/// A claim that does not wait; await it. Made by [`DocumentLocks::try_claim`].
#[must_use = "a claim does nothing until it is awaited"]
pub struct TryClaim<T> {
    locks: DocumentLocks<T>,
    wanted: Wanted,
    options: Options,
}

impl<T> TryClaim<T> {
    pub(super) fn new(locks: DocumentLocks<T>, filter: Document) -> Self {
        Self {
            locks,
            wanted: Wanted {
                filter,
                sort: None,
                attempts_most: None,
            },
            options: Options::default(),
        }
    }

    /// Sets which of the documents comes first, as in the driver's `find_one_and_update`.
    pub fn sort(mut self, sort: Document) -> Self {
        self.wanted.sort = Some(sort);
        self
    }

    /// Claims only documents that were claimed fewer than `most` times, and counts this claim; see
    /// [`Claim::max_attempts`].
    pub fn max_attempts(mut self, most: u32) -> Self {
        self.wanted.attempts_most = Some(most.into());
        self
    }
}

with_options! {
    TryClaim,
    /// Gives up with [`AcquireError::Unanswered`] if the server has not answered after `timeout`; at most 366 days, and
    /// zero gives up before anything is sent. A document that was claimed all the same is released.
}

impl<T: DeserializeOwned + Send + Sync + 'static> IntoFuture for TryClaim<T> {
    type Output = Result<Option<DocumentHandle<T>>, AcquireError>;
    type IntoFuture = ActionFuture<Option<DocumentHandle<T>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let attempt = attempt(&self.locks, &self.wanted, &self.options, Patience::Try)?;
            let claiming = async move {
                let name = self.locks.collection.to_string();
                let (timeout, mut unheard) = (self.options.timeout, None);
                let claiming = claim(&self.locks, self.wanted, self.options, Patience::Try, &mut unheard);
                let (waited, error) = match timeout {
                    None => return claiming.await,
                    Some(Duration::ZERO) => (Duration::ZERO, None),
                    Some(timeout) => match tokio::time::timeout(timeout, claiming).await {
                        Ok(claimed) => return claimed,
                        Err(_) => (timeout, Some(StoreError::unanswered(timeout).into())),
                    },
                };
                Err(AcquireError::Unanswered {
                    name: format!("a document of {name}"),
                    waited,
                    contention: None,
                    error,
                })
            };
            attempt
                .follow(claiming, |handle| handle.as_ref().map(DocumentHandle::granted))
                .await
        })
    }
}

/// Checks a claim before anything is sent, and begins to observe it.
fn attempt<T>(
    locks: &DocumentLocks<T>,
    wanted: &Wanted,
    options: &Options,
    patience: Patience,
) -> Result<Attempt, AcquireError> {
    let reason = options.reason.as_deref();
    check_document("the filter of the claim", &wanted.filter)?;
    let sort = wanted.sort.as_ref();
    sort.map_or(Ok(()), |sort| check_document("the sort of the claim", sort))?;
    options.timeout.map_or(Ok(()), check_timeout)?;
    wanted.attempts_most.map_or(Ok(()), check_attempts)?;
    reason.map_or(Ok(()), |reason| check_text("reason", reason))?;
    options.terms.check(&locks.session()?.config)?;
    let waits = patience == Patience::Wait;
    Ok(Attempt::begin(None, None, Kind::Document, 1, waits, reason))
}

async fn claim<T: DeserializeOwned>(
    locks: &DocumentLocks<T>,
    wanted: Wanted,
    options: Options,
    patience: Patience,
    failing: &mut Option<ServerError>,
) -> Result<Option<DocumentHandle<T>>, AcquireError> {
    let session = locks.session()?;
    let owner = session.config.owner(options.reason);
    let mut unreadable = None;
    for _ in 0..PASSED_AT_ONCE {
        let claiming = Claiming {
            wanted: wanted.clone(),
            owner: owner.clone(),
            terms: options.terms,
            patience,
            has_passed: unreadable.is_some(),
        };
        let given = match (session.claim(claiming, failing).await, unreadable.take()) {
            // No other document is left.
            (Err(AcquireError::Unclaimable { .. }), Some(unreadable)) => return Err(unreadable),
            (given, _) => given?,
        };
        let attempt = given.as_ref().and_then(ClaimedDocument::attempt);
        let Some((Some(hold), document)) = given.map(ClaimedDocument::take) else {
            return Ok(None);
        };
        let handle = LockHandle::new(session.alone(), hold);
        let id = document.get("_id").cloned().unwrap_or(Bson::Null);
        match read(session, handle, id.clone(), &document) {
            Err(AcquireError::Unreadable { name, cause }) => {
                // It was released when it was dropped, and the next one is claimed.
                session.pass_over(id, cause.clone());
                unreadable = Some(AcquireError::Unreadable { name, cause });
            }
            handle => return handle.map(|handle| Some(handle.with_attempt(attempt))),
        }
    }
    unreadable.map_or(Ok(None), Err)
}

/// Shows an action by its locks and by what it asks for.
macro_rules! debug_as_request {
    ($($action:ident: $what:ident),*) => {$(
        impl<T> fmt::Debug for $action<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($action))
                    .field("locks", &self.locks)
                    .field(stringify!($what), &Brief(&self.$what))
                    .finish_non_exhaustive()
            }
        }
    )*};
}

pub(super) use debug_as_request;

debug_as_request!(AcquireDocument: id, TryAcquireDocument: id, Claim: wanted, TryClaim: wanted);
