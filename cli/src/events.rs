//! Events of locks, as they come and as lines of text.

use std::{pin::Pin, time::SystemTime};

use futures::Stream;
use watchlock::{errors::OperateError, operate::LockEvent};

use crate::text::{plain, time};

/// A stream of events, each with the name of its lock.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<(String, LockEvent), OperateError>>>>;

/// An event, the name of its lock, and its time by the server's clock.
#[derive(Debug)]
pub(crate) struct Seen {
    at: SystemTime,
    name: String,
    event: LockEvent,
}

impl Seen {
    /// Takes an event that was seen at this time.
    pub(crate) fn new(seen: SystemTime, name: String, event: LockEvent) -> Self {
        let at = match &event {
            // It may be of before the watch.
            LockEvent::Granted { holder, .. } => holder.since,
            _ => seen,
        };
        Self { at, name, event }
    }

    /// Returns the event as a line.
    pub(crate) fn line(&self) -> String {
        let Self { at, name, event } = self;
        let why = match event {
            LockEvent::Granted { holder, .. } => holder.owner.reason.as_deref(),
            _ => None,
        };
        let why = why.map(|why| format!(": {}", plain(why))).unwrap_or_default();
        format!("{}  {}  {event}{why}", time(*at), plain(name))
    }
}
