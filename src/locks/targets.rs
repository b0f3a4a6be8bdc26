//! The targets that are locks of their own, and what each can do.

use super::{
    acquire::{CanAcquire, Got},
    options::{CanFix, CanIdle, CanKeep, CanLimit, CanReenter, HasHolder, Options},
    patience::Otherwise,
    request::Share,
};
use crate::{
    error::AcquireError,
    handle::{
        owned::OwnedHold,
        target::{IsKnown, IsOne, Target},
    },
    world::Sealed,
};

/// Makes targets of one lock each.
macro_rules! targets {
    ($($(#[$doc:meta])* $vis:vis $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        $vis struct $name(pub(crate) Share);

        impl Sealed for $name {}

        impl Target for $name {
            type Held = Self;
            type Own = OwnedHold;
            type Data = ();
        }

        impl IsOne for $name {}
        impl IsKnown for $name {}
        impl HasHolder for $name {}

        impl CanAcquire for $name {
            async fn ask(self, options: Options, otherwise: Otherwise) -> Result<Got<Self>, AcquireError> {
                Ok((self.0.acquire(options, otherwise).await?, ()))
            }
        }
    )*};
}

targets! {
    /// A [mutex](crate::Mutex).
    pub Mutex,
    /// Permits of a [semaphore](crate::Semaphore).
    pub Semaphore,
    /// A reader of a [readers-writer lock](crate::RwLock).
    pub Read,
    /// A writer of a [readers-writer lock](crate::RwLock).
    pub Write,
    /// The lead of an [election](crate::Election).
    pub Leadership,
    /// A place at a latch or a barrier.
    pub(crate) Place,
}

impl CanKeep for Mutex {}
impl CanKeep for Semaphore {}
impl CanKeep for Read {}
impl CanKeep for Write {}

impl CanIdle for Mutex {}
impl CanIdle for Semaphore {}
impl CanIdle for Write {}

impl CanReenter for Mutex {}
impl CanReenter for Read {}
impl CanReenter for Write {}

impl CanLimit for Mutex {}
impl CanLimit for Semaphore {}
impl CanLimit for Read {}
impl CanLimit for Write {}

impl CanFix for Mutex {}
impl CanFix for Semaphore {}
impl CanFix for Read {}
impl CanFix for Write {}
