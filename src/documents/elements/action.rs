//! Actions that lock elements.

use std::{fmt, future::IntoFuture, time::Duration};

use mongodb::bson::Bson;
use serde::de::DeserializeOwned;

use super::{ElementHandle, ElementLocks};
use crate::{
    brief::Brief,
    documents::action::{ActionFuture, DocumentAcquiring, Options, debug_as_request, with_options},
    error::AcquireError,
    handle::LockHandle,
    store::read_as,
};

/// An acquire of one element that waits for its turn; await it. Made by [`ElementLocks::acquire`].
#[must_use = "an acquire does nothing until it is awaited"]
pub struct AcquireElement<E> {
    locks: ElementLocks<E>,
    id: Bson,
    options: Options,
}

impl<E> AcquireElement<E> {
    pub(super) fn new(locks: ElementLocks<E>, id: Bson) -> Self {
        let options = Options::default();
        Self { locks, id, options }
    }
}

with_options! {
    AcquireElement,
    /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
}

impl<E: DeserializeOwned + Send + Sync + 'static> IntoFuture for AcquireElement<E> {
    type Output = Result<ElementHandle<E>, AcquireError>;
    type IntoFuture = ActionFuture<ElementHandle<E>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let acquiring = DocumentAcquiring::new(self.locks.place(&self.id)?, &self.options);
            let handle = acquiring.wait().await.map_err(|error| self.locks.missing(error))?;
            self.locks.fetched(&acquiring, handle, &self.id).await
        })
    }
}

/// An acquire of one element that does not wait; await it. Made by [`ElementLocks::try_acquire`].
#[must_use = "a try does nothing until it is awaited"]
pub struct TryAcquireElement<E> {
    locks: ElementLocks<E>,
    id: Bson,
    options: Options,
}

impl<E> TryAcquireElement<E> {
    pub(super) fn new(locks: ElementLocks<E>, id: Bson) -> Self {
        let options = Options::default();
        Self { locks, id, options }
    }
}

with_options! {
    TryAcquireElement,
    /// Gives up if the server has not answered after `timeout`; see
    /// [`TryAcquire::timeout`](crate::TryAcquire::timeout).
}

impl<E: DeserializeOwned + Send + Sync + 'static> TryAcquireElement<E> {
    /// Tries, and fails with [`AcquireError::Held`], which names the holder, if the element is locked. Set other
    /// options first.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, like [`ElementLocks::acquire`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lines: watchlock::ElementLocks<mongodb::bson::Document>) {
    /// match lines.try_acquire("order-7").or_held().await {
    ///     Ok(line) => println!("ours: {}", line.element()),
    ///     Err(error) => println!("{error}"),
    /// }
    /// # }
    /// ```
    pub async fn or_held(self) -> Result<ElementHandle<E>, AcquireError> {
        let acquiring = DocumentAcquiring::new(self.locks.place(&self.id)?, &self.options);
        let handle = acquiring.at_once().or_held().await;
        let handle = handle.map_err(|error| self.locks.missing(error))?;
        self.locks.fetched(&acquiring, handle, &self.id).await
    }
}

impl<E: DeserializeOwned + Send + Sync + 'static> IntoFuture for TryAcquireElement<E> {
    type Output = Result<Option<ElementHandle<E>>, AcquireError>;
    type IntoFuture = ActionFuture<Option<ElementHandle<E>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let acquiring = DocumentAcquiring::new(self.locks.place(&self.id)?, &self.options);
            let tried = acquiring.at_once().await;
            match tried.map_err(|error| self.locks.missing(error))? {
                Some(handle) => self.locks.fetched(&acquiring, handle, &self.id).await.map(Some),
                None => Ok(None),
            }
        })
    }
}

impl<E: DeserializeOwned> ElementLocks<E> {
    /// Reads the element in the rest of the timeout; on a timeout, and if there is not exactly one, the lock is
    /// released again.
    async fn fetched(
        &self,
        acquiring: &DocumentAcquiring<'_>,
        handle: LockHandle,
        id: &Bson,
    ) -> Result<ElementHandle<E>, AcquireError> {
        let (session, key) = self.session()?;
        let name = handle.name().to_owned();
        let array = self.array.clone();
        let Some(found) = acquiring.in_time(session.elements(&name)).await? else {
            return Err(self.missing(AcquireError::NoDocument { name }));
        };
        match &found[..] {
            [] => Err(AcquireError::NoElement { name, array }),
            [element] => match read_as(element) {
                Ok(element) => Ok(ElementHandle::new(
                    session.clone(),
                    handle,
                    key.clone(),
                    array,
                    id.clone(),
                    element,
                )),
                Err(cause) => Err(AcquireError::Unreadable { name, cause }),
            },
            found => Err(AcquireError::AmbiguousElement {
                name,
                array,
                matched: found.len(),
            }),
        }
    }
}

impl<E> ElementLocks<E> {
    /// Returns the error for an element where one for a document was found: the server was asked for both at once.
    fn missing(&self, error: AcquireError) -> AcquireError {
        match error {
            AcquireError::NoDocument { name } => AcquireError::NoElement {
                name,
                array: self.array.clone(),
            },
            error => error,
        }
    }
}

debug_as_request!(AcquireElement: id, TryAcquireElement: id);
