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

/// The first word of the line that tells the scenes why a part can't go on.
pub(super) const FAILED: &str = "failed ";

/// How long a part may take to end once it has been told to.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a process of the crew has to know.
#[derive(Debug)]
pub struct Part {
    /// What the scenes call it.
    pub label: String,
    /// Where it is played.
    pub server: Server,
    /// Resolves when the scenes let the process go, or are gone themselves. It then has some seconds to end.
    pub dismissed: oneshot::Receiver<()>,
}

/// Plays the part, to its end.
///
/// What goes wrong is told to the scenes, which speak for all.
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
            // One line, whatever the driver has to say. In vain when the scenes are what is missing; nobody else is to
            // be told then.
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

/// Tells the scenes something, in one line.
///
/// # Errors
///
/// They are gone. (`println!` would panic then.)
pub fn say(line: impl fmt::Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
