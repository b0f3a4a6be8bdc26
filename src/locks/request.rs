//! The request for one lock of any kind, as the engine answers it.

use std::{fmt, time::Duration};

use super::{options::Options, patience::Otherwise};
use crate::{
    contention::Contention,
    error::AcquireError,
    handle::owned::OwnedHold,
    input::{check_name, check_permits, check_text},
    name::LockName,
    protocol::{Kind, Owner},
    session::UserHandle,
    telemetry::Attempt,
    waitlist::{AcquireOptions, Patience},
};

/// The demand of a kind of lock on the engine: a number of permits, out of a capacity, under a name.
#[derive(Clone)]
pub struct Share {
    pub(crate) session: UserHandle,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    pub(crate) capacity: i64,
    pub(crate) permits: i64,
    /// The value that the hold shows to others.
    pub(crate) value: Option<String>,
}

impl Share {
    /// Returns the demand on a lock with one holder.
    pub(crate) fn whole(session: UserHandle, name: LockName, kind: Kind) -> Self {
        Self {
            session,
            name,
            kind,
            capacity: 1,
            permits: 1,
            value: None,
        }
    }

    /// Acquires it. Where it is not free, and the request does not wait, the error is [`AcquireError::Held`].
    pub(crate) async fn acquire(self, options: Options, otherwise: Otherwise) -> Result<OwnedHold, AcquireError> {
        // The `_id` of a document has a bound of its own, and has been checked.
        if self.kind != Kind::Document {
            check_name(&self.name)?;
        }
        let value = self.value.as_ref();
        value.map_or(Ok(()), |value| check_text("value", value))?;
        options.check(&self.session.config)?;
        check_permits(self.kind, self.capacity, self.permits)?;
        let waits = otherwise == Otherwise::Wait && options.timeout != Some(Duration::ZERO);
        let label = self.session.config.metered.label(&self.name);
        let reason = options.reason.as_deref();
        let attempt = Attempt::begin(Some(&self.name), label, self.kind, self.permits, waits, reason);
        let name = self.name.clone();
        let acquired = attempt
            .follow(self.send(options, otherwise), |held| {
                held.iter().map(|held| held.hold().granted()).collect()
            })
            .await?;
        acquired.ok_or_else(|| held_by_somebody(name.to_string()))
    }

    async fn send(self, options: Options, otherwise: Otherwise) -> Result<Option<OwnedHold>, AcquireError> {
        if otherwise != Otherwise::Wait || options.timeout != Some(Duration::ZERO) {
            return self.join(options, otherwise).await;
        }
        // It asks, and does not wait.
        let (name, timeout) = (self.name.to_string(), None);
        let acquired = self.join(Options { timeout, ..options }, Otherwise::Report).await;
        let contention = match acquired {
            Ok(Some(held)) => return Ok(Some(held)),
            Ok(None) => None,
            Err(AcquireError::Held { contention, .. }) => Some(contention),
            Err(error) => return Err(error),
        };
        Err(AcquireError::Timeout {
            name,
            waited: Duration::ZERO,
            contention,
        })
    }

    async fn join(self, options: Options, otherwise: Otherwise) -> Result<Option<OwnedHold>, AcquireError> {
        if options.timeout == Some(Duration::ZERO) {
            return Err(AcquireError::unanswered(&self.name, Duration::ZERO));
        }
        let owner = Owner {
            value: self.value,
            ..self.session.config.owner(options.reason)
        };
        let wanted = AcquireOptions {
            used: (self.kind, self.capacity),
            permits: self.permits,
            patience: if otherwise == Otherwise::Wait {
                Patience::Wait
            } else {
                Patience::Try
            },
            reentrant: options.reentrant,
            terms: options.terms,
            owner,
        };
        let reports = otherwise == Otherwise::Report;
        let acquired = self.session.acquire(&self.name, wanted, reports, options.timeout);
        let hold = acquired.await?;
        Ok(hold.map(|hold| OwnedHold::new(self.session, hold)))
    }
}

/// Returns the error of a lock that is not free, from an answer that does not name its holder.
pub(crate) fn held_by_somebody(name: String) -> AcquireError {
    AcquireError::Held {
        name,
        contention: Box::new(Contention::behind(0)),
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name, kind, permits, ..
        } = self;
        write!(f, "{permits} of the {kind} {name:?}")
    }
}
