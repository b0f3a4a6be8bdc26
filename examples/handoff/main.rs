//! Processes that hand one lock to each other, on a real MongoDB: `cargo run --example handoff`.
//!
//! Nothing has to be there beforehand: a server is found or installed, started as a throw-away replica set, and gone
//! afterwards. With `MONGODB_URI` set that server is used, in a database of its own that is dropped at the end.
//!
//! 1. Three processes contend for one lock, and one line per hand-over shows who has it.
//! 2. The holder is killed, and another takes over when its lease has run out.
//! 3. The lock's document is deleted by a foreign hand, and the holder learns of it.
//! 4. The hand-over is timed, beside the fastest a change stream can be and beside a lock that polls.

mod crew;
mod event;
mod race;
mod story;
mod worker;

use std::{env, error::Error, process::ExitCode, time::Duration};

use mongodb::{Client, Database, options::ClientOptions};
use tokio::{runtime::Runtime, time::timeout};
use uuid::Uuid;
use watchlock::{LockClient, LockClientBuilder, WakeSource};
use watchlock_testkit::uri_or_replica_set;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// How long a server that `MONGODB_URI` names may take to be found. The driver's own 30 s are long to look at.
const SERVER_PATIENCE: Duration = Duration::from_secs(10);

/// How long the database may take to be dropped, be the server gone.
const CLEARING_PATIENCE: Duration = Duration::from_secs(5);

/// How long the tasks that a scene left behind get to reach a point where they can be ended.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let played = match arguments[..] {
        [] => play(),
        // The example starts itself in this way.
        [worker::COMMAND, label, database] => return worker::work(label, database),
        _ => Err("the example takes no arguments; set MONGODB_URI to run it against a server of yours".into()),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("handoff: {}", in_full(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Everything between finding a server and leaving it as it was.
fn play() -> Result<()> {
    match env::var_os("MONGODB_URI") {
        Some(_) => println!("On the server that MONGODB_URI names."),
        None => println!("On a throw-away MongoDB, which is installed first where there is none."),
    }
    let runtime = Runtime::new()?;
    let (uri, cluster) = runtime.block_on(unless_interrupted(async { Ok(uri_or_replica_set(1).await?) }))?;
    let server = Server {
        uri,
        database: format!("watchlock_handoff_{}", Uuid::new_v4().simple()),
    };
    let played = runtime.block_on(unless_interrupted(scenes(&server)));
    // What an interruption left running could make the database anew.
    runtime.shutdown_timeout(RUNTIME_PATIENCE);
    // A server of our own goes with all its data.
    let cleared = match cluster {
        Some(_) => Ok(()),
        None => Runtime::new()?.block_on(server.clear()),
    };
    played.and(cleared)
}

async fn scenes(server: &Server) -> Result<()> {
    story::tell(server).await?;
    // In a task, where the code of applications runs too: the main future is woken from another thread, which takes
    // longer.
    tokio::spawn(race::run(server.clone())).await?
}

/// Ends the work at Ctrl-C. Left to itself, that would end this process before anything could be cleared away.
async fn unless_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = work => done,
        interrupted = tokio::signal::ctrl_c() => match interrupted {
            Ok(()) => Err("interrupted".into()),
            Err(error) => Err(error.into()),
        },
    }
}

/// The server in use, and the database that is ours there.
#[derive(Clone)]
struct Server {
    uri: String,
    database: String,
}

impl Server {
    /// The database, through a connection pool of its own: what each process of an application has.
    async fn connect(&self) -> Result<Database> {
        let mut options = ClientOptions::parse(&self.uri).await?;
        options.server_selection_timeout.get_or_insert(SERVER_PATIENCE);
        Ok(Client::with_options(options)?.database(&self.database))
    }

    /// A lock client with a connection pool and a change stream of its own.
    async fn locks(&self, configure: impl FnOnce(LockClientBuilder) -> LockClientBuilder) -> Result<LockClient> {
        let builder = LockClient::builder(self.connect().await?).wake_source(WakeSource::ChangeStream);
        Ok(configure(builder).build().await?)
    }

    /// Drops the database.
    async fn clear(&self) -> Result<()> {
        let database = self.connect().await?;
        match timeout(CLEARING_PATIENCE, database.drop()).await {
            Ok(dropped) => Ok(dropped?),
            Err(_) => Err(format!("the database {} could not be dropped in time", self.database).into()),
        }
    }
}

/// Some duration between two, each as likely as any other.
fn random_between(least: Duration, most: Duration) -> Duration {
    // The first field of a random UUID is all random, and saves the example a dependency.
    let (bits, ..) = Uuid::new_v4().as_fields();
    let fraction = f64::from(bits) / f64::from(u32::MAX);
    least + (most - least).mul_f64(fraction)
}

/// An error with those that caused it, for errors that leave their cause out of their message.
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
