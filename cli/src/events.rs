//! Events of locks, as they come and as lines of text.

use std::{
    pin::Pin,
    time::{Duration, SystemTime},
};

use futures::Stream;
use watchlock::{FencingToken, errors::OperateError, operate::LockEvent};

use crate::{
    holder::{who, why},
    table::Digits,
    text::{cut, plain, time, width_up_to},
};

/// Age up to which the time of the day is enough for an event.
const TODAY: Duration = Duration::from_secs(24 * 3600);

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

    /// Returns the token that its lines show.
    pub(crate) fn token(&self) -> Option<FencingToken> {
        match &self.event {
            LockEvent::Released { token, .. }
            | LockEvent::Kept { token, .. }
            | LockEvent::Expired { token, .. }
            | LockEvent::Adopted { token, .. }
            | LockEvent::Broken { token, .. }
            | LockEvent::Deleted { token, .. } => Some(*token),
            _ => None,
        }
    }

    /// Returns a shorter line, in which the reason can be read where there is little room.
    fn brief(&self, digits: Digits, now: SystemTime) -> String {
        let Self { at, name, event } = self;
        let at = time(*at);
        // `2026-01-01T12:00:00.000Z`: of today the time, of before the day and the time to the minute.
        let at = match now.duration_since(self.at) {
            Ok(age) if age >= TODAY => format!("{} {}", &at[..10], &at[11..16]),
            _ => at[11..19].to_owned(),
        };
        let what = match (event, self.token()) {
            (LockEvent::Granted { holder, waiting, .. }, _) => {
                let waiting = Some(waiting).filter(|waiting| **waiting > 0);
                let waiting = waiting.map(|waiting| format!(", {waiting} waiting"));
                let why = Some(why(holder)).filter(|why| why != "-").map(|why| format!(": {why}"));
                let (waiting, why) = (waiting.unwrap_or_default(), why.unwrap_or_default());
                format!("granted to {}{waiting}{why}", who(holder))
            }
            (event, Some(token)) => event.to_string().replace(&token.to_string(), &digits.brief(token)),
            (event, None) => event.to_string(),
        };
        format!("{at}  {}  {what}", plain(name))
    }
}

/// Returns events as lines of one form: a shorter one if some would not fit otherwise.
pub(crate) fn lines<'a>(
    events: impl Iterator<Item = &'a Seen> + Clone,
    columns: usize,
    digits: Digits,
    now: SystemTime,
) -> Vec<String> {
    let whole: Vec<String> = events.clone().map(Seen::line).collect();
    if whole.iter().all(|line| width_up_to(line, columns) <= columns) {
        return whole;
    }
    events.map(|event| cut(&event.brief(digits, now), columns)).collect()
}
