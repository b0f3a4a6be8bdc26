//! The events of a lock.

use std::{collections::HashMap, fmt, sync::Arc, time::SystemTime};

use super::events::Seen;
use crate::{
    inspect::HolderInfo,
    protocol::{Entry, State},
    token::FencingToken,
};

/// An event of a lock.
///
/// With the feature `serde` it can be written in any format, and read back from those that name their fields, such as
/// JSON and BSON.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(tag = "event", rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum LockEvent {
    /// The lock was granted; or, at the start of a stream, it is already held.
    #[non_exhaustive]
    Granted {
        /// The token of the grant.
        token: FencingToken,
        /// The holder.
        holder: Box<HolderInfo>,
        /// The number of clients that wait after it.
        waiting: usize,
    },
    /// A holder released the lock, or gave it up after losing it.
    #[non_exhaustive]
    Released {
        /// The token of its grant.
        token: FencingToken,
    },
    /// A holder released the lock, which stays taken for a while ([`at_least_for`](crate::Acquire::at_least_for)). When
    /// that time ends, [`Released`](Self::Released) follows.
    #[non_exhaustive]
    Kept {
        /// The token of its grant.
        token: FencingToken,
        /// When the lock opens, by the server's clock.
        #[cfg_attr(feature = "serde", serde(with = "crate::rfc3339"))]
        until: SystemTime,
    },
    /// The lease of a holder expired.
    #[non_exhaustive]
    Expired {
        /// The token of its grant.
        token: FencingToken,
    },
    /// An operator broke the lock of a holder.
    #[non_exhaustive]
    Broken {
        /// The token of its grant.
        token: FencingToken,
    },
    /// A later incarnation of the holder took the lock over, with the same
    /// [`owner_id`](crate::LockClientBuilder::owner_id).
    #[non_exhaustive]
    Adopted {
        /// The token of the grant that was taken over.
        token: FencingToken,
    },
    /// The lock's document was deleted, or overwritten by something that is not a lock, while it was held.
    #[non_exhaustive]
    Deleted {
        /// The token of the grant.
        token: FencingToken,
    },
    /// A document in the collection is not a lock, or can't be read. It is left alone and reported once, and no other
    /// lock is affected. If its `_id` is not UTF-8, its name is shown with `\u{fffd}` in it.
    #[non_exhaustive]
    Unreadable {
        /// The reason why it is not a lock or can't be read.
        problem: String,
    },
}

impl fmt::Display for LockEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { holder, waiting, .. } => {
                write!(f, "granted to {holder}")?;
                match waiting {
                    0 => Ok(()),
                    waiting => write!(f, ", {waiting} waiting"),
                }
            }
            Self::Released { token } => write!(f, "released, token {token}"),
            Self::Kept { token, .. } => write!(f, "released and kept taken, token {token}"),
            Self::Expired { token } => write!(f, "expired, token {token}"),
            Self::Adopted { token } => write!(f, "adopted, token {token}"),
            Self::Broken { token } => write!(f, "broken, token {token}"),
            Self::Deleted { token } => write!(f, "deleted, token {token}"),
            Self::Unreadable { problem } => write!(f, "not a lock: {problem}"),
        }
    }
}

/// Returns the events between two states of a lock's document.
fn between(last: Option<&State>, state: Option<&State>) -> Vec<LockEvent> {
    let mut events = Vec::new();
    let before = last.map_or(&[][..], |last| &last.holders);
    let after = state.map_or(&[][..], |state| &state.holders);
    for gone in before
        .iter()
        .filter(|holder| after.iter().all(|other| other.token != holder.token))
    {
        let token = FencingToken::new(gone.token);
        // It was left out when its time came, or evicted by a write after that.
        let is_over = |state: &State| !gone.is_live(state.at) || last.is_some_and(|last| last.version == state.version);
        // A break names the largest token that it evicted, and evicts nobody whose time is over.
        let is_named = |state: &State| [state.broken, state.evicted].contains(&Some(gone.token));
        let is_broken = |state: &State| state.was_broken(gone.token) && (is_named(state) || !is_over(state));
        events.push(match state {
            None => LockEvent::Deleted { token },
            Some(state) if state.adopted.contains(&gone.token) => LockEvent::Adopted { token },
            Some(state) if is_broken(state) => LockEvent::Broken { token },
            // The time for which the lock was kept is over.
            Some(_) if gone.is_kept() => LockEvent::Released { token },
            Some(state) if is_over(state) => LockEvent::Expired { token },
            Some(_) => LockEvent::Released { token },
        });
    }
    if let Some(state) = state {
        let known = |token: i64| before.iter().any(|holder| holder.token == token);
        for holder in state.holders.iter().filter(|holder| !known(holder.token)) {
            events.push(LockEvent::Granted {
                token: FencingToken::new(holder.token),
                holder: Box::new(HolderInfo::new(state, holder)),
                waiting: state.queue.len(),
            });
        }
        let known = |holder: &Entry| {
            before
                .iter()
                .any(|other| other.token == holder.token && other.is_kept())
        };
        for holder in state.holders.iter().filter(|holder| holder.is_kept() && !known(holder)) {
            events.push(LockEvent::Kept {
                token: FencingToken::new(holder.token),
                until: holder.until.into(),
            });
        }
    }
    events
}

/// Returns the events that follow from the next state of a lock.
fn following(past: &mut Option<Arc<State>>, seen: Seen) -> Vec<LockEvent> {
    // A document that is no lock holds nothing.
    let (state, problem) = match seen {
        Ok(state) => (state, None),
        Err(problem) => (None, Some(problem)),
    };
    let mut events = between(past.as_deref(), state.as_deref());
    events.extend(problem.map(|problem| LockEvent::Unreadable { problem }));
    *past = state;
    events
}

/// Follows one lock.
pub(crate) fn events_of_one() -> impl FnMut(String, Seen) -> Vec<LockEvent> {
    let mut past = None;
    move |_, seen| following(&mut past, seen)
}

/// Follows all locks: each event has the name of its lock.
pub(crate) fn events_of_all() -> impl FnMut(String, Seen) -> Vec<(String, LockEvent)> {
    let mut held = HashMap::<String, Arc<State>>::new();
    move |name, seen| {
        let mut last = held.remove(&name);
        let events = following(&mut last, seen);
        if let Some(last) = last.filter(|last| !last.holders.is_empty()) {
            held.insert(name.clone(), last);
        }
        events.into_iter().map(|event| (name.clone(), event)).collect()
    }
}
