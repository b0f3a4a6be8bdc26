//! A process that wants the lock again and again.

use std::{
    env,
    io::{self, Write},
    process::{self, ExitCode},
    thread,
    time::{Duration, SystemTime},
};

use tokio::{runtime::Runtime, sync::oneshot, time::sleep};
use watchlock::{LockClient, LockHandle};

use crate::{Result, Server, event::Event, in_full, random_between};

/// The argument that makes this program a worker.
pub(crate) const COMMAND: &str = "worker";

/// The name of the lock.
pub(crate) const LOCK: &str = "invoice-42";

/// Short, as the death of a holder costs this long, and somebody is watching. Real ones are better off with the
/// default, 30 s: it is also how long an outage of the server a holder survives.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// How long the lock is held.
const WORK: (Duration, Duration) = (Duration::from_millis(150), Duration::from_millis(300));

/// How long a worker may take to end once it has been told to.
const FAREWELL: Duration = Duration::from_secs(5);

/// Contends for the lock until the parent closes the worker's standard input, or dies, which closes it too.
///
/// What goes wrong is told to the parent, which speaks for all.
pub(crate) fn work(label: &str, database: &str) -> ExitCode {
    let dismissed = dismissed();
    let worked = Runtime::new().map_err(Into::into);
    match worked.and_then(|runtime| runtime.block_on(attend(label, database, dismissed))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // In vain when the parent is what is missing; nobody else is to be told then.
            let _ = say(&Event::Failed {
                message: in_full(&*error),
            });
            ExitCode::FAILURE
        }
    }
}

async fn attend(label: &str, database: &str, dismissed: oneshot::Receiver<()>) -> Result<()> {
    // Not an argument, which everybody on the machine could read, with the password in it.
    let server = Server {
        uri: env::var("MONGODB_URI")?,
        database: database.to_owned(),
    };
    let locks = server.locks(|builder| builder.lease(LEASE).label(label)).await?;
    let worked = tokio::select! {
        worked = contend(&locks) => worked,
        _ = dismissed => Ok(()),
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
    say(&Event::Holds {
        token: handle.token().as_i64(),
        at: SystemTime::now(),
    })?;
    tokio::select! {
        () = sleep(random_between(WORK.0, WORK.1)) => {
            say(&Event::Releases { at: SystemTime::now() })?;
            handle.release().await?;
        }
        reason = handle.lost() => say(&Event::Lost { at: SystemTime::now(), reason: reason.to_string() })?,
    }
    Ok(())
}

/// Resolves when the standard input ends.
fn dismissed() -> oneshot::Receiver<()> {
    let (dismiss, dismissed) = oneshot::channel();
    // A thread of its own: tokio reads the standard input in one that the end of the runtime would wait for.
    thread::spawn(move || {
        // However the reading ends, there is no parent any more.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = dismiss.send(());
        thread::sleep(FAREWELL);
        process::exit(1);
    });
    dismissed
}

/// An error instead of the panic of `println!` when the parent is gone.
fn say(event: &Event) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{event}")?;
    out.flush()
}
