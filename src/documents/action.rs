//! Acquires of documents, and claims.

use std::{fmt, future::Future, time::Duration};

use mongodb::bson::{Bson, Document};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{
    DocumentLocks,
    handle::{self, HeldDocument},
};
use crate::{
    error::{AcquireError, ServerError},
    handle::{owned::OwnedHold, target::Target},
    input::{check_attempts, check_document},
    locks::{
        acquire::{Acquire, CanAcquire, Got},
        options::{CanFix, CanLimit, Options},
        patience::{Otherwise, Patience},
        request::{Share, held_by_somebody},
    },
    name::LockName,
    protocol::Kind,
    session::{ClaimedDocument, Claiming, SKIPPED_AT_ONCE, UserHandle},
    store::{Wanted, read_as},
    telemetry::Attempt,
    truncated_debug::Brief,
    waitlist,
    world::{Sealed, World},
};

/// An acquire of a lock in a document, and the time that is left for reading what was locked.
pub(super) struct DocumentAcquiring<'a> {
    session: &'a UserHandle,
    name: String,
    timeout: Option<Duration>,
    until: Option<Instant>,
}

impl<'a> DocumentAcquiring<'a> {
    /// The timeout begins now.
    pub(super) fn new((session, name): (&'a UserHandle, String), timeout: Option<Duration>) -> Self {
        Self {
            session,
            name,
            timeout,
            until: deadline(timeout),
        }
    }

    pub(super) async fn acquire(&self, options: Options, otherwise: Otherwise) -> Result<OwnedHold, AcquireError> {
        let share = Share::whole(self.session.clone(), LockName::new(self.name.clone()), Kind::Document);
        share.acquire(options, otherwise).await
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
                waited: self.timeout.unwrap_or_default(),
                contention: None,
                error: Some(ServerError::unanswered(begun.elapsed())),
            }),
        }
    }
}

/// Returns the end of a timeout that begins now. A timeout of zero asks once, and takes as long as that takes.
fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    Instant::now().checked_add(timeout.filter(|timeout| !timeout.is_zero())?)
}

impl<T: DeserializeOwned + Send + Sync + 'static> CanAcquire for handle::Document<T> {
    async fn ask(request: Self, options: Options, otherwise: Otherwise) -> Result<Got<Self>, AcquireError> {
        let acquiring = DocumentAcquiring::new(request.locks.place(&request.id)?, options.timeout);
        let own = acquiring.acquire(options, otherwise).await?;
        // On a timeout it is released again.
        match acquiring.in_time(acquiring.session.fetch(own.name())).await? {
            Some(document) => read(acquiring.session, own, request.id, &document, None),
            None => Err(AcquireError::NoDocument { name: acquiring.name }),
        }
    }
}

/// Returns the hold with its document; an unreadable document is released with the hold.
fn read<T: DeserializeOwned>(
    session: &UserHandle,
    own: OwnedHold,
    id: Bson,
    document: &Document,
    attempt: Option<i64>,
) -> Result<(OwnedHold, HeldDocument<T>), AcquireError> {
    match read_as(document) {
        Ok(document) => Ok((own, HeldDocument::new(session.clone(), id, document, attempt))),
        Err(cause) => Err(AcquireError::Unreadable {
            name: own.name().to_owned(),
            cause,
        }),
    }
}

/// Any free document that matches a filter: see [`DocumentLocks::claim`](crate::documents::DocumentLocks::claim).
pub struct Claim<T> {
    locks: DocumentLocks<T>,
    wanted: Wanted,
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
        }
    }
}

impl<T> Sealed for Claim<T> {}

impl<T> Target for Claim<T> {
    type Held = handle::Document<T>;
    type Request = Self;
    type Own = OwnedHold;
    type Data = HeldDocument<T>;
}

impl<T> CanLimit for Claim<T> {}
impl<T> CanFix for Claim<T> {}

/// # Claims
impl<T, P: Patience, W: World> Acquire<Claim<T>, P, W> {
    /// Sets which of the documents comes first, as in the driver's `find_one_and_update`.
    pub fn sort(mut self, sort: Document) -> Self {
        self.request.wanted.sort = Some(sort);
        self
    }

    /// Claims only documents that were claimed fewer than `most` times, and counts this claim; at least 1.
    ///
    /// The server counts in the atomic step of the claim, in the field `attempts` of the document's lock: a worker that
    /// dies has used up its attempt, and so has a claim that was dropped or timed out just as it was granted. Only
    /// claims with a limit count; they share one count, even if their limits differ.
    /// [`Held::attempt`](crate::Held::attempt) is the number of this one.
    ///
    /// A document that was claimed `most` times and still matches is a dead letter: claims with this limit pass over
    /// it. The event `watchlock.last_attempt` reports each last claim. A find in the collection returns the dead
    /// letters, and [`DocumentLocks::clear_attempts`](crate::documents::DocumentLocks::clear_attempts) lets one be
    /// claimed again.
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

impl<T: DeserializeOwned + Send + Sync + 'static> CanAcquire for Claim<T> {
    async fn ask(request: Self, options: Options, otherwise: Otherwise) -> Result<Got<Self>, AcquireError> {
        let timeout = options.timeout;
        let (begins, tries) = (otherwise == Otherwise::Wait, otherwise != Otherwise::Wait);
        let waits = begins && timeout != Some(Duration::ZERO);
        let patience = if waits {
            waitlist::Patience::Wait
        } else {
            waitlist::Patience::Try
        };
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
            // Until the first answer comes.
            let mut failing = timeout.map(ServerError::unanswered);
            let claiming = request.claim(options, patience, &mut failing);
            let claimed = match timeout.filter(|timeout| !timeout.is_zero()) {
                // Dropping a claim releases a document that it got at that moment.
                Some(timeout) => tokio::time::timeout(timeout, claiming).await.ok(),
                None => Some(claiming.await),
            };
            match (claimed.transpose()?, failing) {
                (Some(Some(claimed)), _) => Ok(Some(claimed)),
                (Some(None), _) if tries => Ok(None),
                (None, _) if tries => Err(unanswered(timeout.map(ServerError::unanswered))),
                (_, None) => Err(AcquireError::Timeout {
                    name: name.clone(),
                    waited: timeout.unwrap_or_default(),
                    contention: None,
                }),
                (_, error) => Err(unanswered(error)),
            }
        };
        let claimed = attempt
            .follow(claiming, |claimed| {
                claimed.as_ref().map(|(own, _)| own.hold().granted())
            })
            .await?;
        claimed.ok_or_else(|| held_by_somebody(name.clone()))
    }
}

impl<T: DeserializeOwned> Claim<T> {
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
        attempts_most.map_or(Ok(()), check_attempts)?;
        options.check(&self.locks.session()?.config)?;
        let reason = options.reason.as_deref();
        Ok(Attempt::begin(None, None, Kind::Document, 1, waits, reason))
    }

    async fn claim(
        &self,
        options: Options,
        patience: waitlist::Patience,
        failing: &mut Option<ServerError>,
    ) -> Result<Option<(OwnedHold, HeldDocument<T>)>, AcquireError> {
        let session = self.locks.session()?;
        let owner = session.config.owner(options.reason);
        let mut unreadable = None;
        for _ in 0..SKIPPED_AT_ONCE {
            let claiming = Claiming {
                wanted: self.wanted.clone(),
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
            let own = OwnedHold::new(session.clone(), hold);
            let id = document.get("_id").cloned().unwrap_or(Bson::Null);
            match read(session, own, id.clone(), &document, attempt) {
                Err(AcquireError::Unreadable { name, cause }) => {
                    // It was released when it was dropped, and the next one is claimed.
                    session.pass_over(id, cause.clone());
                    unreadable = Some(AcquireError::Unreadable { name, cause });
                }
                claimed => return claimed.map(Some),
            }
        }
        unreadable.map_or(Ok(None), Err)
    }
}

impl<T> Clone for Claim<T> {
    fn clone(&self) -> Self {
        let (locks, wanted) = (self.locks.clone(), self.wanted.clone());
        Self { locks, wanted }
    }
}

impl<T> fmt::Debug for Claim<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("locks", &self.locks)
            .field("wanted", &Brief(&self.wanted))
            .finish_non_exhaustive()
    }
}
