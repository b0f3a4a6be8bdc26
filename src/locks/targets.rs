//! The locks as targets of an acquire, and what each can do.

use super::{
    acquire::{CanAcquire, Got},
    election::Election,
    mutex::Mutex,
    options::Options,
    request::Share,
    semaphore::Semaphore,
};
use crate::{
    error::AcquireError,
    handle::target::{CanIdle, CanReenter, IsLock, IsOne, One, Target},
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

/// Makes targets of one lock each.
macro_rules! targets {
    ($($name:ty),*) => {$(
        impl Sealed for $name {}

        impl Target for $name {
            type Held = Self;
            type Count = One;
            type Request = Share;
            type Data = ();
        }

        impl CanAcquire for $name {
            async fn ask(share: Share, options: Options) -> Result<Got<Self>, AcquireError> {
                Ok((share.acquire(options).await?, ()))
            }
        }
    )*};
}

targets!(Mutex, Semaphore, Read, UpgradeableRead, Write, Election);

/// Says of targets what they can do.
macro_rules! can {
    ($($ability:ident: $($name:ty),*;)*) => {
        $($(impl $ability for $name {})*)*
    };
}

can! {
    IsOne: Mutex, Semaphore, Read, UpgradeableRead, Write, Election;
    IsLock: Mutex, Semaphore, Read, UpgradeableRead, Write;
    CanIdle: Mutex, Semaphore, Write;
    CanReenter: Mutex, Read, UpgradeableRead, Write;
}
