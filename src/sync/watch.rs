//! The events of one lock, as they happen.

use super::block_on;
use crate::{error::OperateError, operate::watch::LockEvent};

/// The events of one lock: an iterator that blocks until there is one. Made by
/// [`LockClient::watch`](super::LockClient::watch).
///
/// It ends after an error that the server would repeat, and with the client's shutdown.
///
/// # Panics
///
/// `next` panics on a thread of an async runtime; see [`sync`](crate::sync#panics).
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// use watchlock::LockEvent;
///
/// let handle = locks.mutex("invoice-42").acquire().run()?;
/// let mut events = locks.watch("invoice-42");
/// assert!(matches!(events.next(), Some(Ok(LockEvent::Granted { .. }))));
/// handle.release()?;
/// assert!(matches!(events.next(), Some(Ok(LockEvent::Released { .. }))));
/// # Ok(()) }
/// ```
#[must_use = "an iterator does nothing unless it is asked for the next item"]
#[derive(Debug)]
pub struct LockEvents {
    events: crate::LockEvents,
}

impl LockEvents {
    pub(super) fn new(events: crate::LockEvents) -> Self {
        Self { events }
    }
}

impl Iterator for LockEvents {
    type Item = Result<LockEvent, OperateError>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.events.next())
    }
}

/// The events of all locks, each with the name of its lock: an iterator that blocks until there is an event. Made by
/// [`LockClient::watch_all`](super::LockClient::watch_all).
///
/// # Panics
///
/// `next` panics on a thread of an async runtime; see [`sync`](crate::sync#panics).
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// let handle = locks.mutex("invoice-42").acquire().run()?;
/// let (name, _) = locks.watch_all().next().expect("the client lives")?;
/// assert_eq!(name, "invoice-42");
/// # handle.release()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "an iterator does nothing unless it is advanced"]
pub struct AllLockEvents {
    events: crate::AllLockEvents,
}

impl AllLockEvents {
    pub(super) fn new(events: crate::AllLockEvents) -> Self {
        Self { events }
    }
}

impl Iterator for AllLockEvents {
    type Item = Result<(String, LockEvent), OperateError>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.events.next())
    }
}
