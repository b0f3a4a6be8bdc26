//! `watchlock run`.

use std::{
    ffi::OsString,
    io::{self, IsTerminal as _},
    process::ExitCode,
    time::Duration,
};

use rustix::process::Signal;
use tokio::time::sleep;
use watchlock::{AcquireError, LockClient, LockHandle, LostReason, Released};

use crate::{
    arguments::Run,
    connection::Connection,
    exit::{Failure, LOST, Outcome, SIGNALLED, say},
    process::{Ended, Running},
    signals::{PASSED_ON, Received, Signals},
    text::plain,
};

/// How long somebody at a terminal waits before being told for what.
const SILENT: Duration = Duration::from_secs(1);

/// The longest reason that the library accepts, in bytes.
const REASON_MOST: usize = 1_024;

pub(crate) async fn run(connection: &Connection, arguments: Run) -> Outcome {
    let mut signals = Signals::listen(&PASSED_ON)
        .map_err(|error| Failure::internal(format!("signals can't be received: {error}")))?;
    let locks = tokio::select! {
        locks = connect(connection, &arguments) => locks?,
        signal = signals.ending() => return Ok(ended_by(signal)),
    };
    let outcome = under_lock(&locks, arguments, &mut signals).await;
    if let Ok(Finished { code, settled: true }) = outcome {
        return Ok(code);
    }
    // The place in the queue and whatever else is ours goes back to the others. It takes as long as a lease where the
    // server can't be reached: who asks again to end is obeyed.
    tokio::select! {
        () = locks.shutdown() => {}
        _ = signals.ending() => {}
    }
    Ok(outcome?.code)
}

/// What came of it.
#[derive(Debug)]
struct Finished {
    code: ExitCode,
    /// Nothing of ours is left with the server, or it has been tried for long enough.
    settled: bool,
}

async fn connect(connection: &Connection, arguments: &Run) -> Result<LockClient, Failure> {
    let place = connection.patient().await?;
    let mut builder = place.builder().lease(arguments.lease);
    if let Some(label) = &arguments.label {
        builder = builder.label(label);
    }
    if let Some(id) = &arguments.owner_id {
        builder = builder.owner_id(id);
    }
    Ok(builder.build().await?)
}

async fn under_lock(locks: &LockClient, arguments: Run, signals: &mut Signals) -> Result<Finished, Failure> {
    let handle = tokio::select! {
        acquired = acquire(locks, &arguments) => acquired?,
        never = tell_if_it_takes_long(locks, &arguments.name) => match never {},
        signal = signals.ending() => {
            let code = ended_by(signal);
            return Ok(Finished { code, settled: false });
        }
    };
    let token = handle.token().to_string();
    let environment = [("WATCHLOCK_TOKEN", &token[..]), ("WATCHLOCK_NAME", &arguments.name)];
    let running = Running::start(&arguments.command, &environment)?;
    let (ended, lost) = attend(&running, &handle, signals, arguments.grace).await;
    let lost = match lost {
        Some(reason) => Some(reason.to_string()),
        None => release(handle, signals).await,
    };
    let code = match lost {
        Some(reason) => {
            let (name, code) = (plain(&arguments.name), ended.code());
            say(&format!("`{name}` was lost ({reason}); the command ended with {code}"));
            LOST.into()
        }
        None => ended.code().into(),
    };
    Ok(Finished { code, settled: true })
}

async fn acquire(locks: &LockClient, arguments: &Run) -> Result<LockHandle, AcquireError> {
    let name = &arguments.name;
    let reason = match &arguments.reason {
        Some(reason) => reason.clone(),
        None => command_line(&arguments.command),
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
        return attempt.or_held().await;
    }
    let mut acquire = match arguments.semaphore {
        Some(permits) => locks.semaphore(name, permits).acquire_many(arguments.permits),
        None if arguments.read => locks.rw_lock(name).read(),
        None if arguments.write => locks.rw_lock(name).write(),
        None => locks.mutex(name).acquire(),
    };
    if let Some(timeout) = arguments.timeout {
        acquire = acquire.timeout(timeout);
    }
    if let Some(reason) = reason {
        acquire = acquire.reason(reason);
    }
    acquire.await
}

/// The command as one would type it, more or less, and as much of it as fits.
fn command_line(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let mut line = words.join(" ");
    if line.len() > REASON_MOST {
        let rest = "…";
        let fits = (0..=REASON_MOST - rest.len())
            .rev()
            .find(|at| line.is_char_boundary(*at));
        line.truncate(fits.unwrap_or(0));
        line.push_str(rest);
    }
    line
}

/// Somebody at a terminal wants to know why nothing happens.
async fn tell_if_it_takes_long(locks: &LockClient, name: &str) -> std::convert::Infallible {
    if io::stderr().is_terminal() {
        sleep(SILENT).await;
        // What can't be read can't be told; the acquire will tell what is wrong.
        if let Ok(Some(lock)) = locks.inspect(name).await {
            say(&format!("waiting for the {lock}"));
        }
    }
    std::future::pending().await
}

/// Passes signals on until the command has ended; ends it when the lock is lost, and tells why it was.
async fn attend(
    running: &Running,
    handle: &LockHandle,
    signals: &mut Signals,
    grace: Duration,
) -> (Ended, Option<LostReason>) {
    loop {
        if let Some(ended) = running.reap() {
            return (ended, handle.lost_reason());
        }
        tokio::select! {
            // First, so that a process that was frozen does not pass on what the terminal sent before it looks at its lock.
            biased;
            reason = handle.lost() => {
                let name = plain(handle.name());
                say(&format!("`{name}` is lost: {reason}; the command is terminated"));
                return (running.terminate(signals, grace).await, Some(reason));
            }
            received = signals.next() => if let Received::Signal { signal, to_us_alone } = received {
                running.pass_on(signal, to_us_alone);
            },
        }
    }
}

/// Gives the lock back; tells if it turns out that it was lost before.
async fn release(handle: LockHandle, signals: &mut Signals) -> Option<String> {
    let name = plain(handle.name());
    let released = tokio::select! {
        released = handle.release() => released,
        // Who asks again to end is obeyed.
        _ = signals.ending() => {
            say(&format!("`{name}` may stay taken until its lease ends"));
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
            say(&format!("`{name}` stays taken until its lease ends: {why}"));
            None
        }
    }
}

fn ended_by(signal: Signal) -> ExitCode {
    let number = u8::try_from(signal.as_raw()).unwrap_or(0);
    SIGNALLED.saturating_add(number).into()
}
