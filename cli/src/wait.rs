//! `watchlock wait`.

use std::{process::ExitCode, time::Duration};

use futures::StreamExt as _;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{
    arguments::Wait,
    connection::Connection,
    exit::{Failure, NOT_OBTAINED, Outcome, UNAVAILABLE},
    run::unanswered,
    show::live,
    text::exact,
};

/// Pause before the lock is read again where the server has not answered, or the events may not have begun.
const PAUSE: Duration = Duration::from_millis(500);

/// Time beyond the end of a lease before the lock is read again, to allow for the resolution of the clocks.
const LATER: Duration = Duration::from_millis(20);

/// Extra time beyond the limit in which the server may answer, to distinguish a silent server from a lock that is held.
const EXPLANATION: Duration = Duration::from_secs(2);

pub(crate) async fn wait(connection: &Connection, arguments: Wait) -> Outcome {
    let limit = arguments.patience.timeout;
    // A limit beyond the clock's range is no limit.
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    let connecting = async {
        match limit {
            Some(limit) => connection.within(limit.max(EXPLANATION)).await,
            None => connection.prompt().await,
        }
    };
    let beginning = arguments.kept.find(&arguments.name, connecting);
    let Some((_, locks, name)) = within(end, beginning).await.transpose()? else {
        return Err(unanswered(limit.unwrap_or_default()));
    };
    let mut events = locks.events(Some(&name));
    // They begin with a reading of their own: a release before that raises none.
    let mut have_begun = false;
    loop {
        // Without any time left the lock is still looked at.
        let read = within(end, locks.inspect(&name)).await;
        let is_over = end.is_some_and(|end| Instant::now() >= end);
        let left = match read.map(|read| read.map_err(Failure::from)) {
            Some(Ok(Some(lock))) if lock.is_held() => {
                if is_over {
                    let told = format!("not free within {}: {lock}", exact(limit.unwrap_or_default()));
                    let code = arguments.patience.conflict_exit_code;
                    return Err(Failure::new(NOT_OBTAINED, told).if_not_obtained(code));
                }
                // By the server's clock, which it read before it answered.
                let left = live(&lock).map(|holder| holder.until.duration_since(lock.as_of));
                left.flatten().max()
            }
            Some(Ok(_)) => return Ok(ExitCode::SUCCESS),
            // A script must be able to distinguish this from a lock that is held.
            Some(Err(failure)) if is_over || !failure.is_unavailable() => return Err(failure),
            Some(Err(_)) => None,
            None => return Err(unanswered(limit.unwrap_or_default())),
        };
        let pause = match left {
            Some(left) if have_begun => left + LATER,
            _ => PAUSE,
        };
        let next = [Instant::now().checked_add(pause), end].into_iter().flatten().min();
        tokio::select! {
            // A reading shows the cause of any event, and also a renewal, which raises none.
            event = events.next(), if left.is_some() => {
                event.ok_or_else(|| Failure::new(UNAVAILABLE, "the event stream has ended"))??;
                have_begun = true;
            }
            () = sleep_until(next.unwrap_or_else(Instant::now)) => {}
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
