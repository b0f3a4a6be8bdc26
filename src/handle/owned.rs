//! A hold of one lock, and the view of it.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{
    Released,
    own::{Own, Seen},
};
use crate::{
    error::{ReleaseError, RenewError, ServerError},
    protocol::wake::Left,
    session::{
        Session, UserHandle,
        hold::{Hold, Remains},
    },
    status::{LockStatus, Lost, LostReason},
    store::LockLayout,
    telemetry,
    token::FencingToken,
};

/// A hold of one lock: released when it is dropped.
pub struct OwnedHold {
    session: UserHandle,
    seen: SeenHold,
    /// Whether it no longer counts among the handles of the hold.
    gone: bool,
}

impl OwnedHold {
    pub(crate) fn new(session: UserHandle, hold: Arc<Hold>) -> Self {
        let seen = SeenHold {
            hold,
            session: Arc::downgrade(&**session),
            locked: session.store.in_place().cloned(),
        };
        Self {
            session,
            seen,
            gone: false,
        }
    }

    pub(crate) fn session(&self) -> &UserHandle {
        &self.session
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.seen.hold
    }

    /// Returns why the lock is lost, after a write under it has found that. The watch over the hold may not have
    /// noticed yet, so the server is asked.
    pub(crate) async fn loss(&self) -> Lost {
        match self.renew().await {
            Err(RenewError::Lost(lost)) => lost,
            _ => Seen::loss(&self.seen).unwrap_or(self.lost_as(LostReason::Overwritten)),
        }
    }

    fn unconfirmed(&self, error: ServerError) -> ReleaseError {
        let name = &self.hold().name;
        telemetry::release_failed(name, &error);
        ReleaseError::Server {
            name: name.clone(),
            error,
        }
    }
}

impl Own for OwnedHold {
    type Seen = SeenHold;

    fn seen(&self) -> SeenHold {
        self.seen.clone()
    }

    async fn renew(&self) -> Result<Duration, RenewError> {
        self.check()?;
        self.session.ensure_usable()?;
        // Not as its user: the answer can take longer than the user keeps the handle.
        let (session, hold) = ((**self.session).clone(), self.seen.hold.clone());
        let within = hold.safe_for();
        let renewal = async move { session.renew_together(&[hold], within).await };
        // It can hang in the driver for longer than the lease, which other renewals extend in the meantime.
        let renewed = tokio::select! {
            biased;
            renewed = self.session.in_time(within, renewal) => renewed,
            lost = Seen::lost(&self.seen) => return Err(lost.into()),
        };
        self.check()?;
        match renewed {
            Err(error) | Ok(Some(error)) => Err(error.into()),
            Ok(None) => Ok(self.safe_for()),
        }
    }

    async fn release(mut self) -> Result<Released, ReleaseError> {
        self.gone = true;
        let remains = self.hold().exit();
        self.hold().report_end();
        match remains {
            Remains::Nothing => {}
            Remains::Held => return Ok(Released::StillHeld),
            // The client's shutdown released it.
            Remains::Lost(LostReason::Released) if self.session.stays_taken(self.hold()) => return Ok(Released::Kept),
            Remains::Lost(LostReason::Released) => return Ok(Released::Released),
            // A lost lock is not touched: its entry is gone, or the server ends it.
            Remains::Lost(_) => return Ok(Released::WasLost),
        }
        let left = self.session.let_go(self.hold());
        let left = tokio::select! {
            biased;
            left = tokio::time::timeout(self.session.config.lease, left) => left,
            stands_still = self.session.stands_still() => return Err(self.unconfirmed(stands_still)),
        };
        match left {
            Ok(Ok(Ok(Left::Holder))) => Ok(Released::Released),
            Ok(Ok(Ok(Left::Kept))) => Ok(Released::Kept),
            Ok(Ok(Err(error))) => Err(self.unconfirmed(error)),
            Ok(Ok(Ok(_)) | Err(_)) => Ok(Released::WasLost),
            // The release goes on in the background.
            Err(_) => Err(self.unconfirmed(ServerError::overdue())),
        }
    }
}

impl Deref for OwnedHold {
    type Target = SeenHold;

    fn deref(&self) -> &SeenHold {
        &self.seen
    }
}

impl Drop for OwnedHold {
    fn drop(&mut self) {
        if !self.gone {
            self.session.discard(self.hold());
        }
    }
}

impl fmt::Debug for OwnedHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.seen.fmt(f)
    }
}

/// A view of a hold of one lock.
#[derive(Clone)]
pub struct SeenHold {
    hold: Arc<Hold>,
    /// A view that outlives handles and clients keeps nothing alive.
    session: Weak<Session>,
    /// For a document: the place of such locks.
    locked: Option<Arc<LockLayout>>,
}

impl SeenHold {
    pub(crate) fn name(&self) -> &str {
        &self.hold.name
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.hold.token
    }

    pub(crate) fn permits(&self) -> u64 {
        self.hold.permits()
    }

    pub(crate) fn check(&self) -> Result<(), Lost> {
        self.loss().map_or(Ok(()), Err)
    }

    pub(crate) fn lost_as(&self, reason: LostReason) -> Lost {
        self.hold.lost_as(reason)
    }

    pub(crate) fn locked(&self) -> Option<&Arc<LockLayout>> {
        self.locked.as_ref()
    }

    pub(crate) fn parts(&self) -> (&Arc<Hold>, Option<Arc<Session>>) {
        (&self.hold, self.session.upgrade())
    }
}

impl Seen for SeenHold {
    async fn lost(&self) -> Lost {
        self.lost_as(self.hold.lost().await)
    }

    fn loss(&self) -> Option<Lost> {
        self.lost_reason().map(|reason| self.lost_as(reason))
    }

    fn lost_reason(&self) -> Option<LostReason> {
        self.hold.lost_reason()
    }

    fn status(&self) -> LockStatus {
        self.hold.status()
    }

    fn safe_for(&self) -> Duration {
        self.hold.safe_for()
    }

    fn lost_token(&self) -> CancellationToken {
        // A child: cancelling the user's token must not end the lock.
        self.hold.ended().child_token()
    }
}

impl fmt::Debug for SeenHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.hold.name)
            .field("token", &self.hold.token.as_i64())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
