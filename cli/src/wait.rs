//! `watchlock wait`.

use std::{
    process::ExitCode,
    time::{Duration, SystemTime},
};

use futures::StreamExt as _;
use tokio::time::{sleep, timeout};
use watchlock::operate::LockInfo;

use crate::{
    arguments::Wait,
    clock::Offset,
    connection::{Connection, Place},
    events::Events,
    exit::{Failure, NOT_OBTAINED, Outcome, UNAVAILABLE},
    locks::{Locks, Typed},
    text::exact,
};

/// Pauses before the lock is read again when the server has not answered, or the events may not have begun: they double
/// from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));

/// Time beyond the end of a lease before the lock is read again, to allow for the error in our measure of the server's
/// clock.
const LATER: Duration = Duration::from_millis(20);

/// Extra time beyond the limit in which the server may answer the first reading and the last, to distinguish a silent
/// server from a lock that is held.
const EXPLANATION: Duration = Duration::from_secs(2);

pub(crate) async fn wait(connection: &Connection, arguments: Wait) -> Outcome {
    let typed = arguments.kept.read(&arguments.name).await?;
    let Some(limit) = arguments.patience.timeout else {
        let place = connection.prompt().await?;
        let mut waiting = Waiting::begin(&arguments, place, typed).await?;
        waiting.until_free().await?;
        return Ok(ExitCode::SUCCESS);
    };
    let began = tokio::time::Instant::now();
    let beginning = async {
        let place = connection.within(limit.max(EXPLANATION)).await?;
        Waiting::begin(&arguments, place, typed).await
    };
    let Ok(begun) = timeout(limit.saturating_add(EXPLANATION), beginning).await else {
        let limit = exact(limit);
        return Err(Failure::new(
            UNAVAILABLE,
            format!("the server did not answer within {limit}"),
        ));
    };
    let mut waiting = begun?;
    if waiting.is_free() {
        // Without any time left the lock is still looked at.
        return Ok(ExitCode::SUCCESS);
    }
    if let Ok(free) = timeout(limit.saturating_sub(began.elapsed()), waiting.until_free()).await {
        return free.map(|()| ExitCode::SUCCESS);
    }
    let limit = exact(limit);
    if let Some(trouble) = waiting.trouble {
        // A script must be able to distinguish this from a lock that is held.
        return Err(trouble);
    }
    // The server may have been silent all the time, which raises no error.
    let Ok(lock) = timeout(EXPLANATION, waiting.locks.inspect(&waiting.name)).await else {
        return Err(Failure::new(
            UNAVAILABLE,
            format!("the server did not answer within {limit}"),
        ));
    };
    waiting.lock = lock?;
    if waiting.is_free() {
        return Ok(ExitCode::SUCCESS);
    }
    let held = waiting.lock.map(|lock| lock.to_string()).unwrap_or_default();
    let told = format!("not free within {limit}: {held}");
    Err(Failure::new(NOT_OBTAINED, told).if_not_obtained(arguments.patience.conflict_exit_code))
}

/// The state of the waiting.
struct Waiting {
    locks: Locks,
    name: String,
    offset: Offset,
    events: Events,
    /// Whether they have begun: of a lock that is held, the first one tells by whom.
    has_begun: bool,
    /// The lock as it was read last.
    lock: Option<LockInfo>,
    /// The reason why it could not be read since then.
    trouble: Option<Failure>,
}

impl Waiting {
    /// Reads the lock for the first time.
    async fn begin(arguments: &Wait, place: Place, typed: Typed) -> Result<Self, Failure> {
        let (locks, name) = arguments.kept.find(&place, typed).await?;
        let offset = Offset::measure(&place).await?;
        let events = locks.events(Some(&name));
        let lock = locks.inspect(&name).await?;
        Ok(Self {
            locks,
            name,
            offset,
            events,
            has_begun: false,
            lock,
            trouble: None,
        })
    }

    /// Returns when the last lease of a holder ends, if that is still ahead.
    fn held_until(&self) -> Option<SystemTime> {
        let holders = self.lock.iter().flat_map(|lock| &lock.holders);
        // A lease counts as over once that is certain.
        let now = self.offset.now() - self.offset.within;
        holders.map(|holder| holder.until).filter(|until| *until > now).max()
    }

    fn is_free(&self) -> bool {
        self.held_until().is_none()
    }

    async fn until_free(&mut self) -> Result<(), Failure> {
        let (mut pause, mut beginning) = (PAUSES.0, PAUSES.0);
        while let Some(until) = self.held_until() {
            let mut left = until.duration_since(self.offset.now()).unwrap_or_default() + LATER;
            if !self.has_begun {
                // The events begin with a reading of their own: a release between the two readings raises none.
                left = left.min(beginning);
                beginning = (beginning * 2).min(PAUSES.1);
            }
            tokio::select! {
                event = self.events.next() => match event {
                    // The reading shows the cause of any event, and also a renewal, which raises none.
                    Some(event) => {
                        event?;
                        self.has_begun = true;
                    }
                    None => return Err(Failure::new(UNAVAILABLE, "the event stream has ended")),
                },
                () = sleep(left) => {}
            }
            loop {
                match self.locks.inspect(&self.name).await {
                    Ok(lock) => {
                        (self.lock, self.trouble, pause) = (lock, None, PAUSES.0);
                        break;
                    }
                    Err(error) => {
                        let failure = Failure::from(error);
                        if !failure.is_unavailable() {
                            return Err(failure);
                        }
                        self.trouble = Some(failure);
                        sleep(pause).await;
                        pause = (pause * 2).min(PAUSES.1);
                    }
                }
            }
        }
        Ok(())
    }
}
