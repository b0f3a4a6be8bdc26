//! `watchlock wait`.

use std::{
    process::ExitCode,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep_until, timeout_at};
use watchlock::operate::LockInfo;

use crate::{
    arguments::Wait,
    clock::Offset,
    connection::Connection,
    exit::{Failure, NOT_OBTAINED, Outcome},
    run::unanswered,
    text::exact,
};

/// Pause between two readings of the lock.
const PAUSE: Duration = Duration::from_millis(500);

/// Extra time beyond the limit in which the server may answer, to distinguish a silent server from a lock that is held.
const EXPLANATION: Duration = Duration::from_secs(2);

pub(crate) async fn wait(connection: &Connection, arguments: Wait) -> Outcome {
    let typed = arguments.kept.read(&arguments.name).await?;
    let limit = arguments.patience.timeout;
    // A limit beyond the clock's range is no limit.
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    let beginning = async {
        let place = match limit {
            Some(limit) => connection.within(limit.max(EXPLANATION)).await?,
            None => connection.prompt().await?,
        };
        let (locks, name) = arguments.kept.find(&place, typed).await?;
        Ok::<_, Failure>((locks, name, Offset::measure(&place).await?))
    };
    let Some((locks, name, offset)) = within(end, beginning).await.transpose()? else {
        return Err(unanswered(limit.unwrap_or_default()));
    };
    loop {
        // Without any time left the lock is still looked at.
        let read = within(end, locks.inspect(&name)).await;
        let is_over = end.is_some_and(|end| Instant::now() >= end);
        match read.map(|read| read.map_err(Failure::from)) {
            Some(Ok(lock)) if held_until(lock.as_ref(), offset).is_none() => return Ok(ExitCode::SUCCESS),
            Some(Ok(Some(lock))) if is_over => {
                let told = format!("not free within {}: {lock}", exact(limit.unwrap_or_default()));
                let code = arguments.patience.conflict_exit_code;
                return Err(Failure::new(NOT_OBTAINED, told).if_not_obtained(code));
            }
            // A script must be able to distinguish this from a lock that is held.
            Some(Err(failure)) if is_over || !failure.is_unavailable() => return Err(failure),
            None => return Err(unanswered(limit.unwrap_or_default())),
            _ => {
                let next = Instant::now() + PAUSE;
                sleep_until(end.map_or(next, |end| end.min(next))).await;
            }
        }
    }
}

/// Waits for an answer until the limit is over, and a bit longer; `None` if there is none by then.
async fn within<T>(end: Option<Instant>, answer: impl Future<Output = T>) -> Option<T> {
    match end {
        Some(end) => timeout_at(end + EXPLANATION, answer).await.ok(),
        None => Some(answer.await),
    }
}

/// Returns when the last lease of a holder ends, if that is still ahead: a lease counts as over once that is certain.
fn held_until(lock: Option<&LockInfo>, offset: Offset) -> Option<SystemTime> {
    let now = offset.now() - offset.within;
    let holders = lock.iter().flat_map(|lock| &lock.holders);
    holders.map(|holder| holder.until).filter(|until| *until > now).max()
}
