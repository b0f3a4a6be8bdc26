//! Events of locks, as they come and as lines of text.

use std::{
    pin::Pin,
    time::{Duration, SystemTime},
};

use futures::Stream;
use watchlock::{LockEvent, OperateError};

use crate::text::{plain, time};

/// Age beyond which a grant counts as present before the watch began.
const JUST_NOW: Duration = Duration::from_secs(2);

/// A stream of events, each with the name of its lock.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<(String, LockEvent), OperateError>>>>;

/// One event as a line.
pub(crate) fn line(at: SystemTime, name: &str, event: &LockEvent) -> String {
    let at = match event {
        // A grant from before the watch keeps its time, by the server's clock.
        LockEvent::Granted { holder, .. } if holder.since + JUST_NOW < at => holder.since,
        _ => at,
    };
    let why = match event {
        LockEvent::Granted { holder, .. } => holder.reason.as_deref(),
        _ => None,
    };
    let why = why.map(|why| format!(": {}", plain(why))).unwrap_or_default();
    format!("{}  {}  {event}{why}", time(at), plain(name))
}
