//! The stage for examples of several processes: a server, and the example's program once more for each process.

use std::{
    env,
    error::Error,
    io::{self, Read},
    process::Stdio,
    thread,
    time::{Duration, SystemTime},
};

use mongodb::{Client, Database};
use tokio::{
    process::{Child, Command},
    sync::oneshot,
    time::timeout,
};

use crate::{Cluster, shared::unique_name, signal};

/// An error for the people who watch; nothing looks at its kind.
pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The variable of the environment by which a process knows that it is one, and which.
const LABEL: &str = "WATCHLOCK_EXAMPLE_PROCESS";

/// The variable that names the database.
const DATABASE: &str = "WATCHLOCK_EXAMPLE_DATABASE";

/// Maximum time for a process to give back what it has.
const FAREWELL: Duration = Duration::from_secs(10);

/// The server of an example, and the example's own database there.
#[derive(Clone)]
pub struct Stage {
    uri: String,
    database: String,
}

// The connection string may hold a password.
impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage")
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

/// Runs an example: `scenes` in the first process, and `part` in each that they start, with its label.
///
/// The server is the one that `MONGODB_URI` names, in a database of its own that is dropped at the end, or else a
/// throw-away replica set.
///
/// # Errors
///
/// The scenes fail, or Ctrl-C ends them.
pub async fn play(
    example: &str,
    scenes: impl AsyncFnOnce(Stage) -> Result<()>,
    part: impl AsyncFnOnce(Stage, String) -> Result<()>,
) -> Result<()> {
    if let Ok(label) = env::var(LABEL) {
        let (uri, database) = (env::var("MONGODB_URI")?, env::var(DATABASE)?);
        part(Stage { uri, database }, label).await?;
        // A thread may still wait for standard input.
        std::process::exit(0);
    }
    let (uri, _cluster) = match env::var("MONGODB_URI") {
        Ok(uri) if !uri.is_empty() => (uri, None),
        _ => {
            let cluster = Cluster::replica_set(1).await?;
            (cluster.uri(), Some(cluster))
        }
    };
    // Another machine may play the same example on the same server.
    let moment = SystemTime::UNIX_EPOCH.elapsed()?.as_millis();
    let database = format!("{}_{moment:x}", unique_name(&format!("watchlock_{example}")));
    let stage = Stage { uri, database };
    let played = tokio::select! {
        played = scenes(stage.clone()) => played,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    let cleared = async { Ok(stage.connect().await?.drop().await?) };
    // Why the scenes failed says more.
    played.and(cleared.await)
}

impl Stage {
    /// Returns the database, through a connection pool of its own: each process of an application has one.
    ///
    /// # Errors
    ///
    /// The connection string is wrong.
    pub async fn connect(&self) -> Result<Database> {
        Ok(Client::with_uri_str(&self.uri).await?.database(&self.database))
    }

    /// Starts this program once more. The process ends with its owner, however that ends.
    ///
    /// # Errors
    ///
    /// It can't be started.
    pub fn start(&self, label: impl Into<String>) -> Result<Process> {
        let label = label.into();
        let child = Command::new(env::current_exe()?)
            .env(LABEL, &label)
            .env(DATABASE, &self.database)
            // Not an argument, which everybody on the machine could read, with the password in it.
            .env("MONGODB_URI", &self.uri)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Process { label, child })
    }
}

/// One of the processes that the scenes have started.
#[derive(Debug)]
pub struct Process {
    /// Its name.
    pub label: String,
    child: Child,
}

impl Process {
    /// Kills it with SIGKILL, which leaves it no moment to tidy up.
    ///
    /// # Errors
    ///
    /// It can't be killed.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Stops it as it stands, as [`signal::freeze`].
    ///
    /// # Errors
    ///
    /// It has ended, or does not stop.
    pub fn freeze(&self) -> Result<()> {
        Ok(signal::freeze(self.id()?)?)
    }

    /// Lets it run on.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn thaw(&self) -> Result<()> {
        Ok(signal::thaw(self.id()?)?)
    }

    /// Lets it give back what it has, and end.
    ///
    /// # Errors
    ///
    /// It has failed, or does not end.
    pub async fn dismiss(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let ended = timeout(FAREWELL, self.child.wait()).await;
        let status = ended.map_err(|_| format!("{} did not end when told to", self.label))??;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{} ended with {status}", self.label).into())
        }
    }

    fn id(&self) -> Result<u32> {
        Ok(self.child.id().ok_or("the process has ended")?)
    }
}

/// Resolves in a process when the scenes let it go, or are gone themselves.
pub async fn dismissed() {
    let (dismiss, dismissed) = oneshot::channel();
    // A thread of its own: tokio reads the standard input in one that the end of the runtime would wait for.
    thread::spawn(move || {
        // However the reading ends, there is no parent any more.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        let _ = dismiss.send(());
    });
    let _ = dismissed.await;
}
