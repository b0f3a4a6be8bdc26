//! The stage for examples of several processes: a server, this program once more for each process, and an end that
//! leaves nothing behind.
//!
//! An example calls [`play`] with the scenes, which its first process runs, and the parts, which the processes run
//! that the scenes start through a [`Crew`].

pub mod chance;
pub mod moment;

mod crew;
mod part;
mod server;

use std::{env, error::Error, process::ExitCode, time::Duration};

use tokio::runtime::Runtime;

pub use crew::Crew;
pub use part::{Part, say};
pub use server::Server;

use crate::uri_or_replica_set;

/// An error for the people who watch; nothing looks at its kind.
pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Time for the tasks that a scene left behind to reach a point where they can be ended.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(1);

/// Runs the whole of an example's `main`: the scenes, or the part that this process was started for.
///
/// The server is the one that `MONGODB_URI` names, in a database of its own that is dropped at the end, or else a
/// throw-away replica set. Ctrl-C ends the scenes, and clears away all the same. Fails if the scenes fail.
pub fn play(
    example: &str,
    scenes: impl AsyncFnOnce(Server) -> Result<()>,
    part: impl AsyncFnOnce(Part) -> Result<()>,
) -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let played = match arguments[..] {
        [] => direct(example, scenes),
        // A crew starts this program in this way.
        [part::ARGUMENT, label, database] => return part::perform(label, database, part),
        _ => Err("the example takes no arguments; set MONGODB_URI to run it against a server of yours".into()),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{example}: {}", in_full(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Runs everything between finding a server and leaving it as it was.
fn direct(example: &str, scenes: impl AsyncFnOnce(Server) -> Result<()>) -> Result<()> {
    match env::var_os("MONGODB_URI") {
        Some(_) => println!("On the server that MONGODB_URI names."),
        None => println!("On a throw-away MongoDB, which is installed first where there is none."),
    }
    let runtime = Runtime::new()?;
    let (uri, cluster) = runtime.block_on(unless_interrupted(async { Ok(uri_or_replica_set(1).await?) }))?;
    let server = Server::new(uri, example);
    let played = runtime.block_on(unless_interrupted(scenes(server.clone())));
    // A task left running by an interruption could make the database anew.
    runtime.shutdown_timeout(RUNTIME_PATIENCE);
    // A server of our own goes with all its data.
    let cleared = match cluster {
        Some(_) => Ok(()),
        None => Runtime::new()?.block_on(server.clear()),
    };
    played.and(cleared)
}

/// Ends the work at Ctrl-C. Without it, Ctrl-C would end this process before anything could be cleared away.
async fn unless_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = work => done,
        interrupted = tokio::signal::ctrl_c() => match interrupted {
            Ok(()) => Err("interrupted".into()),
            Err(error) => Err(error.into()),
        },
    }
}

/// Returns an error with its causes, for errors that leave their cause out of their message.
fn in_full(error: &(dyn Error + 'static)) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    message
}
