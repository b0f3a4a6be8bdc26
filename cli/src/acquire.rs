//! `watchlock acquire`.

use std::{
    fs,
    io::{self, Stdout, Write as _},
    mem,
    os::unix::fs::MetadataExt as _,
    process::ExitCode,
};

use rustix::fs::OFlags;

use serde::Serialize;
use tokio::time::{Instant, timeout};
use watchlock::{LockClient, errors::RenewError, operate::HolderInfo};

use crate::{
    arguments::{Acquire, Output, Run},
    connection::Connection,
    exit::{Failure, LOST, Outcome, UNAVAILABLE, ended_by},
    held::Held,
    json,
    leaving::{caught, give_back},
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
    let mut signals = Signals::listen(PASSED_ON.iter())
        .map_err(|error| Failure::internal(format!("signals can't be received: {error}")))?;
    let deadline = deadline(&arguments);
    let locks = tokio::select! {
        connected = connect(connection, &arguments) => connected?,
        signal = signals.ending() => return Ok(ended_by(signal)),
    };
    let ended = match caught(take(&locks, &arguments, deadline, &mut signals, output)).await {
        Ok(Ok(handle)) => {
            // Dropping it would release the lock.
            mem::forget(handle);
            return Ok(ExitCode::SUCCESS);
        }
        Ok(Err(code)) => Ok(code),
        Err(failure) => Err(failure),
    };
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

/// Waits for the lock and prints its token; returns the code to exit with if a signal comes first. After any failure
/// before the token is printed, the lock is given back.
async fn take(
    locks: &LockClient,
    arguments: &Run,
    deadline: Option<Instant>,
    signals: &mut Signals,
    output: Output,
) -> Result<Result<watchlock::Held, ExitCode>, Failure> {
    let handle = match obtain(locks, arguments, deadline, signals).await? {
        Ok(Held::Lock(handle)) => handle,
        Ok(_) => return Err(Failure::internal("something other than a lock was acquired")),
        Err(code) => return Ok(Err(code)),
    };
    let confirmed = async {
        // A waiter is granted the lock for some seconds at first. This makes it the whole time, counted from now.
        handle.renew().await.map_err(|error| not_confirmed(&handle, &error))?;
        if !output.json {
            return Ok(None);
        }
        let lock = locks.inspect(&arguments.name).await?;
        let holders = lock.into_iter().flat_map(|lock| lock.holders);
        let holder = { holders }.find(|holder| holder.token == handle.token());
        holder.map(Some).ok_or_else(|| lost(&handle, "it is not held any more"))
    };
    let holder = tokio::select! {
        confirmed = timeout(TRY, confirmed) => confirmed.unwrap_or_else(|_| Err(unanswered(TRY)))?,
        signal = signals.ending() => return Ok(Err(ended_by(signal))),
    };
    let name = &arguments.name;
    let printed = match &holder {
        Some(holder) => json::print(&Left { name, holder }),
        None => writeln!(io::stdout().lock(), "{}", handle.token()),
    };
    let printed = printed.and_then(|()| io::stdout().lock().flush());
    // Even if the reader is gone, this is a failure: nobody could release the lock.
    printed.map_err(|error| {
        let name = plain(name);
        Failure::internal(format!(
            "the token of `{name}` can't be written, so the lock is given back: {error}"
        ))
    })?;
    Ok(Ok(handle))
}

fn not_confirmed(handle: &watchlock::Held, error: &RenewError) -> Failure {
    match error {
        RenewError::Server(error) => error.clone().into(),
        RenewError::Lost(reason) => lost(handle, &reason.to_string()),
        error => Failure::new(UNAVAILABLE, error),
    }
}

fn lost(handle: &watchlock::Held, why: &str) -> Failure {
    Failure::new(LOST, format!("`{}` is lost: {why}", plain(handle.name())))
}
