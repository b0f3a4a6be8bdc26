//! The request for one lock of any kind, as the engine answers it.

use std::{fmt, sync::Arc, time::Duration};

use super::{acquire::unless_lost, options::Options};
use crate::{
    error::{AcquireError, InvalidInput, KindMismatch, ServerError},
    handle::owned::OwnedHold,
    hold_options::Terms,
    input::{check_name, check_permits, check_text},
    name::LockName,
    protocol::{CapacityIs, Exchange, Kind, Owner, State},
    session::{UserHandle, hold::Hold},
    status::{Lost, LostReason},
    store::View,
    telemetry::{self, Attempt},
    truncated_debug::shown_in_a_line,
    waitlist::{AcquireOptions, Patience},
};

/// The demand of a kind of lock on the engine: a number of permits, out of a capacity, under a name.
#[derive(Clone)]
pub struct Share {
    pub(crate) session: UserHandle,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    pub(crate) capacity: i64,
    pub(crate) by: CapacityIs,
    pub(crate) permits: i64,
    /// The value that the hold shows to others.
    pub(crate) value: Option<String>,
    /// The reader that is to become a writer.
    pub(crate) upgrades: Option<Arc<Hold>>,
}

impl Share {
    /// Returns the demand of one permit of a lock of so many.
    pub(crate) fn one_of(capacity: i64, session: UserHandle, name: LockName, kind: Kind) -> Self {
        Self {
            session,
            name,
            kind,
            capacity,
            by: CapacityIs::Demanded,
            permits: 1,
            value: None,
            upgrades: None,
        }
    }

    /// Returns the demand of so many permits of the same lock.
    pub(crate) fn of(&self, permits: i64) -> Self {
        Self {
            permits,
            ..self.clone()
        }
    }

    /// Returns the capacity as the user gave it.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.capacity).unwrap_or(u32::MAX)
    }

    /// Reads the lock as the primary has it, without entries whose time is over; `None`: it has no document.
    pub(crate) async fn newest<E>(&self) -> Result<Option<State>, E>
    where
        E: From<ServerError> + From<KindMismatch>,
    {
        Ok(self.read_in::<E>(View::Newest).await?.map(|(state, _)| state))
    }

    /// Reads it so in this view.
    pub(crate) async fn read_in<E>(&self, view: View) -> Result<Option<(State, Exchange)>, E>
    where
        E: From<ServerError> + From<KindMismatch>,
    {
        let Some((mut state, exchange)) = self.session.inspect_in(view, &self.name).await? else {
            return Ok(None);
        };
        if let Some(now) = exchange.now {
            state.holders.retain(|holder| holder.until > now);
        }
        self.check_fit(&state)?;
        Ok(Some((state, exchange)))
    }

    /// Refuses a lock that is in use as another kind, or with another capacity.
    pub(crate) fn check_fit(&self, state: &State) -> Result<(), KindMismatch> {
        let wanted = (self.kind, self.capacity);
        let is_used = state.is_set || !state.holders.is_empty();
        if is_used && state.refuses(wanted, self.by, 0) {
            return Err(KindMismatch::new(&self.name, state, wanted, 0));
        }
        Ok(())
    }

    /// Refuses values that are out of bounds, before anything is sent.
    pub(crate) fn check(&self, options: &Options) -> Result<(), InvalidInput> {
        // The `_id` of a document has a bound of its own, and has been checked.
        if self.kind != Kind::Document {
            check_name(&self.name)?;
        }
        self.value.as_ref().map_or(Ok(()), |value| check_text("value", value))?;
        options.check(&self.session.config)?;
        if let Some(reader) = &self.upgrades
            && (options.reentrant || options.terms != Terms::default())
        {
            return Err(InvalidInput::new(format!(
                "an upgrade of `{}` has terms of its own; it must have none, as those of its reader count",
                shown_in_a_line(&reader.name)
            )));
        }
        check_permits(self.kind, self.capacity, self.permits)
    }

    /// Acquires it. Where it is not free, and the request does not wait, the error is [`AcquireError::Held`].
    pub(crate) async fn acquire(self, options: Options) -> Result<OwnedHold, AcquireError> {
        self.check(&options)?;
        let Self {
            session,
            name,
            kind,
            capacity,
            by,
            permits,
            value,
            upgrades,
        } = self;
        let reader = upgrades.map(|reader| OwnedHold::to_upgrade(&session, &reader, capacity - permits));
        let reader = reader.transpose()?;
        let (timeout, tries) = (options.timeout, options.tries);
        // It asks, and does not wait.
        let asks_once = !tries && timeout == Some(Duration::ZERO);
        let waits = !tries && !asks_once;
        let label = session.config.label(&name);
        let reason = options.reason.as_deref();
        let attempt = Attempt::begin(Some(name.clone()), label, kind, permits, waits, reason);
        let wants = AcquireOptions {
            used: (kind, capacity),
            by,
            permits,
            patience: if waits { Patience::Wait } else { Patience::Try },
            reentrant: options.reentrant,
            upgrades: reader.as_ref().map(|reader| reader.hold().id.clone()),
            terms: match &reader {
                // Its reader ends it.
                Some(reader) => Terms {
                    length: Some(reader.hold().length()),
                    unlimited: true,
                    ..Terms::default()
                },
                None => options.terms,
            },
            owner: Owner {
                value,
                ..session.config.owner(options.reason)
            },
        };
        let acquiring = async {
            if tries && timeout == Some(Duration::ZERO) {
                return Err(AcquireError::unanswered(&name, Duration::ZERO));
            }
            let timeout = timeout.filter(|_| !asks_once);
            let acquiring = session.acquire(&name, wants, timeout, options.fails_on_deadlock);
            let acquired = match &reader {
                None => acquiring.await,
                Some(reader) => match unless_lost(reader.lost(), acquiring).await {
                    Ok(Ok(hold)) => Ok(hold),
                    // The upgrade ends with its reader, and may be told so first.
                    Ok(Err(error)) => Err(reader.check().err().map_or(error, of_reader)),
                    Err(lost) => Err(of_reader(lost)),
                },
            };
            match acquired {
                Ok(hold) => Ok(OwnedHold::new(session, hold)),
                Err(AcquireError::Held { name, contention }) if asks_once => Err(AcquireError::Timeout {
                    name,
                    waited: Duration::ZERO,
                    contention: Some(contention),
                }),
                Err(error) => Err(error),
            }
        };
        let held = attempt.follow(acquiring, |held| vec![held.hold().granted()]).await?;
        if let Some(reader) = reader {
            held.note_upgraded(reader);
        }
        let found = held.hold().used.1;
        if found != capacity {
            telemetry::other_permits(&name, found, capacity);
        }
        Ok(held)
    }
}

/// Returns the error of an upgrade whose reader is lost.
fn of_reader(lost: Lost) -> AcquireError {
    match lost.reason {
        // As the upgrade has a handle of it, only a shutdown has released it.
        LostReason::Released => AcquireError::Closed,
        _ => lost.into(),
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
