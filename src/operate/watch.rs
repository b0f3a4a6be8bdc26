//! The events of one lock, as they happen.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use futures::Stream;

use crate::{
    error::OperateError,
    input::check_name,
    inspect::{HolderInfo, LockInfo},
    protocol::State,
    session::{
        locks::LockSession,
        streams::follow::{Observation, Observations, Scope, follow},
    },
    store::Unreadable,
    token::FencingToken,
};

/// An event of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockEvent {
    /// The lock was granted; or, at the start of a stream, it is already held.
    #[non_exhaustive]
    Granted {
        /// The holder.
        holder: HolderInfo,
        /// The number of clients that wait after it.
        waiting: usize,
    },
    /// A holder released the lock, or gave it up after losing it.
    #[non_exhaustive]
    Released {
        /// The token of its grant.
        token: FencingToken,
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
            Self::Granted { holder, waiting } => {
                write!(f, "granted to {holder}")?;
                match waiting {
                    0 => Ok(()),
                    waiting => write!(f, ", {waiting} waiting"),
                }
            }
            Self::Released { token } => write!(f, "released, token {token}"),
            Self::Expired { token } => write!(f, "expired, token {token}"),
            Self::Adopted { token } => write!(f, "adopted, token {token}"),
            Self::Broken { token } => write!(f, "broken, token {token}"),
            Self::Deleted { token } => write!(f, "deleted, token {token}"),
            Self::Unreadable { problem } => write!(f, "not a lock: {problem}"),
        }
    }
}

/// The events of one lock: a stream. Made by [`LockClient::watch`](crate::LockClient::watch).
#[must_use = "a stream does nothing unless it is polled"]
#[derive(Debug)]
pub struct LockEvents {
    name: String,
    /// `Err`: the error of the name, until it has been reported.
    sights: Result<Observations, Option<OperateError>>,
    last: Option<State>,
    events: VecDeque<LockEvent>,
}

impl LockEvents {
    pub(crate) fn new(session: &LockSession, name: &str) -> Self {
        let sights = match check_name(name) {
            Ok(()) => Ok(follow(session, Scope::One(name.to_owned()))),
            Err(error) => Err(Some(error.into())),
        };
        Self {
            name: name.to_owned(),
            sights,
            last: None,
            events: VecDeque::new(),
        }
    }
}

/// Returns the events between two states of a lock's document.
fn between(name: &str, last: Option<&State>, state: Option<&State>) -> Vec<LockEvent> {
    let mut events = Vec::new();
    let before = last.map_or(&[][..], |last| &last.holders);
    let after = state.map_or(&[][..], |state| &state.holders);
    for gone in before
        .iter()
        .filter(|holder| after.iter().all(|other| other.id != holder.id))
    {
        let token = FencingToken::new(gone.token);
        events.push(match state {
            None => LockEvent::Deleted { token },
            Some(state) if state.adopted.contains(&gone.token) => LockEvent::Adopted { token },
            Some(state) if state.was_broken(gone.token) => LockEvent::Broken { token },
            // It was left out when its time came, or evicted by a write after that.
            Some(state) if gone.until <= state.at || last.is_some_and(|last| last.version == state.version) => {
                LockEvent::Expired { token }
            }
            Some(_) => LockEvent::Released { token },
        });
    }
    if let Some(state) = state {
        let holders = LockInfo::new(name, state).holders;
        let known = |token: FencingToken| before.iter().any(|holder| holder.token == token.as_i64());
        for holder in holders.into_iter().filter(|holder| !known(holder.token)) {
            events.push(LockEvent::Granted {
                holder,
                waiting: state.queue.len(),
            });
        }
    }
    events
}

impl Stream for LockEvents {
    type Item = Result<LockEvent, OperateError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.events.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            let sights = match &mut this.sights {
                Ok(sights) => sights,
                Err(error) => return Poll::Ready(error.take().map(Err)),
            };
            match std::task::ready!(sights.poll_recv(context)) {
                Some(Ok(Observation::State(_, state))) => {
                    this.events
                        .extend(between(&this.name, this.last.as_ref(), state.as_ref()));
                    this.last = state;
                }
                Some(Ok(Observation::Unreadable(Unreadable { problem, .. }))) => {
                    this.events.push_back(LockEvent::Unreadable { problem });
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// The events of all locks, each with the name of its lock: a stream. Made by
/// [`LockClient::watch_all`](crate::LockClient::watch_all).
#[must_use = "a stream does nothing unless it is polled"]
#[derive(Debug)]
pub struct AllLockEvents {
    sights: Observations,
    last: HashMap<String, State>,
    events: VecDeque<(String, LockEvent)>,
}

impl AllLockEvents {
    pub(crate) fn new(session: &LockSession) -> Self {
        Self {
            sights: follow(session, Scope::All),
            last: HashMap::new(),
            events: VecDeque::new(),
        }
    }
}

impl Stream for AllLockEvents {
    type Item = Result<(String, LockEvent), OperateError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.events.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            match std::task::ready!(this.sights.poll_recv(context)) {
                Some(Ok(Observation::Unreadable(Unreadable { name, problem }))) => {
                    this.events.push_back((name, LockEvent::Unreadable { problem }));
                }
                Some(Ok(Observation::State(name, state))) => {
                    let events = between(&name, this.last.get(&name), state.as_ref());
                    this.events
                        .extend(events.into_iter().map(|event| (name.clone(), event)));
                    match state {
                        Some(state) => this.last.insert(name, state),
                        None => this.last.remove(&name),
                    };
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
    }
}
