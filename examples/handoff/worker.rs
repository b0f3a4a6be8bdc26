//! A process that wants the lock again and again.

use std::time::{Duration, SystemTime};

use tokio::time::sleep;
use watchlock::{LockClient, LockHandle};
use watchlock_testkit::stage::{Part, Result, chance, say};

use crate::{event::Event, locks};

/// The name of the lock.
pub(crate) const LOCK: &str = "invoice-42";

/// Short, as the death of a holder costs this long, and somebody is watching. Real ones are better off with the
/// default, 30 s: it is also how long an outage of the server a holder survives.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// How long the lock is held.
const WORK: (Duration, Duration) = (Duration::from_millis(150), Duration::from_millis(300));

/// Contends for the lock until it is dismissed.
pub(crate) async fn work(part: Part) -> Result<()> {
    let locks = locks(&part.server, |builder| builder.lease(LEASE).label(part.label)).await?;
    let worked = tokio::select! {
        worked = contend(&locks) => worked,
        _ = part.dismissed => Ok(()),
    };
    // Gives back what is held or waited for, so that nobody has to wait for a lease to run out.
    locks.shutdown().await;
    worked
}

async fn contend(locks: &LockClient) -> Result<()> {
    for page in 1_u32.. {
        let handle = locks.mutex(LOCK).acquire().reason(format!("page {page}")).await?;
        hold(handle).await?;
    }
    Ok(())
}

async fn hold(handle: LockHandle) -> Result<()> {
    say(Event::Holds {
        token: handle.token().as_i64(),
        at: SystemTime::now(),
    })?;
    tokio::select! {
        () = sleep(chance::between(WORK.0, WORK.1)) => {
            say(Event::Releases { at: SystemTime::now() })?;
            handle.release().await?;
        }
        reason = handle.lost() => say(Event::Lost { at: SystemTime::now(), reason: reason.to_string() })?,
    }
    Ok(())
}
