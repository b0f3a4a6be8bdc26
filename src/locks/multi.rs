//! Several locks of any kind, all or nothing.
//!
//! Every client takes the names in one order, that of their bytes, and holds only names that come before the one it
//! waits for. Take the largest name that anybody waits for: its holders wait for nothing, and the first in its queue
//! waits for them alone. So there is no cycle, for any orders in which the parts were given, and however many readers
//! or permits a name admits. The order also holds when a part is lost on the way: the later parts are released before
//! the client waits for the lost one again.

use std::{fmt, marker::PhantomData, time::Duration};

use futures::FutureExt;
use tokio::time::Instant;

use super::{
    acquire::{Acquire, CanAcquire, Got, Try, Wait},
    options::Options,
    request::Share,
};
use crate::{
    error::AcquireError,
    handle::{
        View, any,
        owned::OwnedHold,
        target::{AnyLock, One, Target},
    },
    input::check_names,
    name::LockName,
    protocol::Kind,
    session::UserHandle,
    token::FencingToken,
    truncated_debug::Brief,
    world::{Async, Sealed, World},
};

/// Several locks that are held together or not at all: mutexes, readers, writers and permits. Made by
/// [`LockClient::multi`](crate::LockClient::multi).
///
/// Each part is the lock of its name, for everybody: a holder of `locks.mutex("a")` keeps a multi-lock of `a` and `b`
/// waiting, and vice versa.
///
/// # Guarantees
///
/// - From the grant until the handle is released or lost, every part is held; it is lost when any part is lost.
/// - Multi-locks never deadlock among each other, nor with locks that are acquired one at a time or in the same order:
///   all take their parts sorted by the bytes of their names. Not re-entrant: a task that already holds one of the
///   names may wait for itself.
/// - A part that is lost while others are still awaited is acquired again, after those behind it were released, within
///   the same timeout. A try fails as [`Unanswered`](AcquireError::Unanswered) then, as the part may be free.
///
/// # Under contention
///
/// A multi-lock waits in one queue at a time, first come, first served, and holds the smaller names in the meantime,
/// without working. There is no further fairness across names. So put contended names late in the order, use few names
/// (128 at most) and hold them briefly. An acquire takes one round trip per name if all are free; the release is sent
/// for all at once.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// let accounts = locks.multi(["account-7", "account-3"]);
/// let handle = accounts.acquire().await?;
/// assert!(locks.mutex("account-3").try_acquire().await?.is_none());
/// assert!(locks.multi(["account-1", "account-3"]).try_acquire().await?.is_none());
/// // ... transfer ...
/// handle.release().await?;
///
/// let (prices, exports) = (locks.rw_lock("prices"), locks.semaphore("exports", 4));
/// let report = locks.multi(["report-7".into(), prices.read_part(), exports.part(2)]);
/// let handle = report.acquire().await?;
/// assert!(prices.try_write().await?.is_none());
/// assert_eq!(exports.available_permits().await?, 2);
/// # Ok(()) }
/// ```
#[doc(alias("RedissonMultiLock", "composite lock"))]
#[derive(Clone)]
pub struct MultiLock<W: World = Async> {
    /// Sorted by name.
    parts: Vec<Share>,
    of: PhantomData<fn() -> W>,
}

/// A part of a [`MultiLock`]: a name, which is that of a mutex, or a part of another lock:
/// [`Mutex::part`](crate::locks::Mutex::part), [`RwLock::read_part`](crate::locks::RwLock::read_part),
/// [`RwLock::write_part`](crate::locks::RwLock::write_part), [`Semaphore::part`](crate::locks::Semaphore::part). The
/// options of the acquire are those of every part.
#[derive(Clone, Debug)]
pub struct Part {
    name: LockName,
    /// The share of a lock of that name; `None` for a mutex of the client that makes the multi-lock.
    share: Option<Share>,
}

impl Part {
    pub(crate) fn of(share: Share) -> Self {
        let name = share.name.clone();
        Self {
            name,
            share: Some(share),
        }
    }
}

impl<N: Into<String>> From<N> for Part {
    fn from(name: N) -> Self {
        Self {
            name: LockName::new(name.into()),
            share: None,
        }
    }
}

impl Sealed for MultiLock {}

impl Target for MultiLock {
    type Held = Self;
    type Count = One;
    type Request = Vec<Share>;
    /// The holds of all parts but the first.
    type Data = Vec<OwnedHold>;

    fn others(others: &Vec<OwnedHold>) -> &[OwnedHold] {
        others
    }

    fn into_others(others: Vec<OwnedHold>) -> Vec<OwnedHold> {
        others
    }
}

impl<W: World> MultiLock<W> {
    pub(crate) fn new(session: &UserHandle, parts: impl IntoIterator<Item = impl Into<Part>>) -> Self {
        let share =
            |Part { name, share }| share.unwrap_or_else(|| Share::one_of(1, session.clone(), name, Kind::Mutex));
        let mut parts: Vec<Share> = parts.into_iter().map(|part| share(part.into())).collect();
        parts.sort_by(|one, other| one.name.cmp(&other.name));
        Self { parts, of: PhantomData }
    }

    /// Returns the names, in the order in which they are acquired.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| &*part.name)
    }

    /// Acquires all parts, waiting for each in turn.
    ///
    /// Errors are those of an [`Acquire`]. No names, more than 128, and a name given twice, in whatever ways, are
    /// invalid. After any error, or if the future is dropped, nothing is held: parts already acquired are released in
    /// the background.
    pub fn acquire(&self) -> Acquire<MultiLock, Wait, W> {
        Acquire::new(self.parts.clone())
    }

    /// Acquires all parts if every one is free and nobody waits for any; `None` otherwise. Errors are those of
    /// [`acquire`](Self::acquire).
    ///
    /// It asks for one after the other. If one is taken, it releases the previous ones in the background.
    pub fn try_acquire(&self) -> Acquire<MultiLock, Try, W> {
        Acquire::new(self.parts.clone())
    }
}

impl CanAcquire for MultiLock {
    async fn ask(parts: Vec<Share>, options: Options) -> Result<Got<Self>, AcquireError> {
        check_names(parts.iter().map(|part| &*part.name))?;
        parts.iter().try_for_each(|part| part.check(&options))?;
        let mut held = all(&parts, options).await?;
        Ok((held.remove(0), held))
    }
}

/// Acquires one part after the other, up to the timeout in all.
async fn all(parts: &[Share], options: Options) -> Result<Vec<OwnedHold>, AcquireError> {
    let timeout = options.timeout;
    // Zero means the same for each part as for a lock of its own.
    let deadline = timeout
        .filter(|timeout| !timeout.is_zero())
        .map(|timeout| Instant::now() + timeout);
    let mut held: Vec<OwnedHold> = Vec::with_capacity(parts.len());
    loop {
        // A part lost in the meantime must be acquired again, and no later part may be held then.
        if let Some(lost) = held.iter().position(|part| part.lost_reason().is_some()) {
            if options.tries {
                // It may be free again. A try that began anew might never end.
                return Err(AcquireError::unanswered(&parts[lost].name, timeout.unwrap_or_default()));
            }
            held.truncate(lost);
        }
        let Some(part) = parts.get(held.len()) else {
            return Ok(held);
        };
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            // It may be free: nobody has asked for it.
            return Err(AcquireError::unanswered(&part.name, timeout.unwrap_or_default()));
        }
        let options = Options {
            timeout: left.or(timeout),
            ..options.clone()
        };
        let acquiring = part.clone().acquire(options);
        tokio::select! {
            biased;
            () = any(held.iter().map(|part| part.lost().map(drop).boxed()).collect()) => {}
            acquired = acquiring => held.push(acquired.map_err(|error| in_all(error, timeout))?),
        }
    }
}

/// Adjusts the error of a part that was not free in the rest of the timeout: it reports the whole timeout.
fn in_all(mut error: AcquireError, timeout: Option<Duration>) -> AcquireError {
    if let (AcquireError::Timeout { waited, .. } | AcquireError::Unanswered { waited, .. }, Some(timeout)) =
        (&mut error, timeout)
    {
        *waited = timeout;
    }
    error
}

impl<W: World> View<MultiLock, W> {
    /// Returns the parts, in the order of their names.
    pub fn parts(&self) -> impl Iterator<Item = View<AnyLock, W>> {
        self.holds().cloned().map(View::of)
    }

    /// Returns the part with this name.
    pub fn part(&self, name: &str) -> Option<View<AnyLock, W>> {
        self.holds().find(|part| part.name == name).cloned().map(View::of)
    }

    /// Returns the fencing token of the part with this name. Tokens of different names are unrelated.
    pub fn token_of(&self, name: &str) -> Option<FencingToken> {
        self.part(name).map(|part| part.token())
    }

    /// Returns the names and their fencing tokens, in the order of the names.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, FencingToken)> {
        self.holds().map(|part| (&part.name[..], part.token))
    }
}

impl<W: World> fmt::Debug for MultiLock<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MultiLock").field(&Brief(&self.parts)).finish()
    }
}
