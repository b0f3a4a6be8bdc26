//! `watchlock acquire`.

use std::{
    fs,
    io::{self, Stdout, Write as _},
    os::unix::fs::MetadataExt as _,
    process::ExitCode,
};

use rustix::fs::OFlags;

use serde::Serialize;
use tokio::time::{Instant, timeout};
use watchlock::{FencingToken, LockClient, errors::HoldError, operate::HolderInfo};

use crate::{
    arguments::{Acquire, Output, Run},
    connection::Connection,
    exit::{Failure, Outcome, UNAVAILABLE, ended_by},
    held::Held,
    json,
    leaving::{LEAVE, caught, give_back, hold_may_stay},
    messages::fail,
    run::{TRY, connect, deadline, obtain, rehearse, unanswered},
    signals::{PASSED_ON, Signals},
    text::plain,
};

/// The hold that is left to the later steps.
#[derive(Debug, Serialize)]
struct Left<'a> {
    name: &'a str,
    holder: &'a HolderInfo,
}

pub(crate) async fn acquire(connection: &Connection, arguments: Acquire) -> Outcome {
    let output = arguments.output;
    let arguments = Run::from(arguments);
    rehearse(&arguments).await?;
    if is_closed(&io::stdout()) {
        return Err(Failure::usage(
            "standard output is closed or discarded, and nobody would know the token; to discard it: >/dev/null",
        ));
    }
    let mut signals = Signals::listen(&PASSED_ON)?;
    let deadline = deadline(&arguments);
    let locks = tokio::select! {
        connected = connect(connection, &arguments) => connected?,
        signal = signals.ending() => return Ok(ended_by(signal)),
    };
    let mut taken = None;
    let ended = caught(take(&locks, &arguments, deadline, &mut signals, (output, &mut taken))).await;
    if let Ok(None) = ended {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(token) = taken {
        // It may have left this program by now.
        let broken = timeout(LEAVE, locks.break_holder(&arguments.name, token)).await;
        if !matches!(broken, Ok(Ok(_))) {
            fail(&hold_may_stay(&plain(&arguments.name), &arguments));
        }
    }
    let ended = ended.map(|code| code.unwrap_or(ExitCode::SUCCESS));
    give_back(ended, &locks, &arguments).await
}

/// Returns whether standard output was closed when this program began, or its starter discards it without having been
/// told to. The standard library has opened the null device in its place, for reading too, which no shell does with
/// `>/dev/null`.
fn is_closed(output: &Stdout) -> bool {
    let is_null = || {
        let null = fs::metadata("/dev/null").ok()?;
        Some(rustix::fs::fstat(output).ok()?.st_rdev == null.rdev())
    };
    let flags = rustix::fs::fcntl_getfl(output);
    flags.is_ok_and(|flags| flags.contains(OFlags::RDWR)) && is_null() == Some(true)
}

/// Waits for the lock, leaves it taken by no process, and prints its token; returns the code to exit with if a signal
/// comes first. `taken` has the token once there is one: after any failure or signal, the lock is taken back by it.
async fn take(
    locks: &LockClient,
    arguments: &Run,
    deadline: Option<Instant>,
    signals: &mut Signals,
    (output, taken): (Output, &mut Option<FencingToken>),
) -> Result<Option<ExitCode>, Failure> {
    let handle = match obtain(locks, arguments, deadline, signals).await? {
        Ok(Held::Lock(handle)) => handle,
        Ok(_) => return Err(Failure::internal("something other than a lock was acquired")),
        Err(code) => return Ok(Some(code)),
    };
    let (name, token) = (&arguments.name, handle.token());
    *taken = Some(token);
    let left = async {
        // A waiter is granted the lock for some seconds at first. This makes it the whole time, counted from now.
        let _detached = handle.detach().await.map_err(|error| not_left(name, &error))?;
        if !output.json {
            return Ok(None);
        }
        let lock = locks.inspect(name).await?;
        let holders = lock.into_iter().flat_map(|lock| lock.holders);
        let holder = { holders }.find(|holder| holder.token == token);
        let lost = || Failure::lost(name, "it is not held any more");
        holder.map(Some).ok_or_else(lost)
    };
    let holder = tokio::select! {
        left = timeout(TRY, left) => left.unwrap_or_else(|_| Err(unanswered(TRY)))?,
        signal = signals.ending() => return Ok(Some(ended_by(signal))),
    };
    let printed = match &holder {
        Some(holder) => json::print(&Left { name, holder }),
        None => writeln!(io::stdout().lock(), "{token}"),
    };
    let printed = printed.and_then(|()| io::stdout().lock().flush());
    // Even if the reader is gone, this is a failure: nobody could release the lock.
    printed.map_err(|error| {
        let name = plain(name);
        Failure::internal(format!(
            "the token of `{name}` can't be written, so the lock is given back: {error}"
        ))
    })?;
    Ok(None)
}

fn not_left(name: &str, error: &HoldError) -> Failure {
    match error {
        HoldError::Server(error) => error.clone().into(),
        HoldError::Lost(loss) => Failure::lost(name, loss),
        error => Failure::new(UNAVAILABLE, error),
    }
}
