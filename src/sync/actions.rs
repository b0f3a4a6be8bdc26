//! Actions that run on the calling thread instead of being awaited.

use serde::de::DeserializeOwned;

use super::{DocumentHandle, LockHandle, MultiHandle, block_on, election::Leadership};
use crate::{
    documents::{AcquireDocument, Claim, TryAcquireDocument, TryClaim},
    error::{AcquireError, OperateError},
    inspect::LockInfo,
    locks::{
        acquire::{Acquire, TryAcquire},
        election::Campaign,
        multi::{MultiAcquire, TryMultiAcquire},
    },
    operate::list::List,
};

impl Acquire {
    /// Acquires on this thread, and blocks it until the lock is held; instead of awaiting the action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::sync::LockClient::in_memory();
    /// use std::time::Duration;
    ///
    /// let handle = locks.mutex("invoice-42").acquire().timeout(Duration::from_secs(5)).reason("billing").run()?;
    /// # handle.release()?;
    /// # Ok(()) }
    /// ```
    pub fn run(self) -> Result<LockHandle, AcquireError> {
        block_on(self.into_future()).map(LockHandle::new)
    }
}

impl TryAcquire {
    /// Tries on this thread, and blocks it until the server has answered; instead of awaiting the action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::sync::LockClient::in_memory();
    /// if let Some(handle) = locks.mutex("nightly-job").try_acquire().run()? {
    ///     // ... run the job ...
    ///     handle.release()?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn run(self) -> Result<Option<LockHandle>, AcquireError> {
        Ok(block_on(self.into_future())?.map(LockHandle::new))
    }

    /// Tries on this thread, like [`or_held`](Self::or_held), and blocks it until the server has answered.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run_or_held(self) -> Result<LockHandle, AcquireError> {
        block_on(self.or_held()).map(LockHandle::new)
    }
}

impl MultiAcquire {
    /// Acquires on this thread, and blocks it until all locks are held; instead of awaiting the action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<MultiHandle, AcquireError> {
        block_on(self.into_future()).map(MultiHandle::new)
    }
}

impl TryMultiAcquire {
    /// Tries on this thread, and blocks it until the server has answered; instead of awaiting the action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<Option<MultiHandle>, AcquireError> {
        Ok(block_on(self.into_future())?.map(MultiHandle::new))
    }

    /// Tries on this thread, like [`or_held`](Self::or_held), and blocks it until the server has answered.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run_or_held(self) -> Result<MultiHandle, AcquireError> {
        block_on(self.or_held()).map(MultiHandle::new)
    }
}

impl Campaign {
    /// Campaigns on this thread, and blocks it until elected; instead of awaiting the action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<Leadership, AcquireError> {
        block_on(self.into_future()).map(Leadership::new)
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> AcquireDocument<T> {
    /// Acquires on this thread, and blocks it until the document is locked; instead of awaiting the action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<DocumentHandle<T>, AcquireError> {
        block_on(self.into_future()).map(DocumentHandle::new)
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> TryAcquireDocument<T> {
    /// Tries on this thread, and blocks it until the server has answered; instead of awaiting the action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<Option<DocumentHandle<T>>, AcquireError> {
        Ok(block_on(self.into_future())?.map(DocumentHandle::new))
    }

    /// Tries on this thread, and fails with [`AcquireError::Held`] where the document is locked; instead of awaiting
    /// [`or_held`](Self::or_held).
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run_or_held(self) -> Result<DocumentHandle<T>, AcquireError> {
        block_on(self.or_held()).map(DocumentHandle::new)
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Claim<T> {
    /// Claims on this thread, and blocks it until there is a free document; instead of awaiting the action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<DocumentHandle<T>, AcquireError> {
        block_on(self.into_future()).map(DocumentHandle::new)
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> TryClaim<T> {
    /// Tries on this thread, and blocks it until the server has answered; instead of awaiting the action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<Option<DocumentHandle<T>>, AcquireError> {
        Ok(block_on(self.into_future())?.map(DocumentHandle::new))
    }
}

impl List {
    /// Lists on this thread, and blocks it until the server has answered; instead of awaiting the action.
    ///
    /// # Errors
    ///
    /// If the server can't be reached, or it refuses.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::sync::LockClient::in_memory();
    /// let handle = locks.mutex("invoice-42").acquire().run()?;
    /// assert_eq!(locks.list().prefix("invoice-").held(true).run()?.len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn run(self) -> Result<Vec<LockInfo>, OperateError> {
        block_on(self.into_future())
    }
}
