//! One of the processes that the scenes start.

use std::{
    env, fmt,
    io::{self, Write},
    process::{self, ExitCode},
    thread,
    time::Duration,
};

use tokio::{runtime::Runtime, sync::oneshot};

use super::{Result, Server, in_full};

/// The argument that makes a program play a part.
pub(super) const ARGUMENT: &str = "part";

/// The first word of the line that reports to the scenes why a part can't go on.
pub(super) const FAILED: &str = "failed ";

/// Maximum time for a part to end once it was asked to.
const FAREWELL: Duration = Duration::from_secs(5);

/// The data that a process of the crew needs.
#[derive(Debug)]
pub struct Part {
    /// The name that the scenes give it.
    pub label: String,
    /// Its server and database.
    pub server: Server,
    /// Resolves when the scenes let the process go, or are gone themselves. It then has some seconds to end.
    pub dismissed: oneshot::Receiver<()>,
}

/// Plays the part, to its end.
///
/// It reports an error to the scenes, which speak for all.
pub(super) fn perform(label: &str, database: &str, part: impl AsyncFnOnce(Part) -> Result<()>) -> ExitCode {
    let dismissed = dismissed();
    let played = || {
        // Not an argument, which everybody on the machine could read, with the password in it.
        let uri = env::var("MONGODB_URI")?;
        let server = Server {
            uri,
            database: database.to_owned(),
        };
        let label = label.to_owned();
        Runtime::new()?.block_on(part(Part {
            label,
            server,
            dismissed,
        }))
    };
    match played() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line, whatever the driver's error says. In vain if the scenes are gone; then there is nobody to
            // report to.
            let _ = say(format_args!("{FAILED}{}", in_full(&*error).replace('\n', " ")));
            ExitCode::FAILURE
        }
    }
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

/// Reports something to the scenes, in one line.
///
/// # Errors
///
/// They are gone. (`println!` would panic then.)
pub fn say(line: impl fmt::Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
