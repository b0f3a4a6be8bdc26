//! `watchlock run`.

use std::{
    ffi::OsString,
    io::{self, IsTerminal as _},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};
use watchlock::{AcquireError, LockClient, LockHandle, Released};

use crate::{
    arguments::Run,
    attend::attend,
    connection::{Connection, Place, URI},
    exit::{Failure, LOST, NOT_OBTAINED, Outcome, SIGNALLED, UNAVAILABLE},
    job,
    messages::{self, say},
    process::Running,
    signals::{JOB_CONTROL, PASSED_ON, Signals},
    text::plain,
};

/// How long a user at a terminal waits before a message says what for.
const SILENT: Duration = Duration::from_secs(1);

/// Limit of a try, including the connecting before it: it is for users who do not want to wait.
const TRY: Duration = Duration::from_secs(5);

/// Extra time beyond the limit to wait for the server while connecting, so that the driver can say what is wrong with
/// it.
const EXPLANATION: Duration = Duration::from_secs(2);

/// Limit for giving back the queue position at the end. A server that does not receive it drops the position when its
/// lease is over.
const LEAVE: Duration = Duration::from_secs(3);

/// Longest reason that the library accepts, in bytes.
const REASON_MOST: usize = 1_024;

pub(crate) async fn run(connection: &Connection, arguments: Run) -> Outcome {
    if arguments.quiet {
        messages::be_quiet();
    }
    let mut signals = Signals::listen(PASSED_ON.iter().chain(&JOB_CONTROL))
        .map_err(|error| Failure::internal(format!("signals can't be received: {error}")))?;
    let limit = if arguments.once { Some(TRY) } else { arguments.timeout };
    // A limit beyond the clock's range is no limit.
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let locks = tokio::select! {
        locks = connect(connection, &arguments, limit) => locks?,
        signal = signals.ending() => return Ok(ended_by(signal)),
    };
    let outcome = under_lock(&locks, arguments, deadline, &mut signals).await;
    if let Ok(Finished { code, settled: true }) = outcome {
        return Ok(code);
    }
    // The queue position and everything else of ours goes back to the others. A second request to end is obeyed.
    tokio::select! {
        _ = timeout(LEAVE, locks.shutdown()) => {}
        _ = signals.ending() => {}
    }
    Ok(outcome?.code)
}

/// The result of the run.
#[derive(Debug)]
struct Finished {
    code: ExitCode,
    /// Whether nothing of ours is left on the server, or enough time was spent trying.
    settled: bool,
}

/// Connects, within `limit` and the time for an explanation.
async fn connect(connection: &Connection, arguments: &Run, limit: Option<Duration>) -> Result<LockClient, Failure> {
    let Some(limit) = limit else {
        return build(connection.patient().await?, arguments).await;
    };
    let within = limit.saturating_add(EXPLANATION);
    let connected = timeout(within, async {
        build(connection.within(limit).await?, arguments).await
    })
    .await;
    connected.unwrap_or_else(|_| {
        let limit = humantime::format_duration(limit);
        Err(Failure::new(
            UNAVAILABLE,
            format!("the server did not answer within {limit}"),
        ))
    })
}

async fn build(place: Place, arguments: &Run) -> Result<LockClient, Failure> {
    let mut builder = place.builder().lease(arguments.lease);
    if let Some(label) = &arguments.label {
        builder = builder.label(label);
    }
    if let Some(id) = &arguments.owner_id {
        builder = builder.owner_id(id);
    }
    Ok(builder.build().await?)
}

async fn under_lock(
    locks: &LockClient,
    arguments: Run,
    deadline: Option<Instant>,
    signals: &mut Signals,
) -> Result<Finished, Failure> {
    let handle = tokio::select! {
        acquired = acquire(locks, &arguments, deadline) => acquired.map_err(|error| {
            Failure::from(error).with_code_for(NOT_OBTAINED, arguments.conflict_exit_code)
        })?,
        never = notify_if_slow(locks, &arguments.name) => match never {},
        signal = signals.ending() => {
            let code = ended_by(signal);
            return Ok(Finished { code, settled: false });
        }
    };
    if let Some(reason) = handle.lost_reason() {
        // This program was stopped or frozen just now.
        return Err(Failure::new(
            LOST,
            format!("`{}` is lost: {reason}", plain(&arguments.name)),
        ));
    }
    let token = handle.token().to_string();
    if arguments.verbose {
        say(&format!("`{}` is held, token {token}", plain(&arguments.name)));
    }
    let environment = [("WATCHLOCK_TOKEN", &token[..]), ("WATCHLOCK_NAME", &arguments.name)];
    let without = (!arguments.keep_uri).then_some(URI);
    let mut running = Running::start(&arguments.command, &environment, without)?;
    let end = attend(&mut running, &handle, signals, arguments.grace).await;
    let lost = match end.lost {
        Some(reason) => Some(reason.to_string()),
        None => release(handle, signals).await,
    };
    if arguments.verbose && lost.is_none() {
        say(&format!("`{}` is released", plain(&arguments.name)));
    }
    let ended = end.ended.map(|ended| ended.code());
    let code = match (lost, ended) {
        (None, Some(code)) => code.into(),
        (Some(reason), Some(code)) => {
            let name = plain(&arguments.name);
            say(&format!("`{name}` was lost ({reason}); the command ended with {code}"));
            LOST.into()
        }
        (_, None) => LOST.into(),
    };
    if let Some(signal) = end.by_keyboard {
        // The keyboard would have sent it to our neighbours too, had the command been in their group: a script ends
        // with the command that it runs. Nothing is left to do here, so it does not matter that we receive it as well.
        job::signal_our_group(signal);
    }
    Ok(Finished { code, settled: true })
}

async fn acquire(locks: &LockClient, arguments: &Run, deadline: Option<Instant>) -> Result<LockHandle, AcquireError> {
    let name = &arguments.name;
    let reason = match &arguments.reason {
        Some(reason) => reason.clone(),
        None => program_name(&arguments.command),
    };
    let reason = Some(reason).filter(|reason| !reason.is_empty());
    if arguments.once {
        let attempt = match arguments.semaphore {
            Some(permits) => locks.semaphore(name, permits).try_acquire_many(arguments.permits),
            None if arguments.read => locks.rw_lock(name).try_read(),
            None if arguments.write => locks.rw_lock(name).try_write(),
            None => locks.mutex(name).try_acquire(),
        };
        let attempt = match reason {
            Some(reason) => attempt.reason(reason),
            None => attempt,
        };
        return attempt.timeout(TRY).or_held().await;
    }
    let mut acquire = match arguments.semaphore {
        Some(permits) => locks.semaphore(name, permits).acquire_many(arguments.permits),
        None if arguments.read => locks.rw_lock(name).read(),
        None if arguments.write => locks.rw_lock(name).write(),
        None => locks.mutex(name).acquire(),
    };
    if let Some(deadline) = deadline {
        // Connecting has used up a part of it. Zero would be a try, which takes as long as the driver does.
        let left = deadline.saturating_duration_since(Instant::now());
        acquire = acquire.timeout(left.max(Duration::from_millis(1)));
    } else if let Some(timeout) = arguments.timeout {
        acquire = acquire.timeout(timeout);
    }
    if let Some(reason) = reason {
        acquire = acquire.reason(reason);
    }
    let mut acquired = acquire.await;
    if let (Err(AcquireError::Timeout { waited, .. }), Some(timeout)) = (&mut acquired, arguments.timeout) {
        *waited = timeout;
    }
    acquired
}

/// Returns only the name of the program: its arguments may have a secret, and would end up in the database.
fn program_name(command: &[OsString]) -> String {
    let program = command.first().map(Path::new);
    let name = program.and_then(Path::file_name).unwrap_or_default();
    let mut name = name.to_string_lossy().into_owned();
    if name.len() > REASON_MOST {
        let fits = (0..=REASON_MOST).rev().find(|at| name.is_char_boundary(*at));
        name.truncate(fits.unwrap_or(0));
    }
    name
}

/// Tells a user at a terminal why nothing happens.
async fn notify_if_slow(locks: &LockClient, name: &str) -> std::convert::Infallible {
    if io::stderr().is_terminal() {
        sleep(SILENT).await;
        // An unreadable lock is not reported here; the acquire will report the error.
        if let Ok(Some(mut lock)) = locks.inspect(name).await {
            // A waiter does not wait for itself.
            if let Some(us) = lock.waiters.iter().position(|waiter| waiter.pid == std::process::id()) {
                lock.waiters.remove(us);
            }
            say(&format!("waiting for the {lock}"));
        }
    }
    std::future::pending().await
}

/// Releases the lock; returns a message if it turns out that it was lost before.
async fn release(handle: LockHandle, signals: &mut Signals) -> Option<String> {
    let name = plain(handle.name());
    let released = tokio::select! {
        released = handle.release() => released,
        // A second request to end is obeyed.
        _ = signals.ending() => {
            say(&format!("`{name}` may stay taken until its lease expires"));
            return None;
        }
    };
    match released {
        Ok(Released::Released) => None,
        Ok(_) => Some("it was taken away before it could be released".to_owned()),
        Err(error) => {
            let why = match std::error::Error::source(&error) {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            };
            say(&format!("`{name}` stays taken until its lease expires: {why}"));
            None
        }
    }
}

fn ended_by(signal: Signal) -> ExitCode {
    let number = u8::try_from(signal.as_raw()).unwrap_or(0);
    SIGNALLED.saturating_add(number).into()
}
