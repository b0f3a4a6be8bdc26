//! A lock with one holder at a time.

use std::marker::PhantomData;

use super::{
    acquire::{Acquire, Try, Wait},
    multi::Part,
    request::Share,
};
use crate::world::{Async, World};

/// A lock with one holder at a time, among all processes. Made by [`LockClient::mutex`](crate::LockClient::mutex).
///
/// # Guarantees
///
/// - One valid [`Held`](crate::Held) at a time.
/// - First come, first served: among the tasks of one client in the order in which they were first polled, and among
///   clients in the order in which their first waiting task entered the server's queue. Until a client knows that
///   others wait, it hands the lock from task to task without the server: [within a
///   process](crate::guarantees#inside-a-process).
/// - Not re-entrant unless [requested](Acquire::reentrant): a task that acquires a lock it already holds waits for
///   itself.
///
/// Options, errors and cancel safety of its acquires and tries are those of an [`Acquire`].
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// use std::time::Duration;
///
/// let mutex = locks.mutex("invoice-42");
/// let handle = mutex.acquire().timeout(Duration::from_secs(5)).reason("billing").await?;
/// assert!(mutex.try_acquire().await?.is_none());
/// // ... bill the invoice ...
/// handle.release().await?;
/// # Ok(()) }
/// ```
#[doc(alias("lock", "distributed lock", "RLock", "IDistributedLock"))]
#[derive(Clone, Debug)]
pub struct Mutex<W: World = Async> {
    share: Share,
    of: PhantomData<fn() -> W>,
}

impl<W: World> Mutex<W> {
    pub(crate) fn new(share: Share) -> Self {
        Self { share, of: PhantomData }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        &self.share.name
    }

    /// Acquires the lock, waiting for its turn: also while the server can't be reached, unless a
    /// [`timeout`](Acquire::timeout) limits that.
    #[doc(alias = "lock")]
    pub fn acquire(&self) -> Acquire<Mutex, Wait, W> {
        Acquire::new(self.share.clone())
    }

    /// Acquires the lock if it is free and nobody waits for it; `None` otherwise. With [`or_held`](Acquire::or_held)
    /// the error of a lock that is not free names the holder.
    ///
    /// Only the server refuses it, in an answer to a request that was sent after the call. Tasks of one client that try
    /// at once share requests: a hundred that find the lock taken cost two commands.
    #[doc(alias("try_lock", "tryLock"))]
    pub fn try_acquire(&self) -> Acquire<Mutex, Try, W> {
        Acquire::new(self.share.clone())
    }

    /// Returns the mutex as a part of a [multi-lock](crate::LockClient::multi).
    pub fn part(&self) -> Part {
        Part::of(self.share.clone())
    }
}
