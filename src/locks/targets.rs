//! The locks as targets of an acquire, and what each can do.

use super::{
    acquire::{Ask, Got},
    election::Election,
    mutex::Mutex,
    options::{CanFix, CanIdle, CanKeep, CanLimit, CanReenter, HasHolder, Options},
    request::Share,
    semaphore::Semaphore,
};
use crate::{
    error::AcquireError,
    handle::{
        count::One,
        owned::OwnedHold,
        target::{CanDetach, IsKnown, IsOne, Target},
    },
    waitlist::Patience,
    world::Sealed,
};

/// A reader of a [readers-writer lock](crate::locks::RwLock).
#[derive(Clone, Copy, Debug)]
pub enum Read {}

/// A reader of a [readers-writer lock](crate::locks::RwLock) that can [become a writer](crate::Held::upgrade).
#[derive(Clone, Copy, Debug)]
pub enum UpgradeableRead {}

/// A writer of a [readers-writer lock](crate::locks::RwLock).
#[derive(Clone, Copy, Debug)]
pub enum Write {}

/// A place at a latch or a barrier.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {}

/// Makes targets of one lock each.
macro_rules! targets {
    ($($name:ty),*) => {$(
        impl Sealed for $name {}

        impl Target for $name {
            type Held = Self;
            type Count = One;
            type Request = Share;
            type Own = OwnedHold;
            type Data = ();
        }

        impl IsOne for $name {}
        impl IsKnown for $name {}
        impl HasHolder for $name {}

        impl Ask for $name {
            async fn ask(share: Share, options: Options, patience: Patience) -> Result<Got<Self>, AcquireError> {
                Ok((share.acquire(options, patience).await?, ()))
            }
        }
    )*};
}

targets!(Mutex, Semaphore, Read, UpgradeableRead, Write, Election, Place);

/// Gives targets the options that they can have.
macro_rules! options {
    ($($option:ident: $($name:ty),*;)*) => {
        $($(impl $option for $name {})*)*
    };
}

options! {
    CanKeep: Mutex, Semaphore, Read, UpgradeableRead, Write;
    CanIdle: Mutex, Semaphore, Write;
    CanReenter: Mutex, Read, UpgradeableRead, Write;
    CanLimit: Mutex, Semaphore, Read, UpgradeableRead, Write;
    CanFix: Mutex, Semaphore, Read, UpgradeableRead, Write;
    CanDetach: Mutex, Semaphore, Read, UpgradeableRead, Write;
}
