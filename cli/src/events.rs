//! Events of locks, as they come and as lines of text.

use std::{pin::Pin, time::SystemTime};

use futures::Stream;
use watchlock::{LockEvent, OperateError};

use crate::text::{plain, time};

/// A stream of events, each with the name of its lock.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<(String, LockEvent), OperateError>>>>;

/// One event as a line, with the time at which it was seen, by the server's clock.
pub(crate) fn line(seen: SystemTime, name: &str, event: &LockEvent) -> String {
    let at = match event {
        // It may be of before the watch.
        LockEvent::Granted { holder, .. } => holder.since,
        _ => seen,
    };
    let why = match event {
        LockEvent::Granted { holder, .. } => holder.reason.as_deref(),
        _ => None,
    };
    let why = why.map(|why| format!(": {}", plain(why))).unwrap_or_default();
    format!("{}  {}  {event}{why}", time(at), plain(name))
}
