//! What is watched, as a stream or an iterator.

use std::{
    collections::VecDeque,
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures::Stream;

#[cfg(feature = "sync")]
use crate::world::Blocking;
use crate::{
    error::{InvalidInput, OperateError},
    protocol::State,
    session::{
        UserHandle,
        streams::{Observations, observers::Scope},
    },
    world::{Async, World},
};

/// A state of a lock, as it is observed; of a document that is not one, the problem.
pub(crate) type Seen = Result<Option<Arc<State>>, String>;

/// Returns the values that follow from the next state of a lock: events, or leaders. It keeps the past on which they
/// depend.
type Follow<T> = Box<dyn FnMut(String, Seen) -> Vec<T> + Send + Sync>;

/// Events, as they happen: a stream; in the blocking world an iterator.
///
/// Those of one lock are `Events<LockEvent>`, from [`LockClient::watch`](crate::LockClient::watch). Those of all locks
/// are `Events<(String, LockEvent)>`, each with the name of its lock, from
/// [`LockClient::watch_all`](crate::LockClient::watch_all). The leaders of an election are
/// `Events<Option<Leader>>`, from [`Election::observe`](crate::election::Election::observe).
#[must_use = "it does nothing unless it is asked for the next event"]
pub struct Events<T, W: World = Async> {
    /// `Err`: the error of the name, until it has been reported.
    observations: Result<Observations, Option<OperateError>>,
    follow: Follow<T>,
    next: VecDeque<T>,
    of: PhantomData<fn() -> W>,
}

impl<T, W: World> Events<T, W> {
    pub(crate) fn new(
        of: Result<(UserHandle, Scope), InvalidInput>,
        follow: impl FnMut(String, Seen) -> Vec<T> + Send + Sync + 'static,
    ) -> Self {
        Self {
            observations: of
                .map(|(session, scope)| W::within(|| Observations::begin(session, scope)))
                .map_err(|error| Some(error.into())),
            follow: Box::new(follow),
            next: VecDeque::new(),
            of: PhantomData,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, OperateError>>> {
        loop {
            if let Some(next) = self.next.pop_front() {
                return Poll::Ready(Some(Ok(next)));
            }
            let observations = match &mut self.observations {
                Ok(observations) => observations,
                Err(error) => return Poll::Ready(error.take().map(Err)),
            };
            match ready!(observations.poll_next(context)) {
                Some(Ok((name, seen))) => {
                    let seen = seen.map_err(|unreadable| unreadable.problem);
                    self.next.extend((self.follow)(name, seen));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl<T> Events<T> {
    /// Returns the next event; `None` when the stream has ended, as it does after an error that the server would
    /// repeat.
    ///
    /// It is `StreamExt::next` of the crate `futures`, for programs without that crate. Cancel safe: nothing is lost.
    /// An example is at [`LockClient::watch`](crate::LockClient::watch).
    pub async fn next(&mut self) -> Option<Result<T, OperateError>> {
        std::future::poll_fn(|context| self.poll(context)).await
    }
}

impl<T: Unpin> Stream for Events<T> {
    type Item = Result<T, OperateError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(context)
    }
}

#[cfg(feature = "sync")]
impl<T> Iterator for Events<T, Blocking> {
    type Item = Result<T, OperateError>;

    fn next(&mut self) -> Option<Self::Item> {
        Blocking::call(std::future::poll_fn(|context| self.poll(context)))
    }
}

impl<T: fmt::Debug, W: World> fmt::Debug for Events<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("observations", &self.observations)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}
