//! The actions by which every kind of lock is acquired.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use crate::{
    config::{check_name, check_text, check_timeout},
    error::{AcquireError, InvalidInput},
    handle::LockHandle,
    protocol::{Kind, Owner},
    session::{Session, line::Wanted},
};

/// What a kind of lock wants of the engine: so many permits of so many under a name.
#[derive(Clone)]
pub(crate) struct Share {
    pub(crate) session: Arc<Session>,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) capacity: i64,
    pub(crate) permits: i64,
}

/// What the two actions have in common.
#[derive(Clone)]
struct Request {
    share: Share,
    reason: Option<String>,
    value: Option<String>,
}

impl Request {
    async fn send(self, wait: bool, timeout: Option<Duration>) -> Result<Option<LockHandle>, AcquireError> {
        let Share {
            session,
            name,
            kind,
            capacity,
            permits,
        } = self.share;
        check_name(&name)?;
        if let Some(reason) = &self.reason {
            check_text("reason", reason)?;
        }
        if let Some(value) = &self.value {
            check_text("value", value)?;
        }
        timeout.map_or(Ok(()), check_timeout)?;
        if capacity < 1 {
            return Err(
                InvalidInput::new(format!("the {kind} has {capacity} permits; it must have at least 1")).into(),
            );
        }
        if !(1..=capacity).contains(&permits) {
            let message = format!("{permits} permits are asked for; of this {kind} it must be 1 to {capacity}");
            return Err(InvalidInput::new(message).into());
        }
        let owner = Owner {
            value: self.value,
            ..session.config.owner(self.reason)
        };
        let place = session.join(
            &name,
            Wanted {
                kind,
                capacity,
                permits,
                wait,
                owner,
            },
        );
        match place.outcome(timeout).await {
            Some(outcome) => Ok(outcome?.map(|hold| LockHandle::new(session, hold))),
            None => Err(AcquireError::Timeout {
                name,
                waited: timeout.unwrap_or_default(),
            }),
        }
    }
}

/// An acquire that waits for its turn; await it. Made by [`Mutex::acquire`](crate::Mutex::acquire).
///
/// It is an action and not yet a future: where one is wanted (`tokio::spawn`, `pin!`, `join_all`) write
/// `.into_future()`, from [`IntoFuture`]. A pinned future that is polled again and again keeps its place in the queue.
#[derive(Clone)]
#[must_use = "an acquire does nothing until it is awaited"]
pub struct Acquire {
    request: Request,
    timeout: Option<Duration>,
}

impl Acquire {
    pub(crate) fn new(share: Share) -> Self {
        Self {
            request: Request {
                share,
                reason: None,
                value: None,
            },
            timeout: None,
        }
    }

    /// What a leader proclaims.
    pub(crate) fn value(mut self, value: String) -> Self {
        self.request.value = Some(value);
        self
    }

    /// Gives up after `timeout` with [`AcquireError::Timeout`]; at most 366 days. Zero asks the server and does not wait
    /// for the lock; as a try, it takes as long as the driver takes to answer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Why the lock is wanted, up to 1,024 bytes, for people to read.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.request.reason = Some(reason.into());
        self
    }
}

impl IntoFuture for Acquire {
    type Output = Result<LockHandle, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let name = self.request.share.name.clone();
            let wait = self.timeout != Some(Duration::ZERO);
            let timeout = self.timeout.filter(|_| wait);
            let acquired = self.request.send(wait, timeout).await?;
            acquired.ok_or(AcquireError::Timeout {
                name,
                waited: Duration::ZERO,
            })
        })
    }
}

/// An acquire that does not wait; await it. Made by [`Mutex::try_acquire`](crate::Mutex::try_acquire).
#[derive(Clone)]
#[must_use = "a try does nothing until it is awaited"]
pub struct TryAcquire {
    request: Request,
}

impl TryAcquire {
    pub(crate) fn new(share: Share) -> Self {
        Self {
            request: Request {
                share,
                reason: None,
                value: None,
            },
        }
    }

    /// Why the lock is wanted, up to 1,024 bytes, for people to read.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.request.reason = Some(reason.into());
        self
    }
}

impl IntoFuture for TryAcquire {
    type Output = Result<Option<LockHandle>, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.request.send(false, None))
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Share {
            name, kind, permits, ..
        } = &self.share;
        write!(f, "{permits} of the {kind} `{}`", name.escape_debug())
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("request", &self.request)
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl fmt::Debug for TryAcquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryAcquire").field("request", &self.request).finish()
    }
}
