//! The events of one lock, as they happen.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
    time::SystemTime,
};

use futures::Stream;

#[cfg(feature = "sync")]
use crate::world::Blocking;
use crate::{
    error::{InvalidInput, OperateError},
    inspect::HolderInfo,
    protocol::{Holder, State},
    session::{
        UserHandle,
        streams::follow::{Observation, Observations, Scope, follow},
    },
    store::Unreadable,
    token::FencingToken,
    world::{Async, World},
};

/// An event of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(tag = "event", rename_all = "snake_case")
)]
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
            Self::Granted { holder, waiting } => {
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

/// The events of one lock: a stream; in the blocking world an iterator. Made by [`LockClient::watch`](crate::LockClient::watch) and
/// [`DocumentLocks::watch`](crate::DocumentLocks::watch).
#[must_use = "it does nothing unless it is asked for the next event"]
#[derive(Debug)]
pub struct LockEvents<W: World = Async> {
    /// `Err`: the error of the name, until it has been reported.
    sights: Result<Observations, Option<OperateError>>,
    last: Option<State>,
    events: VecDeque<LockEvent>,
    of: PhantomData<fn() -> W>,
}

impl<W: World> LockEvents<W> {
    /// Follows one name of a session.
    pub(crate) fn new(of: Result<(UserHandle, String), InvalidInput>) -> Self {
        Self {
            sights: of
                .map(|(session, name)| W::within(|| follow(session, Scope::One(name))))
                .map_err(|error| Some(error.into())),
            last: None,
            events: VecDeque::new(),
            of: PhantomData,
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
        .filter(|holder| after.iter().all(|other| other.id != holder.id))
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
                holder: HolderInfo::new(state, holder),
                waiting: state.queue.len(),
            });
        }
        let known = |holder: &Holder| {
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

impl LockEvents {
    /// Returns the next event; `None` when the stream has ended.
    ///
    /// It is `StreamExt::next` of the crate `futures`, for programs without that crate.
    ///
    /// # Errors
    ///
    /// An error that the server would repeat, after which the stream ends.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is lost when the future is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// # let handle = locks.mutex("invoice-42").acquire().await?;
    /// # let leadership = locks.election("scheduler").campaign("node 7").await?;
    /// let mut events = locks.watch("invoice-42");
    /// if let Some(next) = events.next().await.transpose()? {
    ///     println!("{next:?}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Option<Result<LockEvent, OperateError>> {
        std::future::poll_fn(|context| self.poll(context)).await
    }
}

impl<W: World> LockEvents<W> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<LockEvent, OperateError>>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            let sights = match &mut self.sights {
                Ok(sights) => sights,
                Err(error) => return Poll::Ready(error.take().map(Err)),
            };
            match std::task::ready!(sights.poll_recv(context)) {
                Some(Ok(Observation::State(_, state))) => {
                    self.events.extend(between(self.last.as_ref(), state.as_ref()));
                    self.last = state;
                }
                Some(Ok(Observation::Unreadable(Unreadable { problem, .. }))) => {
                    self.events.push_back(LockEvent::Unreadable { problem });
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Stream for LockEvents {
    type Item = Result<LockEvent, OperateError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(context)
    }
}

#[cfg(feature = "sync")]
impl Iterator for LockEvents<Blocking> {
    type Item = Result<LockEvent, OperateError>;

    fn next(&mut self) -> Option<Self::Item> {
        Blocking::call(std::future::poll_fn(|context| self.poll(context)))
    }
}

/// The events of all locks, each with the name of its lock: a stream; in the blocking world an iterator. Made by
/// [`LockClient::watch_all`](crate::LockClient::watch_all) and
/// [`DocumentLocks::watch_all`](crate::DocumentLocks::watch_all).
#[must_use = "it does nothing unless it is asked for the next event"]
#[derive(Debug)]
pub struct AllLockEvents<W: World = Async> {
    /// `Err`: the error of the field, until it has been reported.
    sights: Result<Observations, Option<OperateError>>,
    /// The locks that are held.
    last: HashMap<String, State>,
    events: VecDeque<(String, LockEvent)>,
    of: PhantomData<fn() -> W>,
}

impl<W: World> AllLockEvents<W> {
    pub(crate) fn new(session: Result<UserHandle, InvalidInput>) -> Self {
        Self {
            sights: session
                .map(|session| W::within(|| follow(session, Scope::All)))
                .map_err(|error| Some(error.into())),
            last: HashMap::new(),
            events: VecDeque::new(),
            of: PhantomData,
        }
    }
}

impl AllLockEvents {
    /// Returns the next event, with the name of its lock; `None` when the stream has ended.
    ///
    /// It is `StreamExt::next` of the crate `futures`, for programs without that crate.
    ///
    /// # Errors
    ///
    /// An error that the server would repeat, after which the stream ends.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is lost when the future is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// # let handle = locks.mutex("invoice-42").acquire().await?;
    /// # let leadership = locks.election("scheduler").campaign("node 7").await?;
    /// let mut events = locks.watch_all();
    /// if let Some(next) = events.next().await.transpose()? {
    ///     println!("{next:?}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Option<Result<(String, LockEvent), OperateError>> {
        std::future::poll_fn(|context| self.poll(context)).await
    }
}

impl<W: World> AllLockEvents<W> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(String, LockEvent), OperateError>>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            let sights = match &mut self.sights {
                Ok(sights) => sights,
                Err(error) => return Poll::Ready(error.take().map(Err)),
            };
            match std::task::ready!(sights.poll_recv(context)) {
                Some(Ok(Observation::Unreadable(Unreadable { name, problem }))) => {
                    self.events.push_back((name, LockEvent::Unreadable { problem }));
                }
                Some(Ok(Observation::State(name, state))) => {
                    let events = between(self.last.get(&name), state.as_ref());
                    self.events
                        .extend(events.into_iter().map(|event| (name.clone(), event)));
                    match state.filter(|state| !state.holders.is_empty()) {
                        Some(state) => self.last.insert(name, state),
                        None => self.last.remove(&name),
                    };
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Stream for AllLockEvents {
    type Item = Result<(String, LockEvent), OperateError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(context)
    }
}

#[cfg(feature = "sync")]
impl Iterator for AllLockEvents<Blocking> {
    type Item = Result<(String, LockEvent), OperateError>;

    fn next(&mut self) -> Option<Self::Item> {
        Blocking::call(std::future::poll_fn(|context| self.poll(context)))
    }
}
