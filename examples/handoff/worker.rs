//! A process that acquires the lock repeatedly.

use std::time::{Duration, SystemTime};

use tokio::time::sleep;
use watchlock::{Held, LockClient, locks};
use watchlock_testkit::stage::{Part, Result, chance, say};

use crate::{event::Event, locks};

/// The name of the lock.
pub(crate) const LOCK: &str = "invoice-42";

/// A short lease, as the death of a holder costs this long, and somebody is watching. Real programs should use the
/// default, 30 s: a holder also survives an outage of the server this long.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Shortest and longest time that the lock is held.
const WORK: (Duration, Duration) = (Duration::from_millis(150), Duration::from_millis(300));

/// Contends for the lock until it is dismissed.
pub(crate) async fn work(part: Part) -> Result<()> {
    let locks = locks(&part.server, |builder| builder.lease(LEASE).label(part.label)).await?;
    let worked = tokio::select! {
        worked = contend(&locks) => worked,
        _ = part.dismissed => Ok(()),
    };
    // Gives back all holds and queue positions, so that nobody has to wait for a lease to expire.
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

async fn hold(handle: Held<locks::Mutex>) -> Result<()> {
    say(Event::Holds {
        token: handle.token().as_i64(),
        at: SystemTime::now(),
    })?;
    tokio::select! {
        () = sleep(chance::between(WORK.0, WORK.1)) => {
            say(Event::Releases { at: SystemTime::now() })?;
            handle.release().await?;
        }
        lost = handle.lost() => say(Event::Lost { at: SystemTime::now(), reason: lost.reason.to_string() })?,
    }
    Ok(())
}
