//! A hold and its view, as every target has them: of one lock, or of several.

use std::{fmt, future::Future, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{
    error::{ReleaseError, RenewError},
    handle::Released,
    status::{LockStatus, Lost, LostReason},
};

/// A hold, released when it is dropped: of one lock, or of several.
pub trait Own: Send + Sync + Unpin {
    /// The view of it.
    type Seen: Seen;

    fn seen(&self) -> Self::Seen;

    fn renew(&self) -> impl Future<Output = Result<Duration, RenewError>> + Send;

    fn renew_for(&self, length: Duration) -> impl Future<Output = Result<Duration, RenewError>> + Send;

    fn release(self) -> impl Future<Output = Result<Released, ReleaseError>> + Send;
}

/// A view of a hold, which keeps nothing alive.
pub trait Seen: Clone + fmt::Debug + Send + Sync + Unpin {
    fn lost(&self) -> impl Future<Output = Lost> + Send;

    fn wanted(&self) -> impl Future<Output = ()> + Send;

    fn loss(&self) -> Option<Lost>;

    fn lost_reason(&self) -> Option<LostReason> {
        self.loss().map(|loss| loss.reason)
    }

    /// Reports whether its handle has deleted what it locks.
    fn is_deleted(&self) -> bool {
        false
    }

    fn status(&self) -> LockStatus;

    fn safe_for(&self) -> Duration;

    fn lost_token(&self) -> CancellationToken;
}
