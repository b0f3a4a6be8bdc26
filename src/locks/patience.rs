//! The patience of an acquire: how it goes on where the lock is not free, and its result.

use crate::{error::AcquireError, waitlist, world::Sealed};

/// [`Wait`], [`Try`] or [`OrHeld`]: how an acquire goes on where the lock is not free. The second parameter of
/// [`Acquire`](crate::Acquire).
pub trait Patience: Sealed + Unpin + 'static {
    /// The result of an acquire, whose handle is an `X`: that, or for a [`Try`] an `Option<X>`.
    type Given<X>;
    /// The same for the core.
    #[doc(hidden)]
    const PATIENCE: waitlist::Patience;

    #[doc(hidden)]
    fn given<X>(acquired: Result<X, AcquireError>) -> Result<Self::Given<X>, AcquireError>;
}

/// Waits for its turn.
#[derive(Clone, Copy, Debug)]
pub enum Wait {}

/// Does not wait: gives `None` if the lock is not free.
#[derive(Clone, Copy, Debug)]
pub enum Try {}

/// Does not wait: fails with [`AcquireError::Held`], which names the holder, if the lock is not free.
#[derive(Clone, Copy, Debug)]
pub enum OrHeld {}

impl Sealed for Wait {}
impl Sealed for Try {}
impl Sealed for OrHeld {}

impl Patience for Wait {
    type Given<X> = X;
    const PATIENCE: waitlist::Patience = waitlist::Patience::Wait;

    fn given<X>(acquired: Result<X, AcquireError>) -> Result<X, AcquireError> {
        acquired
    }
}

impl Patience for Try {
    type Given<X> = Option<X>;
    const PATIENCE: waitlist::Patience = waitlist::Patience::Try;

    fn given<X>(acquired: Result<X, AcquireError>) -> Result<Option<X>, AcquireError> {
        match acquired {
            Err(AcquireError::Held { .. }) => Ok(None),
            acquired => acquired.map(Some),
        }
    }
}

impl Patience for OrHeld {
    type Given<X> = X;
    const PATIENCE: waitlist::Patience = waitlist::Patience::Try;

    fn given<X>(acquired: Result<X, AcquireError>) -> Result<X, AcquireError> {
        acquired
    }
}
